"""config.json of a Hugging Face directory: sizes, the class of the model, its labels and its task."""

from bert_tf.checkpoints.stored_model import head_of
from bert_tf.config import BertConfig
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.model.variables import OWN

_ACTIVATIONS = {"gelu": "erf_gelu", "gelu_new": "tanh_gelu", "gelu_pytorch_tanh": "tanh_gelu", "relu": "relu"}
# model_type -> what the names of its classes begin with. All but the first have RoBERTa's layout.
_STEMS = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
# Head -> what they end with.
_SUFFIXES = {
    None: "Model",
    "pretraining": "ForPreTraining",
    "masked_lm": "ForMaskedLM",
    "next_sentence": "ForNextSentencePrediction",
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
# What the tensors of a head begin with, the surest first.
_MARKS = {
    "cls.predictions.": "masked_lm",
    "lm_head.": "masked_lm",
    "cls.seq_relationship.": "next_sentence",
    "qa_outputs.": "question_answering",
    "classifier.out_proj.": "classification",
    "classifier.": "classification",
}
_BERT_ONLY = ("pretraining", "next_sentence")  # RoBERTa is trained without second sentences
# Name of a task -> problem_type, for those that share a head.
_PROBLEMS = {
    "classification": "single_label_classification",
    "multi_label_classification": "multi_label_classification",
    "regression": "regression",
}
# Field of BertConfig -> its name in config.json and the default where that is silent, if it may be.
_FIELDS = {
    "vocab_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_heads": ("num_attention_heads",),
    "intermediate_size": ("intermediate_size",),
    "max_position_embeddings": ("max_position_embeddings",),
    "type_vocab_size": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
# Made anew by `written`, or not true of what is written: no untied copy of the embeddings, no code to fetch.
_NOT_KEPT = {
    *(name for name, *_ in _FIELDS.values()), "model_type", "architectures", "id2label", "label2id", "num_labels",
    "problem_type", "dtype", "torch_dtype", "bert_tf", "tie_word_embeddings", "transformers_version", "tokenizer_class",
    "auto_map", "_name_or_path", "quantization_config",
}  # fmt: skip


def is_roberta(model_type):
    """Whether a known `model_type` has RoBERTa's layout."""
    return model_type != "bert"


def read_config(settings, file):
    """BertConfig of a config.json; whether there is a pooler only the tensors say.

    Args:
        settings: dict.
        file: path, for errors.

    Raises:
        DataError: another architecture, naming the field.
    """
    there = ", ".join(list(settings)[:8]) or "{}"
    model_type = settings.setdefault("model_type", "bert")  # the first releases wrote none
    expected = {
        "model_type": tuple(_STEMS),
        "position_embedding_type": ("absolute", None),
        "hidden_act": tuple(_ACTIVATIONS),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
    }
    for field, known in expected.items():
        if field in settings and settings[field] not in known:
            choices = ", ".join(repr(value) for value in known if value is not None)
            raise DataError(f"{file}: {field} {settings[field]!r}; expected {choices}: nothing else can be read")
    classes = settings.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise DataError(f"{file}: architectures {classes!r}; expected a list of names of classes")
    try:
        fields = {
            ours: settings.get(name, *rest) if rest else settings[name] for ours, (name, *rest) in _FIELDS.items()
        }
        if is_roberta(model_type):
            # Its positions begin behind the row of the padding token.
            fields["position_offset"] = (1 if settings.get("pad_token_id") is None else settings["pad_token_id"]) + 1
            fields["max_position_embeddings"] -= fields["position_offset"]
        return BertConfig(activation=_ACTIVATIONS[settings.get("hidden_act", "gelu")], **fields).check()
    except KeyError as error:
        raise DataError(
            f"{file}: no {error.args[0]!r}, only {there}; expected Hugging Face's config.json of a BERT model"
        ) from None
    except (BertTfError, TypeError) as error:
        raise DataError(f"{file}: {error}") from None


def read_head(settings, names, warnings):
    """What sits on the encoder.

    Args:
        settings: dict of config.json.
        names: of the tensors, without the encoder's prefix.
        warnings: list that a guess is added to.

    Returns:
        head (a key of HEADS or None), and None or the name of a class whose head this project does not have.
    """
    stem, roberta = _STEMS[settings["model_type"]], is_roberta(settings["model_type"])
    heads = {stem + suffix: head for head, suffix in _SUFFIXES.items() if not (roberta and head in _BERT_ONLY)}
    architectures = settings.get("architectures") or []
    named = next((name for name in architectures if name in heads), None)
    there = {mark for mark in (*_MARKS, "pooler.") if any(name.startswith(mark) for name in names)}
    if architectures and not named:
        return None, architectures[0]
    if named and heads[named] == "masked_lm":
        if roberta and settings.get("hidden_act", "gelu") != "gelu":
            return None, f"{named} with hidden_act {settings['hidden_act']!r} in the encoder and 'gelu' in the head"
        if {"cls.seq_relationship.", "pooler."} <= there:  # Google's models as Hugging Face publishes them
            warnings.append(
                f"head: config.json says {named}; the next-sentence head, which is there too, is read with it"
            )
            return "pretraining", None
    if named:
        return heads[named], None
    head = next((head for mark, head in _MARKS.items() if mark in there), None)
    if head == "masked_lm" and {"cls.seq_relationship.", "pooler."} <= there:
        head = "pretraining"
    elif head == "classification" and "classifier.out_proj." not in there and (roberta or "pooler." not in there):
        head = "tagging"
    if head:
        warnings.append(f"head: config.json names no architecture; its tensors look like {stem}{_SUFFIXES[head]}")
    return head, None


def read_labels(settings, file, outputs):
    """Labels in the order of the logits.

    Args:
        settings: dict of config.json.
        file: its path, for errors.
        outputs: of the classifier; None if it is not there.

    Raises:
        DataError: id2label does not number them 0, 1, ..., or not as many as there are outputs.
    """
    names = settings.get("id2label")
    if names:
        try:
            numbered = {int(number): str(name) for number, name in names.items()}
        except (AttributeError, ValueError):
            numbered = None
        if numbered is None or sorted(numbered) != list(range(len(names))):
            raise DataError(f"{file}: id2label {names!r}; expected an object from 0, 1, ... to the labels' names")
        labels = [numbered[number] for number in sorted(numbered)]
        field, count = "id2label", len(labels)
    else:
        labels = [f"LABEL_{number}" for number in range(outputs or 2)]  # two: Transformers' default
        field, count = "num_labels", settings.get("num_labels") or len(labels)
    if outputs is not None and count != outputs:
        raise DataError(
            f"{file}: {field} is of {count!r} labels, but the classifier has {outputs} outputs; name each of them"
        )
    return labels


def read_task(settings, head, labels, max_length, warnings):
    """The dict of a task: the one that `written` kept if it is still of this model, else what config.json says."""
    saved = _own(settings).get("task")
    if isinstance(saved, dict) and isinstance(saved.get("settings"), dict):
        if head_of({"name": str(saved.get("name"))}) == head and saved["settings"].get("labels") == labels:
            return saved
        warnings.append(
            "the task that bert_tf noted in config.json is not this model's any more: its settings are left"
        )
    name = head
    if head == "classification":
        problem = settings.get("problem_type") or _PROBLEMS["regression" if len(labels) == 1 else "classification"]
        name = {theirs: ours for ours, theirs in _PROBLEMS.items()}.get(problem, head)
    return {"name": name, "settings": ({"labels": labels} if labels else {}) | {"max_length": max_length}}


def lacks_tokenizer(settings):
    """Whether `written` said that there is no vocabulary to expect."""
    return _own(settings).get("wordpiece") is False


def _own(settings):
    own = settings.get("bert_tf")
    return own if isinstance(own, dict) else {}


def kept(settings):
    """What of config.json to write back: all but what `written` makes anew."""
    return {name: value for name, value in settings.items() if name not in _NOT_KEPT}


def model_type_for(checkpoint):
    """The model_type to write a Checkpoint as.

    Raises:
        ConfigError: Hugging Face has no class for such a model.
    """
    config, head, elsewhere = checkpoint.config, checkpoint.head, "; --format=bert_tf holds every model"
    if head in OWN:
        raise ConfigError(f"the head is {head}, for which Hugging Face's BERT has no class{elsewhere}")
    if config.attention != "bidirectional":
        raise ConfigError(
            f"model.attention is {config.attention!r}, and Hugging Face's BERT is 'bidirectional'{elsewhere}"
        )
    if config.norm != "post":
        raise ConfigError(f"model.norm is {config.norm!r}, and Hugging Face's BERT is 'post'{elsewhere}")
    if not config.position_offset:
        return "bert"
    offset = f"model.position_offset is {config.position_offset}, as in RoBERTa,"
    if head in _BERT_ONLY:
        raise ConfigError(f"{offset} and Hugging Face's RoBERTa has no class for the head {head!r}{elsewhere}")
    if head == "masked_lm" and config.activation != "erf_gelu":
        raise ConfigError(
            f"{offset} whose masked-LM head in Transformers is always erf_gelu, and model.activation is "
            f"{config.activation!r}{elsewhere}"
        )
    if checkpoint.pieces and checkpoint.pieces.index("[PAD]") != config.position_offset - 1:
        # Transformers counts the positions of a RoBERTa by the tokens that are not padding.
        raise ConfigError(
            f"{offset} which Transformers takes for one more than the id of [PAD], and that is "
            f"{checkpoint.pieces.index('[PAD]')}{elsewhere}"
        )
    source_metadata = checkpoint.source_metadata.get("model_type")
    return source_metadata if source_metadata in _STEMS and is_roberta(source_metadata) else "roberta"


def written(checkpoint, model_type, source_metadata):
    """The dict of config.json.

    Args:
        checkpoint: Checkpoint.
        model_type: of `model_type_for`.
        source_metadata: what `kept` returned, or {}.
    """
    config, head, task, pieces = checkpoint.config, checkpoint.head, checkpoint.task, checkpoint.pieces
    settings = {"architectures": [_STEMS[model_type] + _SUFFIXES[head]], "model_type": model_type}
    settings |= {name: getattr(config, ours) for ours, (name, *_) in _FIELDS.items()}
    settings["max_position_embeddings"] += config.position_offset
    settings["type_vocab_size"] = max(config.type_vocab_size, 1)
    spelled = source_metadata.get("hidden_act")
    if _ACTIVATIONS.get(spelled) != config.activation:
        spelled = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
    settings["hidden_act"] = spelled
    settings["dtype"] = checkpoint.tensors["embeddings/word_embeddings"].dtype
    if is_roberta(model_type):
        settings["pad_token_id"] = config.position_offset - 1
    elif "pad_token_id" not in source_metadata:
        settings["pad_token_id"] = pieces.index("[PAD]") if pieces else 0
    if checkpoint.labels:
        settings["id2label"] = {str(number): label for number, label in enumerate(checkpoint.labels)}
        settings["label2id"] = {label: number for number, label in enumerate(checkpoint.labels)}
    if head == "classification" and task and not (task["name"] == head and len(checkpoint.labels) == 1):
        settings["problem_type"] = _PROBLEMS[task["name"]]  # of one class Transformers wants none
    own = ({"task": task} if task and head else {}) | ({} if pieces else {"wordpiece": False})
    return source_metadata | settings | ({"bert_tf": own} if own else {})
