"""A request of any number of rows goes through the model in chunks, with the same answers."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model import chunks
from bert_tf.model.chunks import chunked_map
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests.model.small import PIECES, randomize, small_config

LENGTH = 16
TEXTS = ["the good " * 40, "", "a b c", "b . " * 21]
# Task and its inputs.
CASES = {
    "classification": (
        lambda tokenizer: Classification(
            tokenizer, ClassificationConfig(max_length=LENGTH, long_texts="window"), labels=("a", "b"), pair=False
        ),
        (TEXTS,),
    ),
    "tagging": (
        lambda tokenizer: Tagging(tokenizer, TaggingConfig(max_length=LENGTH), labels=("O", "B-X", "I-X")),
        (TEXTS,),
    ),
    "question answering": (
        lambda tokenizer: QuestionAnswering(tokenizer, QuestionAnsweringConfig(max_length=LENGTH, stride=4, n_best=2)),
        (["a b", "the", "good", "b"], TEXTS),
    ),
    "masked language model": (
        lambda tokenizer: MaskedLM(tokenizer, LENGTH),
        (["the [MASK] " * 40, "[MASK] a", "b"] * 4,),
    ),
    "multiple choice": (
        lambda tokenizer: MultipleChoice(tokenizer),
        (TEXTS, [["a", "the good"], ["b", ""]] * 2, [""] * 4),
    ),
}


QUICK = ("classification", "multiple choice")  # windows, and rows of several texts


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_chunks_respect_the_limit_and_give_the_same_answers_also_for_no_rows(monkeypatch, case):
    make, asked = CASES[case]
    task = make(Tokenizer(PIECES))
    model = randomize(task.build(BertEncoder(small_config(num_layers=1, max_position_embeddings=128))), scale=0.5)
    asked = [tf.constant(values) for values in asked]

    def signature(model):
        made = task.signatures(model)["serving_default"]
        # Without a graph, except for what is in chunks; TensorFlow needs one to pad choices of no row.
        return made if case == "multiple choice" else made.python_function

    serve = signature(model)
    whole = serve(*asked)
    nothing = serve(*(some[:0] for some in asked))
    assert nothing.keys() == whole.keys() and all(value.shape[0] == 0 for value in nothing.values())
    sizes = []

    def watched(features, training=False):
        assert not training
        tf.py_function(lambda ids: sizes.append(int(tf.size(ids))), [features["input_word_ids"]], [])
        return model(features, training=False)

    watched.inputs, watched.layers = model.inputs, model.layers
    tokens = 3 * LENGTH if case != "multiple choice" else 1  # an example is never split: it is a chunk of its own
    monkeypatch.setattr(chunks, "_TOKENS", tokens)
    some = signature(watched)(*asked)
    assert len(sizes) > 3 and (max(sizes) <= tokens or case == "multiple choice")
    assert some.keys() == whole.keys()
    for name, values in whole.items():
        if values.dtype.is_floating:
            np.testing.assert_allclose(some[name], values, atol=1e-5)
        else:
            np.testing.assert_array_equal(some[name], values)


@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7])
def test_each_row_is_computed_once_and_in_order(monkeypatch, rows):
    monkeypatch.setattr(chunks, "_TOKENS", 6)
    values = tf.range(rows)

    @tf.function
    def made():
        return chunked_map(
            lambda first, last: {"x": values[first:last], "y": values[first:last, tf.newaxis] * 2}, rows, 2
        )

    found = made()
    assert found["x"].numpy().tolist() == list(range(rows))
    assert found["y"].numpy().tolist() == [[2 * row] for row in range(rows)]
