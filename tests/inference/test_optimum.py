"""Exports to ONNX, asked by Optimum's models and pipelines and by sentence-transformers.

They need an older Transformers, so BERT_TF_TEST_OPTIMUM_PYTHON names the Python of an environment of their own.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.formats import huggingface
from tests.inference.kinds import BESIDE
from tests.inference.portable import checkpoint_of, expected_of, made

pytestmark = pytest.mark.slow
pytest.importorskip("tf2onnx")

TEXTS = ["a good b the end", "the"]
MASKED = "a <mask> b"
PAIRS = [TEXTS, ["c d", "a b a b c"]]
# Kind -> class of Optimum, as the table in docs/onnx_and_litert.md has them, and arguments of the tokenizer.
CLASSES = {
    "classification": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification of pairs": ("ORTModelForSequenceClassification", PAIRS),
    "classification by RoBERTa": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification by DistilBERT": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification by ELECTRA": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification by ALBERT": ("ORTModelForSequenceClassification", [TEXTS]),
    "any number of labels": ("ORTModelForSequenceClassification", [TEXTS]),
    "tagging": ("ORTModelForTokenClassification", [TEXTS]),
    "questions": ("ORTModelForQuestionAnswering", PAIRS),
    "multiple choice": ("ORTModelForMultipleChoice", PAIRS),
    "pre-training on packed rows": ("ORTModelForMaskedLM", PAIRS),
    "masks by XLM-R": ("ORTModelForMaskedLM", [TEXTS]),
    "vectors of sentences": ("ORTModelForFeatureExtraction", [TEXTS]),
    "scores": ("ORTModelForSequenceClassification", PAIRS),
    # Of which Transformers has no class.
    "classification by pruned layers": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification on bilstm": ("ORTModelForSequenceClassification", [TEXTS]),
    "classification from left to right": ("ORTModelForSequenceClassification", [TEXTS]),
    "regression": ("ORTModelForSequenceClassification", PAIRS),
    "tagging on bilstm": ("ORTModelForTokenClassification", [TEXTS]),
    "intent and slots": ("ORTModelForCustomTasks", [TEXTS]),
    "regression by cosine": ("ORTModelForCustomTasks", PAIRS),
    # Whose tokenizers would give other inputs by themselves.
    **{kind: ("ORTModelForSequenceClassification", PAIRS) for kind in BESIDE if "with" in kind},
}


@pytest.fixture(scope="module")
def optimum(tmp_path_factory):
    """Kind -> (task, model, answers of Optimum by name: "model", "pipeline", "vectors"), all asked in one process."""
    python = os.environ.get("BERT_TF_TEST_OPTIMUM_PYTHON")
    if not python:
        pytest.skip("needs a Python with optimum-onnx and sentence-transformers in BERT_TF_TEST_OPTIMUM_PYTHON")
    folder, models, cases = tmp_path_factory.mktemp("onnx"), {}, []
    for kind, (name, texts) in CLASSES.items():
        path = str(folder / kind.replace(" ", "_"))
        models[kind] = (*made(kind, path, "onnx", check=False)[:2], {})
        common = {"kind": kind, "folder": path, "class": name}
        cases.append(common | {"name": "model", "texts": texts})
        if kind in PIPELINES:
            cases.append(common | {"name": "pipeline"} | PIPELINES[kind])
        if kind == "vectors of sentences":
            cases.append(common | {"name": "vectors", "vectors_of": TEXTS})
        if kind == "scores":
            pairs = list(zip(*PAIRS, strict=True))
            cases.append(common | {"name": "onnx", "scores_of": pairs, "backend": "onnx"})
            whole = folder / "whole"
            whole.mkdir()
            huggingface.write(checkpoint_of(*models[kind][:2]), str(whole))
            cases.append(common | {"name": "torch", "scores_of": pairs, "backend": "torch", "folder": str(whole)})
    client = pathlib.Path(__file__).with_name("optimum_client.py")
    done = subprocess.run(
        [python, client],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        models[case["kind"]][2][case["name"]] = json.loads(line)
    return models


def pipeline(name, input, **options):
    return {"pipeline": name, "input": input, "options": options}


PIPELINES = {
    "classification": pipeline("text-classification", TEXTS, top_k=None),
    "classification by pruned layers": pipeline("text-classification", TEXTS, top_k=None),
    "classification of pairs": pipeline(
        "text-classification", [{"text": a, "text_pair": b} for a, b in zip(*PAIRS, strict=True)], top_k=None
    ),
    "any number of labels": pipeline("text-classification", TEXTS, top_k=None),
    "tagging": pipeline("token-classification", TEXTS[0], ignore_labels=[]),
    "questions": pipeline("question-answering", {"question": TEXTS[0], "context": PAIRS[1][1]}),
    "masks by XLM-R": pipeline("fill-mask", MASKED, top_k=3),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_models_of_optimum_give_the_models_outputs(optimum, kind):
    task, model, answers = optimum[kind]
    inputs = {name: np.array(value) for name, value in answers["model"]["inputs"].items()}
    found = {name: np.array(value) for name, value in answers["model"]["outputs"].items()}
    assert found
    for row, expected in enumerate(expected_of(task, model, inputs)):
        for name, value in found.items():
            cut = tuple(slice(size) for size in expected[name].shape[1:])
            np.testing.assert_allclose(value[row][cut], expected[name][0], rtol=1e-5, atol=1e-5)


def served(task, model, *columns):
    """Answers of the signature for texts, which TF Serving gives: dict name -> array."""
    outputs = task.signatures(model)["serving_default"](*(tf.constant(column) for column in columns))
    return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize(
    "kind, labels",
    [
        ("classification", ("negative", "긍정")),
        ("classification by pruned layers", ("negative", "긍정")),
        ("classification of pairs", ("negative", "긍정")),
        ("any number of labels", ("a", "b", "c")),
    ],
)
def test_pipelines_give_the_served_probabilities(optimum, kind, labels):
    task, model, answers = optimum[kind]
    probabilities = served(task, model, *(PAIRS if "pairs" in kind else [TEXTS]))["probabilities"]
    for expected, scores in zip(probabilities, answers["pipeline"], strict=True):
        found = {score["label"]: score["score"] for score in scores}
        np.testing.assert_allclose([found[label] for label in labels], expected, atol=1e-5)


def test_the_pipeline_of_tokens_names_the_tags(optimum):
    task, model, answers = optimum["tagging"]
    # The pipeline has an answer for each token; that of a word is that of its first one.
    found = [(token["word"], token["entity"]) for token in answers["pipeline"] if token["word"] not in ("##n", "##d")]
    tags = served(task, model, TEXTS[:1])["tag"][0]
    words = ["a", "good", "b", "the", "e"]  # "e ##n ##d"
    assert found == [(word, tag.decode()) for word, tag in zip(words, tags, strict=True)]


def test_the_pipeline_of_questions_answers_with_words_of_the_context(optimum):
    answer = optimum["questions"][2]["pipeline"]
    assert answer["answer"] == PAIRS[1][1][answer["start"] : answer["end"]] != ""


def test_the_pipeline_of_masks_has_the_served_tokens(optimum):
    task, model, answers = optimum["masks by XLM-R"]
    expected = served(task, model, [MASKED])
    for place, token in enumerate(answers["pipeline"]):
        assert token["token_str"] == expected["tokens"][0, 0, place].decode()
        np.testing.assert_allclose(token["score"], expected["probabilities"][0, 0, place], atol=1e-5)


def test_vectors_of_sentence_transformers_are_the_served_ones(optimum):
    task, model, answers = optimum["vectors of sentences"]
    (expected,) = served(task, model, TEXTS).values()
    np.testing.assert_allclose(answers["vectors"], expected, atol=1e-5)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_scores_of_a_cross_encoder_are_the_served_ones(optimum, backend):
    task, model, answers = optimum["scores"]
    expected = served(task, model, *PAIRS)["value"]
    assert ((expected > 0) & (expected < 1)).all()
    np.testing.assert_allclose(answers[backend], expected, atol=1e-5)
