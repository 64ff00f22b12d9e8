"""BERT's forward pass in NumPy, float64, written from the paper, with Hugging Face's tensor names.

Nothing here imports bert_tf: this is the independent side of a comparison.
"""

import numpy as np
from scipy.special import erf

ACTIVATIONS = {
    "tanh_gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "erf_gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def encode(
    tensors, features, *, layers, heads, activation, norm="post", epsilon=1e-12, position_offset=0, pooler=np.tanh
):
    """The three outputs of an encoder.

    Args:
        tensors: dict Hugging Face name -> array, without the "bert." prefix; token types and pooler may be absent. If
            there is only one layer, it is repeated. "embeddings.projection" follows the embeddings if it is present.
        features: dict of int [batch, length]: input_word_ids, input_mask, input_type_ids. The types are ignored
            if there is only one.
        position_offset: position of the first token; 2 in RoBERTa, after its padding's.
        pooler: its activation, a function.

    Returns:
        sequence [batch, length, hidden], pooled [batch, hidden] or None, list of each layer's output.
    """
    net = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    ids, mask, types = (np.asarray(features[f"input_{name}"]) for name in ("word_ids", "mask", "type_ids"))

    def dense(x, name):
        return np.einsum("...i,oi->...o", x, net[f"{name}.weight"], optimize=True) + net[f"{name}.bias"]

    def layer_norm(x, name):
        return _normalise(x, epsilon) * net[f"{name}.weight"] + net[f"{name}.bias"]

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1)

    def attention(x, name):
        query, key, value = (split(dense(x, f"{name}.self.{part}")) for part in ("query", "key", "value"))
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
        scores = np.where(mask[:, None, None, :] == 1, scores, -np.inf)
        context = np.einsum("bhqk,bkhd->bqhd", softmax(scores), value)
        return dense(context.reshape(x.shape), f"{name}.output.dense")

    def feed_forward(x, name):
        return dense(ACTIVATIONS[activation](dense(x, f"{name}.intermediate.dense")), f"{name}.output.dense")

    x = net["embeddings.word_embeddings.weight"][ids]
    x = x + net["embeddings.position_embeddings.weight"][position_offset + np.arange(ids.shape[1])]
    if "embeddings.token_type_embeddings.weight" in net:
        table = net["embeddings.token_type_embeddings.weight"]
        x = x + (table[0] if len(table) == 1 else table[types])
    x = layer_norm(x, "embeddings.LayerNorm")
    if "embeddings.projection.weight" in net:
        x = dense(x, "embeddings.projection")
    outputs = []
    shared = not any(name.startswith("encoder.layer.1.") for name in net)
    for index in range(layers):
        name = f"encoder.layer.{0 if shared else index}"
        first, second = f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"
        if norm == "post":
            x = layer_norm(x + attention(x, f"{name}.attention"), first)
            x = layer_norm(x + feed_forward(x, name), second)
        else:
            x = x + attention(layer_norm(x, first), f"{name}.attention")
            x = x + feed_forward(layer_norm(x, second), name)
        outputs.append(x)
    if norm == "pre":
        x = layer_norm(x, "final_norm")
    pooled = pooler(dense(x[:, 0], "pooler.dense")) if "pooler.dense.weight" in net else None
    return x, pooled, outputs


def pretraining_logits(tensors, sequence, pooled, positions, *, activation, epsilon=1e-12):
    """Masked-LM logits [batch, predictions, vocabulary] and next-sentence logits [batch, 2]."""
    masked = masked_lm_logits(tensors, sequence, positions, activation=activation, epsilon=epsilon)
    return masked, linear(tensors, pooled, "cls.seq_relationship")


def masked_lm_logits(tensors, sequence, positions, *, activation, epsilon=1e-12):
    """Masked-LM logits [batch, predictions, vocabulary]."""
    net = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    x = np.take_along_axis(sequence, np.asarray(positions)[..., None], axis=1)
    head = "cls.predictions.transform"
    x = ACTIVATIONS[activation](x @ net[f"{head}.dense.weight"].T + net[f"{head}.dense.bias"])
    x = _normalise(x, epsilon) * net[f"{head}.LayerNorm.weight"] + net[f"{head}.LayerNorm.bias"]
    return x @ net["embeddings.word_embeddings.weight"].T + net["cls.predictions.bias"]


def linear(tensors, x, name):
    """The output layer of a head; Hugging Face calls it "cls.seq_relationship", "classifier" or "qa_outputs"."""
    weight, bias = (np.asarray(tensors[f"{name}.{part}"], np.float64) for part in ("weight", "bias"))
    return x @ weight.T + bias


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def _normalise(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def random_tensors(rng, *, layers, hidden, inner, vocab, positions, types=2):
    """The tensors of a Hugging Face checkpoint of this shape, with random values."""
    shapes = {
        "embeddings.word_embeddings.weight": (vocab, hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
        "embeddings.token_type_embeddings.weight": (types, hidden),
    }

    def dense(name, inputs, outputs):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def norm(name):
        shapes[f"{name}.LayerNorm.weight"] = shapes[f"{name}.LayerNorm.bias"] = (hidden,)

    norm("embeddings")
    for index in range(layers):
        name = f"encoder.layer.{index}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{name}.attention.{part}", hidden, hidden)
        norm(f"{name}.attention.output")
        dense(f"{name}.intermediate.dense", hidden, inner)
        dense(f"{name}.output.dense", inner, hidden)
        norm(f"{name}.output")
    dense("pooler.dense", hidden, hidden)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def tensors_of(model, hidden):
    """The variables of a Keras encoder and its head, under Hugging Face's names, in PyTorch's layout."""
    tensors = {}
    for variable in model.weights:
        value, path = variable.numpy(), variable.path
        for old, new in (
            ("embeddings/type_", "embeddings/token_type_"),
            ("embeddings/norm/", "embeddings/LayerNorm/"),
            ("layer_", "encoder/layer/"),
            ("/attention/output/", "/attention/output/dense/"),
            ("/attention_norm/", "/attention/output/LayerNorm/"),
            ("/output_norm/", "/output/LayerNorm/"),
            ("/intermediate/", "/intermediate/dense/"),
            ("pooler/", "pooler/dense/"),
            ("masked_lm/transform/", "cls/predictions/transform/dense/"),
            ("masked_lm/norm/", "cls/predictions/transform/LayerNorm/"),
            ("masked_lm/", "cls/predictions/"),
            ("next_sentence/", "cls/seq_relationship/"),
            ("span/", "qa_outputs/"),
            ("detector/transform/", "discriminator_predictions/dense/"),
            ("detector/output/", "discriminator_predictions/dense_prediction/"),
        ):
            path = path.replace(old, new)
        parts = path.split("/")
        if parts[:2] == ["encoder", "layer"] and parts[3] == "output" and parts[4] != "LayerNorm":
            parts.insert(4, "dense")
        parts[-1] = {"kernel": "weight", "gamma": "weight", "beta": "bias"}.get(parts[-1], parts[-1])
        if parts[-1].endswith("_embeddings"):
            parts.append("weight")
        if variable.path.endswith("/kernel"):
            value = value.T
        name = ".".join(parts)
        if "qkv" in parts:
            for index, part in enumerate(("query", "key", "value")):
                tensors[name.replace("qkv", f"self.{part}")] = value[index * hidden : (index + 1) * hidden]
        else:
            tensors[name] = value
    return tensors
