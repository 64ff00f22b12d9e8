"""Tokenization on one core: text in, ids out, in batches of 1,000 texts. `how` names the tokenizer."""

import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from worker import Round, repeated, serve, versions

_BATCH = 1000


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    # Before any pool of threads is made.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    texts = [line for line in Path(settings["texts"]).read_text(encoding="utf-8").split("\n") if line]
    batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
    make = _hugging_face if settings["how"] == "tokenizers" else _tensorflow
    inputs, run, rows, packages = make(settings["how"], settings["vocabulary"], batches)
    # Ids, by text, as checksums: the program compares them with those of Hugging Face.
    ids = [list(map(int, row)) for batch in inputs for row in rows(run(batch))]
    tokens = sum(map(len, ids))
    checksums = [zlib.crc32(repr(row).encode()) for row in ids]

    def step() -> None:
        for batch in inputs:
            run(batch)

    ready = {"versions": versions(*packages), "threads": 1, "texts": len(texts), "tokens": tokens}
    return ready | {"checksums": checksums}, repeated(step, tokens, "tokens", settings["seconds"])


_Made = tuple[list[Any], Callable[[Any], Any], Callable[[Any], Iterable[Any]], tuple[str, ...]]


def _hugging_face(how: str, vocabulary: str, batches: list[list[str]]) -> _Made:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    # The faster of its two ways: without the alignment to the text.
    encode = getattr(tokenizer._tokenizer, "encode_batch_fast", tokenizer._tokenizer.encode_batch)
    return (
        list(batches),
        lambda batch: [row.ids for row in encode(batch, add_special_tokens=False)],
        lambda rows: rows,
        ("tokenizers",),
    )


def _tensorflow(how: str, vocabulary: str, batches: list[list[str]]) -> _Made:
    from bert_tf import quiet

    quiet.import_tensorflow()
    import tensorflow as tf
    import tensorflow_text as text

    if how == "bert_tf":
        from bert_tf.text.tokenizer import Tokenizer

        tokenize = Tokenizer(vocabulary).tokenize
    elif how == "FastBertTokenizer":
        pieces = Path(vocabulary).read_text(encoding="utf-8").split("\n")[:-1]
        fast = text.FastBertTokenizer(vocab=pieces, lower_case_nfd_strip_accents=True, support_detokenization=False)
        tokenize = fast.tokenize
    else:
        stock = text.BertTokenizer(vocabulary, lower_case=True, token_out_type=tf.int32)
        tokenize = lambda strings: stock.tokenize(strings).merge_dims(-2, -1)  # noqa: E731
    traced = tf.function(tokenize, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    return (
        [tf.constant(batch) for batch in batches],
        traced,
        lambda ids: ids.to_list(),
        ("tensorflow", "tensorflow-text"),
    )


serve(setup)
