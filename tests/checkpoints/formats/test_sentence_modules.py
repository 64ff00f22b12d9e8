"""Sentence encoders in sentence-transformers' layout: every module against NumPy, and the library itself."""

import dataclasses
import json
import math
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import bert_tf
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import huggingface
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import ask
from bert_tf.inference.check import check_ops
from bert_tf.inference.embedder import open_embedder
from tests import packages
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises
from tests.inference.eager import one_chunk

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# The definitions, for the states of one text, [tokens, size], with [CLS] and [SEP].
POOLED = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len": lambda states: states.sum(0) / math.sqrt(len(states)),
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
    "lasttoken": lambda states: states[-1],
}
TEXTS = ["the good, a b!", "", "a b c d e f g h i j k l m n o p q r s t u v w x y z", "good"]
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def publish(tmp_path):
    """A function that writes a small encoder with modules; returns its path.

    Args of the function: pools; dense layers as (units, activation, bias); whether to normalize; the settings of the
    encoder, of the pooling, and of the library; other modules; the folder of the encoder.
    """

    def written(pools, dense=(), normalize=False, *, encoder=None, pooling=None, library=None, others=(), below=""):
        folder = tmp_path / "published"
        keras.utils.set_random_seed(0)
        (folder / below).mkdir(parents=True)
        checkpoint = small_checkpoint(initializer_range=0.3)
        checkpoint = dataclasses.replace(
            checkpoint, tokenizer=bert_tf.Tokenizer(checkpoint.tokenizer.vocab, lower_case=True)
        )
        huggingface.write(checkpoint, str(folder / below))
        width = 32 * len(pools)
        dump(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32}
             | {flag: pool in pools for pool, flag in FLAGS.items()} | (pooling or {}))  # fmt: skip
        # The dropout does nothing in inference.
        modules = [
            (f"sentence_transformers.models.{kind}", path)
            for kind, path in (("Transformer", below), ("Dropout", "8_Dropout"), ("Pooling", "1_Pooling"))
        ]
        for number, (units, activation, bias) in enumerate(dense, 2):
            modules.append(("sentence_transformers.base.modules.dense.Dense", f"{number}_Dense"))
            dump(folder / f"{number}_Dense/config.json", {"in_features": width, "out_features": units, "bias": bias,
                                                          "activation_function": activation})  # fmt: skip
            rng = np.random.default_rng(number)
            tensors = {"linear.weight": rng.normal(size=(units, width)).astype(np.float32)}
            if bias:
                tensors["linear.bias"] = rng.normal(size=units).astype(np.float32)
            save_file(tensors, folder / f"{number}_Dense/model.safetensors")
            width = units
        modules += [("sentence_transformers.models.Normalize", "9_Normalize")] * normalize
        modules += [(f"sentence_transformers.models.{kind}", f"8_{kind}") for kind in others]
        dump(folder / "modules.json", [{"idx": n, "name": str(n), "path": path, "type": kind}
                                       for n, (kind, path) in enumerate(modules)])  # fmt: skip
        if encoder is not None:
            dump(folder / below / "sentence_bert_config.json", encoder)
        if library is not None:
            dump(folder / "config_sentence_transformers.json", library)
        return str(folder)

    return written


def states(path, length=24, prompt=""):
    """The last layer of each text, cut to `length` tokens: float32 [tokens, 32]."""
    encoder, tokenizer = bert_tf.load(path)
    features = tokenizer.encode([prompt + text for text in TEXTS], max_length=length)
    rows = zip(encoder(features)["sequence_output"].numpy(), features["input_mask"].numpy(), strict=True)
    return [states[mask > 0] for states, mask in rows]


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def vectors(path, **settings):
    """Those that `SentenceEncoder.encode` computes in a graph, in a loop over chunks."""
    with one_chunk():
        return open_embedder(path, **settings)(tf.constant(TEXTS))["vector"].numpy()


def test_pooling_is_the_published_one(publish):
    path = publish([])
    expected = states(path)
    for pool in POOLED:
        dump(Path(path) / "1_Pooling/config.json", {FLAGS[pool]: True})
        close(vectors(path), [POOLED[pool](one) for one in expected])


def test_several_ways_to_pool_are_concatenated_in_the_order_of_the_library(publish):
    path = publish(["mean", "cls"])
    expected = [np.concatenate([one[0], one.mean(0)]) for one in states(path)]
    close(vectors(path), expected)
    dump(Path(path) / "1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": ["mean", "cls"]})
    close(vectors(path), [np.roll(one, 32) for one in expected])


