"""The files in configs/: every one can be loaded, is valid, and is consistent."""

import importlib.util
import json
from pathlib import Path

import pytest

from bert_tf.config import FinetuneConfig, PretrainConfig, RegressionConfig, to_dict
from bert_tf.errors import ConfigError
from bert_tf.inputs.corpus.corpus import find_corpus
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.inputs.datasets.sources import FORMATS
from bert_tf.tasks import task_of
from bert_tf.training import phases
from tests.errors import raises

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.glob("*/*.py"))
OF_TEXT = ("pretrain/", "distill/encoder")  # configs without labels
FAMILY = {
    "roberta": ("base", "large", "mini"),
    "electra": ("small", "base", "large", "mini"),
    "albert": ("base", "large", "xlarge", "xxlarge", "mini"),
    "spanbert": ("large", "base", "mini"),
    "modern": ("base", "large", "mini"),
}
PRETRAINING = [name for name in FILES if name.startswith("pretrain")]
PRETRAINING += [f"pretrain/{member}.py:{size}" for member, sizes in FAMILY.items() for size in sizes]
PRETRAINING += [f"distill/encoder.py:{name}" for name in ("minilm", "minilm_mini", "distilbert", "tinybert")]
GLUE_TASKS = [f"finetune/glue.py:{task}" for task in GLUE if task != "ax"]


def load(name):
    """The config of a file; its argument may follow a colon, as in --config."""
    name, *argument = name.split(":")
    spec = importlib.util.spec_from_file_location("config", CONFIGS / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*argument)


STUDENTS = [name for name in PRETRAINING if name.startswith("distill")]


@pytest.mark.parametrize("name", [*FILES, *GLUE_TASKS, *STUDENTS])
def test_a_config_file_is_valid_and_can_be_saved(name):
    config = load(name)
    assert isinstance(config, PretrainConfig if name.startswith(OF_TEXT) else FinetuneConfig)
    config.train.check()
    assert json.loads(json.dumps(to_dict(config)))["train"]["learning_rate"] == config.train.learning_rate


@pytest.mark.parametrize("name", [name for name in [*FILES, *GLUE_TASKS] if not name.startswith(OF_TEXT)])
def test_the_task_of_a_finetuning_config_matches_its_format(name):
    config = load(name)
    assert FORMATS[config.data.format].example is task_of(config.task).example
    numbers = config.data.format in ("glue/stsb", "korsts", "klue/sts")
    assert isinstance(config.task, RegressionConfig) == numbers


@pytest.mark.parametrize("name", PRETRAINING)
def test_the_phases_of_a_pretraining_config_fit_its_model_and_its_masking_rate(name):
    config = load(name)
    found = phases.split(config.train, config.train.steps)
    assert (found[0].first, found[-1].end) == (0, config.train.steps)
    for phase in config.train.phases or [None]:
        data = config.data.in_phase(phase).check() if phase else config.data.check()
        assert data.max_length <= config.model.max_position_embeddings
        # A maximum below the rate's share of a full sequence would mask less than the rate asks for.
        assert data.max_predictions >= round(data.masking_rate * data.max_length)


@pytest.mark.parametrize(
    "name",
    [
        "pretrain/tiny.py",
        "pretrain/mini.py",
        "distill/encoder.py",
        *(f"pretrain/{member}.py:mini" for member in FAMILY),
    ],
)
def test_the_files_read_by_the_bundled_configs_exist(name):
    config = load(name)
    train, heldout = find_corpus(config.input), find_corpus(config.validation)
    assert len(train) == len(heldout) > 0 and not set(train) & set(heldout)


@pytest.mark.parametrize("member, sizes", FAMILY.items())
@pytest.mark.parametrize("size", ["huge", "roberta_base"])
def test_an_unknown_size_is_named_with_those_that_there_are(member, sizes, size):
    with raises(ConfigError, f"size '{size}'", "expected", *sizes):
        load(f"pretrain/{member}.py:{size}")


def test_the_configs_of_the_papers_runs_have_the_papers_numbers():
    def batches(name):
        config = load(name)
        split = phases.split(config.train, config.train.steps)
        lengths = [config.data.in_phase(phase).max_length for phase in config.train.phases]
        return [
            (phase.end - phase.first, phase.config.batch_size, length)
            for phase, length in zip(split, lengths, strict=True)
        ]

    # Devlin et al., 2019, appendix A.2; You et al., 2020, section 4.1 and its 76 minutes' 8,599 updates, here 8,601.
    assert batches("pretrain/base.py") == [(900_000, 256, 128), (100_000, 256, 512)]
    assert batches("pretrain/large_lamb.py") == [(7038, 65_536, 128), (1563, 32_768, 512)]


def test_the_small_configs_of_the_family_train_on_as_many_tokens_with_as_many_layers_of_the_same_size():
    configs = [load(f"pretrain/{member}.py:mini") for member in FAMILY]
    for field in ("num_layers", "hidden_size", "num_heads"):
        assert len({getattr(config.model, field) for config in configs}) == 1
    for model in (config.model for config in configs):  # a gate has a third matrix
        assert model.feed_forward_matrices * model.intermediate_size == pytest.approx(2 * 1024, rel=0.01)
    assert len({(c.input, c.validation, c.data.max_length, c.train.batch_size, c.train.steps) for c in configs}) == 1
