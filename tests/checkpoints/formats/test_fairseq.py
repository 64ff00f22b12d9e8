"""fairseq's RoBERTa: random weights against NumPy, and a published model against its published outputs."""

import argparse
import shutil

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory, load_model
from bert_tf.checkpoints.formats import open_checkpoint
from bert_tf.errors import DataError
from bert_tf.serving import ask
from bert_tf.serving.export import export
from tests import packages
from tests.model.numpy_bert import encode, masked_lm_logits, random_tensors

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'bert_tf[torch]'; make test-all has it")

SYMBOLS = [*"ABCDEFGH", "word", "é", "."]
VOCAB = len(SYMBOLS) + 5  # <s> <pad> </s> <unk> first, <mask> last
ARGS = {
    "encoder_layers": 2,
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
    "max_positions": 24,
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.2,
}


@pytest.fixture
def tensors():
    """Weights under Hugging Face's names, for NumPy."""
    rng = np.random.default_rng(0)
    shape = {"layers": 2, "hidden": 32, "inner": 48, "vocab": VOCAB, "positions": 26}
    named = random_tensors(rng, **shape)
    del named["embeddings.token_type_embeddings.weight"], named["pooler.dense.weight"], named["pooler.dense.bias"]
    for part, size in (
        ("dense.weight", (32, 32)),
        ("dense.bias", 32),
        ("LayerNorm.weight", 32),
        ("LayerNorm.bias", 32),
    ):
        named[f"cls.predictions.transform.{part}"] = rng.normal(0, 0.3, size).astype(np.float32)
    named["cls.predictions.bias"] = rng.normal(0, 0.3, VOCAB).astype(np.float32)
    return named


def theirs(tensors, root="encoder", norm="layernorm_embedding", fused=False):
    """The same under fairseq's names (fairseq/models/roberta/model.py, modules/transformer_sentence_encoder*.py)."""
    replacements = {
        "embeddings.word_embeddings": "embed_tokens",
        "embeddings.position_embeddings": "embed_positions",
        "embeddings.LayerNorm": norm,
        "encoder.layer.": "layers.",
        "attention.self.query": "self_attn.q_proj",
        "attention.self.key": "self_attn.k_proj",
        "attention.self.value": "self_attn.v_proj",
        "attention.output.dense": "self_attn.out_proj",
        "attention.output.LayerNorm": "self_attn_layer_norm",
        "intermediate.dense": "fc1",
        "output.dense": "fc2",
        "output.LayerNorm": "final_layer_norm",
    }
    heads = {"cls.predictions.transform.LayerNorm": "layer_norm", "cls.predictions.transform.dense": "dense"}
    named = {}
    for name, value in tensors.items():
        if name.startswith("cls."):
            for old, new in (heads | {"cls.predictions.bias": "bias"}).items():
                name = name.replace(old, new)
            named[f"{root}.lm_head.{name}"] = value
        else:
            for old, new in replacements.items():
                name = name.replace(old, new)
            named[f"{root}.sentence_encoder.{name}"] = value
    named[f"{root}.lm_head.weight"] = named[f"{root}.sentence_encoder.embed_tokens.weight"]
    if fused:
        for layer in range(2):
            start = f"{root}.sentence_encoder.layers.{layer}.self_attn"
            for part in ("weight", "bias"):
                named[f"{start}.in_proj_{part}"] = np.concatenate(
                    [named.pop(f"{start}.{which}_proj.{part}") for which in "qkv"]
                )
    return named


def write(path, named, args=ARGS, symbols=SYMBOLS, archive=True, **others):
    """Writes model.pt and dict.txt to the directory `path`; returns the path of model.pt."""
    settings = (
        {"cfg": {"model": args}} if isinstance(args, argparse.Namespace) else {"args": argparse.Namespace(**args)}
    )
    state = {name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in named.items()}
    file = path / "model.pt"
    torch.save(settings | others | {"model": state}, file, _use_new_zipfile_serialization=archive)
    (path / "dict.txt").write_text("".join(f"{symbol} {99 - index}\n" for index, symbol in enumerate(symbols)))
    return str(file)


def inputs_of(lengths=(24, 7, 1)):
    rng = np.random.default_rng(1)
    mask = (np.arange(24) < np.array(lengths)[:, None]).astype(np.int32)
    ids = np.where(mask, rng.integers(0, VOCAB, mask.shape), 1).astype(np.int32)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": 0 * ids}


