"""mmBERT's tokenizer.json, which is Gemma's: read as by Transformers, and written back.

No real file can be had here: the vocabularies are learned, and the file is as Transformers makes Gemma's of its model.
"""

import json
import random
import types

import pytest
import sentencepiece
import tokenizers

from bert_tf.text.base import GEMMA
from bert_tf.text.kinds import saved_tokenizer
from tests.checkpoints.tokenizer_files.directories import (
    TEXTS,
    UNSEEN,
    assert_same_ids,
    directory,
    edit,
    read,
    rewritten,
)
from tests.learned import gemma, gemma_model, lines
from tests.text.test_modern import CODE

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

PARTS = [
    *" " * 8,
    *"\t\n\u3000\xa0",
    *"the19.'<s>[]Ee½é가日😀\0",
    "\u0301",
    "<s>",
    "</s>",
    "<b>",
    "\n\n\n",
    "\t\t",
    "서울",
]
choice = random.Random(0)
MORE = [
    *TEXTS,
    *CODE,
    *("".join(choice.choices(PARTS, k=choice.randrange(20))) for _ in range(2000)),
    *(" " * count + "x" for count in range(1, 40)),
    "e\u0301 \u1100\u1161",
]
MASKED = ["a <mask>b", "<bos>  <mask> x<eos>", "<mask><mask>"]


def converted(path):
    """What Transformers makes of the .model file by the program that made Gemma's tokenizer.json."""
    from transformers.convert_slow_tokenizer import GemmaConverter, GemmaSentencePieceExtractor

    class Extractor(GemmaSentencePieceExtractor):
        sp = sentencepiece.SentencePieceProcessor(model_proto=gemma_model())  # which release 5 forgets

    class Converter(GemmaConverter):
        SpmExtractor = Extractor

    path.write_bytes(gemma_model())
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token", "mask_token"), GEMMA, strict=True))
    made = Converter(types.SimpleNamespace(vocab_file=str(path), **names)).converted()
    made.post_processor = gemma().reference.post_processor
    return made


def trained(_):
    """Learned by the library, with one merge for each piece."""
    model = tokenizers.models.BPE(unk_token=GEMMA.unk, fuse_unk=True, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    names = [*GEMMA, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, special_tokens=names, show_progress=False)
    made.train_from_iterator(lines("data/sotu/train.txt.gz"), trainer)
    made.add_tokens([tokenizers.AddedToken("\n\n", normalized=False)])
    content = json.loads(made.to_str())
    content["added_tokens"] = [one for one in content["added_tokens"] if not one["content"].startswith("<0x")]
    content["post_processor"] = json.loads(gemma().reference.to_str())["post_processor"]
    for name in ("<bos>", "<eos>"):
        content["post_processor"]["special_tokens"][name]["ids"] = [made.token_to_id(name)]
    return tokenizers.Tokenizer.from_str(json.dumps(content))


LIBRARIES = {"ours": lambda _: gemma().reference, "converted": converted, "trained": trained}


def files_of(library, **others):
    """A directory's files, as of the Hub."""
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), GEMMA, strict=True))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": GEMMA.cls,
        "eos_token": GEMMA.sep,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    return {
        "tokenizer.json": library.to_str(),
        "tokenizer_config.json": config | names | others,
        "config.json": {"model_type": "modernbert"},
    }


def assert_same_offsets(tokenizer, library, texts):
    """Those of the library without white space at both ends, of which it keeps what is in the piece."""
    compared, found = 0, zip(*(one.to_list() for one in tokenizer.tokenize_with_offsets(texts)), strict=True)
    for text, right, (ids, starts, ends) in zip(texts, library.encode_batch(texts), found, strict=True):
        pieces = [(number, *span) for number, span in zip(right.ids, right.offsets, strict=True)][1:-1]
        for number, start, end, (expected, first, last) in zip(ids, starts, ends, pieces, strict=True):
            assert number == expected, text
            if bare := text[first:last].strip():
                first += text[first:last].index(bare)
                assert (start, end) == (len(text[:first].encode()), len((text[:first] + bare).encode())), text
                compared += 1
    assert compared > 10_000


