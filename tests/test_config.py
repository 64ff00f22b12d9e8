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
from bert_tf.config.train import RECIPES
from bert_tf.errors import ConfigError
from bert_tf.metrics.entities import SCHEMES

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
    with pytest.raises(ConfigError, match="'huge' is unknown; choose one of tiny, mini, small, medium, base, large"):
        BertConfig.from_name("huge")


def test_a_mistyped_field_gets_a_suggestion():
    with pytest.raises(ConfigError, match=r"BertConfig has no field 'hiden_size'; did you mean 'hidden_size'\?"):
        BertConfig.from_name("tiny", hiden_size=3)
    with pytest.raises(ConfigError, match=r"^train has no field 'learning_rte'; did you mean 'learning_rate'\?"):
        from_dict(FinetuneConfig, {"train": {"learning_rte": 1}})


def test_a_field_unlike_any_other_gets_the_list():
    with pytest.raises(ConfigError, match="known: recipe, batch_size, accumulation, "):
        from_dict(TrainConfig, {"zzz": 1})


@pytest.mark.parametrize("cls", [BertConfig, TrainConfig, PretrainConfig])
def test_a_config_is_restored_from_a_dict(cls):
    config = cls()
    if cls is PretrainConfig:
        config.model.num_layers, config.data.layout, config.tokenizer.strip_accents = 7, "documents", False
    assert from_dict(cls, to_dict(config)) == config


