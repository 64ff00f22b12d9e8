"""The model of every task has the variables listed for its checkpoints."""

import pytest

from bert_tf import BertEncoder
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import FeatureConfig
from bert_tf.errors import ConfigError
from bert_tf.tasks import TASKS, FineTuningTask
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.regression import RegressionConfig
from bert_tf.tasks.tagging import TaggingConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES, small_config

CONFIGS = {
    "classification, bilstm": ClassificationConfig(head="bilstm"),
    "regression, cosine": RegressionConfig(head="cosine"),
    "tagging, bilstm": TaggingConfig(head="bilstm", features=FeatureConfig((0, -1), "concat")),
}


def make(case):
    kind = TASKS[case.partition(",")[0]]
    if not issubclass(kind, FineTuningTask):
        return kind(Tokenizer(PIECES), 24)
    state = {}
    if hasattr(kind.State, "labels"):
        state["labels"] = ["a"] if case.startswith(("regression", "reranking")) else ["a", "b", "c"]
    if hasattr(kind.State, "intents"):
        state["intents"] = ["x", "y"]
    return kind(Tokenizer(PIECES), CONFIGS.get(case), **state)


# A sentence encoder is saved without a task.
@pytest.mark.parametrize("case", [*(name for name in TASKS if name != "embeddings"), *CONFIGS])
def test_a_model_is_built_with_the_head_used_for_loading(case):
    task, encoder = make(case), BertEncoder(small_config(num_layers=1))
    saved = Checkpoint(encoder.config, {}, {"name": task.name, "settings": task.settings()})
    assert saved.head
    assert {one.path: tuple(one.shape) for one in task.build(encoder).weights} == saved.shapes()


def test_the_error_for_missing_layers_names_the_setting():
    config = TaggingConfig(head="bilstm", features=FeatureConfig((99,)))
    task = TASKS["tagging"](Tokenizer(PIECES), config, labels=["a", "b"])
    with raises(ConfigError, "task.features", "99", "-1", "1", "0"):
        task.build(BertEncoder(small_config(num_layers=1)))


def test_a_new_task_can_be_loaded_without_other_changes(monkeypatch):
    class Sentiment(Classification):
        name = "sentiment"

    saved = Checkpoint(small_config(), {}, {"name": "sentiment", "settings": {"labels": ["a", "b"], "head": "bilstm"}})
    assert saved.head is None  # a task that only later versions know
    monkeypatch.setitem(TASKS, "sentiment", Sentiment)
    assert (saved.head, saved.labels) == ("classification_bilstm", ["a", "b"])
