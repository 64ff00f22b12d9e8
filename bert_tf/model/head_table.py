"""The heads: what all folders know of each, and `build`, which builds a model by the name of its head.

To add one, write its builder in `heads.py` and its row in `HEADS`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras

from bert_tf.config import BertConfig, EmbeddingConfig, FeatureConfig
from bert_tf.model import heads
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.variables import dense_shapes, encoder_shapes, transform_shapes
from bert_tf.types import Json

Labels: TypeAlias = int | tuple[int, ...] | None  # output sizes that are numbers of labels
Reads: TypeAlias = FeatureConfig | EmbeddingConfig | None  # what a head reads of the encoder, where it can be chosen
_Shapes: TypeAlias = dict[str, tuple[int, ...]]


def _masked_lm_shapes(config: BertConfig) -> _Shapes:
    return transform_shapes("masked_lm", config, config.embedding_width) | {"masked_lm/bias": (config.vocab_size,)}


def _next_sentence_shapes(config: BertConfig) -> _Shapes:
    return dense_shapes("next_sentence", config.hidden_size, 2)


def _detector_shapes(config: BertConfig) -> _Shapes:
    hidden = config.hidden_size
    return dense_shapes("detector/transform", hidden, hidden) | dense_shapes("detector/output", hidden, 1)


def _classifier_shapes(config: BertConfig, labels: int) -> _Shapes:
    return dense_shapes("classifier", config.hidden_size, labels)


def _on_tokens(config: BertConfig, shapes: _Shapes) -> _Shapes:
    return (transform_shapes("transform", config) if config.head_transform else {}) | shapes


def _bilstm_shapes(config: BertConfig, labels: int, features: FeatureConfig | None) -> _Shapes:
    hidden, width = config.hidden_size, features.width if features else 1
    return {
        f"bilstm_{layer}_{direction}/lstm_cell/{name}": shape
        for layer in range(heads.BILSTM_LAYERS)
        for direction in heads.BILSTM_DIRECTIONS
        for name, shape in {
            "kernel": (2 * hidden if layer else width * hidden, 4 * hidden),
            "recurrent_kernel": (hidden, 4 * hidden),
            "bias": (4 * hidden,),
        }.items()
    } | dense_shapes("classifier", 2 * hidden, labels)


def _vector_shapes(config: BertConfig, labels: int, vectors: EmbeddingConfig | None) -> _Shapes:
    hidden, vectors = config.hidden_size, vectors or EmbeddingConfig()
    return {
        **vectors.shapes(hidden),
        **dense_shapes("classifier", vectors.width(vectors.features.width * hidden), labels),
    }


def _intent_and_slots_shapes(config: BertConfig, labels: tuple[int, int]) -> _Shapes:
    return dense_shapes("intent", config.hidden_size, labels[0]) | dense_shapes("slots", config.hidden_size, labels[1])


@dataclasses.dataclass(frozen=True)
class Head:
    """A head: how its model is built, and what is known of it without building it.

    Attributes:
        name: in saved models and in tasks.
        build: function from the encoder to the model. It also takes `labels` if the head has labels, and an argument
            with the name in `reads`.
        shapes: function from the encoder's config, and `labels` and `reads` as for `build`, to the shapes of the head's
            variables by path. A layer of Keras knows them only once it has created the variables, 1.3 GB for a large
            model; tests/model/test_build.py compares both.
        pooled: whether it reads the pooled output, so that the encoder needs a pooler.
        labels: for each output with a free size, the setting of the task that lists its labels; () if there is none.
        reads: the setting of the task that says what it reads of the encoder: "features", which layers, or "vectors",
            which vectors of texts; "" if that cannot be chosen.
        grouped: whether an example is several sequences, and the inputs are [batch, sequences, length].
        output: name of the logits, if there is one kind.
        transformers: end of the name of its class in Transformers; "" if no family there has one.
        transformers_names: its layers and their names there, if these are the same in all families.
        like: a head with the same outputs, by which a library that lacks this one describes it; "" for none.
    """

    name: str
    build: Callable[..., keras.Model]
    shapes: Callable[..., _Shapes]
    pooled: bool = False
    labels: tuple[str, ...] = ()
    reads: str = ""
    grouped: bool = False
    output: str = "logits"
    transformers: str = ""
    transformers_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    like: str = ""

    def options(self, labels: Labels, reads: Reads) -> Json:
        """Those of these arguments of `build` and `shapes` that the head takes."""
        return ({"labels": labels} if self.labels else {}) | ({self.reads: reads} if self.reads else {})

    def sizes(self, settings: Mapping[str, Any]) -> Labels:
        """The argument `labels` for a task with these settings."""
        sizes = tuple(len(settings[name]) for name in self.labels)
        return sizes[0] if len(sizes) == 1 else sizes or None

    @functools.cached_property
    def parts(self) -> frozenset[str]:
        """The first part of the paths of its variables, such as "classifier"; empty if it has none."""
        labels = self.sizes(dict.fromkeys(self.labels, (1,)))
        return frozenset(path.partition("/")[0] for path in self.shapes(BertConfig(), **self.options(labels, None)))


# If a checkpoint has the variables of several heads and does not say which one was trained last, it is the first.
HEADS = {
    head.name: head
    for head in (
        Head(  # start and end of the answer span
            "question_answering",
            heads.span_head,
            lambda config: _on_tokens(config, dense_shapes("span", config.hidden_size, 2)),
            transformers="ForQuestionAnswering",
            transformers_names={"span": "qa_outputs"},
        ),
        Head(
            "classification",
            heads.classifier,
            _classifier_shapes,
            pooled=True,
            labels=("labels",),
            transformers="ForSequenceClassification",
            transformers_names={"classifier": "classifier"},
        ),
        Head(  # masked language model and next-sentence prediction
            "pretraining",
            heads.BertPretrainer,
            lambda config: _masked_lm_shapes(config) | _next_sentence_shapes(config),
            pooled=True,
            transformers="ForPreTraining",
        ),
        Head(
            "masked_lm",
            functools.partial(heads.BertPretrainer, next_sentence=False),
            _masked_lm_shapes,
            output="mlm_logits",
            transformers="ForMaskedLM",
        ),
        Head(
            "next_sentence",
            heads.next_sentence,
            _next_sentence_shapes,
            pooled=True,
            output="nsp_logits",
            transformers="ForNextSentencePrediction",
        ),
        Head(  # whether each token was replaced (ELECTRA)
            "replaced_token_detection",
            heads.replaced_token_detector,
            _detector_shapes,
            output="rtd_logits",
            transformers="ForPreTraining",
        ),
        Head(
            "tagging",
            heads.tagger,
            lambda config, labels: _on_tokens(config, _classifier_shapes(config, labels)),
            labels=("labels",),
            transformers="ForTokenClassification",
            transformers_names={"classifier": "classifier"},
        ),
        Head(  # one score per choice
            "multiple_choice",
            heads.multiple_choice_head,
            lambda config: _classifier_shapes(config, 1),
            pooled=True,
            grouped=True,
            transformers="ForMultipleChoice",
            transformers_names={"classifier": "classifier"},
        ),
        Head(  # of two texts encoded separately; it has no weights
            "cosine",
            heads.cosine,
            lambda config: {},
            grouped=True,
        ),
        Head(  # this and the next: on a BiLSTM over all tokens
            "classification_bilstm",
            functools.partial(heads.bilstm_head, sequences=False),
            _bilstm_shapes,
            labels=("labels",),
            reads="features",
            like="classification",
        ),
        Head(
            "tagging_bilstm",
            functools.partial(heads.bilstm_head, sequences=True),
            _bilstm_shapes,
            labels=("labels",),
            reads="features",
            like="tagging",
        ),
        Head(
            "classification_vector",
            heads.vector_classifier,
            _vector_shapes,
            labels=("labels",),
            reads="vectors",
            like="classification",
        ),
        Head(
            "intent_and_slots",
            heads.intent_and_slots,
            _intent_and_slots_shapes,
            pooled=True,
            labels=("intents", "labels"),
        ),
    )
}


def build(
    encoder: BertEncoder,
    head: str | None,
    labels: Labels = None,
    reads: Reads = None,
    *,
    frozen: bool = False,
) -> keras.Model:
    """Builds the model with the variables of `variable_shapes`.

    Args:
        encoder: its variables are shared with the model.
        head: a key of `HEADS`, or None for the encoder itself.
        labels: output size, for heads with labels; of "intent_and_slots" those of both outputs.
        reads: layers that a BiLSTM reads, None for the last one; or the vectors of a classifier of these.
        frozen: for taggers, whether to train the head only and leave the encoder unchanged.
    """
    if head is None:
        return encoder
    options = HEADS[head].options(labels, reads) | ({"frozen": True} if frozen else {})
    return HEADS[head].build(encoder, **options)


def variable_shapes(config: BertConfig, head: str | None = None, labels: Labels = None, reads: Reads = None) -> _Shapes:
    """Shapes of the variables of an encoder, or of a model with a head, without building it.

    Args:
        config: shape of the encoder.
        head, labels, reads: as for `build`.

    Returns:
        Shape by variable path, in the order of the computation.
    """
    shapes = encoder_shapes(config)
    return shapes | HEADS[head].shapes(config, **HEADS[head].options(labels, reads)) if head else shapes
