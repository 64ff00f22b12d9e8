"""Configs: sizes by name, conversion to and from dicts, and one clear line for each invalid value."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import bert_tf.config
import bert_tf.tasks
from bert_tf.config import (
    BertConfig,
    ClassificationConfig,
    ExampleData,
    FinetuneConfig,
    GridConfig,
    PhaseConfig,
    PretrainConfig,
    PretrainingData,
    TaggingConfig,
    TokenizerConfig,
    TrainConfig,
    from_dict,
    tasks,
    to_dict,
)
from bert_tf.config.train import FINETUNING_RATE, RECIPES, scaled_rate
from bert_tf.errors import ConfigError
from bert_tf.metrics.entities import SCHEMES
from tests.errors import raises

# Layers, hidden size, heads: the paper's two and the four of Turc et al. (2019), table 1.
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_equal_the_published_ones(name):
    config = BertConfig.from_name(name).check()
    assert (config.num_layers, config.hidden_size, config.num_heads) == SIZES[name]
    assert config.intermediate_size == 4 * config.hidden_size
    assert (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30522, 512, 2)


def test_a_size_can_be_changed_in_part():
    config = BertConfig.from_name("tiny", vocab_size=100, num_layers=3)
    assert (config.vocab_size, config.num_layers, config.hidden_size) == (100, 3, 128)


def test_an_unknown_size_names_the_known_ones():
    with raises(ConfigError, "'huge'"):
        BertConfig.from_name("huge")


def test_a_mistyped_field_gets_a_suggestion():
    with raises(ConfigError, "BertConfig", "'hiden_size'", "'hidden_size'"):
        BertConfig.from_name("tiny", hiden_size=3)
    with raises(ConfigError, "'learning_rte'", "'learning_rate'"):
        from_dict(FinetuneConfig, {"train": {"learning_rte": 1}})


def test_a_field_unlike_any_other_gets_a_short_list_or_the_class():
    with raises(ConfigError, "zzz", "see bert_tf.config.TrainConfig"):
        from_dict(TrainConfig, {"zzz": 1})
    with raises(ConfigError, "zzz", "lower_case, strip_accents, split_cjk"):
        from_dict(TokenizerConfig, {"zzz": 1})


@pytest.mark.parametrize("cls", [BertConfig, TrainConfig, PretrainConfig])
def test_a_config_is_restored_from_a_dict(cls):
    config = cls()
    if cls is PretrainConfig:
        config.model.num_layers, config.data.layout, config.tokenizer.strip_accents = 7, "documents", False
    assert from_dict(cls, to_dict(config)) == config


@pytest.mark.parametrize(
    "config, culprit",
    [
        (BertConfig(layer_norm_epsilon=-1), ("model.layer_norm_epsilon", "-1", "1e-30", "1")),
        (BertConfig(initializer_range=float("nan")), ("model.initializer_range", "nan")),
        (BertConfig(num_layers=0), ("model.num_layers", "0", "1", "1,000")),
        (BertConfig(num_layers=10**6), ("model.num_layers", "1000000")),
        (BertConfig(max_position_embeddings=10**9), ("model.max_position_embeddings", "1000000000")),
        (BertConfig(vocab_size=0), ("model.vocab_size", "0")),
        (BertConfig(embedding_size=-1), ("model.embedding_size", "-1", "0")),
        (BertConfig(vocab_size=10**12), ("model.vocab_size", "1000000000000")),
        (BertConfig(position_offset=-1), ("model.position_offset", "-1", "0")),
        (BertConfig(type_vocab_size=-1), ("model.type_vocab_size", "-1", "0")),
        (BertConfig(dropout=1.0), ("model.dropout", "1.0")),
        (BertConfig(attention_dropout=-0.1), ("model.attention_dropout", "-0.1")),
        (
            BertConfig(hidden_size=96_000, num_layers=900),
            ("100,000,000,000",),
        ),
        (BertConfig(hidden_size=100), ("hidden_size", "100", "num_heads", "12")),
        (BertConfig(num_layers=2, heads_per_layer=(3,)), ("model.heads_per_layer", "1 entries", "num_layers 2")),
        (BertConfig(num_layers=2, heads_per_layer=(3, 13)), ("model.heads_per_layer", "13", "12", "num_heads")),
        (BertConfig(num_layers=2, heads_per_layer=(3, 0)), ("model.heads_per_layer[1]", "0", "1")),
        (BertConfig(num_layers=1, intermediate_sizes=(8.0,)), ("model.intermediate_sizes[0]", "8.0")),
        (
            BertConfig(num_layers=1, intermediate_sizes=(8,), shared_layers=True),
            ("intermediate_sizes", "shared_layers"),
        ),
        (BertConfig(activation="gelu"), ("model.activation", "'gelu'", "tanh_gelu", "erf_gelu")),
        (BertConfig(norm="both"), ("model.norm", "'both'")),
        (TrainConfig(batch_size=0), ("train.batch_size", "0")),
        (TrainConfig(steps=-1), ("train.steps", "-1")),
        (TrainConfig(steps=1e6), ("train.steps", "1000000.0")),
        (TrainConfig(steps=0, epochs=0), ("train.steps", "train.epochs", "0")),
        (TrainConfig(epochs=float("inf")), ("train.epochs", "inf", "0", "1,000,000")),
        (TrainConfig(epochs=10**400), ("train.epochs",)),
        (TrainConfig(seed=-1), ("train.seed", "-1", "0", "4,294,967,295")),
        (TrainConfig(seed=2**32), ("train.seed", "4294967296")),
        (TrainConfig(warmup=2), ("train.warmup", "2", "0", "1")),
        (TrainConfig(dtype="half"), ("train.dtype", "'half'", "float32", "bfloat16", "float16")),
        (TrainConfig(dtype=["half"]), ("train.dtype", "['half']", "float32")),
        (TrainConfig(recipe="bert"), ("train.recipe", "'bert'")),
        (TrainConfig(optimizer="sgd"), ("train.optimizer", "'sgd'")),
        (TrainConfig(normalization="mean"), ("replica_mean", "replica_sum", "None")),
        (TrainConfig(clip_on="replica", normalization="global"), ("train.clip_on", "'global'")),
        (TrainConfig(epsilon=0.0), ("train.epsilon", "0.0", "1e-16", "1,000")),
        (
            ClassificationConfig(class_weights=(1e300,)),
            ("class_weights[0]", "1e+300", "1,000,000"),
        ),
        (ExampleData(text=""), ("data.text",)),
        (TrainConfig(beta_2=1.0), ("train.beta_2", "1.0", "0", "1")),
        (TrainConfig(layer_decay=0.0), ("train.layer_decay", "0.0", "0", "1")),
        (TrainConfig(layer_decay=1.5), ("train.layer_decay", "1.5")),
        (TrainConfig(warmup_steps=-1), ("train.warmup_steps", "-1", "0", "None")),
        (TrainConfig(learning_rate=float("nan")), ("train.learning_rate", "nan", "0")),
        (TrainConfig(learning_rate=float("inf")), ("train.learning_rate", "inf")),
        (TrainConfig(phases=3), ("train.phases", "3", "PhaseConfig")),
        (TrainConfig(phases=(0.9, 0.1)), ("train.phases[0]", "0.9", "PhaseConfig")),
        (TrainConfig(phases=(PhaseConfig(batch_size=8.0),)), ("train.phases[0].batch_size", "8.0")),
        (
            TrainConfig(learning_rate=0.1, end_learning_rate=1.0),
            ("train.end_learning_rate 1.0", "train.learning_rate 0.1"),
        ),
        (
            TrainConfig(schedule="noam", end_learning_rate=1e-6),
            ("end_learning_rate", "'noam'"),
        ),
        (TrainConfig(power=2.0), ("train.power", "2.0", "'polynomial'")),
        (TrainConfig(decay=0.2), ("train.decay", "0.2", "'stable'")),
        (TrainConfig(optimizer="muon", bias_correction=False), ("train.bias_correction", "'muon'")),
        (PretrainingData(mask_special=True, masking="whole_word"), ("data.mask_special", "'whole_word'", "token")),
        (TrainConfig(optimizer="radam", bias_correction=False), ("train.bias_correction", "'radam'")),
        (GridConfig(batch_size=16), ("grid.batch_size", "16", "1")),
        (GridConfig(learning_rate=(1e-4, -1e-4)), ("grid.learning_rate[1]", "-0.0001")),
        (GridConfig(epochs=(2, 3, 2.0)), ("grid.epochs", "(2, 3, 2.0)")),
        (PretrainingData(layout="lines"), ("data.layout", "'lines'")),
        (PretrainingData(max_length=4), ("data.max_length", "4", "5")),
        (PretrainingData(masking_rate=1.5), ("data.masking_rate", "1.5", "0", "1")),
        (PretrainingData(service="host:5000"), ("data.service", "'host:5000'", "grpc://")),
        (PretrainingData(length_multiple=0), ("data.length_multiple", "0", "1", "None")),
        (PretrainingData(generator_size=0.5), ("data.generator_size is 0.5", "'mlm'", "data.objective=electra")),
        (PretrainingData(words="spaces"), ("data.words", "'spaces'", "data.masking", "'token'")),
        (PretrainingData(pack=True, length_multiple=8), ("data.length_multiple", "8", "data.pack")),
        (PretrainingData(pack=True, mask_on="device"), ("data.mask_on", "'device'", "data.mask_on=host")),
        (ExampleData(second_text=None), ("data.second_text", "None")),
        (TokenizerConfig(lower_case="yes"), ("tokenizer.lower_case", "'yes'", "True", "False")),
        (PretrainConfig(input=["a.txt"]), ("['a.txt']",)),
        (PretrainConfig(train={"steps": 1}), ("train", "{'steps': 1}", "TrainConfig")),
        (FinetuneConfig(task=None, search="yes"), ("'yes'", "True", "False")),
        (TaggingConfig(features=3), ("task.features", "3", "FeatureConfig")),
    ],
)
def test_an_invalid_value_is_named(config, culprit):
    with raises(ConfigError, *culprit):
        config.check()


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(),
        BertConfig(type_vocab_size=0, dropout=0),
        TrainConfig(),
        PretrainingData(),
        PretrainingData(pairs="none", pack=True, mask_on="device"),
        PretrainConfig(),
        FinetuneConfig(task=None),
        *(getattr(tasks, name)() for name in vars(tasks) if name.endswith("Config") and name != "FeatureConfig"),
        FinetuneConfig(task=None, train=TrainConfig(epochs=3, layer_decay=1, phases=[])),
    ],
)
def test_the_defaults_and_compatible_settings_are_valid(config):
    assert config.check() is config


@pytest.mark.parametrize("cls", [BertConfig, TrainConfig, PretrainingData, ExampleData, TokenizerConfig, TaggingConfig])
def test_a_value_of_the_wrong_type_is_named_in_any_field(cls):
    for field in dataclasses.fields(cls):
        for value in (1j, [None], b"text"):
            with pytest.raises(ConfigError, match=rf"^\w+\.{field.name}(\[0\])? is .*; expected [^\n]*$"):
                dataclasses.replace(cls(), **{field.name: value}).check()


def test_a_mistyped_assignment_in_a_config_file_is_named():
    config = FinetuneConfig(task=None)
    config.train.learning_rte = 1e-4
    with raises(ConfigError, "'learning_rte'", "'learning_rate'"):
        config.check()


def test_tagging_schemes_are_those_of_the_metrics():
    for scheme in ("", *SCHEMES):
        assert TaggingConfig(scheme=scheme).check().scheme == scheme
    with raises(ConfigError, "task.scheme", "'IOE'", ", ".join(SCHEMES)):
        TaggingConfig(scheme="IOE").check()


def test_configs_are_imported_without_tensorflow_and_also_from_bert_tf_tasks():
    files = [str(path) for path in sorted((Path(__file__).parents[1] / "configs").glob("*/*.py"))]
    script = "import runpy, sys; import bert_tf.config\n"
    script += f"for file in {files}: runpy.run_path(file)['get_config']()\n"
    script += "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    assert len(files) > 10
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in bert_tf.tasks.__all__:
        if name.endswith("Config"):
            assert getattr(bert_tf.tasks, name) is getattr(bert_tf.config, name)
    from bert_tf.tasks.classification import ClassificationConfig
    from bert_tf.tasks.question_answering import QuestionAnsweringConfig

    assert isinstance(ClassificationConfig(), tasks.LabelsConfig)
    assert isinstance(QuestionAnsweringConfig(), tasks.TaskConfig)


def test_an_explicit_setting_overrides_the_recipe():
    google, own = TrainConfig(recipe="google"), TrainConfig(recipe="google", bias_correction=True, clip_on="global")
    assert (google.resolved().bias_correction, google.resolved().clip_on) == (False, "replica")
    assert (own.resolved().bias_correction, own.resolved().clip_on) == (True, "global")
    assert own.resolved().normalization == "replica_sum"


def test_a_resolved_config_has_a_value_for_every_setting_of_its_recipe():
    for recipe in RECIPES:
        resolved = TrainConfig(recipe=recipe).resolved()
        assert None not in (getattr(resolved, name) for name in RECIPES[recipe])
        assert resolved.resolved() == resolved


def test_radam_is_bias_corrected_in_either_recipe():
    assert all(TrainConfig(recipe=recipe, optimizer="radam").resolved().bias_correction for recipe in RECIPES)


def test_the_combination_of_recipe_and_settings_is_checked():
    with raises(ConfigError, "'replica'", "'global'"):
        TrainConfig(recipe="google", normalization="global").resolved()


@pytest.mark.parametrize(
    # As good values were in docs/results.md: 1e-4 with MiniLM (384), 1.5e-4 with 256 units, 3e-4 with 128.
    "width, rate",
    [(768, 5e-5), (1024, 3.8e-5), (384, 1e-4), (256, 1.5e-4), (128, 3e-4)],
)
def test_the_learning_rate_is_the_papers_for_bert_base_and_inversely_proportional_to_the_width(width, rate):
    assert scaled_rate(FINETUNING_RATE, width) == rate
    assert GridConfig().rates(width) == (rate, float(f"{3e-5 * 768 / width:.1e}"), float(f"{2e-5 * 768 / width:.1e}"))
    assert GridConfig(learning_rate=(0.1,)).rates(width) == (0.1,)
