"""The settings of models, data and training: typed, checked, written next to what they made."""

import dataclasses

from bert_tf.config.data import ExampleData, PretrainingData, TokenizerConfig
from bert_tf.config.features import FeatureConfig
from bert_tf.config.model import BertConfig
from bert_tf.config.train import GridConfig, PhaseConfig, TrainConfig
from bert_tf.config.values import from_dict, to_dict, with_new_names

__all__ = ["BertConfig", "ExampleData", "FeatureConfig", "FinetuneConfig", "GridConfig", "PhaseConfig"]
__all__ += ["PretrainConfig", "PretrainingData", "TokenizerConfig", "TrainConfig", "from_dict", "to_dict"]


@dataclasses.dataclass
class PretrainConfig:
    """A pre-training run.

    Attributes:
        input: glob patterns of text files, or folders of prepared shards, separated by commas.
        validation: the same for text that is only evaluated on; "" for none.
        tokenizer: how the vocabulary cuts text.
        model: BertConfig; its vocab_size 0 means as many as the vocabulary has.
        data: what a sequence holds and what is masked.
        train: how it is trained.
    """

    input: str = ""
    validation: str = ""
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    data: PretrainingData = dataclasses.field(default_factory=PretrainingData)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)


@dataclasses.dataclass
class FinetuneConfig:
    """A fine-tuning run.

    Attributes:
        task: what is learned: the Config of one of `bert_tf.tasks`, such as ClassificationConfig.
        data: from which examples.
        train: how; without phases.
        search: whether to try everything in `grid` and take what is best on the validation examples.
        grid: GridConfig.
    """

    task: object
    data: ExampleData = dataclasses.field(default_factory=ExampleData)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    search: bool = False
    grid: GridConfig = dataclasses.field(default_factory=GridConfig)


def run_with_new_names(run):
    """The content of a run.json or results.json with today's names, whichever version wrote it: a dict."""
    run = {"baseline" if name == "floor" else name: value for name, value in run.items()}
    kind = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}.get(run.get("program"))
    if kind and isinstance(run.get("config"), dict):
        run["config"] = with_new_names(kind, run["config"])
    for name in ("inputs", "skipped"):
        if isinstance(run.get(name), dict):
            old = {"heldout": "validation", "evaluation": "validation"}
            run[name] = {old.get(role, role): value for role, value in run[name].items()}
    return run
