"""Pre-training batches with each kind of tokenizer, against Hugging Face's tokenizers."""

import functools
import itertools
from unicodedata import category

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.errors import BertTfError
from bert_tf.inputs.batching import without_tuning
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import check_corpus, pretraining_dataset
from bert_tf.inputs.masking import Masker
from tests.errors import raises
from tests.learned import KINDS, learned, lines

LENGTH = 48
SENTENCES = [
    [*filter(None, lines(name, 400))] for name in ("data/korean/gnome_heldout.txt.gz", "data/sotu/heldout.txt.gz")
]
DOCUMENTS = [part[start : start + 5] for part in SENTENCES for start in range(0, len(part) - 4, 5)][:60]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    return [str(path)]


def batches(files, kind, **fields):
    data = PretrainingData(**({"max_length": LENGTH, "max_predictions": 8} | fields)).check()
    corpus = Corpus(files, learned(kind).tokenizer, data)
    dataset = pretraining_dataset(corpus, seed=5, epoch=0, batch_size=4, drop_remainder=False)
    return list(dataset.with_options(without_tuning()).as_numpy_iterator())


@pytest.fixture(scope="module")
def sequences(files):
    """Function from a kind and options to all sequences of an epoch."""
    return functools.cache(lambda kind, **fields: list(sequences_of(files, kind, **fields)))


def sequences_of(files, kind, **fields):
    """Of each sequence: its ids without masks, its types, the positions of its predictions, and its label."""
    for batch in batches(files, kind, **fields):
        for row in range(len(batch["input_mask"])):
            ids, chosen = batch["input_word_ids"][row].copy(), batch["masked_lm_weights"][row] > 0
            positions = batch["masked_lm_positions"][row][chosen]
            ids[positions] = batch["masked_lm_ids"][row][chosen]
            for number in range(1, batch["input_mask"][row].max() + 1):
                places = np.flatnonzero(batch["input_mask"][row] == number)
                label = np.reshape(batch.get("next_sentence_labels", [[0]] * 4)[row], [-1])
                label = int(label[number - 1]) if len(label) >= number else 0
                inside = positions[(positions >= places[0]) & (positions <= places[-1])] - places[0]
                yield ids[places].tolist(), batch["input_type_ids"][row, places].tolist(), inside.tolist(), label


@functools.cache
def streams(kind):
    """The ids of each document, each sentence tokenized by Hugging Face alone, and whether a word begins at each."""
    reference, made = learned(kind).reference, []
    for document in DOCUMENTS:
        ids, begins = [], []
        for sentence in document:
            encoded = reference.encode(sentence, add_special_tokens=False)
            ids += encoded.ids
            begins += starts_of(kind, encoded, sentence)
        made.append((ids, begins))
    return made


def starts_of(kind, encoded, sentence):
    """Whether each token begins a word: by its name, and at the beginning of the sentence."""
    if kind == "wordpiece":
        return [not token.startswith("##") for token in encoded.tokens]
    unknown = learned(kind).tokenizer.unk_id  # a word of its own, whatever its text
    return [
        at == 0 or number == unknown or token.startswith(("Ġ", "▁"))
        for at, (token, number) in enumerate(zip(encoded.tokens, encoded.ids, strict=True))
    ]


def slow(*kinds):
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


# Those of unigrams are marked and packed by the code for byte pairs.
each_kind = pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", *slow("unigram")])


def found_in(document, part):
    return any(document[at : at + len(part)] == part for at in range(len(document) - len(part) + 1))


