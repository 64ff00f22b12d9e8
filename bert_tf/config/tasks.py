"""Settings of the fine-tuning tasks. Each task is in the module of the same name in `bert_tf.tasks`.

The config of a task names the task's class in the Python API: class XConfig(TaskConfig, api="X").
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from bert_tf.config.embeddings import OBJECTIVES, SCORES, EmbeddingConfig
from bert_tf.config.model import FeatureConfig
from bert_tf.config.values import Rule, check_fields, setting
from bert_tf.errors import ConfigError

_LABELS = "write each once, as --config.task.labels=\"('neg','pos')\""
_LENGTH: Rule = {"at_least": 8, "at_most": 1_000_000}
_SPECIAL = 3  # special tokens of a pair of texts; RoBERTa's four shorten a stride that is too long
NEW_VECTORS = EmbeddingConfig(pool="mean", long_texts="head", normalize=True)  # of a checkpoint without any
_TOKENS: Rule = {"at_least": 1, "at_most": 1_000_000}


@dataclasses.dataclass
class TaskConfig:
    """Settings of every fine-tuning task.

    Attributes:
        max_length: tokens per input, special tokens included.
    """

    of_tasks: ClassVar[dict[str, type["TaskConfig"]]] = {}  # by the class of `bert_tf` with models of the task
    teacher: ClassVar[str] = ""  # a sentence encoder whose vectors are learned
    max_length: int = setting(128, **_LENGTH)

    def __init_subclass__(cls, api: str = "") -> None:
        super().__init_subclass__()
        if api:
            TaskConfig.of_tasks[api] = cls

    def check(self) -> Self:
        """Returns the config if its values are valid."""
        check_fields(self, "task")
        return self

    def published(self, vectors: EmbeddingConfig | None, limit: int) -> "TaskConfig":
        """With what is left to the checkpoint. Default: unchanged.

        Args:
            vectors: for which it was published, if any.
            limit: tokens that it takes.
        """
        return self


@dataclasses.dataclass
class TextConfig(TaskConfig):
    """Settings of every task on texts.

    Attributes:
        long_texts: how to handle texts longer than `max_length`. "head", "tail" or "head_tail" (half of each) keeps
            that part, and a pair's longer text is cut. "window" makes several inputs and averages their logits; a
            pair's second text is cut into windows, and each contains the first.
    """

    long_texts: str = setting("head", choices=("head", "tail", "head_tail", "window"))


@dataclasses.dataclass
class LabelsConfig(TextConfig):
    """Settings of tasks with a set of labels.

    Attributes:
        labels: all of them, in the order of the logits; () for those of the format or the training examples.
        balanced: whether to weight rare labels higher in the loss, so that all classes have the same total weight, or,
            where each label is predicted independently, its examples weigh as much as all the others.
        class_weights: explicit weights instead, one per label in the order of `labels`; () for equal ones.
    """

    labels: tuple[str, ...] = setting((), hint=_LABELS)
    balanced: bool = False
    class_weights: tuple[float, ...] = setting((), above=0, at_most=1e6)

    def check(self) -> Self:
        super().check()
        check_labels(self.labels, _LABELS)
        if self.balanced and self.class_weights:
            raise ConfigError("task.balanced and task.class_weights are both set; leave one of them out")
        check_weights(self.class_weights, self.labels)
        return self


def check_labels(labels: Sequence[str], remedy: str) -> None:
    """Raises ConfigError unless the labels are distinct and none is empty."""
    if not all(labels):
        raise ConfigError(f"task.labels is {labels!r}; expected names: {remedy}")
    if len(set(labels)) < len(labels):
        raise ConfigError(f"task.labels has a label twice: {', '.join(map(repr, labels))}; {remedy}")


def check_weights(class_weights: Sequence[float], labels: Sequence[str]) -> None:
    """Raises ConfigError unless there is a weight for each label, or none at all."""
    if class_weights and len(class_weights) != len(labels):
        raise ConfigError(
            f"task.class_weights has {len(class_weights)} weights for {len(labels)} task.labels; list all labels, and "
            "one weight for each"
        )


def check_vectors(vectors: EmbeddingConfig | None) -> None:
    """Raises ConfigError unless these are settings of vectors of sentences, or None."""
    if vectors and vectors.check().per != "sentence":
        raise ConfigError(f"task.vectors.per is {vectors.per!r}; expected sentence")


@dataclasses.dataclass
class ClassificationConfig(LabelsConfig, api="TextClassifier"):
    """Settings of classification.

    Attributes:
        head: "pooled", a dense layer on the pooled output; "bilstm", one on a BiLSTM over all tokens; or "vector", for
            few examples: vectors of texts of a class get near each other, and a logistic regression on the vectors
            gives the class (SetFit: Tunstall et al., 2022, arXiv:2209.11055).
        vectors: with "vector", how vectors are computed; None as in the checkpoint, or with the mean of all tokens.
    """

    head: str = setting("pooled", choices=("pooled", "bilstm", "vector"))
    vectors: EmbeddingConfig | None = dataclasses.field(default=None, metadata={"sparse": True})

    def check(self) -> Self:
        if len(super().check().labels) == 1:
            raise ConfigError(f"task.labels has only {self.labels[0]!r}; expected at least two: {_LABELS}")
        if self.vectors and self.head != "vector":
            raise ConfigError("task.vectors is only for task.head=vector; set that, or leave task.vectors out")
        check_vectors(self.vectors)
        return self

    def published(self, vectors: EmbeddingConfig | None, limit: int) -> "ClassificationConfig":
        if self.head != "vector":
            return self
        own = self.vectors or vectors or NEW_VECTORS
        kept = {name: getattr(own, name) for name in ("pool", "features", "dense", "size", "normalize")}
        return dataclasses.replace(self, vectors=EmbeddingConfig(**kept))


@dataclasses.dataclass
class MultiLabelConfig(LabelsConfig, api="MultiLabelClassifier"):
    """Settings of multi-label classification.

    Attributes:
        separator: separates the labels in a column of TSV or CSV; in JSON they can be a list. An example with an empty
            column has no label.
        threshold: probability from which a label is predicted.
    """

    separator: str = ","
    threshold: float = setting(0.5, above=0, below=1)

    def check(self) -> Self:
        super().check()
        if not self.separator:
            raise ConfigError("task.separator is empty; expected the text that separates two labels")
        self.check_separable(self.labels, f"in task.labels: {_LABELS}, or choose another separator")
        return self

    def check_separable(self, labels: Iterable[str], remedy: str = "choose another separator") -> None:
        """Refuses a label that contains the separator: in a table it would be read as two."""
        if joined := next((label for label in labels if self.separator in label), None):
            raise ConfigError(f"the label {joined!r} contains task.separator, {self.separator!r}; {remedy}")


@dataclasses.dataclass
class RegressionConfig(TextConfig, api="TextRegressor"):
    """Settings of regression.

    Attributes:
        head: "pooled", a dense layer on the pooled output; or "cosine", the cosine of the mean vectors of a pair, whose
            texts are encoded separately, up to `max_length` tokens each: 0 is the lowest and 1 the highest number. It
            has no weights, so it starts from what the encoder has learned about whole texts.
        long_texts: as for the other tasks; with "cosine" each text is cut separately, and "window" is not allowed.
    """

    head: str = setting("pooled", choices=("pooled", "cosine"))

    def check(self) -> Self:
        super().check()
        if self.head == "cosine" and self.long_texts == "window":
            raise ConfigError(
                "task.head is cosine, which compares two vectors, but task.long_texts=window makes several per text; "
                "set task.long_texts to head, tail or head_tail"
            )
        return self


@dataclasses.dataclass
class MultipleChoiceConfig(TaskConfig, api="MultipleChoice"):
    """Settings of multiple choice.

    Attributes:
        max_length: tokens of a context with a choice, special tokens included.
        long_texts: which part of the longer text to keep if a pair is too long: "head", "tail" or "head_tail" (half of
            each). There are no windows, since a choice would have several scores.
    """

    long_texts: str = setting("head", choices=("head", "tail", "head_tail"))


@dataclasses.dataclass
class TagsConfig(TaskConfig):
    """Settings of every task that tags words.

    Attributes:
        max_length: tokens of a window, special tokens included. Longer texts become several windows; none is cut.
        stride: tokens from the start of one window to the start of the next; 0 for half of a window.
        scheme: the scheme of entity tags in training: "BIO", "BIOES", "IOB1" or "IO", see `metrics.entities`; "" for
            that of the training file; "none" if its tags are no entities although they look so.
    """

    stride: int = setting(0, at_least=0, at_most=1_000_000)
    scheme: str = setting("", choices=("", "BIO", "BIOES", "IOB1", "IO", "none"))

    def check(self) -> Self:
        super().check()
        if self.stride > self.max_length - 2:
            raise ConfigError(
                f"task.stride is {self.stride}; it must be at most {self.max_length - 2}, which is task.max_length "
                "- 2, so that windows skip nothing"
            )
        return self

    @property
    def reads_documents(self) -> bool:
        """Whether the sentences of a document are read together."""
        return False


@dataclasses.dataclass
class TaggingConfig(TagsConfig, api="TokenClassifier"):
    """Settings of tagging.

    Attributes:
        context: "sentence" reads each sentence by itself; "document" joins a document's sentences and takes each word
            from the window with most context around it (needed for the paper's F1 on CoNLL-2003).
        head: "token", a dense layer on each token, or "bilstm", one on a two-layer BiLSTM (paper, section 5.3).
        frozen: whether to train only the head.
        features: the encoder's layers that "bilstm" reads.
    """

    context: str = setting("sentence", choices=("sentence", "document"))
    head: str = setting("token", choices=("token", "bilstm"))
    frozen: bool = False
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)

    def check(self) -> Self:
        super().check()
        check_fields(self.features, "task.features")
        if self.head != "bilstm" and self.features != FeatureConfig():
            raise ConfigError("task.features is only for task.head=bilstm; set that, or leave task.features out")
        return self

    @property
    def reads_documents(self) -> bool:
        return self.context == "document"


@dataclasses.dataclass
class IntentAndSlotsConfig(TagsConfig, api="IntentAndSlots"):
    """Settings of joint intent classification and slot filling."""


@dataclasses.dataclass
class QuestionAnsweringConfig(TaskConfig, api="QuestionAnswerer"):
    """Settings of question answering; the defaults are those of google-research/bert's run_squad.py.

    Attributes:
        max_length: tokens of a window: the question, a part of the context and three special tokens.
        stride: tokens from the start of one window of the context to the start of the next.
        max_question_length: longer questions keep this many of their first tokens, and at most half of a window.
        n_best: maximum number of answers to return with their probabilities.
        max_answer_length: maximum number of tokens of an answer.
        unanswerable: whether questions may have no answer, as in SQuAD 2.0.
    """

    max_length: int = setting(384, **_LENGTH)
    stride: int = setting(128, **_TOKENS)
    max_question_length: int = setting(64, **_TOKENS)
    n_best: int = setting(20, at_least=1, at_most=10_000)
    max_answer_length: int = setting(30, **_TOKENS)
    unanswerable: bool = False

    def check(self) -> Self:
        super().check()
        if self.stride > (room := self.max_length - _SPECIAL - self.kept_of_question(_SPECIAL)):
            raise ConfigError(
                f"task.stride is {self.stride}; it must be at most {room}, the tokens left in a window with the "
                "longest question, so that windows skip nothing"
            )
        return self

    def kept_of_question(self, special_tokens: int) -> int:
        """Maximum number of tokens of a question to keep: half of a window without its special tokens, or fewer."""
        return min(self.max_question_length, (self.max_length - special_tokens) // 2)


@dataclasses.dataclass
class EmbeddingsConfig(TaskConfig, api="SentenceEncoder"):
    """Settings of training a sentence encoder.

    Attributes:
        max_length: tokens per text, special tokens included; 0 for those of the checkpoint, or 256.
        objective: what is learned; "" for the first that fits the examples (`OBJECTIVES`). "in_batch": the second text
            of each example is nearer to the first than all others of the batch, and than its further texts (Henderson
            et al., 2017, arXiv:1705.00652). "triplet": the second text is nearer to the first than each further text,
            by `margin`. "cosent": cosines are in the order of the numbers. "cosine": cosines are the numbers, from 0 to
            1. "batch_hard": the farthest text of the same class is nearer than the nearest of another, by `margin`
            (Hermans et al., 2017, arXiv:1703.07737). "class_pairs": cosines are 1 within a class, and 0 between classes
            (Tunstall et al., 2022, arXiv:2209.11055). "margin_mse": dot products differ as the scores do (Hofstaetter
            et al., 2020, arXiv:2010.02666). "kl": their softmax is that of the scores. "same_vectors": all texts of an
            example have the vector that the teacher gives its first text (Reimers and Gurevych, 2020,
            arXiv:2004.09813).
        scale: of the similarities of "in_batch" and "cosent", the inverse of a temperature; None for 20, or 1 with
            `sparse`, whose similarities are dot products.
        sparse: whether vectors have a weight for each piece of the vocabulary, from the model's masked-language-model
            head (SPLADE: Formal et al., 2021, arXiv:2109.10086).
        flops: with `sparse`, weights of the term that makes vectors sparse, of first texts and of the others: the sum
            over all pieces of the squared mean weight (Paria et al., 2020, arXiv:2004.05665).
        both_directions: whether "in_batch" also finds the first text by the second.
        margin: of "triplet" and "batch_hard", in cosine distance.
        temperature: of "kl".
        matryoshka: sizes to which vectors can be cut: the loss is the sum of those of the first so many values,
            scaled to length 1 (Kusupati et al., 2022, arXiv:2205.13147); () for the whole vector.
        query_prompt, passage_prompt: text in front of the first text of each example, and in front of the others, in
            training and, by the names "query" and "passage", in use; None for those of the checkpoint.
        teacher: sentence encoder whose vectors are learned, for "same_vectors"; "" for none.
        vectors: how vectors are computed; None as in the checkpoint, or with the mean of all tokens.
    """

    max_length: int = setting(0, at_least=0, at_most=1_000_000)
    objective: str = setting("", choices=("", *dict.fromkeys(name for names in OBJECTIVES.values() for name in names)))
    scale: float | None = setting(None, above=0, at_most=10_000)
    sparse: bool = False
    flops: tuple[float, ...] = setting((5e-5, 3e-5), at_least=0, at_most=1000)
    both_directions: bool = False
    margin: float = setting(0.5, at_least=0, at_most=1000)
    temperature: float = setting(1.0, above=0, at_most=1000)
    matryoshka: tuple[int, ...] = setting((), at_least=1, at_most=1_000_000)
    query_prompt: str | None = None
    passage_prompt: str | None = None
    teacher: str = ""  # type: ignore[misc]  # here a field
    vectors: EmbeddingConfig | None = None

    def check(self) -> Self:
        super().check()
        if 0 < self.max_length < _LENGTH["at_least"]:
            raise ConfigError(f"task.max_length is {self.max_length}; expected at least {_LENGTH['at_least']}, or 0")
        check_vectors(self.vectors)
        if bool(self.teacher) != (self.objective == "same_vectors") and (self.teacher or self.objective):
            raise ConfigError(
                f"task.objective is {self.objective!r} and task.teacher {self.teacher!r}; a teacher goes with "
                "same_vectors: set both, or leave both out"
            )
        if self.sparse and self.objective not in ("", "in_batch", "margin_mse", "kl"):
            raise ConfigError(
                f"task.objective is {self.objective!r}, but with task.sparse similarities are dot products; set "
                "in_batch, margin_mse or kl"
            )
        if self.sparse and (self.matryoshka or self.vectors or self.query_prompt or self.passage_prompt):
            raise ConfigError(
                "task.sparse goes without task.matryoshka, task.vectors, task.query_prompt and task.passage_prompt; "
                "leave them out"
            )
        if len(self.flops) != 2:
            raise ConfigError(f"task.flops is {self.flops!r}; expected two numbers, of first texts and of the others")
        if len(set(self.matryoshka)) < len(self.matryoshka):
            raise ConfigError(f"task.matryoshka is {self.matryoshka!r}; expected different sizes")
        if self.matryoshka and self.teacher:
            raise ConfigError("task.matryoshka is set, but the teacher's vectors have one size; leave it out")
        return self

    def published(self, vectors: EmbeddingConfig | None, limit: int) -> "EmbeddingsConfig":
        scale = self.scale or (1.0 if self.sparse else 20.0)
        own = self.vectors or vectors or NEW_VECTORS
        length = self.max_length or min(own.max_length or 256, limit)
        prompts = dict(own.prompts)
        for name, prompt in (("query", self.query_prompt), ("passage", self.passage_prompt)):
            if prompt is not None:
                prompts[name] = prompt
        own = dataclasses.replace(own, max_length=length, long_texts="head", prompts=prompts)
        query, passage = (prompts.get(name, "") for name in (own.query_name, own.passage_name))
        if not own.include_prompt and (query or passage):
            raise ConfigError(
                "the checkpoint does not pool the tokens of its prompts, which is not supported in training; set "
                "task.vectors"
            )
        known = None if self.sparse else own
        return dataclasses.replace(
            self, max_length=length, scale=scale, query_prompt=query, passage_prompt=passage, vectors=known
        )


@dataclasses.dataclass
class RerankerConfig(TextConfig, api="Reranker"):
    """Settings of a reranker, which scores a query with a text.

    Attributes:
        max_length: tokens of a query with a text, special tokens included.
        long_texts: as for the other tasks; "window" is not allowed.
        objective: what is learned; "" for the first that fits the examples. Of a query with a text that belongs to it
            and others that do not: "bce", for each text whether it belongs to the query, or "softmax", which of the
            texts does. Of pairs with numbers: "bce", as probabilities, or "mse". Of a teacher's scores: "mse",
            "margin_mse", their differences, or "kl", the distribution over a query's texts.
        temperature: of "kl".
    """

    max_length: int = setting(256, **_LENGTH)
    objective: str = setting("", choices=("", *dict.fromkeys(name for names in SCORES.values() for name in names)))
    temperature: float = setting(1.0, above=0, at_most=1000)

    def check(self) -> Self:
        super().check()
        if self.long_texts == "window":
            raise ConfigError(
                "task.long_texts is 'window', but a text has one score; set it to head, tail or head_tail"
            )
        return self
