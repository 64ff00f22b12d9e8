"""Texts of 8,192 tokens in one piece, through each entry point: the answers and the loss of whole rows, offsets in the
original text, and the memory of parts.
"""

import itertools
import json
import sys
from typing import NamedTuple

import numpy as np
import pytest

import bert_tf
from bert_tf.api.base import FineTuned
from bert_tf.checkpoints import directory
from bert_tf.inputs.datasets.examples import Answer, QuestionExample
from bert_tf.model import long_rows
from bert_tf.model.mode import infer
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from tests import zoo
from tests.inference.exports import check_same
from tests.inference.servers import serving
from tests.learned import lines, modern
from tests.model.small import MODERNBERT, randomize
from tests.programs import peak_memory

pytestmark = pytest.mark.slow

LENGTH = 8192
# Two global layers around a local one, whose bands are those of ModernBERT.
SHAPE = MODERNBERT | {
    "max_position_embeddings": LENGTH, "num_layers": 3, "num_heads": 2, "local_distance": 64,
    "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
QUESTION = "Who has the last word?"


def text_of(tokens, first=0):
    """Real English and Korean words, beginning with line `first`, as many as have no more than `tokens` tokens."""
    pairs = zip(lines("data/sotu/train.txt.gz"), lines("data/korean/gnome_train.txt.gz"), strict=True)
    text = "\n".join(itertools.chain.from_iterable(itertools.islice(pairs, first, None)))
    tokenizer = modern().tokenizer
    _, _, ends = tokenizer.tokenize_with_offsets([text[: 8 * tokens]])
    cut = text.encode()[: ends[0, tokens - 1].numpy()].decode(errors="ignore").rpartition(" ")[0]
    assert tokens - 20 < len(tokenizer.tokenize([cut])[0]) <= tokens
    return cut


class Long(NamedTuple):
    """A class of the Python API, its saved model, an input of LENGTH tokens, and that as a request to exports."""

    kind: type[FineTuned]
    path: str
    value: str | tuple[str, str]
    request: dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Name of a task -> Long."""
    tokenizer, folder = modern().tokenizer, tmp_path_factory.mktemp("long")
    text = text_of(LENGTH - 2)
    pair = QUESTION, text_of(LENGTH - 3 - len(tokenizer.tokenize([QUESTION])[0]), first=1)
    classes = Classification(tokenizer, ClassificationConfig(max_length=LENGTH), labels=("a", "b"), pair=False)
    tags = Tagging(tokenizer, TaggingConfig(max_length=LENGTH), labels=("O", "B-X", "I-X"), unit="words")
    questions = QuestionAnswering(tokenizer, QuestionAnsweringConfig(max_length=LENGTH))
    return {
        "classification": saved(folder, classes, bert_tf.TextClassifier, text, {"text": text}),
        "tagging": saved(folder, tags, bert_tf.TokenClassifier, text, {"text": text}),
        "questions": saved(
            folder, questions, bert_tf.QuestionAnswerer, pair, dict(zip(("question", "context"), pair, strict=True))
        ),
    }


def saved(folder, task, kind, value, request):
    encoder = zoo.encoder(task.tokenizer.vocab_size, **SHAPE)
    model = randomize(task.build(encoder))
    if kind is bert_tf.QuestionAnswerer:
        choose_last_words(task, model, *value)
    path = folder / task.name
    directory.save(str(path), model, encoder, task)
    return Long(kind, str(path), value, request)


def choose_last_words(task, model, question, context):
    """Lets the head answer with the last two words of the context."""
    answer = " ".join(context.split(" ")[-2:])
    example = QuestionExample("0", question, context, (Answer(answer, len(context) - len(answer)),), "0")
    features = task.codec.preprocess(task.codec.to_tensors([example], labelled=True))
    (positions,) = features["positions"].numpy()
    assert LENGTH - 40 < positions[0] <= positions[1] < LENGTH - 1
    head, transform = model.get_layer("span"), model.get_layer("transform")
    states = transform(infer(model.get_layer("encoder"), task.codec.pad(features))["sequence_output"])[0]
    # Before they are scaled, all states have the same length, so each is most similar to itself.
    head.kernel.assign(states.numpy()[positions].T / transform.norm.gamma.numpy()[:, None] ** 2)
    head.bias.assign([0.0, 0.0])


# What is compared of an answer: names in Python, and in exports.
ANSWERS = {
    "classification": {"label": "label", "probabilities": "probabilities"},
    "tagging": {"words": "word", "tags": "tag", "scores": "word_score"},
    "questions": {name: name for name in ("answer", "start", "end", "probability")},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_and_a_session_give_the_answers_of_whole_rows(made, programs, monkeypatch, tmp_path, name):
    long = made[name]
    model = long.kind.from_pretrained(long.path)
    (answer,) = model.predict([long.value])
    version = model.export(tmp_path / name).path
    with serving(tmp_path) as address:
        places = [version, f"{address}/v1/models/{name}"]
        found = [programs.succeed("inference.ask", one, stdin=json.dumps(long.request)).output for one in places]
    monkeypatch.setattr(long_rows, "UNCUT", LENGTH)
    monkeypatch.setattr(long_rows.Bands, "WHOLE", LENGTH)
    (whole,) = long.kind.from_pretrained(long.path).predict([long.value])
    names = ANSWERS[name]
    parts, others = ([plain(one[key]) for key in names] for one in (answer, whole))
    check_same(others, parts, 1e-4)  # sums of 8,192 terms in another order
    for line in found:
        one = json.loads(line)
        check_same([one[key] for key in names.values()], parts)

    if name == "questions":
        _, context = long.value
        assert answer["end"] == len(context) and answer["answer"] == " ".join(context.split(" ")[-2:])
        answers = [answer, *answer["nbest"]]
        assert len(answers) == 21 and all(context[one["start"] : one["end"]] == one["answer"] for one in answers)
    if name == "tagging":
        assert "".join(answer["words"]) == "".join(long.value.split()) and len(set(answer["tags"])) == 3
        spans = answer["spans"]
        assert len(spans) > 500 and all(long.value[one["start"] : one["end"]] == one["text"] for one in spans)
        assert spans[-1]["end"] > len(long.value) - 100


def plain(value):
    return list(value.values()) if isinstance(value, dict) else value


# Peak memory counts; so each way has a process of its own.
FIT = """
import json, sys
import bert_tf
from bert_tf.model import long_rows
path, texts, found, whole = sys.argv[1:]
if whole == "whole":
    long_rows.UNCUT = long_rows.Bands.WHOLE = 8192
classifier = bert_tf.TextClassifier.from_pretrained(path, max_length=8192)
history = classifier.fit(
    json.load(open(texts)), ["a", "b", "a"], epochs=3, batch_size=1, learning_rate=1e-3, dtype="float32", verbose=0
)
json.dump(history.history["loss"], open(found, "w"))
"""


def test_fine_tuning_has_the_losses_of_whole_rows_without_their_memory(tmp_path):
    task, texts = MaskedLM(modern().tokenizer, LENGTH), [text_of(LENGTH + 10, first) for first in range(3)]
    encoder = zoo.encoder(task.tokenizer.vocab_size, **SHAPE)
    directory.save(str(tmp_path / "init"), task.build(encoder), encoder, task)
    (tmp_path / "texts").write_text(json.dumps(texts))
    peaks, losses = {}, {}
    for way in ("parts", "whole"):
        peaks[way] = peak_memory(sys.executable, "-c", FIT, tmp_path / "init", tmp_path / "texts", tmp_path / way, way)
        losses[way] = json.loads((tmp_path / way).read_text())
    assert len(losses["parts"]) == 3 and losses["parts"][-1] < losses["parts"][0]
    np.testing.assert_allclose(losses["parts"], losses["whole"], rtol=1e-4)
    # Of whole rows, all three layers keep the probabilities of both heads.
    matrices = 3 * 2 * LENGTH**2 * 4
    assert peaks["parts"] < peaks["whole"] - matrices, peaks
