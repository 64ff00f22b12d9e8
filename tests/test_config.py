"""Configs: sizes by name, dicts back and forth, and one clear line for each value that cannot be."""

import pytest

from bert_tf.config import (
    BertConfig,
    ExampleData,
    FinetuneConfig,
    PretrainConfig,
    PretrainingData,
    TrainConfig,
    from_dict,
    run_with_new_names,
    to_dict,
)
from bert_tf.config.train import RECIPES
from bert_tf.config.values import with_new_names
from bert_tf.errors import ConfigError

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
def test_the_sizes_are_the_published_ones(name):
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


def test_a_field_like_no_other_gets_the_list():
    with pytest.raises(ConfigError, match="known: recipe, batch_size, accumulation, "):
        from_dict(TrainConfig, {"zzz": 1})


@pytest.mark.parametrize("cls", [BertConfig, TrainConfig, PretrainConfig])
def test_a_config_survives_the_way_through_a_dict(cls):
    config = cls()
    if cls is PretrainConfig:
        config.model.num_layers, config.data.layout, config.tokenizer.strip_accents = 7, "documents", False
    assert from_dict(cls, to_dict(config)) == config


@pytest.mark.parametrize(
    "config, culprit",
    [
        (BertConfig(hidden_size="768"), "model.hidden_size is '768'; expected int"),
        (BertConfig(hidden_size=768.0), "model.hidden_size is 768.0; expected int"),
        (BertConfig(num_layers=True), "model.num_layers is True; expected int"),
        (BertConfig(dropout=None), "model.dropout is None; expected float"),
        (BertConfig(layer_norm_epsilon=-1), "model.layer_norm_epsilon is -1; it must be above 0"),
        (BertConfig(initializer_range=float("nan")), "model.initializer_range is nan"),
        (BertConfig(num_layers=0), "model.num_layers is 0; it must be at least 1"),
        (BertConfig(vocab_size=0), "model.vocab_size is 0"),
        (BertConfig(position_offset=-1), "model.position_offset is -1; it must not be negative"),
        (BertConfig(type_vocab_size=-1), "model.type_vocab_size is -1; it must not be negative"),
        (BertConfig(dropout=1.0), r"model.dropout is 1.0; it must be in \[0, 1\)"),
        (BertConfig(attention_dropout=-0.1), "model.attention_dropout is -0.1"),
        (BertConfig(hidden_size=100), "hidden_size 100 is not a multiple of num_heads 12"),
        (BertConfig(activation="gelu"), "model.activation 'gelu' is unknown; choose one of tanh_gelu, erf_gelu, relu"),
        (BertConfig(norm="both"), "model.norm 'both' is unknown; choose 'post' or 'pre'"),
        (TrainConfig(batch_size=0), "train.batch_size is 0"),
        (TrainConfig(steps=-1), "train.steps is -1"),
        (TrainConfig(steps=0, epochs=0), "one must be above 0"),
        (TrainConfig(warmup=2), "train.warmup is 2"),
        (TrainConfig(dtype="half"), "train.dtype 'half' is unknown; choose float32, bfloat16, float16 or auto"),
        (TrainConfig(recipe="bert"), "train.recipe 'bert' is unknown; choose one of google, modern"),
        (TrainConfig(optimizer="sgd"), "train.optimizer 'sgd' is unknown; choose one of adamw, lamb, radam"),
        (TrainConfig(schedule="step"), "train.schedule 'step' is unknown; choose one of linear, polynomial, cosine, "),
        (TrainConfig(normalization="mean"), "choose one of global, replica_mean, replica_sum"),
        (TrainConfig(clip_on="device"), "train.clip_on 'device' is unknown; choose one of global, replica"),
        (TrainConfig(clip_on="replica", normalization="global"), "set train.clip_on to 'global' too"),
        (TrainConfig(beta_2=1.0), "train.beta_2 is 1.0; it must be above 0 and below 1"),
        (TrainConfig(layer_decay=0.0), "train.layer_decay is 0.0; it must be above 0"),
        (TrainConfig(warmup_steps=-1), "train.warmup_steps is -1; it must be a finite number, at least 0"),
        (TrainConfig(learning_rate=float("nan")), "train.learning_rate is nan; it must be a finite number, at least 0"),
        (TrainConfig(learning_rate=float("inf")), "train.learning_rate is inf"),
        (TrainConfig(phases=3), r"train.phases is 3; expected PhaseConfigs in parentheses"),
        (TrainConfig(phases=(0.9, 0.1)), r"train.phases is \(0.9, 0.1\); expected PhaseConfigs"),
        (TrainConfig(end_learning_rate=1.0), "train.end_learning_rate 1.0 is above train.learning_rate 5e-05"),
        (
            TrainConfig(schedule="noam", end_learning_rate=1e-6),
            "end_learning_rate has no effect with the schedule 'noam'",
        ),
        (TrainConfig(power=2.0), "train.power is 2.0, but only the schedule 'polynomial' has one"),
        (TrainConfig(optimizer="radam", bias_correction=False), "train.bias_correction is false, but RAdam requires"),
        (TrainConfig(loss_scale_growth=0), "train.loss_scale_growth is 0; it must be at least 1"),
        (PretrainingData(layout="lines"), "data.layout 'lines' is unknown"),
        (PretrainingData(max_length=4), "data.max_length is 4; it must be at least 5"),
        (PretrainingData(masking_rate=1.5), r"data.masking_rate is 1.5; it must be in \[0, 1\]"),
        (PretrainingData(max_bad_share=2.0), r"data.max_bad_share is 2.0; it must be in \[0, 1\]"),
        (PretrainingData(service="host:5000"), "data.service is 'host:5000'; expected an address like grpc://"),
        (PretrainingData(service_workers=0), "data.service_workers is 0; it must be at least 1"),
        (PretrainingData(length_multiple=0), "data.length_multiple is 0"),
        (PretrainingData(masking="words"), "data.masking 'words' is unknown; choose one of token, whole_word, span"),
        (PretrainingData(masking="span", words="chars"), "data.words 'chars' is unknown; choose one of pieces, spaces"),
        (PretrainingData(words="spaces"), "data.words is 'spaces', but data.masking 'token' ignores words"),
        (PretrainingData(mask_on="gpu"), "data.mask_on 'gpu' is unknown; choose one of host, device"),
        (PretrainingData(pairs="both"), "data.pairs 'both' is unknown; choose nsp, sop or none"),
        (PretrainingData(pack=True, length_multiple=8), "data.length_multiple is 8, but with data.pack"),
        (PretrainingData(pack=True, mask_on="device"), "data.mask_on is 'device', .*; set data.mask_on=host"),
    ],
)
def test_a_value_that_no_run_can_have_is_named(config, culprit):
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
    ],
)
def test_the_defaults_and_what_goes_together_are_valid(config):
    assert config.check() is config