def assert_holds(path, tensors, activation="erf_gelu"):
    """The model gives the same hidden states and logits as NumPy."""
    model, _, _ = load_model(path, allow_pickle=True)
    inputs = inputs_of()
    positions = np.tile(np.arange(24, dtype=np.int32), (3, 1))
    logits = model(inputs | {"masked_lm_positions": positions})["mlm_logits"].numpy()
    sequence, _, layers = encode(
        tensors, inputs, layers=2, heads=4, activation=activation, epsilon=1e-5, position_offset=2
    )
    tokens = inputs["input_mask"] == 1
    for ours, expected in zip(model.encoder(inputs)["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], expected[tokens], atol=1e-5)
    expected = masked_lm_logits(tensors, sequence, positions, activation=activation, epsilon=1e-5)
    np.testing.assert_allclose(logits[tokens], expected[tokens], atol=2e-5)


@pytest.mark.parametrize(
    "names, archive",
    [
        ({"root": "encoder", "norm": "layernorm_embedding"}, True),
        ({"root": "decoder", "norm": "emb_layer_norm"}, False),
        ({"root": "decoder", "norm": "emb_layer_norm", "fused": True}, False),
    ],
    ids=["new", "old", "fused"],
)
def test_tensors_are_found_under_the_names_of_every_release(tmp_path, tensors, names, archive):
    assert_holds(write(tmp_path, theirs(tensors, **names), archive=archive), tensors)


@pytest.mark.parametrize(
    "name, ours",
    [("gelu", "erf_gelu"), ("gelu_accurate", "tanh_gelu"), ("gelu_fast", "tanh_gelu"), ("relu", "relu")],
)
def test_activations_have_their_fairseq_names(tmp_path, tensors, name, ours):
    assert_holds(write(tmp_path, theirs(tensors), ARGS | {"activation_fn": name}), tensors, ours)


def test_settings_are_read_from_args_and_from_cfg(tmp_path, tensors):
    for number_of, args in enumerate((ARGS, argparse.Namespace(**ARGS))):
        (tmp_path / str(number_of)).mkdir()
        checkpoint = open_checkpoint(write(tmp_path / str(number_of), theirs(tensors), args), allow_pickle=True)
        config = checkpoint.config
        assert (config.num_layers, config.num_heads, config.dropout, config.attention_dropout) == (2, 4, 0.1, 0.2)
        assert (config.max_position_embeddings, config.position_offset, config.type_vocab_size) == (24, 2, 0)
        assert (checkpoint.head, checkpoint.task["settings"]) == ("masked_lm", {"max_length": 24})
    args = {name: value for name, value in ARGS.items() if name != "max_positions"} | {"tokens_per_sample": 24}
    path = write(tmp_path, theirs(tensors), args)
    assert open_checkpoint(path, allow_pickle=True).config.max_position_embeddings == 24


def test_symbols_are_numbered_as_fairseq_numbers_them(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors))
    _, tokenizer = bert_tf.load(path, allow_pickle=True)
    ids = tokenizer.tokenize("A word B é . unseen [MASK] a", special_tokens=True).to_list()[0]
    assert ids == [4, 12, 5, 13, 14, 3, VOCAB - 1, 3]
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id) == (0, 1, 2)


@pytest.mark.parametrize(
    "symbols, why",
    [
        ([*map(str, range(100, 110)), "madeupword0000"], "ids of another tokenizer"),
        (["▁the", "ing", *SYMBOLS[:9]], "pieces of another tokenizer"),
        (["th@@", *SYMBOLS[:10]], "symbol 'th@@' cannot occur as a word"),
    ],
)
def test_a_dictionary_of_another_tokenizer_gives_no_wordpiece_vocabulary(tmp_path, tensors, symbols, why):
    path = write(tmp_path, theirs(tensors), symbols=symbols)
    checkpoint = open_checkpoint(path, allow_pickle=True)
    assert (checkpoint.pieces, checkpoint.tokenizer()) == (None, None)
    assert any(why in note for note in checkpoint.warnings)
    assert_holds(path, tensors)
    directory.write(checkpoint, str(tmp_path / "ours"))
    assert bert_tf.load(str(tmp_path / "ours"))[1] is None


def test_a_mask_inside_the_dictionary_keeps_its_id(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors), symbols=["A", "<mask>", *SYMBOLS[1:]])
    tokenizer = open_checkpoint(path, allow_pickle=True).tokenizer()
    assert (tokenizer.mask_id, tokenizer.vocab_size) == (5, VOCAB)


def test_padding_of_any_id_changes_nothing(tmp_path, tensors):
    encoder, _ = bert_tf.load(write(tmp_path, theirs(tensors)), allow_pickle=True)
    inputs = inputs_of()  # padded with id 1, as in fairseq
    zeros = inputs | {"input_word_ids": inputs["input_word_ids"] * inputs["input_mask"]}  # padded as in our batches
    alone = {name: value[1:2, :7] for name, value in inputs.items()}
    expected = encoder(alone)["sequence_output"][0].numpy()
    for padded in (inputs, zeros):
        np.testing.assert_allclose(encoder(padded)["sequence_output"][1, :7], expected, atol=1e-5)


