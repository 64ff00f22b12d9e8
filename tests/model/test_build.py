"""Models built by the name of their head: their variables are those by which checkpoints are read and written."""

import math

import pytest

from bert_tf import BertConfig, BertEncoder
from bert_tf.errors import ConfigError
from bert_tf.model.head_table import HEADS, build, variable_shapes
from tests.errors import raises
from tests.model.small import PRUNED, small_config

CONFIGS = {
    "bert": {},
    "one type": {"type_vocab_size": 1},
    "no types": {"type_vocab_size": 0},
    "positions from 2, 3 types": {"position_offset": 2, "type_vocab_size": 3},
    "pre-norm, 3 layers": {"norm": "pre", "num_layers": 3, "intermediate_size": 48},
    "projected embeddings": {"embedding_size": 16},
    "pruned": PRUNED,
    "shared layers": {"embedding_size": 32, "shared_layers": True, "num_layers": 3},  # projected, as in ALBERT
}
# Millions of parameters in the papers, of ALBERT-xxlarge in the published checkpoint: the paper's table says 235.
PUBLISHED = {
    "roberta_base": 125, "roberta_large": 355, "xlm_roberta_base": 270, "xlm_roberta_large": 550, "distilbert": 66,
    "albert_base": 12, "albert_large": 18, "albert_xlarge": 60, "albert_xxlarge": 223,
    "electra_small": 14, "electra_base": 110, "electra_large": 335,
}  # fmt: skip
NEED_A_POOLER = {"pretraining", "next_sentence", "classification", "multiple_choice", "intent_and_slots"}


def labels_of(head):
    if head == "intent_and_slots":
        return 2, 3
    return 3 if head and HEADS[head].labels else None


@pytest.mark.parametrize("case", CONFIGS)
def test_a_model_has_the_listed_variables(case):
    config = small_config(**CONFIGS[case])
    encoder = BertEncoder(config)
    for head in (None, *HEADS):
        model = build(encoder, head, labels_of(head))
        built = {variable.path: tuple(variable.shape) for variable in model.weights}
        assert built == variable_shapes(config, head, labels_of(head)), head
        assert len(built) == len(model.weights), head


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_member_of_the_family_has_the_published_number_of_parameters(name):
    shapes = variable_shapes(BertConfig.from_name(name).check())
    assert sum(map(math.prod, shapes.values())) / 1e6 == pytest.approx(PUBLISHED[name], rel=0.04)


def test_a_model_without_a_pooler_has_all_variables_but_the_poolers_or_an_error_says_how_to_get_one():
    config = small_config(pooler=False)
    encoder = BertEncoder(config)
    for head in (None, *HEADS):
        if head in NEED_A_POOLER:
            with raises(ConfigError, "bert_tf.load(PATH, pooler=True)"):
                build(encoder, head, labels_of(head))
            continue
        model = build(encoder, head, labels_of(head))
        with_pooler = variable_shapes(small_config(), head, labels_of(head))
        expected = {path: shape for path, shape in with_pooler.items() if not path.startswith("pooler/")}
        assert {variable.path: tuple(variable.shape) for variable in model.weights} == expected, head
        assert variable_shapes(config, head, labels_of(head)) == expected, head


def test_without_a_head_the_model_is_the_encoder():
    encoder = BertEncoder(small_config())
    assert build(encoder, None) is encoder
