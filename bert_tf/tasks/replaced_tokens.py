"""Replaced-token detection (ELECTRA: Clark et al., 2020, arXiv:2003.10555)."""

import functools
import types
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.model.replaced_tokens import GENERATOR, electra, generator_config
from bert_tf.tasks.masked_lm import MaskedLM, MaskedLMObjective
from bert_tf.tasks.objective import Predictions, Sum, TokenObjective, tokens_of
from bert_tf.tasks.signatures import Served
from bert_tf.tasks.task import PretrainingTask, Task
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Tensors

# In errors; an ELECTRA of Transformers has its generator in a checkpoint of its own.
DISCRIMINATOR = (
    f"a discriminator (replaced-token detection); load its generator (PATH/{GENERATOR} if pretrain or "
    "google-research/electra wrote it)"
)


class ReplacedTokenObjective(TokenObjective):
    """Binary cross-entropy of whether each token, padding left out, was replaced.

    The metric replaced_share is the share of tokens that were; 1 - replaced_share is the accuracy of "none was".
    """

    losses = ("rtd_loss",)
    metric_names = ("rtd_accuracy", "replaced_share")
    # Appendix A: the loss of a yes or no is much smaller than that of a word.
    loss_weights: Mapping[str, float] = types.MappingProxyType({"rtd_loss": 50.0})

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "replaced_token_detection")

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        logits, replaced = outputs["rtd_logits"], tf.cast(outputs["replaced"], tf.float32)
        values = {
            "rtd_loss": tf.nn.sigmoid_cross_entropy_with_logits(replaced, logits),
            "rtd_accuracy": tf.cast((logits > 0) == (replaced > 0), tf.float32),
            "replaced_share": replaced,
        }
        return Predictions(values, tokens_of(features))


class ReplacedTokenDetection(PretrainingTask):
    """Detection of replaced tokens."""

    name = "replaced_token_detection"

    def __init__(self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, max_length)
        self.objective = ReplacedTokenObjective(languages)

    @property
    def codec(self) -> Served:  # type: ignore[override]
        """Raises ConfigError: whatever needs it is for models that answer."""
        raise ConfigError(f"nothing to serve: the model is {DISCRIMINATOR}, or fine-tune it")


class Electra(ReplacedTokenDetection):
    """Trains a discriminator together with a generator, a masked language model whose samples replace tokens.

    Args:
        tokenizer, max_length, languages: as for `MaskedLM`.
        generator_size: as for `model.replaced_tokens.generator_config`.
    """

    def __init__(
        self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = (), *, generator_size: float
    ) -> None:
        super().__init__(tokenizer, max_length, languages)
        self._generator_size = generator_size
        both = (MaskedLMObjective(tokenizer, max_length, languages), self.objective)
        self.objective = Sum([("", part) for part in both], functools.partial(electra, size=generator_size))

    def saved(self, config: BertConfig) -> dict[str, tuple[Task | None, BertConfig]]:
        generator = MaskedLM(self.tokenizer, self.max_length)
        return super().saved(config) | {GENERATOR: (generator, generator_config(config, self._generator_size))}
