"""Every value in the JSON files of a tokenizer, replaced by hostile ones: a tokenizer, a reason, or one line."""

import itertools
import json

import pytest

from bert_tf.checkpoints import tokenizer_files
from bert_tf.errors import DataError
from bert_tf.text.base import BERT, ROBERTA
from bert_tf.text.byte_pair_model import BYTES
from tests.model.small import PIECES

VALUES = [None, True, 5, -1, 10**30, 0.5, "", "x", "9" * 5000, [], {}, [[]], [None], {"foo": 1}, [{"foo": 1}]]
VALUES += [{"type": []}, {"type": "Sequence"}]
VALUES += [{"type": "Sequence", name: 5} for name in ("normalizers", "pretokenizers", "processors")]
LONG = 3  # so many entries of a long list or object are replaced; the others are of the same kind


def _numbered(pieces):
    return {piece: number for number, piece in enumerate(pieces)}


def _template(names):
    single = [{"SpecialToken": {"id": names.cls, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    tokens = {names.cls: {"id": names.cls, "ids": [0], "tokens": [names.cls]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _files(model, normalizer, pre_tokenizer, processor, pieces, names, **config):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": pieces.index(name), "content": name, "special": True, **flags} for name in names]
    library = {
        "version": "1.0",
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "Sequence", "processors": [processor]},
        "added_tokens": added,
    }
    decoder = {str(token["id"]): {"content": token["content"], "special": True} for token in added}
    return {
        "tokenizer.json": library,
        "tokenizer_config.json": {"added_tokens_decoder": decoder, "mask_token": {"content": names.mask}} | config,
        "added_tokens.json": {names.mask: pieces.index(names.mask)},
        "special_tokens_map.json": {"mask_token": {"content": names.mask}, "cls_token": names.cls},
    }


_BYTE_PAIRS = [*BYTES, *ROBERTA, "he", "ll", "hell"]
_UNIGRAM = [*ROBERTA, "\u2581", "\u2581a", "b"]
# Kind -> content of the files, and the number of pieces.
KINDS = {
    "WordPiece": (
        _files(
            {"type": "WordPiece", "vocab": _numbered(PIECES), "continuing_subword_prefix": "##"},
            {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "handle_chinese_chars": True},
            {"type": "BertPreTokenizer"},
            _template(BERT),
            PIECES,
            BERT,
            tokenizer_class="BertTokenizer",
            do_lower_case=True,
        ),
        len(PIECES),
    ),
    "BPE": (
        _files(
            {"type": "BPE", "vocab": _numbered(_BYTE_PAIRS), "merges": ["h e", "l l", ["he", "ll"]], "dropout": None},
            None,
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}]},
            {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]},
            _BYTE_PAIRS,
            ROBERTA,
            tokenizer_class="TokenizersBackend",
            add_prefix_space=False,
        ),
        len(_BYTE_PAIRS),
    ),
    "Unigram": (
        _files(
            {"type": "Unigram", "vocab": [[piece, -1.5] for piece in _UNIGRAM], "unk_id": 1, "byte_fallback": False},
            {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Strip", "strip_left": False, "strip_right": True},
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
                ],
            },
            {
                "type": "Sequence",
                "pretokenizers": [{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}],
            },
            _template(ROBERTA),
            _UNIGRAM,
            ROBERTA,
            tokenizer_class="TokenizersBackend",
        ),
        len(_UNIGRAM),
    ),
}


def places(value, path=()):
    """Paths of everything in a value from JSON; of long lists and objects, of their first entries."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in itertools.islice(items, LONG if len(value) > 12 else None):
            yield from places(part, (*path, key))


def replaced(value, path, other):
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


def read(folder, size):
    config = tokenizer_files.read_config(folder)
    return tokenizer_files.read_tokenizer(folder, config, size, default_class=None, required=True)


def inner(value, path):
    for key in path:
        value = value[key]
    return value


def changes():
    """(Kind, name of a file, its changed content, what was changed)."""
    for kind, (files, _) in KINDS.items():
        for name, content in files.items():
            for path, other in itertools.product(places(content), VALUES):
                yield kind, name, replaced(content, path, other), (path, other)
                if path and isinstance(path[-1], str):  # the name of a value is hostile, too
                    part = {**inner(content, path[:-1]), "9" * 5000: other}
                    yield kind, name, replaced(content, path[:-1], part), (path, other)


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_every_replaced_value_gives_a_tokenizer_a_reason_or_one_line(step, tmp_path):
    for kind, (files, size) in KINDS.items():
        (tmp_path / kind).mkdir()
        for name, content in files.items():
            (tmp_path / kind / name).write_text(json.dumps(content))
        tokenizer, warnings = read(str(tmp_path / kind), size)
        assert tokenizer, (kind, warnings)
    for kind, name, value, what in itertools.islice(changes(), 0, None, step):
        file, size = tmp_path / kind / name, KINDS[kind][1]
        file.write_text(json.dumps(value))
        try:
            read(str(file.parent), size)
        except DataError as error:
            assert "\n" not in str(error)
        except Exception as error:
            raise AssertionError(f"{kind}, {name}: {what}"[:300]) from error
        file.write_text(json.dumps(KINDS[kind][0][name]))