def test_unused_tensors_are_listed_with_reasons(tmp_path, tensors):
    named = theirs(tensors) | {
        "encoder.sentence_encoder.version": np.array([3.0], np.float32),
        "classification_heads.mnli.dense.weight": np.zeros((2, 2), np.float32),
    }
    path = write(tmp_path, named, optimizer_history=[{"num_updates": 7}], extra_state=None)
    unused_tensors = open_checkpoint(path, allow_pickle=True).unused_tensors
    assert unused_tensors == {
        "encoder.lm_head.weight": "a copy of the word embedding",
        "encoder.sentence_encoder.version": "a version number of fairseq's code",
        "classification_heads.mnli.dense.weight": "the head of a fine-tuned model, which is not supported here",
        "optimizer_history": "belongs to the training run, not to the model",
        "extra_state": "belongs to the training run, not to the model",
    }


def test_a_bare_encoder_is_read_without_a_head(tmp_path, tensors):
    named = {name: value for name, value in theirs(tensors).items() if "lm_head" not in name}
    checkpoint = open_checkpoint(write(tmp_path, named), allow_pickle=True)
    assert (checkpoint.head, checkpoint.task) == (None, None)
    encoder = checkpoint.encoder()
    expected, _, _ = encode(
        tensors, inputs_of(), layers=2, heads=4, activation="erf_gelu", epsilon=1e-5, position_offset=2
    )
    np.testing.assert_allclose(encoder(inputs_of())["sequence_output"][0], expected[0], atol=1e-5)


def test_a_pickled_file_is_read_only_on_request(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors))
    with pytest.raises(DataError, match=r"model\.pt: a pickled file, .* --allow_pickle, or allow_pickle=True"):
        bert_tf.load(path)


def test_a_directory_is_read_as_its_only_checkpoint(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors))
    checkpoint = open_checkpoint(tmp_path, allow_pickle=True)
    assert checkpoint.config == open_checkpoint(path, allow_pickle=True).config
    shutil.copy(path, tmp_path / "best.pt")
    with pytest.raises(DataError, match=r"holds 2 checkpoints, best\.pt, model\.pt; name one of the files"):
        open_checkpoint(tmp_path, allow_pickle=True)


def test_a_missing_dictionary_is_named(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors))
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(DataError, match=r"dict\.txt: no such file; expected fairseq's dictionary beside model\.pt"):
        open_checkpoint(path, allow_pickle=True)


@pytest.mark.parametrize(
    "content, culprit",
    [
        (b"A 1\nB\n", "line 2: 'B'; expected a symbol, a space and its count"),
        (b"A one\n", "line 1: 'A one'; expected a symbol"),
        (b"\xff 1\n", "not UTF-8"),
        (b"A 1\n", "has 1 symbols, which make 6 with fairseq's own, but the checkpoint was trained with 16"),
        (b"".join(b"%c 1\n" % c for c in b"AABCDEFGHIJ"), "the piece 'A' is already on line"),
    ],
)
def test_a_mismatched_dictionary_is_refused(tmp_path, tensors, content, culprit):
    path = write(tmp_path, theirs(tensors))
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"dict\.txt.*{culprit}"):
        open_checkpoint(path, allow_pickle=True)


def without(part):
    return lambda named: {name: value for name, value in named.items() if part not in name}


@pytest.mark.parametrize(
    "change, culprit",
    [
        (without("layers.1.fc1.bias"), r"missing encoder\.sentence_encoder\.layers\.1\.fc1\.bias"),
        (without("lm_head.dense.bias"), r"missing encoder\.lm_head\.dense\.bias"),
        (without("embed_tokens"), "no encoder.sentence_encoder.embed_tokens.weight of two axes"),
        (without("sentence_encoder"), "no tensors in a 'sentence_encoder'; expected fairseq's RoBERTa"),
        (lambda named: {}, "no tensors under 'model'"),
        (
            lambda named: named | {"encoder.sentence_encoder.embed_positions.weight": np.zeros((20, 32))},
            r"embed_positions\.weight is \[20, 32\], not \[26, 32\]",
        ),
        (
            lambda named: named | {"encoder.sentence_encoder.layers.2.fc1.bias": np.zeros(48)},
            r"unknown encoder\.sentence_encoder\.layers\.2\.fc1\.bias",
        ),
        (
            lambda named: named | {"encoder.lm_head.weight": named["encoder.lm_head.weight"] + 1},
            r"encoder\.lm_head\.weight is not the word embedding; expected the two to be tied",
        ),
    ],
)
def test_mismatched_tensors_are_named(tmp_path, tensors, change, culprit):
    path = write(tmp_path, change(theirs(tensors)))
    with pytest.raises(DataError, match=rf"model\.pt.*{culprit}"):
        open_checkpoint(path, allow_pickle=True)