def test_dense_layers_and_normalization_follow_pooling(publish):
    path = publish(["cls"], [(5, TANH, True), (3, IDENTITY, False)], normalize=True)
    expected = np.stack([one[0] for one in states(path)])
    first, second = (load_file(f"{path}/{number}_Dense/model.safetensors") for number in (2, 3))
    expected = np.tanh(expected @ first["linear.weight"].T + first["linear.bias"]) @ second["linear.weight"].T
    found = vectors(path)
    close(found, expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert found.shape == (4, 3) and bert_tf.SentenceEncoder.from_pretrained(path).encode([]).shape == (0, 3)


def test_long_texts_are_cut_to_the_published_length_unless_windows_are_asked_for(publish):
    path = publish(["mean"], encoder={"max_seq_length": 6})
    found = vectors(path)
    close(found, [one.mean(0) for one in states(path, 6)])
    assert np.abs(vectors(path, long_texts="window")[2] - found[2]).max() > 1e-3
    close(vectors(path, max_length=8), [one.mean(0) for one in states(path, 8)])


def test_the_default_prompt_is_put_in_front_and_others_by_name(publish):
    path = publish(["mean"], library={"prompts": {"query": "the ", "document": ""}, "default_prompt_name": "query"})
    sentences = bert_tf.SentenceEncoder.from_pretrained(path)
    prompted, plain = ([one.mean(0) for one in states(path, prompt=prompt)] for prompt in ("the ", ""))
    close(vectors(path), prompted)
    close(sentences.encode(TEXTS, prompt_name="document"), plain)
    close(vectors(path, prompt_name=""), plain)
    assert sentences.prompts == {"query": "the ", "document": ""}
    with raises(ConfigError, "prompt_name", "'passage'"):
        sentences.encode(TEXTS, prompt_name="passage")


def test_a_prompt_that_is_not_pooled_is_still_attended_to(publish):
    library = {"prompts": {"query": "the good "}, "default_prompt_name": "query"}
    path = publish([], library=library)
    kept = [one[3:] for one in states(path, prompt="the good ")]  # without [CLS] the good
    pooled = {pool: [POOLED[pool](one) for one in kept] for pool in ("mean", "max")}
    pooled["weightedmean"] = [np.average(one, axis=0, weights=np.arange(4, 4 + len(one))) for one in kept]
    for pool, expected in pooled.items():
        dump(Path(path) / "1_Pooling/config.json", {FLAGS[pool]: True, "include_prompt": False})
        close(vectors(path), expected)


def test_text_is_lower_cased_before_a_tokenizer_that_keeps_case(publish):
    path = publish(["mean"], encoder={"do_lower_case": True})
    settings = Path(path) / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": False, "strip_accents": None}))
    _, tokenizer = bert_tf.load(path)
    assert tokenizer.get_config() == {"lower_case": True, "strip_accents": False, "split_cjk": True}
    assert tokenizer.tokenize(["The É"]).to_list() == tokenizer.tokenize(["the é"]).to_list()


def test_the_encoder_may_be_in_a_folder_of_its_own(publish):
    path = publish(["cls"], normalize=True, below="0_Transformer", encoder={"max_seq_length": 6})
    expected = np.stack([one[0] for one in states(path, 6)])
    close(vectors(path), expected / np.linalg.norm(expected, axis=1, keepdims=True))


EVERYTHING = {
    "pools": ["max", "mean"], "dense": [(6, TANH, True)], "normalize": True, "encoder": {"max_seq_length": 9},
    "library": {"prompts": {"query": "the "}, "default_prompt_name": "query"},
}  # fmt: skip


def test_saved_and_converted_models_compute_the_same_vectors(publish, tmp_path):
    path = publish(**EVERYTHING)
    expected, saved = vectors(path), str(tmp_path / "saved")
    bert_tf.SentenceEncoder.from_pretrained(path).save(saved)
    np.testing.assert_array_equal(vectors(saved), expected)
    with raises(ConfigError, "published"):  # the files of another program are not replaced
        bert_tf.SentenceEncoder.from_pretrained(path).save(path)
    for source, format in ((path, "bert_tf"), (saved, "huggingface")):
        report = convert(source, format, str(tmp_path / format))
        assert not report["unused_tensors"], format
        np.testing.assert_array_equal(vectors(str(tmp_path / format)), expected)
    report = convert(saved, "google", str(tmp_path / "google"))
    assert "vectors: how those of sentences are computed is not written, as it has a dense layer" in report["warnings"]


OTHERS = {
    "pools": ["cls", "mean_sqrt_len", "weightedmean", "lasttoken"], "pooling": {"include_prompt": False},
    "dense": [(6, f"torch.nn.modules.activation.{name}", False) for name in ("GELU", "ReLU", "Sigmoid")],
    "library": EVERYTHING["library"],
}  # fmt: skip


@pytest.mark.parametrize(
    "settings", [EVERYTHING, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["everything", "others"]
)
def test_an_export_computes_the_published_vectors_from_text_and_from_ids(publish, tmp_path, settings):
    sentences = bert_tf.SentenceEncoder.from_pretrained(publish(**settings))
    path = sentences.export(tmp_path / "served", check=False).path
    check_ops(path)
    expected, served = sentences.encode(TEXTS), ask.Model(path)
    signature = tf.saved_model.load(path).signatures["tokens"]
    length = settings.get("encoder", {}).get("max_seq_length", 24)
    for text, vector in zip(TEXTS, expected, strict=True):
        close(served.ask({"text": text})["vector"], vector)
        ids = sentences.tokenizer.encode(["the " + text], max_length=length)
        close(signature(**ids)["vector"][0], vector)


@pytest.mark.parametrize("prompt", ["", pytest.param("query", marks=pytest.mark.slow)])
def test_the_program_uses_the_published_settings_and_names_unused_prompts(programs, publish, tmp_path, prompt):
    path = publish(["cls"], normalize=True, library={"prompts": {"query": "the "}})
    source, output = tmp_path / "a.txt", tmp_path / "a.npz"
    source.write_text("\n".join(TEXTS[::3]) + "\n")
    chosen = [f"--prompt_name={prompt}"] if prompt else []
    done = programs.succeed("extract", f"--init={path}", f"--input={source}", f"--output={output}", *chosen)
    unused = "has the prompts query, and none is used; --prompt_name chooses one"
    assert (unused in done.errors) == (not prompt)
    close(np.load(output)["vector"], vectors(path, prompt_name=prompt)[::3])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"others": ["LSTM"]}, r"the modules are Transformer, Pooling, LSTM; expected Transformer, Pooling, then any"),
        ({"others": ["Dense"], "normalize": True}, "the modules are Transformer, Pooling, Normalize, Dense; expected"),
        ({"pooling": {"pooling_mode": "attention"}}, "pool 'attention' does not apply to per 'sentence'; choose one"),
        ({"pooling": {"layers": 4}}, r"1_Pooling/config.json: layers 4 is not supported; for vectors of the encoder"),
        ({"dense": [(4, "my.Swish", True)]}, "activation_function 'my.Swish'; expected one of torch.nn.modules.linear"),
        ({"encoder": {"transformer_task": "fill-mask"}}, "transformer_task 'fill-mask' is not supported"),
        ({"library": {"prompts": {}, "default_prompt_name": "x"}}, "prompt_name 'x' is unknown; the model has none"),
    ],
)
def test_what_cannot_be_applied_is_refused_for_vectors_and_named_for_other_tasks(publish, caplog, change, message):
    path = publish(**({"pools": ["mean"]} | change))
    with pytest.raises(DataError, match=message) as refused:
        vectors(path)
    assert "\n" not in str(refused.value)
    bert_tf.load(path)
    assert re.search(message, caplog.text)