def test_a_setting_of_one_s_own_goes_before_the_recipe_s():
    google, own = TrainConfig(recipe="google"), TrainConfig(recipe="google", bias_correction=True, clip_on="global")
    assert (google.resolved().bias_correction, google.resolved().clip_on) == (False, "replica")
    assert (own.resolved().bias_correction, own.resolved().clip_on) == (True, "global")
    assert own.resolved().normalization == "replica_sum"


def test_a_resolved_config_leaves_nothing_to_its_recipe():
    for recipe in RECIPES:
        resolved = TrainConfig(recipe=recipe).resolved()
        assert None not in (getattr(resolved, name) for name in RECIPES[recipe])
        assert resolved.resolved() == resolved


def test_radam_is_bias_corrected_in_either_recipe():
    assert all(TrainConfig(recipe=recipe, optimizer="radam").resolved().bias_correction for recipe in RECIPES)


def test_what_a_recipe_and_a_setting_come_to_together_is_checked():
    with pytest.raises(ConfigError, match=r"'replica' while .* is 'global'"):
        TrainConfig(recipe="google", normalization="global").resolved()


OLD_NAMES = {
    "a field": (lambda: from_dict(PretrainConfig, {"heldout": "a.txt"}), "no longer has a field 'heldout'; use 'valid"),
    "a nested one": (
        lambda: from_dict(FinetuneConfig, {"task": None, "data": {"evaluation": "dev.tsv"}}),
        "no longer has a field 'evaluation'; use 'validation'",
    ),
    "a value": (lambda: BertConfig(attention="left").check(), "attention='left' has been renamed; use 'causal'"),
    "another": (lambda: PretrainingData(masking="next_token").check(), "has been renamed; use 'causal_lm'"),
}


@pytest.mark.parametrize("case", OLD_NAMES)
def test_an_old_name_is_refused_with_the_new_one(case):
    make, message = OLD_NAMES[case]
    with pytest.raises(ConfigError, match=message):
        make()


def test_saved_settings_with_old_names_are_read():
    config = to_dict(PretrainConfig(validation="b.txt"))
    old = {name: value for name, value in config.items() if name != "validation"} | {"heldout": "b.txt"}
    old["train"] = {name: value for name, value in old["train"].items() if name != "max_nonfinite_steps"}
    old["train"]["max_bad_steps"] = config["train"]["max_nonfinite_steps"]
    old["model"], old["data"] = old["model"] | {"attention": "both"}, old["data"] | {"masking": "token"}
    run = {"program": "pretrain", "config": old, "inputs": {"input": 1, "heldout": 2}, "floor": {"accuracy": 0.5}}
    renamed = run_with_new_names(run)
    assert renamed["config"] == config
    assert (renamed["inputs"], renamed["baseline"]) == ({"input": 1, "validation": 2}, {"accuracy": 0.5})
    tuned = {
        "program": "finetune",
        "inputs": {"init": {"model": {"attention": "both"}, "weights": "x"}, "evaluation": 1},
    }
    inputs = {"init": {"model": {"attention": "bidirectional"}, "weights": "x"}, "validation": 1}
    assert run_with_new_names(tuned)["inputs"] == inputs
    data = with_new_names(ExampleData, {"evaluation": "dev.tsv", "text": "a"})
    assert from_dict(ExampleData, data) == ExampleData(validation="dev.tsv", text="a")
    model = with_new_names(BertConfig, {"attention": "left", "num_layers": 3})
    assert from_dict(BertConfig, model) == BertConfig(attention="causal", num_layers=3)