@pytest.mark.parametrize(
    "change, culprit",
    [
        ({"activation_fn": "swish"}, "activation_fn 'swish'; expected one of gelu, "),
        ({"activation_fn": None}, "activation_fn None; expected one of gelu, "),
        ({"encoder_layers": None}, "encoder_layers is None; expected a whole number"),
        ({"encoder_layers": True}, "encoder_layers is True; expected a whole number"),
        ({"dropout": "0.1"}, "dropout is '0.1'; expected a number"),
        ({"encoder_attention_heads": 5}, "encoder_embed_dim 32 is not a multiple of encoder_attention_heads 5"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before is set"),
    ],
)
def test_unsupported_settings_are_named(tmp_path, tensors, change, culprit):
    path = write(tmp_path, theirs(tensors), ARGS | change)
    with pytest.raises(DataError, match=rf"model\.pt: .*{culprit}"):
        open_checkpoint(path, allow_pickle=True)


def test_a_checkpoint_without_settings_is_refused(tmp_path, tensors):
    path = write(tmp_path, theirs(tensors))
    saved = torch.load(path, weights_only=False)
    del saved["args"]
    for others in ({}, {"cfg": None}, {"cfg": [3]}, {"args": 3}):
        torch.save(saved | others, path)
        with pytest.raises(DataError, match="no settings under 'args' or 'cfg'"):
            open_checkpoint(path, allow_pickle=True)


# A model of 4 layers for the heavy chains of antibodies; its package's README prints its outputs.
ANTIBODY = (
    "**QLV*SGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNF"
    "NEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS"
)
INFILLED = "QVQLVQ" + ANTIBODY[6:]
SCORES = {  # residue -> its probabilities at the first five positions
    "A": [0.003272, 0.012038, 0.003384, 0.004612, 0.005519],
    "C": [0.004147, 0.003854, 0.003895, 0.005325, 0.003664],
    "D": [0.004011, 0.006803, 0.003726, 0.004443, 0.003555],
    "E": [0.004590, 0.008174, 0.004068, 0.004641, 0.005269],
}
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture(scope="module")
def sapiens():
    return packages.package("sapiens", "sapiens==1.0.5") / "models" / "v1"


def test_a_published_model_gives_its_published_probabilities(sapiens):
    model, tokenizer, _ = load_model(str(sapiens / "checkpoint_vh.pt"), allow_pickle=True)
    text = " ".join(ANTIBODY).replace("*", "[MASK]")
    ids = tokenizer.tokenize(text, special_tokens=True).to_list()[0]
    assert len(ids) == len(ANTIBODY)
    ids = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]], np.int32)
    inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": 0 * ids}
    positions = np.arange(1, 1 + len(ANTIBODY), dtype=np.int32)[None]
    probabilities = tf.nn.softmax(model(inputs | {"masked_lm_positions": positions})["mlm_logits"])[0].numpy()
    assert probabilities.shape == (len(ANTIBODY), 25)
    for residue, published in SCORES.items():
        ours = probabilities[:5, tokenizer.vocab.index(residue)]
        np.testing.assert_allclose(ours, published, atol=6e-7, rtol=0)  # half of the last digit, and float32's rounding
    columns = [tokenizer.vocab.index(residue) for residue in RESIDUES]
    best = "".join(RESIDUES[index] for index in probabilities[:, columns].argmax(-1))
    infilled = "".join(one if given == "*" else given for given, one in zip(ANTIBODY, best, strict=True))
    assert infilled == INFILLED


@pytest.mark.slow
def test_an_export_of_a_published_model_gives_the_same_answers(sapiens, tmp_path):
    directory.write(open_checkpoint(sapiens / "checkpoint_vh.pt", allow_pickle=True), str(tmp_path / "model"))
    task, model = directory.load_task(str(tmp_path / "model"))
    exported = ask.Model(export(task, model, str(tmp_path / "served")).path)
    answer = exported.run({"text": [" ".join(ANTIBODY).replace("*", "[MASK]")]})
    assert answer["tokens"][0, :, 0].tolist() == [b"Q", b"V", b"Q"]
    light, _, _ = load_model(str(sapiens / "checkpoint_vl.pt"), allow_pickle=True)
    assert not np.array_equal(light.weights[0], model.weights[0])


def test_a_package_with_two_models_asks_which(sapiens):
    with pytest.raises(DataError, match=r"holds 2 checkpoints, checkpoint_vh\.pt, checkpoint_vl\.pt; name one"):
        bert_tf.load(str(sapiens), allow_pickle=True)
