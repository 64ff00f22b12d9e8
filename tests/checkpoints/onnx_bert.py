"""BERT as an ONNX graph, built node by node from the tensors of a Hugging Face checkpoint, for onnxruntime.

Nothing here imports bert_tf or PyTorch: this is the independent side of a comparison.
"""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper


def graph(tensors, *, layers, heads, epsilon):
    """The encoder as a serialized model.

    Args:
        tensors: dict Hugging Face name -> float32 array, without the "bert." prefix; the activation is erf-GELU.

    Returns:
        bytes of a model from `ids`, `mask` and `types`, int64 [batch, length], to `layer_0`, `layer_1`, ...
        [batch, length, hidden] and `pooled` [batch, hidden].
    """
    nodes, constants = [], {name: value for name, value in tensors.items() if not name.endswith("position_ids")}
    hidden = tensors["embeddings.word_embeddings.weight"].shape[1]

    def node(kind, *inputs, name=None, **attributes):
        name = name or f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(value, dtype):
        name = f"constant_{len(constants)}"
        constants[name] = np.array(value, dtype)
        return name

    def dense(x, name):
        constants[f"{name}.kernel"] = np.ascontiguousarray(constants.pop(f"{name}.weight").T)
        return node("Add", node("MatMul", x, f"{name}.kernel"), f"{name}.bias")

    def normed(x, norm, name=None):
        return node("LayerNormalization", x, f"{norm}.weight", f"{norm}.bias", axis=-1, epsilon=epsilon, name=name)

    def by_head(x, order):
        return node("Transpose", node("Reshape", x, split), perm=order)  # from [batch, length, heads, size]

    def gelu(x):
        phi = node("Add", node("Erf", node("Mul", x, constant(0.5**0.5, "f4"))), constant(1, "f4"))
        return node("Mul", node("Mul", x, constant(0.5, "f4")), phi)

    split, merge = constant([0, 0, heads, hidden // heads], "i8"), constant([0, 0, hidden], "i8")
    scale, nothing = constant((hidden // heads) ** -0.5, "f4"), constant(-1e30, "f4")
    seen = node("Cast", node("Unsqueeze", "mask", constant([1, 2], "i8")), to=TensorProto.BOOL)
    # Positions: the first rows of their table, one per id of a row.
    length = node("Shape", "ids", start=1, end=2)
    positions = node("Slice", "embeddings.position_embeddings.weight", constant([0], "i8"), length)
    x = node("Gather", "embeddings.word_embeddings.weight", "ids")
    x = node("Add", x, node("Gather", "embeddings.token_type_embeddings.weight", "types"))
    x = normed(node("Add", x, positions), "embeddings.LayerNorm")
    for index in range(layers):
        layer = f"encoder.layer.{index}"
        attention = f"{layer}.attention"
        query = by_head(dense(x, f"{attention}.self.query"), [0, 2, 1, 3])
        key = by_head(dense(x, f"{attention}.self.key"), [0, 2, 3, 1])
        values = by_head(dense(x, f"{attention}.self.value"), [0, 2, 1, 3])
        scores = node("Where", seen, node("Mul", node("MatMul", query, key), scale), nothing)
        context = node("Transpose", node("MatMul", node("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
        context = dense(node("Reshape", context, merge), f"{attention}.output.dense")
        x = normed(node("Add", x, context), f"{attention}.output.LayerNorm")
        inner = dense(gelu(dense(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = normed(node("Add", x, inner), f"{layer}.output.LayerNorm", name=f"layer_{index}")
    node("Tanh", dense(node("Gather", x, constant(0, "i8"), axis=1), "pooler.dense"), name="pooled")

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [value(name, TensorProto.INT64, "batch", "length") for name in ("ids", "mask", "types")]
    outputs = [value(f"layer_{index}", TensorProto.FLOAT, "batch", "length", hidden) for index in range(layers)]
    outputs.append(value("pooled", TensorProto.FLOAT, "batch", hidden))
    arrays = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "bert", inputs, outputs, arrays)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    return model.SerializeToString()
