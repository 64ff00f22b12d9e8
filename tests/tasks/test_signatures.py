"""The signatures other than serving_default: attention against NumPy, token ids against texts."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.tasks import signatures as signatures_module
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.signatures import attention_signature, padded, unpadded
from bert_tf.text import Tokenizer
from tests.inference import kinds
from tests.model.numpy_bert import softmax
from tests.model.small import PIECES, randomize, small_config

TEXTS, OTHERS = ["the good b!", "", "É a"], ["c. d", "the", "x " * 40]


@pytest.fixture(scope="module")
def pairs():
    """A task on pairs and its model, with LayerNorm first, so that inputs of a layer and of its attention differ."""
    task = Classification(Tokenizer(PIECES), ClassificationConfig(max_length=24), labels=("a", "b"), pair=True)
    return task, randomize(task.build(BertEncoder(small_config(norm="pre"))), scale=0.5)


@pytest.fixture(scope="module")
def attention(pairs):
    answer = attention_signature(pairs[0].codec, pairs[1])(tf.constant(TEXTS), tf.constant(OTHERS))
    return {name: value.numpy() for name, value in answer.items()}


def test_tokens_are_the_models_inputs_with_their_byte_offsets_in_the_texts(pairs, attention):
    task, _ = pairs
    features = task.codec.token_features({"text": tf.constant(TEXTS), "second_text": tf.constant(OTHERS)})
    pieces = np.array(task.tokenizer.vocab)[features["input_word_ids"]]
    there = features["input_mask"].numpy() > 0
    tokens = np.char.decode(attention["tokens"].astype(bytes))
    tokens = np.char.add(np.where(attention["continues"], "##", ""), tokens)
    assert tokens.tolist() == np.where(there, pieces, "").tolist()
    assert attention["ids"].tolist() == features["input_word_ids"].numpy().tolist()
    assert attention["types"].tolist() == features["input_type_ids"].numpy().tolist()
    assert attention["token_count"].tolist() == there.sum(1).tolist()
    for row, (text, other) in enumerate(zip(TEXTS, OTHERS, strict=True)):
        columns = (attention[name][row] for name in ("tokens", "starts", "ends", "texts"))
        for token, start, end, number in zip(*columns, strict=True):
            if number < 0:
                assert (token in (b"[CLS]", b"[SEP]", b""), start, end) == (True, 0, 0)
            else:
                found = (text, other)[number].encode()[start:end].decode()
                assert found.lower().replace("é", "e") == token.decode()
    assert set(attention["texts"][1]) == {-1, 1}


def test_attention_equals_numpys(pairs, attention):
    task, model = pairs
    features = task.codec.token_features({"text": tf.constant(TEXTS), "second_text": tf.constant(OTHERS)})
    encoder = model.get_layer("encoder")
    outputs = encoder({name: features[name] for name in encoder.input})
    states = [outputs["embedding_output"], outputs["encoder_outputs"][0]]
    for row, count in enumerate(attention["token_count"]):
        shape = attention["attention_shape"][row].tolist()
        assert shape == [2, 4, count, count]
        found = np.frombuffer(attention["attention_bytes"][row], np.uint8).reshape(shape)
        for number, state in enumerate(states):
            layer = encoder.blocks()[number]
            x = np.float64(state[row, :count])
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
            x = x * layer.attention_norm.gamma.numpy() + layer.attention_norm.beta.numpy()
            query, key, _ = np.split(x @ layer.attention.qkv.kernel.numpy() + layer.attention.qkv.bias.numpy(), 3, -1)
            for head in range(4):
                part = slice(8 * head, 8 * head + 8)
                expected = softmax(query[:, part] @ key[:, part].T / np.sqrt(8))
                np.testing.assert_allclose(found[number, head] / 255, expected, atol=0.51 / 255)
    assert found.std() > 5  # attention is not uniform


def test_token_ids_get_the_answers_of_their_texts(pairs):
    task, model = pairs
    signatures = task.signatures(model)
    columns = tf.constant(TEXTS), tf.constant(OTHERS)
    features = task.codec.token_features(dict(zip(("text", "second_text"), columns, strict=True)))
    names = ("input_word_ids", "input_mask", "input_type_ids")
    found = signatures["tokens"](*(features[name] for name in names))
    for name, expected in signatures["serving_default"](*columns).items():
        if expected.dtype.is_floating:
            np.testing.assert_allclose(found[name], expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(found[name], expected)


def test_the_padding_of_a_server_is_removed():
    ragged = tf.ragged.constant([["a"], [], ["b", "", "c"]])
    answers = {
        "word": ragged,
        "score": tf.ragged.constant([[0.5], [], [0.0, 0.25, 0.0]]),
        "label": tf.constant(["x"] * 3),
    }
    counted = {"word_count": ("word", "score"), "entity_count": ("entity",)}
    served = {name: value.numpy() for name, value in padded(answers, counted).items()}
    assert served.keys() == {"word", "score", "label", "word_count"}
    assert served["word"].shape == (3, 3) and served["word_count"].tolist() == [1, 0, 3]
    again = unpadded(served, counted)
    assert again.keys() == answers.keys()
    assert [row.tolist() for row in again["word"]] == ragged.to_list()
    assert [row.tolist() for row in again["score"]] == [[0.5], [], [0.0, 0.25, 0.0]]


@pytest.mark.parametrize(
    "task",
    ["tagging", *(pytest.param(task, marks=pytest.mark.slow) for task in ("cosine", "classification", "questions"))],
)
def test_a_users_pipeline_traces_a_task_without_a_warning_of_autograph(task, caplog):
    makers = {
        "classification": kinds._classification,
        "cosine": functools.partial(kinds._regression, head="cosine"),
        "tagging": functools.partial(kinds._tagging, "characters"),
        "questions": kinds._questions,
    }
    made = makers[task]()
    columns = {spec.name: tf.constant(["the good a b", "b"]) for spec in made.codec.inputs()}
    tf.get_logger().addHandler(caplog.handler)
    try:
        batches = tf.data.Dataset.from_tensors(columns).map(lambda batch: made.codec.pad(made.codec.preprocess(batch)))
        assert next(iter(batches))["input_word_ids"].shape[0] == 2
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert not [message for message in caplog.messages if "AutoGraph" in message]


def test_answers_that_would_take_too_much_memory_are_refused(monkeypatch):
    monkeypatch.setattr(signatures_module, "_LARGEST_ANSWER", 2**20)

    def check(signature, inputs, larger):
        """The first request is answered, the second is not."""
        signature(*inputs)
        message = "more than 1 MB of memory; ask for fewer rows at a time, of similar lengths"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signature(*larger)

    def token_ids(rows):
        return tf.ones([rows, 16], tf.int32), tf.ones([rows, 16], tf.int32), tf.zeros([rows, 16], tf.int32)

    tagging, vectors = kinds.KINDS["tagging"](), kinds.KINDS["vectors of words"]()
    many = ["the"] * 1000
    # All 1001 rows are padded to the 300 words of the last one, with 24 bytes for each.
    tag = tagging[0].signatures(tagging[1])["serving_default"].python_function
    check(tag, [tf.constant(many)], [tf.constant([*many, "the " * 300])])
    # 1 layer, 4 heads, and 32 x 32 pairs of tokens in each of 1000 texts.
    check(
        attention_signature(tagging[0].codec, tagging[1]), [tf.constant(["the"])], [tf.constant(["the " * 300] * 1000)]
    )
    # 64 numbers for each token: 4 kB for a row.
    check(vectors[0].signatures(vectors[1])["tokens"].python_function, token_ids(100), token_ids(300))
