"""Transformers reads models written here, and models written by it are read here: same logits, same ids."""

import dataclasses
import inspect
import itertools
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_tf
from bert_tf.checkpoints import load_model
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import huggingface
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.checkpoints.tokenizer_files.files import SPECIAL_NAMES
from bert_tf.inference.session import Session
from bert_tf.text.base import BERT, GEMMA
from tests import learned
from tests.checkpoints.small import FAMILIES, HEADS_OF, assert_same_tokenizer, model_of, small_checkpoint
from tests.errors import raises
from tests.learned import SIZE, TOKENIZERS, albert_model, sentence_piece_model
from tests.model.small import PIECES, inputs_for
from tests.packages import shared

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is local; a request would only wait
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SHAPE = {
    "vocab_size": len(PIECES),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 26,
}
LABELS = {0: "no", 1: "ja", 2: "vielleicht é"}
LABELLED = ("SequenceClassification", "TokenClassification")
CLASSES = {  # by the start of their names: the ends, by the heads here
    "Bert": {
        None: "Model", "pretraining": "ForPreTraining", "masked_lm": "ForMaskedLM",
        "next_sentence": "ForNextSentencePrediction", "classification": "ForSequenceClassification",
        "tagging": "ForTokenClassification", "question_answering": "ForQuestionAnswering",
        "multiple_choice": "ForMultipleChoice",
    },
}  # fmt: skip
_COMMON = {head: end for head, end in CLASSES["Bert"].items() if head not in ("pretraining", "next_sentence")}
_WITHOUT_SPANS = {head: end for head, end in _COMMON.items() if head not in ("question_answering", "multiple_choice")}
CLASSES |= {
    "Roberta": _COMMON,
    "XLMRoberta": {"masked_lm": "ForMaskedLM"},
    "Camembert": {"masked_lm": "ForMaskedLM"},
    "DistilBert": _COMMON,
    "Electra": _COMMON | {"replaced_token_detection": "ForPreTraining"},
    "Albert": _COMMON | {"pretraining": "ForPreTraining"},
    "ModernBert": _COMMON,
    "NomicBert": _WITHOUT_SPANS,
    "Gte": _WITHOUT_SPANS,
}
NAMES = [stem + end for stem, ends in CLASSES.items() for end in ends.values()]
# Settings of the small models, by model_type.
SETTINGS = {
    **{name: {"type_vocab_size": 1} for name in ("roberta", "xlm-roberta", "camembert")},
    "distilbert": {"hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16, "num_hidden_layers": 3},
    "modernbert": {
        "num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2, "classifier_pooling": "mean",
    },
}  # fmt: skip
ACTIVATIONS = {"distilbert": "activation", "modernbert": "hidden_activation"}  # others: hidden_act
TOKENIZER_CLASSES = {
    "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizerFast", "nomic_bert": "BertTokenizer",
}  # fmt: skip
# The activation of a masked-LM head that does not follow the encoder's: see test_huggingface.
OWN_GELU = (
    *("RobertaForMaskedLM", "XLMRobertaForMaskedLM", "CamembertForMaskedLM", "ElectraForMaskedLM", "GteForMaskedLM"),
    "ModernBert",
)


def make(name, *, seed=0, hidden_act="gelu", **settings):
    """A Transformers model of a class, with every weight random, in eval mode."""
    torch.manual_seed(seed)
    kind = class_of(name)
    labels = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}
    named = labels if name.endswith(LABELLED) else {}
    model_type = kind.config_class.model_type
    own = SETTINGS.get(model_type, {}) | {ACTIVATIONS.get(model_type, "hidden_act"): hidden_act}
    config = kind.config_class(**(SHAPE | own | named | settings))
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model


def saved(model, path, pieces=PIECES, **options):
    """Saves it with a vocabulary; returns the path as str."""
    model.save_pretrained(path, **options)
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    model_type = model.config.model_type
    if model_type != "bert":
        settings = {"tokenizer_class": TOKENIZER_CLASSES.get(model_type, "BertTokenizer")}
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(path)


def vocabulary(model):
    """PIECES, with [PAD] where the model has it."""
    return [PIECES[1], PIECES[0], *PIECES[2:]] if model.config.pad_token_id == 1 else PIECES


