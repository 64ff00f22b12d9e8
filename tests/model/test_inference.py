"""The graph that computes in inference: which of its operations TensorFlow makes one kernel."""

import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.mode import infer
from tests.model.small import features, multiplies_bfloat16, small_config


def kernels_with_gelu(compute, variables, inputs, directory):
    """The number of kernels with GELU in the graph that a session makes of a saved function."""
    module = tf.Module()
    module.saved = variables
    module.compute = tf.function(lambda **inputs: {"outputs": compute(inputs)}, autograph=False)
    specs = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name) for name, value in inputs.items()}
    saved = {"compute": module.compute.get_concrete_function(**specs)}
    tf.saved_model.save(module, str(directory), signatures=saved)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def["compute"]
        run = tf.compat.v1.RunMetadata()
        session.run(
            signature.outputs["outputs"].name,
            {signature.inputs[name].name: value for name, value in inputs.items()},
            options=tf.compat.v1.RunOptions(output_partition_graphs=True),
            run_metadata=run,
        )
    nodes = [node for graph in run.partition_graphs for node in graph.node]
    return sum(name.startswith(b"Gelu") for node in nodes for name in node.attr["fused_ops"].list.s)


@pytest.mark.parametrize(
    "activation, dtype",
    [
        ("tanh_gelu", "float32"),
        pytest.param("erf_gelu", "mixed_bfloat16", marks=multiplies_bfloat16),
        pytest.param("erf_gelu", "float32", marks=pytest.mark.slow),
        pytest.param("tanh_gelu", "mixed_bfloat16", marks=[multiplies_bfloat16, pytest.mark.slow]),
    ],
)
def test_product_bias_and_gelu_are_one_kernel(activation, dtype, tmp_path):
    encoder = BertEncoder(small_config(activation=activation), dtype=dtype)
    weights = [weight.value for weight in encoder.weights]

    def plain(inputs):
        x = tf.cast(tf.one_hot(inputs["input_word_ids"][:, 0], 8), tf.bfloat16 if "bfloat16" in dtype else tf.float32)
        product = tf.matmul(x, tf.ones([8, 8], x.dtype))
        return tf.nn.gelu(tf.nn.bias_add(product, tf.ones([8], x.dtype)), approximate=activation == "tanh_gelu")

    if not kernels_with_gelu(plain, [], features(), tmp_path / "plain"):
        pytest.skip("this TensorFlow has no kernel for product, bias and GELU")
    found = kernels_with_gelu(
        lambda inputs: infer(encoder, inputs)["sequence_output"], weights, features(), tmp_path / "encoder"
    )
    assert found == encoder.config.num_layers
