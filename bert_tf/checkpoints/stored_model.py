"""What every format is read into and written from: a model whose tensors are still on disk."""

import dataclasses

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.config import BertConfig, FeatureConfig, from_dict
from bert_tf.model.build import build
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.variables import HEADS, variable_shapes
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer


def head_of(task):
    """The key of `model.variables.HEADS` of a task {"name", "settings"}; None for one that only later versions know."""
    kind = TASKS.get(task["name"])
    head = kind.head(task.get("settings", {})) if kind else task["name"]  # other formats' heads are tasks of their own
    return head if head in HEADS else None


@dataclasses.dataclass
class Checkpoint:
    """A model on disk, of any format.

    Attributes:
        config: BertConfig.
        tensors: dict path of the variable -> Tensor.
        task: {"name", "settings"} as saved models hold it; None for a bare encoder.
        pieces: the vocabulary, list of str; None where it is not a WordPiece vocabulary.
        tokenizer_settings: keyword arguments of `Tokenizer`.
        slots: Adam's, dict "PATH/m" and "PATH/v" -> Tensor; empty where there are none.
        step: updates done, or None.
        unused_tensors: dict name of a tensor that was not taken -> why.
        warnings: what a reader of the report should know: guesses, defaults, values that were made up.
        source_metadata: {"format", ...} with the settings of a foreign format that have no place in ours, so that they can be
            written back.
    """

    config: BertConfig
    tensors: dict[str, Tensor]
    task: dict | None = None
    pieces: list[str] | None = None
    tokenizer_settings: dict = dataclasses.field(default_factory=dict)
    slots: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    step: int | None = None
    unused_tensors: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    source_metadata: dict = dataclasses.field(default_factory=dict)

    @property
    def head(self):
        """A key of `model.variables.HEADS`; None for a bare encoder, or a task that only later versions know."""
        return head_of(self.task) if self.task else None

    @property
    def labels(self):
        """Of a head that has labels, in the order of its logits: list of str; else None."""
        return self.task["settings"]["labels"] if HEADS.get(self.head) else None

    def tokenizer(self):
        """Tokenizer, or None where there is no WordPiece vocabulary."""
        return Tokenizer(self.pieces, **self.tokenizer_settings) if self.pieces else None

    def shapes(self):
        """dict path -> shape of the variables that the model has."""
        return variable_shapes(self.config, self.head, self._outputs(), self._features())

    def encoder(self, *, pooler=None, dtype=None):
        """BertEncoder with these weights; arguments as in `bert_tf.load`."""
        config = self.config if pooler is None else dataclasses.replace(self.config, pooler=pooler)
        encoder = BertEncoder(config, dtype=dtype)
        fresh = config.pooler and not self.config.pooler
        assign([one for one in encoder.weights if not (fresh and one.path.startswith("pooler/"))], self.tensors)
        return encoder

    def model(self, dtype=None):
        """keras.Model of encoder and head with these weights; without a head, the encoder."""
        model = build(BertEncoder(self.config, dtype=dtype), self.head, self._outputs(), self._features())
        assign(model.weights, self.tensors)
        return model

    def _features(self):
        """FeatureConfig of a tagger on a BiLSTM, or None."""
        if self.head != "tagging_bilstm":
            return None
        return from_dict(FeatureConfig, self.task["settings"].get("features", {}))

    def _outputs(self):
        return len(self.labels) if self.labels else None


def assign(variables, tensors):
    """Assigns each keras.Variable the tensor of its path, one after the other."""
    for variable in variables:
        variable.assign(tensors[variable.path].read())