def inputs_of(model):
    """Padded inputs for the model, in this project's form."""
    inputs = inputs_for({"MultipleChoice": "multiple_choice"}.get(type(model).__name__.split("For")[-1]))
    pad, types = model.config.pad_token_id, getattr(model.config, "type_vocab_size", 1)
    return inputs | {
        "input_word_ids": np.where(inputs["input_mask"] == 1, inputs["input_word_ids"], pad).astype(np.int32),
        "input_type_ids": np.minimum(inputs["input_type_ids"], types - 1),
    }


def answers(model, inputs):
    """dict our name -> array, the outputs of a Transformers model."""
    names = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "input_type_ids"}
    taken = inspect.signature(model.forward).parameters  # DistilBERT has no token types
    with torch.no_grad():
        tensors = {
            theirs: torch.from_numpy(inputs[ours].astype(np.int64)) for theirs, ours in names.items() if theirs in taken
        }
        outputs = model(**tensors, output_hidden_states=True)
    ours = {
        "last_hidden_state": "sequence_output",
        "pooler_output": "pooled_output",
        "prediction_logits": "mlm_logits",
        "seq_relationship_logits": "nsp_logits",
        "sop_logits": "nsp_logits",
        "start_logits": "start_logits",
        "end_logits": "end_logits",
    }
    ends = {"MaskedLM": "mlm_logits", "NextSentencePrediction": "nsp_logits", "PreTraining": "rtd_logits"}
    ours["logits"] = ends.get(type(model).__name__.split("For")[-1], "logits")
    return {ours[name]: value.float().numpy() for name, value in outputs.items() if name in ours and value is not None}


