"""Tokenization on one core: text in, ids out."""

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from worker import Round, repeated, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """Settings.

    `how`: names the tokenizer; `texts`: file with a text in each line; `vocabulary`: vocab.txt, vocab.json or .model;
    `batch`: texts in a batch, or `megabytes`: of one text, of which these are repeated; `seconds`: of a round.
    """
    # Before any pool of threads is made.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    texts = [line for line in Path(settings["texts"]).read_text(encoding="utf-8").split("\n") if line]
    if "megabytes" in settings:
        text, size = " ".join(texts).encode(), int(1e6 * settings["megabytes"])
        texts = [(text * (size // len(text) + 1))[:size].decode("utf-8", "ignore")]
    count = settings.get("batch", 1)
    batches = [texts[start : start + count] for start in range(0, len(texts), count)]
    inputs, run, rows, packages = _MAKE[settings["how"]](Path(settings["vocabulary"]), batches)
    # Ids, by text, as checksums: the program compares them with those of the reference.
    ids = [list(map(int, row)) for batch in inputs for row in rows(run(batch))]
    tokens = sum(map(len, ids))
    checksums = [zlib.crc32(repr(row).encode()) for row in ids]

    def step() -> None:
        for batch in inputs:
            run(batch)

    ready = {"versions": versions(*packages), "threads": 1, "texts": len(texts), "tokens": tokens}
    # Of the processor: on one core they are those of a clock on the wall, and other programs do not count.
    return ready | {"checksums": checksums}, repeated(
        step, tokens, "tokens", settings["seconds"], clock=time.process_time
    )


_Made = tuple[list[Any], Callable[[Any], Any], Callable[[Any], Iterable[Any]], tuple[str, ...]]


def _bert_tf(vocabulary: Path, batches: list[list[str]]) -> _Made:
    from bert_tf import quiet

    quiet.import_tensorflow()
    from bert_tf.text.byte_pair import BytePairTokenizer
    from bert_tf.text.sentence_piece import SentencePieceTokenizer
    from bert_tf.text.wordpiece import Tokenizer

    if vocabulary.suffix == ".json":
        return _traced(BytePairTokenizer(vocabulary, vocabulary.with_name("merges.txt")).tokenize, batches)
    return _traced((Tokenizer if vocabulary.suffix == ".txt" else SentencePieceTokenizer)(vocabulary).tokenize, batches)


def _hugging_face(vocabulary: Path, batches: list[list[str]]) -> _Made:
    import tokenizers

    if vocabulary.suffix == ".txt":
        tokenizer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    elif vocabulary.suffix == ".json":
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(vocabulary), str(vocabulary.with_name("merges.txt")))
    else:
        from sentencepiece import sentencepiece_model_pb2

        sys.modules["sentencepiece_model_pb2"] = sentencepiece_model_pb2  # under this name it is imported
        tokenizer = tokenizers.SentencePieceUnigramTokenizer.from_spm(str(vocabulary))
    # The faster of its two ways: without the alignment to the text.
    encode = tokenizer._tokenizer.encode_batch_fast
    return (
        list(batches),
        lambda batch: [row.ids for row in encode(batch, add_special_tokens=False)],
        lambda rows: rows,
        ("tokenizers",),
    )


def _sentencepiece(vocabulary: Path, batches: list[list[str]]) -> _Made:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    return list(batches), lambda batch: processor.encode(batch, num_threads=1), lambda rows: rows, ("sentencepiece",)


def _kerashub(vocabulary: Path, batches: list[list[str]]) -> _Made:
    import keras_hub

    if vocabulary.suffix == ".json":
        tokenizer = keras_hub.tokenizers.BytePairTokenizer(str(vocabulary), str(vocabulary.with_name("merges.txt")))
    else:
        tokenizer = keras_hub.tokenizers.SentencePieceTokenizer(str(vocabulary))
    return _traced(tokenizer.tokenize, batches, "keras-hub", "keras")


def _fast_bert_tokenizer(vocabulary: Path, batches: list[list[str]]) -> _Made:
    import tensorflow_text

    pieces = vocabulary.read_text(encoding="utf-8").split("\n")[:-1]
    fast = tensorflow_text.FastBertTokenizer(
        vocab=pieces, lower_case_nfd_strip_accents=True, support_detokenization=False
    )
    return _traced(fast.tokenize, batches)


def _bert_tokenizer(vocabulary: Path, batches: list[list[str]]) -> _Made:
    import tensorflow as tf
    import tensorflow_text

    stock = tensorflow_text.BertTokenizer(str(vocabulary), lower_case=True, token_out_type=tf.int32)
    return _traced(lambda strings: stock.tokenize(strings).merge_dims(-2, -1), batches)


def _traced(tokenize: Callable[[Any], Any], batches: list[list[str]], *packages: str) -> _Made:
    """A tokenizer of TensorFlow, in a graph."""
    import tensorflow as tf

    traced = tf.function(tokenize, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    inputs = [tf.constant(batch) for batch in batches]
    return inputs, traced, lambda ids: ids.to_list(), ("tensorflow", "tensorflow-text", *packages)


_MAKE: dict[str, Callable[[Path, list[list[str]]], _Made]] = {
    "bert_tf": _bert_tf,
    "tokenizers": _hugging_face,
    "sentencepiece": _sentencepiece,
    "kerashub": _kerashub,
    "FastBertTokenizer": _fast_bert_tokenizer,
    "BertTokenizer": _bert_tokenizer,
}

serve(setup)