def test_a_module_whose_folder_is_missing_is_refused(publish):
    path = publish(["mean"])
    (Path(path) / "1_Pooling/config.json").unlink()
    with raises(DataError, "1_Pooling/config.json"):
        vectors(path)


def test_modules_outside_of_the_directory_are_refused(publish):
    path = publish(["mean"])
    dump(Path(path) / "modules.json", [{"path": "../other", "type": "sentence_transformers.models.Transformer"}])
    with raises(DataError, "'../other'"):
        vectors(path)


def test_layers_for_vectors_are_named_where_they_are_not_used(publish, caplog):
    open_with_warnings(publish(["cls"], [(5, TANH, True)]))
    assert "tensors not used: 2_Dense/linear.weight, 2_Dense/linear.bias" in caplog.text


def test_pooling_that_the_dense_layer_cannot_read_is_refused(publish):
    path = publish(["cls"], [(5, TANH, True)])
    with raises(ConfigError, "'cls+mean'", "64 values", "32"):
        vectors(path, pool="cls+mean")


@pytest.mark.slow
def test_published_layouts_of_a_real_model_are_those_of_the_library():
    library = pytest.importorskip("sentence_transformers")
    path = str(packages.minilm())
    found = bert_tf.SentenceEncoder.from_pretrained(path).encode(TEXTS)
    np.testing.assert_allclose(found, library.SentenceTransformer(path, device="cpu").encode(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_a_real_sentence_encoder_has_its_published_settings():
    sentences = bert_tf.SentenceEncoder.from_pretrained(str(packages.minilm()))
    found = sentences.encode(["word " * 600, "A film to remember."])
    inputs = sentences.tokenizer.encode(["word " * 600], max_length=256)  # max_seq_length
    expected = sentences.encoder(inputs)["sequence_output"].numpy()[0].mean(0)
    close(found[0], expected / np.linalg.norm(expected))
    close(np.linalg.norm(found, axis=1), 1)
