"""ALBERT, ELECTRA and DistilBERT: values of BertConfig, with the outputs of the classes of Transformers."""

import math
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertEncoder
from bert_tf.model.encoder import attention_probabilities
from bert_tf.model.head_table import build, variable_shapes
from bert_tf.model.heads import POSITIONS
from tests.model.small import FAMILY, features, small_config

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is local; a request would only wait
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# Patterns of the names of Transformers' tensors -> our variables, for all three families; the first that fits counts.
NAMES = {
    r"(word|position)_embeddings": r"embeddings/\1_embeddings",
    r"token_type_embeddings": "embeddings/type_embeddings",
    r"embeddings\.LayerNorm": "embeddings/norm",
    r"embedding_hidden_mapping_in|embeddings_project": "embeddings/projection",
    r"predictions\.dense|vocab_transform": "masked_lm/transform",
    r"predictions\.LayerNorm|vocab_layer_norm": "masked_lm/norm",
    r"pooler|pre_classifier|classifier\.dense": "pooler",
    r"classifier(\.out_proj)?\.(weight|bias)": "classifier",
    r"q_lin|k_lin|v_lin|query|key|value": "layer_*/attention/qkv",
    r"attention\.(output\.)?dense|out_lin": "layer_*/attention/output",
    r"attention\.(output\.)?LayerNorm|sa_layer_norm": "layer_*/attention_norm",
    r"intermediate\.dense|lin1|ffn\.(weight|bias)": "layer_*/intermediate",
    r"output\.LayerNorm|output_layer_norm|full_layer_layer_norm": "layer_*/output_norm",
    r"output\.dense|lin2|ffn_output": "layer_*/output",
}
TIED = r"decoder|generator_lm_head\.weight|vocab_projector\.weight"  # the word embeddings and the bias again


def by_path(theirs, value_of):
    """`value_of` each parameter of a model of Transformers, by the paths of our variables."""
    values = {}
    for name, parameter in theirs.named_parameters():
        value = value_of(parameter).numpy()
        if re.search(r"predictions\.bias|generator_lm_head\.bias|vocab_projector\.bias", name):
            values["masked_lm/bias"] = value
        elif not re.search(TIED, name):
            found = next(match for pattern in NAMES if (match := re.search(pattern, name)))
            number = re.search(r"layers?\.(\d+)\.", name)
            path = found.expand(NAMES[found.re.pattern]).replace("*", number[1] if number else "0")
            if path.endswith("norm"):
                path += "/beta" if name.endswith("bias") else "/gamma"
            elif not path.endswith("_embeddings"):
                path += "/bias" if name.endswith("bias") else "/kernel"
            value = value.T if path.endswith("kernel") else value
            values[path] = np.concatenate([values[path], value], -1) if path in values else value
    return values


def theirs_of(name, config):
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    shape = {
        "vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings, "num_labels": 3,
    }  # fmt: skip
    if name.startswith("DistilBert"):
        named = {"dim": config.hidden_size, "hidden_dim": config.intermediate_size}
        named |= {"n_layers": config.num_layers, "n_heads": config.num_heads}
    else:
        named = {"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size}
        named |= {"num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads}
        named |= {"embedding_size": config.embedding_size, "type_vocab_size": 2}
        named |= {"hidden_act": {"tanh_gelu": "gelu_new", "erf_gelu": "gelu"}[config.activation]}
    # Its other implementations return no attention.
    model = kind._from_config(kind.config_class(**shape, **named), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model


@pytest.mark.parametrize("head", ["masked_lm", "classification"])
@pytest.mark.parametrize("member, family", [("albert", "Albert"), ("electra", "Electra"), ("distilbert", "DistilBert")])
def test_states_attention_logits_and_gradients_equal_those_of_transformers(member, family, head):
    config = small_config(**FAMILY[member], pooler=head == "classification")
    suffix = {"masked_lm": "ForMaskedLM", "classification": "ForSequenceClassification"}[head]
    theirs = theirs_of(family + suffix, config)
    encoder = BertEncoder(config)
    ours = build(encoder, head, 3)
    weights, variables = by_path(theirs, torch.Tensor.detach), {variable.path: variable for variable in ours.weights}
    assert weights.keys() == variables.keys()
    for path, value in weights.items():
        variables[path].assign(value)

    inputs = features()
    tensors = {
        "input_ids": inputs["input_word_ids"],
        "attention_mask": inputs["input_mask"],
        "token_type_ids": inputs["input_type_ids"],
    }
    if not config.type_vocab_size:
        del tensors["token_type_ids"]
    tensors = {name: torch.tensor(value) for name, value in tensors.items()}
    with torch.no_grad():
        want = theirs(**tensors, output_hidden_states=True, output_attentions=True)
    got = encoder(inputs)
    tokens = inputs["input_mask"] == 1  # outputs at padding are meaningless
    states = [got["embedding_output"], *got["encoder_outputs"]]
    for our_states, their_states in zip(states, want.hidden_states, strict=True):
        np.testing.assert_allclose(our_states.numpy()[tokens], their_states.numpy()[tokens], atol=1e-5)
    attention = attention_probabilities(encoder, inputs).numpy().transpose(0, 3, 1, 2, 4)
    their_attention = np.stack([layer.numpy() for layer in want.attentions], 1).transpose(0, 3, 1, 2, 4)
    np.testing.assert_allclose(attention[tokens], their_attention[tokens], atol=1e-5)
    labels = {"masked_lm": inputs["input_word_ids"][tokens], "classification": np.array([0, 1, 2, 1])}[head]
    chosen = tokens if head == "masked_lm" else np.ones(4, bool)
    if head == "masked_lm":
        inputs[POSITIONS] = np.tile(np.arange(24, dtype=np.int32), (4, 1))
    with tf.GradientTape() as tape:
        (logits,) = ours(inputs).values()
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits[chosen]))
    np.testing.assert_allclose(logits[chosen], want.logits.numpy()[chosen], atol=1e-5)
    their_logits = theirs.double()(**tensors).logits[torch.tensor(chosen)]
    torch.nn.functional.cross_entropy(their_logits, torch.tensor(labels).long(), reduction="sum").backward()
    gradients = tape.gradient(loss, {path: variable.value for path, variable in variables.items()})
    for path, value in by_path(theirs, lambda parameter: parameter.grad).items():
        found = tf.convert_to_tensor(gradients[path]).numpy()
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=path)


@pytest.mark.parametrize(
    "name, family", [("albert_xxlarge", "Albert"), ("electra_small", "Electra"), ("distilbert", "DistilBert")]
)
def test_named_models_have_the_weights_of_the_defaults_of_transformers(name, family):
    with torch.device("meta"):  # shapes without memory
        theirs = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")())
    config = BertConfig.from_name(name, pooler=family == "Albert")
    settings = theirs.config.to_dict()
    gelu = {"gelu": "erf_gelu", "gelu_new": "tanh_gelu"}
    assert config.activation == gelu[settings.get("hidden_act") or settings["activation"]]
    assert config.dropout == (settings.get("hidden_dropout_prob", settings.get("dropout")))
    shapes = variable_shapes(config)
    assert sum(map(math.prod, shapes.values())) == theirs.num_parameters()
