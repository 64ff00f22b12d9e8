"""Added pieces of Hugging Face directories: read with their flags, kept when trimmed, written with ids that exist."""

import dataclasses
import json

import pytest

from bert_tf.checkpoints import adapt
from bert_tf.checkpoints.conversion import WRITERS
from bert_tf.checkpoints.formats import open_checkpoint
from tests.checkpoints.small import small_checkpoint
from tests.checkpoints.tokenizer_files.directories import directory, read, transformers
from tests.learned import learned
from tests.text.test_segments import made

FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
ADDED = {"[E1]": ["special"], "[/E1]": ["special", "lstrip"], "코로나19": ["normalized"]}
TEXTS = ["[E1] 서울 [/E1] the", "the  [/E1]film[E1]", "the film"]
MASKED = [*TEXTS, "<mask> the <mask>"]
FILES = {"wordpiece": "BertTokenizer", "byte_bpe": "RobertaTokenizer", "unigram": "XLMRobertaTokenizer"}


def files_of(kind, **others):
    """A directory's files, and the number of its pieces."""
    tokenizer = learned(kind).tokenizer
    contents = dict(zip(tokenizer.FILES, tokenizer.contents(), strict=True))
    first = tokenizer.vocab_size
    decoder = {
        str(first + number): {"content": piece} | {flag: flag in flags for flag in FLAGS}
        for number, (piece, flags) in enumerate(ADDED.items())
    }
    config = {"tokenizer_class": FILES[kind], "do_lower_case": False, "added_tokens_decoder": decoder} | others
    return contents | {"tokenizer_config.json": config}, first + len(ADDED)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_added_special_tokens_are_special_in_every_text_as_in_transformers(kind, tmp_path):
    files, size = files_of(kind)
    path = directory(tmp_path / "model", files)
    tokenizer, warnings = read(path, size)
    assert {piece: sorted(flags) for piece, flags in tokenizer.added_pieces.items()} == {
        piece: sorted(flags) for piece, flags in ADDED.items()
    }
    assert not any("[E1]" in one for one in warnings)
    assert any("added tokens (코로나19) are ordinary pieces here" in one for one in warnings) == (kind == "wordpiece")
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert tokenizer.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS, special_tokens=True).to_list() == expected
    ids, word_starts = tokenizer.tokenize_with_words(TEXTS)
    assert ids.to_list() == expected
    markers = [number for number in range(size) if tokenizer.vocab[number] in ("[E1]", "[/E1]")]
    assert all(
        start for number, start in zip(ids.values.numpy(), word_starts.values.numpy(), strict=True) if number in markers
    )
    inputs = tokenizer.encode(TEXTS, max_length=16)  # what tasks read
    packed = [
        row[mask == 1].tolist()
        for row, mask in zip(*(inputs[f"input_{name}"].numpy() for name in ("word_ids", "mask")), strict=True)
    ]
    assert packed == theirs(TEXTS, truncation=True, max_length=16)["input_ids"]


def test_old_lists_name_special_tokens(tmp_path):
    files, size = files_of("wordpiece", added_tokens_decoder=None)
    numbers = {piece: size - len(ADDED) + number for number, piece in enumerate(ADDED)}
    files |= {"added_tokens.json": numbers, "special_tokens_map.json": {"additional_special_tokens": ["[E1]", "[/E1]"]}}
    tokenizer, _ = read(directory(tmp_path / "model", files), size)
    assert tokenizer.added_pieces == {"[E1]": ("special",), "[/E1]": ("special",), "코로나19": ()}


def test_a_mask_that_takes_no_space_along_is_read_so(tmp_path):
    files, size = files_of("byte_bpe")
    number = learned("byte_bpe").tokenizer.mask_id
    token = {"content": "<mask>"} | {flag: flag == "special" for flag in FLAGS}
    files["tokenizer_config.json"]["added_tokens_decoder"][str(number)] = token
    path = directory(tmp_path / "model", files)
    tokenizer, warnings = read(path, size)
    assert tokenizer.added_pieces["<mask>"] == ("special",) and not any("<mask>" in one for one in warnings)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in MASKED]
    assert tokenizer.tokenize(MASKED, special_tokens=True).to_list() == expected


@pytest.mark.parametrize("kind", FILES)
def test_added_pieces_stay_when_a_vocabulary_is_trimmed_and_what_is_written_fits(kind, tmp_path):
    tokenizer = learned(kind).tokenizer
    checkpoint = dataclasses.replace(
        small_checkpoint("masked_lm", vocab_size=tokenizer.vocab_size + len(ADDED)),
        tokenizer=made(kind, ADDED),
        # As of a directory that Transformers 5 wrote, of which the ids are no longer those of the vocabulary.
        source_metadata={
            "format": "huggingface",
            "tokenizer_config": {"extra_special_tokens": ["[E1]", "[/E1]", "<nosuch>"]},
        },
    )
    trimmed, report = adapt.trim_vocabulary(checkpoint, ["the film", "서울 the"], characters=False)
    assert report["pieces"][1] < report["pieces"][0]
    assert trimmed.tokenizer.added_pieces == checkpoint.tokenizer.added_pieces
    path = tmp_path / "written"
    path.mkdir()
    WRITERS["huggingface"].write(trimmed, str(path))
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert len(theirs) == trimmed.config.vocab_size
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in MASKED]
    assert trimmed.tokenizer.tokenize(MASKED, special_tokens=True).to_list() == expected
    assert trimmed.tokenizer.tokenize(TEXTS).to_list() == expected[: len(TEXTS)]
    again = open_checkpoint(str(path)).tokenizer
    assert again.tokenize(MASKED, special_tokens=True).to_list() == expected
    assert {*again.added_pieces} >= {*ADDED}
    written = json.loads((path / "tokenizer_config.json").read_text())
    assert written["additional_special_tokens"] == ["[E1]", "[/E1]"] and "extra_special_tokens" not in written