def assert_same_answers(theirs, model, inputs, atol=1e-5):
    """A Transformers model gives the same outputs as ours, at all tokens."""
    rows, length = inputs["input_mask"].shape[-2:]
    positions = {"masked_lm_positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1))}
    takes_positions = any("masked_lm_positions" in tensor.name for tensor in model.inputs)
    ours = model(inputs | (positions if takes_positions else {}))
    tokens = inputs["input_mask"] == 1
    for name, value in answers(theirs, inputs).items():
        other = np.asarray(ours[name])
        assert value.shape == other.shape, name
        if value.shape[:2] == tokens.shape and inputs["input_mask"].ndim == 2:
            value, other = value[tokens], other[tokens]
        np.testing.assert_allclose(other, value, atol=atol, rtol=1e-5, err_msg=name)


def class_of(name):
    """Transformers' class; of a name with "MmBert", ModernBERT's."""
    return getattr(transformers, name.replace("MmBert", "ModernBert"))


def opened(name, path, **options):
    """A model opened by Transformers without warnings."""
    model, info = class_of(name).from_pretrained(path, output_loading_info=True, **options)
    complaints = {name: list(info[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not any(complaints.values()), complaints
    return model.eval()


@pytest.mark.parametrize(
    "name, activation",
    [
        (name, activation)
        for name, activation in itertools.product(NAMES, ["gelu", "gelu_new", "silu"])
        if activation == "gelu"
        or (not name.startswith(OWN_GELU) and (activation == "silu") == name.startswith("NomicBert"))
    ],
)
def test_their_models_give_the_same_outputs_here_and_are_written_back_bit_for_bit(tmp_path, name, activation):
    model = make(name, hidden_act=activation)
    path = saved(model, tmp_path / "theirs", vocabulary(model))
    ours, _, labels = load_model(path)
    inputs = inputs_of(model)
    assert_same_answers(model, ours, inputs)
    assert labels == (list(LABELS.values()) if name.endswith(LABELLED) else None)

    (tmp_path / "ours").mkdir()
    checkpoint = huggingface.read(path)
    assert not checkpoint.report.unused_tensors
    huggingface.write(checkpoint, str(tmp_path / "ours"))
    again = opened(name, tmp_path / "ours")
    assert activation in (
        getattr(again.config, name, None) for name in ("hidden_act", "activation", "hidden_activation")
    )
    assert again.config.id2label == model.config.id2label
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    for key, value in answers(model, inputs).items():
        np.testing.assert_array_equal(answers(again, inputs)[key], value)


STEMS = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra", "albert": "Albert",
    "modernbert": "ModernBert", "nomic_bert": "NomicBert", "gte": "Gte",
}  # fmt: skip


@pytest.mark.parametrize(
    "family, head, pooler",
    [(family, head, True) for family in FAMILIES for head in HEADS_OF[family]]
    + [("bert", head, False) for head in (None, "masked_lm", "tagging", "question_answering")]
    + [(family, None, False) for family in ("roberta", "albert", "nomic_bert", "gte")],
)
def test_our_models_give_the_same_outputs_there(tmp_path, family, head, pooler):
    kind = STEMS[family] + CLASSES[STEMS[family]][head]
    lacks_pooler = head is None and family in ("distilbert", "electra", "modernbert")  # where it is a part of heads
    checkpoint = small_checkpoint(head, **(FAMILIES[family] | {"pooler": pooler and not lacks_pooler}))
    model = model_of(checkpoint)
    if family == "roberta":
        checkpoint = dataclasses.replace(checkpoint, tokenizer=None)  # whose padding would have the id 1
    huggingface.write(checkpoint, str(tmp_path))
    options = {"add_pooling_layer": pooler} if head is None and not lacks_pooler else {}
    theirs = opened(kind, tmp_path, **options)
    assert_same_answers(theirs, model, inputs_of(theirs))
    assert transformers.AutoConfig.from_pretrained(tmp_path).architectures == [kind]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_transformers_reads_a_model_with_a_single_label(tmp_path, task):
    checkpoint = small_checkpoint("classification")
    model = model_of(checkpoint)
    narrow = {
        name: tensor_of(tensor.read()[..., :1], name) if name.startswith("classifier/") else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    settings = {"labels": ["score"], "max_length": 20}
    checkpoint = dataclasses.replace(checkpoint, tensors=narrow, task={"name": task, "settings": settings})
    huggingface.write(checkpoint, str(tmp_path))
    theirs = opened("BertForSequenceClassification", tmp_path)
    expected = model(inputs_of(theirs))["logits"][:, :1]
    np.testing.assert_allclose(answers(theirs, inputs_of(theirs))["logits"], expected, atol=1e-5)
    assert huggingface.read(str(tmp_path)).task == checkpoint.task


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "RobertaForMaskedLM"])
def test_half_precision_is_kept_in_both_directions(tmp_path, name, dtype):
    model = make(name).to(getattr(torch, dtype))
    path = saved(model, tmp_path / "theirs", vocabulary(model))
    checkpoint = huggingface.read(path)
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {dtype}
    (tmp_path / "ours").mkdir()
    huggingface.write(checkpoint, str(tmp_path / "ours"))
    again = opened(name, tmp_path / "ours", dtype="auto")
    assert again.dtype == getattr(torch, dtype)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    ours, _, _ = load_model(path)  # which computes in float32
    assert_same_answers(model.float(), ours, inputs_of(model))


@pytest.mark.parametrize("name", ["NomicBertForMaskedLM", "GteForMaskedLM"])
def test_the_names_of_their_own_classes_are_read(tmp_path, name):
    model = make(name)
    path = saved(model, tmp_path, vocabulary(model), save_original_format=False)
    assert any(key.endswith("gate_proj.weight") for key in load_file(tmp_path / "model.safetensors"))
    ours, _, _ = load_model(path)
    assert_same_answers(model, ours, inputs_of(model))


@pytest.mark.parametrize("name", ["BertForPreTraining", "RobertaModel"])
def test_their_shards_are_read(tmp_path, name):
    model = make(name)
    path = saved(model, tmp_path, vocabulary(model), max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ours, _, _ = load_model(path)
    assert_same_answers(model, ours, inputs_of(model))


@pytest.mark.parametrize("legacy", [False, True])
def test_their_pickles_are_read_if_allowed(tmp_path, legacy):
    model = make("BertForMaskedLM")
    path = saved(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    # With copies of the tied tensors, like the releases that wrote such files.
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with raises(bert_tf.errors.DataError, "allow_pickle"):
        load_model(path)
    ours, _, _ = load_model(path, allow_pickle=True)
    assert_same_answers(model, ours, inputs_of(model))


def test_their_untied_models_are_refused(tmp_path):
    model = make("BertForMaskedLM", tie_word_embeddings=False)
    path = saved(model, tmp_path)
    with raises(bert_tf.errors.DataError, "decoder.weight", "word_embeddings"):
        load_model(path)


def sentences():
    """Real sentences in English and Korean, without words over 100 characters, where Transformers' limit differs."""
    english = shared("english/sst2/dev.tsv").read_text(encoding="utf-8").splitlines()[:300]
    korean = shared("korean/nsmc/ratings_test.tsv").read_text(encoding="utf-8").splitlines()[1:2000]
    texts = [line.split("\t")[0] for line in english] + [line.split("\t")[1] for line in korean]
    own = ["Ein schöner, kleiner Film - 2 Stunden LANG!", "중국中国어 ÀÉÎ", "ﬁn… x² ß", "한\u200b글\u00ad과 İstanbul"]
    return [text for text in texts + own if max(map(len, text.split()), default=0) <= 100]


@pytest.mark.parametrize("layout", ["bert", "roberta"])
@pytest.mark.parametrize(
    "settings",
    [
        {"lower_case": True, "strip_accents": None, "split_cjk": True},
        {"lower_case": True, "strip_accents": False, "split_cjk": True},
        {"lower_case": False, "strip_accents": None, "split_cjk": False},
        {"lower_case": False, "strip_accents": True, "split_cjk": False},
    ],
)
def test_their_tokenizer_gives_the_same_ids_for_real_sentences(tmp_path, layout, settings):
    pieces = shared("korean/wordpiece_vocab_32200.txt").read_text(encoding="utf-8").split("\n")
    pieces = [piece for piece in pieces if piece]
    shape = {"position_offset": pieces.index("[PAD]") + 1, "type_vocab_size": 1} if layout == "roberta" else {}
    checkpoint = small_checkpoint(vocab_size=len(pieces), num_layers=1, **shape)
    checkpoint = dataclasses.replace(checkpoint, tokenizer=bert_tf.Tokenizer(pieces, **settings))
    huggingface.write(checkpoint, str(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 24
    specials = (theirs.pad_token, theirs.unk_token, theirs.cls_token, theirs.sep_token, theirs.mask_token)
    assert specials == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    texts = sentences()
    assert len(texts) > 2000
    ours = bert_tf.load(str(tmp_path))[1].tokenize(texts).to_list()
    for text, ids, expected in zip(texts, ours, theirs(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert ids == expected, text
    pair = theirs("abc", "def", return_tensors="pt")
    transformers.AutoModel.from_pretrained(tmp_path)(**pair)  # types that the model has


def test_their_tokenizer_is_read_from_tokenizer_json_alone(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    checkpoint = small_checkpoint()
    checkpoint = dataclasses.replace(
        checkpoint, tokenizer=bert_tf.Tokenizer(PIECES, strip_accents=False, max_input_chars_per_word=100)
    )  # as theirs
    huggingface.write(checkpoint, str(source))
    theirs = transformers.AutoTokenizer.from_pretrained(source)
    theirs.save_pretrained(tmp_path)
    make("BertModel").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    assert (tmp_path / "tokenizer.json").exists()
    again = huggingface.read(str(tmp_path))
    assert_same_tokenizer(again.tokenizer, checkpoint.tokenizer)
    text = "the good a's Abc é, é!"
    assert again.tokenizer.tokenize([text]).to_list()[0] == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_files_that_disagree_on_lower_case_are_read_as_transformers_reads_them(tmp_path, name, here, there):
    make("BertModel").save_pretrained(tmp_path)
    for lower_case in (not there, there):  # the second tokenizer.json is kept
        transformers.BertTokenizerFast(
            dict(zip(PIECES, range(len(PIECES)), strict=True)), do_lower_case=lower_case
        ).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "do_lower_case": here}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    _, tokenizer = bert_tf.load(str(tmp_path))
    text = "The Good the good"
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize([text]).to_list() == [expected]
    assert (tokenizer.unk_id in expected) == (not (there if name == "PreTrainedTokenizerFast" else here))


TEXTS = ["A fine film, it's 90 minutes long.", "dull", "한국어 문장 😀 é", "The  plot"]


def texts_for(name):
    """TEXTS; for ALBERT without Hangul, which Transformers leaves in parts (see test_sentence_piece)."""
    return [text.replace("한국어 문장", "Ein Satz") if name.startswith("Albert") else text for text in TEXTS]


def with_tokenizer(name, path):
    """A directory of a random model of a class and the vocabulary that it is published with; and the model."""
    path.mkdir()
    modern = {"ModernBert": (learned.modern, BERT), "MmBert": (learned.gemma, GEMMA)}
    found = next((made for stem, made in modern.items() if name.startswith(stem)), None)
    model_type = class_of(name).config_class.model_type
    kind = "wordpiece" if model_type in TOKENIZER_CLASSES else {"roberta": "byte_bpe"}.get(model_type)
    if kind:
        TOKENIZERS[kind]().save(path)
        size = TOKENIZERS[kind]().vocab_size
    elif found:
        library, names = found[0]().reference, dict(zip(SPECIAL_NAMES, found[1], strict=True))
        (path / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
        (path / "tokenizer_config.json").write_text(json.dumps(settings | names))
        size = library.get_vocab_size()
    elif model_type == "albert":
        (path / "spiece.model").write_bytes(albert_model())
        size = SIZE
    else:
        (path / "sentencepiece.bpe.model").write_bytes(sentence_piece_model())
        size = 1505 if name.startswith("Camembert") else 1502
    if model_type in TOKENIZER_CLASSES:
        settings = {"tokenizer_class": TOKENIZER_CLASSES[model_type], "do_lower_case": False}
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if name.startswith("Bert"):  # as multilingual-e5-small, whose table is larger
        (path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
        size += 35
    model = make(name, vocab_size=size, max_position_embeddings=66)
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize(
    "name",
    [
        *(f"RobertaFor{task}" for task in ("SequenceClassification", "TokenClassification", "MaskedLM")),
        *("XLMRobertaForSequenceClassification", "XLMRobertaForQuestionAnswering", "XLMRobertaForMaskedLM"),
        *("CamembertForSequenceClassification", "CamembertForMaskedLM", "BertModel", "BertForSequenceClassification"),
        *("DistilBertForSequenceClassification", "DistilBertForQuestionAnswering", "DistilBertForMaskedLM"),
        *("ElectraForSequenceClassification", "ElectraForTokenClassification", "ElectraForPreTraining"),
        *("AlbertForSequenceClassification", "AlbertForQuestionAnswering", "AlbertForPreTraining"),
        *("ModernBertForSequenceClassification", "ModernBertForTokenClassification", "ModernBertForMaskedLM"),
        *("MmBertForSequenceClassification", "MmBertForQuestionAnswering", "MmBertForMaskedLM"),
        *("NomicBertForTokenClassification", "GteForTokenClassification"),
    ],
)
def test_texts_give_the_same_outputs_with_the_tokenizers_of_both_sides(tmp_path, name):
    model = with_tokenizer(name, tmp_path / "theirs")
    tokenizer_of_theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    ours, tokenizer, _ = load_model(tmp_path / "theirs")
    checkpoint = huggingface.read(str(tmp_path / "theirs"))
    (tmp_path / "ours").mkdir()
    huggingface.write(checkpoint, str(tmp_path / "ours"))
    again, tokenizer_of_again = (
        opened(name, tmp_path / "ours"),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "ours"),
    )
    texts = texts_for(name)
    for pairs in (None, texts[::-1]):
        inputs = {key: value.numpy() for key, value in tokenizer.encode(texts, pairs).items()}
        assert not inputs["input_mask"].all()
        for side in (tokenizer_of_theirs, tokenizer_of_again):
            expected = side(texts, pairs, padding=True, return_tensors="np")
            np.testing.assert_array_equal(expected["attention_mask"], inputs["input_mask"])
            tokens = inputs["input_mask"] == 1
            np.testing.assert_array_equal(expected["input_ids"][tokens], inputs["input_word_ids"][tokens])
        padded = inputs | {"input_word_ids": expected["input_ids"]}  # Transformers' RoBERTa counts positions by ids
        assert_same_answers(model, ours, padded)
        for key, value in answers(model, padded).items():
            np.testing.assert_array_equal(answers(again, padded)[key], value)
    for format in ("bert_tf", "huggingface"):
        convert(str(tmp_path / "theirs"), format, str(tmp_path / format))
        assert_same_tokenizer(bert_tf.load(tmp_path / format)[1], tokenizer)


FAMILY_STEMS = (
    *("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra", "Albert", "ModernBert", "MmBert"),
    *("NomicBert", "Gte"),
)


def numbers(tokenizer, texts):
    """Padded inputs of Transformers' tokenizer, in PyTorch."""
    return tokenizer(texts, padding=True, return_tensors="pt")


@pytest.mark.parametrize("stem", FAMILY_STEMS)
def test_a_classifier_goes_from_text_through_every_door(tmp_path, stem):
    """from_pretrained, predict, fit, evaluate, export, save, convert."""
    model, texts = with_tokenizer(f"{stem}ForSequenceClassification", tmp_path / "theirs"), texts_for(stem)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    classifier = bert_tf.TextClassifier.from_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        logits = model(**numbers(tokenizer, texts)).logits
    found = [[*prediction["probabilities"].values()] for prediction in classifier.predict(texts)]
    np.testing.assert_allclose(found, torch.softmax(logits, -1).numpy(), atol=1e-5)

    labels = ["no", "ja", "no", "ja"]
    classifier.fit(texts, labels, epochs=1, batch_size=2, dtype="float32")
    predictions = classifier.predict(texts)
    right = np.mean([prediction["label"] == label for prediction, label in zip(predictions, labels, strict=True)])
    assert classifier.evaluate(texts, labels)["accuracy"] == right
    version = classifier.export(tmp_path / "exported").path
    with Session() as session:
        [answer] = session.ask(version, [{"inputs": {"text": texts}}])
    expected = [[*prediction["probabilities"].values()] for prediction in predictions]
    np.testing.assert_allclose(answer["outputs"]["probabilities"], expected, atol=1e-5)
    classifier.save(tmp_path / "saved")
    convert(str(tmp_path / "saved"), "huggingface", str(tmp_path / "again"), verify=True)
    # A fine-tuned model does not keep where it came from, and XLM-R's and CamemBERT's have RoBERTa's architecture.
    kind = "Roberta" if stem in ("XLMRoberta", "Camembert") else stem
    again = opened(f"{kind}ForSequenceClassification", tmp_path / "again")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    with torch.no_grad():
        logits = again(**numbers(tokenizer, texts)).logits
    np.testing.assert_allclose(expected, torch.softmax(logits, -1).numpy(), atol=1e-5)


@pytest.mark.parametrize("stem", FAMILY_STEMS)
def test_masked_words_are_predicted_as_there(tmp_path, stem):
    model = with_tokenizer(f"{stem}ForMaskedLM", tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    # Not after a space, which only published directories of RoBERTa say is a part of the mask.
    texts = [f"The{tokenizer.mask_token} lasts 90 minutes.", f"dull{tokenizer.mask_token}"]
    inputs = numbers(tokenizer, texts)
    with torch.no_grad():
        logits = model(**inputs).logits
    masked = inputs["input_ids"] == tokenizer.mask_token_id
    assert masked.sum(1).tolist() == [1, 1]
    best = torch.softmax(logits[masked], -1).topk(5).values.numpy()
    ours = bert_tf.MaskedLM.from_pretrained(tmp_path / "theirs").predict(texts)
    found = [[one["probability"] for one in words[:5]] for [words] in ours]
    np.testing.assert_allclose(found, best, atol=1e-5)


@pytest.mark.parametrize("stem", FAMILY_STEMS)
def test_sentence_vectors_are_means_of_the_states_there(tmp_path, stem):
    model, texts = with_tokenizer(f"{stem}Model", tmp_path / "theirs"), texts_for(stem)
    inputs = numbers(transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs"), texts)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    expected = ((states * mask).sum(1) / mask.sum(1)).numpy()
    ours = bert_tf.SentenceEncoder.from_pretrained(tmp_path / "theirs").encode(texts)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_the_encoder_of_an_unsupported_class_is_verified(tmp_path):
    path = saved(make("BertLMHeadModel"), tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    for name in ("BertLMHeadModel", "SomebodysOwn"):  # Transformers has only the first
        config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [name]}))
        found = convert(path, "bert_tf", str(tmp_path / name), verify=True)["verification"]
        assert found["source_run_by"].startswith("transformers")
        assert ("it has no class SomebodysOwn" in found["source_run_by"]) == (name == "SomebodysOwn")
        assert found["differences"]["layer_1"]["of"] > 0.1