@pytest.mark.parametrize("pack", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", ["byte_bpe", *slow("wordpiece", "unigram")])
def test_pairs_are_packed_as_hugging_face_packs_them(sequences, kind, pack):
    tokenizer, reference = learned(kind)
    frame = reference.encode("", "")  # the special tokens and their types
    firsts = 0
    documents = [document for document, _ in streams(kind)]
    for ids, types, _, label in sequences(kind, pack=pack):
        places = [at for at, token in enumerate(ids) if token in (tokenizer.cls_id, tokenizer.sep_id)]
        assert [ids[at] for at in places] == frame.ids and [types[at] for at in places] == frame.type_ids
        assert places[0] == 0 and places[-1] == len(ids) - 1 < LENGTH
        assert np.diff(places[1:-1]).tolist() == [1] * (len(places) - 3)  # separators side by side
        first, second = ids[1 : places[1]], ids[places[-2] + 1 : -1]
        assert first and second
        assert set(types[places[-2] + 1 :]) == ({1} if kind == "wordpiece" else {0}) and not any(types[: places[1]])
        owners = [document for document in documents if found_in(document, first)]
        assert owners and any(found_in(document, second) for document in (documents if label else owners))
        firsts += not label
    assert firsts > 20


WORDS = {"masking": "whole_word", "pairs": "none", "masking_rate": 0.3}


@pytest.mark.parametrize("options", [WORDS, pytest.param({"pairs": "none", "pack": True}, marks=pytest.mark.slow)])
@each_kind
def test_full_sentences_have_one_separator_between_documents(sequences, kind, options):
    tokenizer = learned(kind).tokenizer
    documents = [document for document, _ in streams(kind)]
    tokens = 0
    for ids, types, _, _ in sequences(kind, **options):
        assert ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id and not any(types)
        parts = [list(part) for is_sep, part in itertools.groupby(ids[1:-1], tokenizer.sep_id.__eq__) if not is_sep]
        assert len(parts) == 1 + ids[1:-1].count(tokenizer.sep_id) - (ids[-2] == tokenizer.sep_id) - (
            ids[1] == tokenizer.sep_id
        )
        assert all(any(found_in(document, part) for document in documents) for part in parts)
        tokens += sum(map(len, parts))
    assert tokens == sum(map(len, documents))


@pytest.mark.parametrize("words", ["pieces", pytest.param("spaces", marks=pytest.mark.slow)])
@each_kind
def test_words_are_hidden_whole_and_special_tokens_never(sequences, kind, words):
    tokenizer = learned(kind).tokenizer
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    # Words are read off the text at a place that has these tokens in this order; all such places have the same words
    # but for the sentences that end there, so only parts in one place are compared.
    several = hidden = 0
    for ids, _, positions, _ in sequences(kind, **WORDS, **({} if words == "pieces" else {"words": words})):
        assert not {ids[at] for at in positions} & special
        hidden += len(positions)
        for begin, end in spans_of(kind, ids, words):
            inside = [at for at in positions if begin <= at < end]
            assert inside in ([], list(range(begin, end)))
            several += len(inside) > 1
    assert several > 10 and hidden > 200


def spans_of(kind, ids, words):
    """[begin, end) of the words whose places in the text are known."""
    tokenizer = learned(kind).tokenizer
    begin = 1
    for is_sep, part in itertools.groupby(ids[1:-1], tokenizer.sep_id.__eq__):
        part = list(part)
        if not is_sep:
            places = [
                begins[at : at + len(part)]
                for document, begins in streams(kind)
                for at in range(len(document) - len(part) + 1)
                if document[at : at + len(part)] == part
            ]
            if len(places) == 1:
                cut = list(places[0])
                if words == "spaces":
                    cut = [b or alone or before for b, alone, before in zip(cut, *marks(kind, part), strict=True)]
                cut[0] = True
                bounds = [k for k, opens in enumerate(cut) if opens] + [len(part)]
                yield from ((begin + one, begin + two) for one, two in itertools.pairwise(bounds))
        begin += len(part)


def is_mark(text):
    return len(text) == 1 and not text.isalnum() and (text.isascii() or category(text)[0] == "P")


def marks(kind, part):
    """Whether each piece is a mark alone, and whether the one before it is."""
    reference = learned(kind).reference
    texts = [reference.id_to_token(piece).strip("Ġ▁") for piece in part]
    alone = [text in ("[UNK]", "<unk>") or is_mark(text) for text in texts]
    return alone, [False, *alone[:-1]]


@pytest.mark.slow  # test_dataset.py has one kind
@pytest.mark.parametrize("kind", KINDS)
def test_masks_on_the_device_are_those_of_the_host(files, kind):
    options = {"masking": "span", "pairs": "sop", "max_length": LENGTH, "max_predictions": 8}
    masker = Masker(PretrainingData(**options), learned(kind).tokenizer)
    raw, made = batches(files, kind, mask_on="device", **options), batches(files, kind, **options)
    for batch, expected in zip(raw[:5], made[:5], strict=True):
        masked = masker({name: tf.constant(value) for name, value in batch.items()})
        assert all(np.array_equal(masked[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "kind, pairs, least",
    [("wordpiece", "nsp", 5), ("byte_bpe", "nsp", 6), ("unigram", "sop", 6), ("byte_bpe", "none", 4)],
)
def test_sequences_have_room_for_the_special_tokens_of_the_tokenizer(kind, pairs, least):
    for length, error in (
        (least - 1, f"data.max_length is {least - 1}; expected at least {least}"),
        (least, "missing"),
    ):
        data = PretrainingData(max_length=length, pairs=pairs)
        with raises(BertTfError, error):
            check_corpus(Corpus(["missing.txt"], learned(kind).tokenizer, data))
