"""The settings of models, data and training: typed, checked, written next to what they made."""

import dataclasses

from bert_tf.config.data import PretrainingData, TokenizerConfig
from bert_tf.config.model import BertConfig
from bert_tf.config.train import PhaseConfig, TrainConfig
from bert_tf.config.values import from_dict, to_dict

__all__ = ["BertConfig", "ClassificationConfig", "FinetuneConfig", "PhaseConfig", "PretrainConfig"]
__all__ += ["PretrainingData", "TokenizerConfig", "TrainConfig", "from_dict", "to_dict"]


@dataclasses.dataclass
class PretrainConfig:
    """A pre-training run.

    Attributes:
        input: glob patterns of text files, or folders of prepared shards, separated by commas.
        heldout: the same for text that is only evaluated on; "" for none.
        tokenizer: how the vocabulary cuts text.
        model: BertConfig; its vocab_size 0 means as many as the vocabulary has.
        data: what a sequence holds and what is masked.
        train: how it is trained.
    """

    input: str = ""
    heldout: str = ""
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    data: PretrainingData = dataclasses.field(default_factory=PretrainingData)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)


@dataclasses.dataclass
class ClassificationConfig:
    """A classification task on tables.

    Attributes:
        train, evaluation: file names in the data directory (.tsv, .csv, .jsonl).
        text, second_text, label: names of the columns; second_text "" where there is one text.
        max_length: tokens an input, specials counted.
    """

    train: str = "train.tsv"
    evaluation: str = "dev.tsv"
    text: str = "sentence"
    second_text: str = ""
    label: str = "label"
    max_length: int = 128


@dataclasses.dataclass
class FinetuneConfig:
    """A fine-tuning run.

    Attributes:
        task: the tables, and what of them is learned.
        train: how it is trained; without phases.
    """

    task: ClassificationConfig = dataclasses.field(default_factory=ClassificationConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
