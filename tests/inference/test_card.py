"""The files next to an exported graph: warm-up requests, batching parameters, and a correct model card."""

import json
import pathlib
import re
import shlex

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf import BertEncoder
from bert_tf.errors import DataError
from bert_tf.inference import ask
from bert_tf.inference.card import _training, page, task_of_export
from bert_tf.inference.samples import FULL_BATCH
from bert_tf.inference.saved_model import export
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES, randomize, small_config

RESULTS = {
    "program": "finetune",
    "init": "models/base",
    "data_dir": "data/similar",
    "parameters": 12345,
    "steps": 678,
    "config": {"data": {"format": "table", "source": ""}},
    "final": {"kind": "evaluation", "step": 678, "loss": 0.25, "spearman": 0.8125},
    "baseline": {"spearman": 0.0},
}


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """A task and the directory of an exported version."""
    task = Regression(Tokenizer(PIECES), RegressionConfig(max_length=16), labels=("value",), pair=True)
    model = randomize(task.build(BertEncoder(small_config(num_layers=1))), scale=0.5)
    return task, export(task, model, str(tmp_path_factory.mktemp("models") / "similar texts"), results=RESULTS).path


@pytest.fixture(scope="module")
def extra(regression):
    return pathlib.Path(regression[1], "assets.extra")


@pytest.fixture(scope="module")
def session(regression):
    return ask.Model(regression[1])


def test_each_signature_has_a_short_a_long_and_a_full_warm_up_request(extra, session):
    rows = {}
    for record in tf.data.TFRecordDataset(str(extra / "tf_serving_warmup_requests")).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        if log.WhichOneof("log_type") == "regress_log":
            request = log.regress_log.request
            examples = [one.SerializeToString() for one in request.input.example_list.examples]
            inputs = {"inputs": examples}
        else:
            request = log.predict_log.request
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        answer = session.run(inputs, request.model_spec.signature_name)
        assert request.model_spec.name == "similar texts"
        rows.setdefault(request.model_spec.signature_name, []).append(len(next(iter(answer.values()))))
    assert rows == {"serving_default": [1, 1, 32], "tokens": [1, 1, 32], "regress": [1, 1, 32]}


def test_the_batching_parameters_allow_the_warm_up_requests(extra):
    for name in ("cpu", "gpu"):
        text = (extra / f"batching_{name}.pbtxt").read_text()
        assert int(re.search(r"^max_batch_size \{ value: (\d+) \}$", text, re.M)[1]) >= FULL_BATCH


def test_the_requests_of_the_card_get_the_answers_shown(extra, session):
    lines = (extra / "README.md").read_text().splitlines()
    shown = [(line, lines[number + 1]) for number, line in enumerate(lines) if line.startswith("curl ")]
    assert len(shown) == 3
    for command, answer in shown:
        _, _, body, url = shlex.split(command)
        body, answer = json.loads(body), json.loads(answer)
        if url.endswith(":predict"):
            found = session.predict(body)
            assert found == {name: pytest.approx(value, rel=1e-5) for name, value in answer.items()}
            continue
        assert url == "http://localhost:8501/v1/models/similar%20texts:regress"
        example = tf.train.Example()
        for name, value in body["examples"][0].items():
            example.features.feature[name].bytes_list.value.append(value.encode())
        found = session.run({"inputs": [example.SerializeToString()]}, "regress")["outputs"]
        assert found.tolist() == pytest.approx(answer["results"], rel=1e-5)


def changed_page(extra, training=None, answer=None):
    """The page of the card with other training results, and another answer to the first request."""
    card = json.loads((extra / "model_card.json").read_text())
    card["training"] = _training(RESULTS if training is None else training)
    card["examples"][0]["answer"] = answer
    return page(card)


def test_an_answer_too_long_for_the_page_is_only_in_the_json_file(extra):
    lines = changed_page(extra, answer={"outputs": [["good"] * 1000]}).splitlines()
    index = lines.index("The whole answer (8,015 characters) is in `model_card.json`.")
    assert lines[index - 3].startswith("curl -d ") and lines[index - 2 : index] == ["```", ""]
    assert not any("good" in line for line in lines)


def test_the_card_describes_the_training_data_and_the_metrics(extra):
    text, card = (extra / "README.md").read_text(), json.loads((extra / "model_card.json").read_text())
    assert "Trained by `finetune` from `models/base` on `data/similar` (format table): 678 updates, 12,345" in text
    assert "| spearman | 0.8125 | 0 |" in text and "| loss | 0.25 | |" in text
    assert card["training"]["final"] == RESULTS["final"]
    assert card["versions"]["tensorflow"].replace("rc", "-rc") == tf.__version__
    assert card["signatures"]["serving_default"]["outputs"] == {"value": {"dtype": "float32", "shape": [None]}}
    assert re.match("18 requests to 3 signatures", card["checked"])
    assert "| output | `value` | float32 | [?] |" in text


def test_metrics_that_are_not_numbers_are_not_on_the_page(extra):
    lost = {"steps": None, "final": {"loss": None, "f1": 0.5}, "baseline": {"f1": None}, "config": None}
    assert "|---|---|---|\n| f1 | 0.5 | |\n\n" in changed_page(extra, RESULTS | lost)
    assert "Trained by ``" in changed_page(extra, {"final": [1], "baseline": "x"})


def test_the_page_names_the_initial_checkpoint_if_there_was_one(extra):
    without = {name: value for name, value in RESULTS.items() if name != "init"}
    assert "Trained by `finetune` from `models/base` on" in changed_page(extra)
    assert "Trained by `finetune` from scratch on" in changed_page(extra, without)


def test_the_task_is_restored_from_a_version(regression, tmp_path):
    task, path = regression
    again = task_of_export(path)
    assert (type(again), again.settings(), again.tokenizer.vocab) == (type(task), task.settings(), task.tokenizer.vocab)
    with raises(DataError, "assets.extra/model_card.json"):
        task_of_export(str(tmp_path))
    (tmp_path / "assets.extra").mkdir()
    for card, message in (
        ("{}", r"model_card\.json: no 'task'$"),
        ('{"task": {"name": "vectors", "settings": {}}, "tokenizer": {}}', "a vectors model cannot be used to predict"),
    ):
        (tmp_path / "assets.extra/model_card.json").write_text(card)
        with pytest.raises(DataError, match=message):
            task_of_export(str(tmp_path))
