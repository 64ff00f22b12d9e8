"""Names and shapes of a model's variables, known without building it: what checkpoints are read and written by."""

from bert_tf.model.bilstm import LAYERS, WAYS

# What sits on an encoder, and whether its output's size is free: the number of labels.
HEADS = {
    "pretraining": False,  # masked language model and next-sentence prediction
    "masked_lm": False,
    "next_sentence": False,
    "classification": True,  # of the pooled output
    "tagging": True,  # of every token
    "question_answering": False,  # start and end of the answer
    "multiple_choice": False,  # one score a choice, from its pooled output
    "cosine": False,  # of two texts that are read apart; without weights of its own
    "classification_bilstm": True,  # both on a BiLSTM over all tokens
    "tagging_bilstm": True,
}
# Those that only our own format has.
OWN = ("cosine", "classification_bilstm", "tagging_bilstm")
# Those that need a pooler.
ON_POOLED = ("pretraining", "next_sentence", "classification", "multiple_choice")


def variable_shapes(config, head=None, labels=None, features=None):
    """The variables of an encoder, or of a model with a head.

    Args:
        config: BertConfig.
        head: a key of `HEADS`, or None for the bare encoder.
        labels: size of the output of a head that has labels.
        features: FeatureConfig, what a BiLSTM reads; None for the last layer.

    Returns:
        dict path -> shape (tuple of int), in the order of the computation.
    """
    return _encoder_shapes(config) | (_head_shapes(config, head, labels, features) if head else {})


def _encoder_shapes(config):
    """dict path -> shape of the encoder's variables."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "embeddings/word_embeddings": (config.vocab_size, hidden),
        "embeddings/position_embeddings": (config.position_offset + config.max_position_embeddings, hidden),
    }
    if config.type_vocab_size:
        shapes["embeddings/type_embeddings"] = (config.type_vocab_size, hidden)
    shapes |= _norm("embeddings/norm", hidden)
    for index in range(config.num_layers):
        layer = f"layer_{index}"
        shapes |= _dense(f"{layer}/attention/qkv", hidden, 3 * hidden)
        shapes |= _dense(f"{layer}/attention/output", hidden, hidden)
        shapes |= _norm(f"{layer}/attention_norm", hidden)
        shapes |= _dense(f"{layer}/intermediate", hidden, inner)
        shapes |= _dense(f"{layer}/output", inner, hidden)
        shapes |= _norm(f"{layer}/output_norm", hidden)
    if config.norm == "pre":
        shapes |= _norm("final_norm", hidden)
    return shapes | (_dense("pooler", hidden, hidden) if config.pooler else {})


def _head_shapes(config, head, labels, features):
    """dict path -> shape of a head's variables."""
    hidden = config.hidden_size
    masked_lm = {
        **_dense("masked_lm/transform", hidden, hidden),
        **_norm("masked_lm/norm", hidden),
        "masked_lm/bias": (config.vocab_size,),
    }
    next_sentence = _dense("next_sentence", hidden, 2)
    width = features.width if features else 1
    bilstm = {
        f"bilstm_{layer}_{way}/lstm_cell/{name}": shape
        for layer in range(LAYERS)
        for way in WAYS
        for name, shape in {
            "kernel": (2 * hidden if layer else width * hidden, 4 * hidden),
            "recurrent_kernel": (hidden, 4 * hidden),
            "bias": (4 * hidden,),
        }.items()
    } | _dense("classifier", 2 * hidden, labels)
    return {
        "pretraining": masked_lm | next_sentence,
        "masked_lm": masked_lm,
        "next_sentence": next_sentence,
        "classification": _dense("classifier", hidden, labels),
        "tagging": _dense("classifier", hidden, labels),
        "question_answering": _dense("span", hidden, 2),
        "multiple_choice": _dense("classifier", hidden, 1),
        "cosine": {},
        "classification_bilstm": bilstm,
        "tagging_bilstm": bilstm,
    }[head]


def _dense(name, inputs, outputs):
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name, size):
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}