@pytest.mark.parametrize("which", LIBRARIES)
def test_it_is_read_as_by_transformers_and_written_back(which, tmp_path):
    library = LIBRARIES[which](tmp_path / "source.model")
    path, size = directory(tmp_path / "model", files_of(library)), library.get_vocab_size()
    tokenizer, warnings = read(path, size)
    assert not warnings and tokenizer.special_names == GEMMA
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert_same_ids(tokenizer, theirs, MORE)
    assert_same_offsets(tokenizer, library, [*CODE, *MORE[:1000]])
    expected = theirs(MASKED, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(MASKED, special_tokens=True).to_list() == expected

    again = rewritten(tokenizer, tmp_path / "again", "modernbert", "ModernBert")
    assert_same_ids(tokenizer, again, MORE)
    assert again(MASKED, add_special_tokens=False)["input_ids"] == expected
    assert again.decode(again("a 가😀\n b").input_ids, skip_special_tokens=True) == "a 가😀\n b"
    back, warnings = read(tmp_path / "again", size)
    assert not warnings and (back.vocab, back.description) == (tokenizer.vocab, tokenizer.description)
    (tmp_path / "again" / "tokenizer.model").unlink()  # as on the Hub
    back, warnings = read(tmp_path / "again", size)
    assert not warnings and (back.vocab, back.description) == (tokenizer.vocab, tokenizer.description)
    assert back.tokenize(MORE).to_list() == tokenizer.tokenize(MORE).to_list()

    tokenizer.save(tmp_path / "own")
    own = saved_tokenizer(str(tmp_path / "own"), tokenizer.description, tokenizer.checksums, "config.json")
    assert own.description == tokenizer.description
    assert own.tokenize(MORE).to_list() == tokenizer.tokenize(MORE).to_list()


@pytest.mark.parametrize("flags", [["special", "lstrip"], ["special"], []])
def test_the_mask_takes_white_space_along_as_its_flags_say(flags, tmp_path):
    path = directory(tmp_path / "model", files_of(gemma().reference))
    content = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    (token,) = (one for one in content["added_tokens"] if one["content"] == GEMMA.mask)
    token |= {flag: flag in flags for flag in ("special", "lstrip")}
    edit(path, "tokenizer.json", "added_tokens", value=content["added_tokens"])
    tokenizer, warnings = read(path, gemma().tokenizer.vocab_size)
    library = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert not warnings
    assert tokenizer.tokenize(MASKED, special_tokens=True).to_list() == [
        one.ids for one in library.encode_batch(MASKED, add_special_tokens=False)
    ]


def test_what_cannot_be_followed_is_named(tmp_path):
    files = files_of(gemma().reference, tokenizer_class="GemmaTokenizer")
    path, size = directory(tmp_path / "model", files), gemma().tokenizer.vocab_size
    assert read(path, size)[1] == [
        "tokenizer: GemmaTokenizer is not known here; what its files hold is read, not what it adds"
    ]
    edit(path, "tokenizer_config.json", "tokenizer_class", value="PreTrainedTokenizerFast")
    edit(path, "tokenizer.json", "model", "ignore_merges", value=True)
    tokenizer, [warning] = read(path, size)
    assert tokenizer is None and warning.startswith(UNSEEN) and "ignore_merges True" in warning
    content = json.loads(files["tokenizer.json"].replace("<0x41>", "no byte"))
    edit(path, "tokenizer.json", "model", value=content["model"])
    tokenizer, [warning] = read(path, size)
    assert tokenizer is None and warning.startswith(UNSEEN) and "256 byte pieces" in warning


def test_merges_that_differ_from_those_of_the_joined_string_are_refused(tmp_path):
    """abc is merged of a and bc alone, but a and b are merged first."""
    library = gemma().reference
    content = json.loads(library.to_str())
    known = content["model"]["vocab"]
    first, second, third = "qjx"
    made = [first + second, second + third, first + second + third]
    assert known.keys() >= {first, second, third} and not known.keys() & set(made)
    content["model"]["vocab"] |= {piece: len(known) + number for number, piece in enumerate(made)}
    content["model"]["merges"] += [[first, second], [second, third], [first, second + third]]
    path = directory(tmp_path / "model", files_of(library) | {"tokenizer.json": json.dumps(content)})
    tokenizer, [warning] = read(path, library.get_vocab_size() + 3)
    assert tokenizer is None and warning.startswith(UNSEEN) and "by pairs into other pieces" in warning