@pytest.mark.parametrize(
    "config, culprit",
    [
        (BertConfig(hidden_size="768"), "model.hidden_size is '768'; expected a whole number from 1 up to 100,000"),
        (BertConfig(hidden_size=768.0), "model.hidden_size is 768.0; expected a whole number"),
        (BertConfig(num_layers=True), "model.num_layers is True; expected a whole number"),
        (BertConfig(dropout=None), "model.dropout is None; expected a number from 0 but below 1"),
        (BertConfig(pooler=1), "model.pooler is 1; expected True or False"),
        (BertConfig(layer_norm_epsilon=-1), "model.layer_norm_epsilon is -1; expected a number from 1e-30 up to 1"),
        (BertConfig(initializer_range=float("nan")), "model.initializer_range is nan"),
        (BertConfig(num_layers=0), "model.num_layers is 0; expected a whole number from 1 up to 1,000"),
        (BertConfig(num_layers=10**6), "model.num_layers is 1000000"),
        (BertConfig(max_position_embeddings=10**9), "model.max_position_embeddings is 1000000000"),
        (BertConfig(vocab_size=0), "model.vocab_size is 0"),
        (BertConfig(vocab_size=10**12), "model.vocab_size is 1000000000000"),
        (BertConfig(position_offset=-1), "model.position_offset is -1; expected a whole number from 0"),
        (BertConfig(type_vocab_size=-1), "model.type_vocab_size is -1; expected a whole number from 0"),
        (BertConfig(dropout=1.0), "model.dropout is 1.0"),
        (BertConfig(attention_dropout=-0.1), "model.attention_dropout is -0.1"),
        (
            BertConfig(hidden_size=96_000, num_layers=900),
            r"has [\d,]+ weights; expected up to 100,000,000,000",
        ),
        (BertConfig(hidden_size=100), "hidden_size 100 is not a multiple of num_heads 12"),
        (BertConfig(activation="gelu"), "model.activation is 'gelu'; expected one of tanh_gelu, erf_gelu, relu"),
        (BertConfig(norm="both"), "model.norm is 'both'; expected one of post, pre"),
        (TrainConfig(batch_size=0), "train.batch_size is 0"),
        (TrainConfig(steps=-1), "train.steps is -1"),
        (TrainConfig(steps=1e6), "train.steps is 1000000.0; expected a whole number"),
        (TrainConfig(steps=0, epochs=0), "train.steps and train.epochs are 0; set one of them"),
        (TrainConfig(epochs=float("inf")), "train.epochs is inf; expected a number from 0 up to 1,000,000"),
        (TrainConfig(epochs=10**400), "train.epochs is 1000"),
        (TrainConfig(seed=-1), "train.seed is -1; expected a whole number from 0 up to 4,294,967,295"),
        (TrainConfig(seed=2**32), "train.seed is 4294967296"),
        (TrainConfig(warmup=2), "train.warmup is 2; expected a number from 0 up to 1"),
        (TrainConfig(dtype="half"), "train.dtype is 'half'; expected one of float32, bfloat16, float16, auto"),
        (TrainConfig(dtype=["half"]), r"train.dtype is \['half'\]; expected one of float32"),
        (TrainConfig(recipe="bert"), "train.recipe is 'bert'; expected one of google, modern"),
        (TrainConfig(optimizer="sgd"), "train.optimizer is 'sgd'; expected one of adamw, lamb, radam"),
        (TrainConfig(normalization="mean"), "expected one of global, replica_mean, replica_sum or None"),
        (TrainConfig(clip_on="replica", normalization="global"), "set train.clip_on to 'global' too"),
        (TrainConfig(epsilon=0.0), "train.epsilon is 0.0; expected a number from 1e-16 up to 1,000"),
        (
            ClassificationConfig(class_weights=(1e300,)),
            r"class_weights\[0\] is 1e\+300; .* up to 1,000,000",
        ),
        (ExampleData(text=""), "data.text is empty; expected the name of a column"),
        (TrainConfig(beta_2=1.0), "train.beta_2 is 1.0; expected a number above 0 but below 1"),
        (TrainConfig(layer_decay=0.0), "train.layer_decay is 0.0; expected a number above 0 up to 1"),
        (TrainConfig(layer_decay=1.5), "train.layer_decay is 1.5"),
        (TrainConfig(warmup_steps=-1), "train.warmup_steps is -1; expected a whole number from 0 up to .* or None"),
        (TrainConfig(learning_rate=float("nan")), "train.learning_rate is nan; expected a number from 0 up to"),
        (TrainConfig(learning_rate=float("inf")), "train.learning_rate is inf"),
        (TrainConfig(phases=3), "train.phases is 3; expected a tuple, each element a PhaseConfig"),
        (TrainConfig(phases=(0.9, 0.1)), r"train.phases\[0\] is 0.9; expected a PhaseConfig"),
        (TrainConfig(phases=(PhaseConfig(batch_size=8.0),)), r"train.phases\[0\].batch_size is 8.0; expected a whole"),
        (TrainConfig(end_learning_rate=1.0), "train.end_learning_rate 1.0 is above train.learning_rate 5e-05"),
        (
            TrainConfig(schedule="noam", end_learning_rate=1e-6),
            "end_learning_rate has no effect with the schedule 'noam'",
        ),
        (TrainConfig(power=2.0), "train.power is 2.0, but only the schedule 'polynomial' has one"),
        (TrainConfig(optimizer="radam", bias_correction=False), "train.bias_correction is false, but RAdam requires"),
        (GridConfig(batch_size=16), "grid.batch_size is 16; expected a tuple, each element a whole number from 1"),
        (GridConfig(learning_rate=(1e-4, -1e-4)), r"grid.learning_rate\[1\] is -0.0001; expected a number"),
        (GridConfig(epochs=(2, 3, 2.0)), r"grid.epochs is \(2, 3, 2.0\); expected different numbers"),
        (PretrainingData(layout="lines"), "data.layout is 'lines'; expected one of sentences, documents"),
        (PretrainingData(max_length=4), "data.max_length is 4; expected a whole number from 5"),
        (PretrainingData(masking_rate=1.5), "data.masking_rate is 1.5; expected a number from 0 up to 1"),
        (PretrainingData(service="host:5000"), "data.service is 'host:5000'; expected an address like grpc://"),
        (PretrainingData(length_multiple=0), "data.length_multiple is 0; expected a whole number from 1 .* or None"),
        (PretrainingData(words="spaces"), "data.words is 'spaces', but data.masking 'token' ignores words"),
        (PretrainingData(pack=True, length_multiple=8), "data.length_multiple is 8, but with data.pack"),
        (PretrainingData(pack=True, mask_on="device"), "data.mask_on is 'device', .*; set data.mask_on=host"),
        (ExampleData(second_text=None), "data.second_text is None; expected text"),
        (TokenizerConfig(lower_case="yes"), "tokenizer.lower_case is 'yes'; expected True or False"),
        (PretrainConfig(input=["a.txt"]), r"^input is \['a.txt'\]; expected text"),
        (PretrainConfig(train={"steps": 1}), "^train is {'steps': 1}; expected a TrainConfig"),
        (FinetuneConfig(task=None, search="yes"), "^search is 'yes'; expected True or False"),
        (TaggingConfig(features=3), "task.features is 3; expected a FeatureConfig"),
    ],
)
def test_an_invalid_value_is_named(config, culprit):
    with pytest.raises(ConfigError, match=culprit):
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
    with pytest.raises(ConfigError, match=r"^train has no field 'learning_rte'; did you mean 'learning_rate'\?$"):
        config.check()


def test_tagging_schemes_are_those_of_the_metrics():
    for scheme in ("", *SCHEMES):
        assert TaggingConfig(scheme=scheme).check().scheme == scheme
    with pytest.raises(ConfigError, match=f"task.scheme is 'IOE'; expected one of {', '.join(SCHEMES)}$"):
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
    with pytest.raises(ConfigError, match=r"'replica' while .* is 'global'"):
        TrainConfig(recipe="google", normalization="global").resolved()
