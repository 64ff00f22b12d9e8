"""Stages of this project's input pipeline, on one core: each round reads the whole input, once or more."""

import collections
import os
from typing import Any

from worker import Round, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """Settings.

    `stage`: lines, tokens, documents, unmasked or batches; `input`: text files or a folder of shards; `vocab`; `batch`:
    rows of a batch of 128 tokens; `seconds`: of a round, at least. Batches are counted with the tokens in them, other
    stages with those of the text.
    """
    # Before TensorFlow makes its pools of threads.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from bert_tf import quiet

    quiet.import_tensorflow()
    import time

    import numpy as np
    import tensorflow as tf

    from bert_tf.config import PretrainingData
    from bert_tf.inputs.batching import without_tuning
    from bert_tf.inputs.corpus.corpus import Corpus, find_corpus
    from bert_tf.inputs.corpus.dataset import pretraining_dataset
    from bert_tf.text import Tokenizer

    tokenizer = Tokenizer(settings["vocab"])
    data = PretrainingData(mask_on="device" if settings["stage"] == "unmasked" else "host").check()
    corpus = Corpus(find_corpus(settings["input"]), tokenizer, data)
    lines = tf.data.Dataset.from_tensor_slices(corpus.files).flat_map(tf.data.TextLineDataset).batch(256)
    datasets = {
        "lines": lambda: lines,
        "tokens": lambda: lines.map(lambda block: tf.size(tokenizer.tokenize(block).values)),
        "documents": lambda: corpus.documents([1, 2]),
        "unmasked": lambda: pretraining_dataset(corpus, seed=1, epoch=0, batch_size=settings["batch"]),
        "batches": lambda: pretraining_dataset(corpus, seed=1, epoch=0, batch_size=settings["batch"]),
    }
    stage = settings["stage"]
    dataset = datasets[stage]().with_options(without_tuning())
    tokens = 0
    if stage in ("lines", "tokens", "documents"):
        tokens = sum(int(tf.size(block.flat_values)) for block in corpus.documents([1, 2]))

    def read(dataset: tf.data.Dataset) -> int:
        if tokens:
            collections.deque(dataset, maxlen=0)
            return tokens
        return sum(int(np.count_nonzero(batch["input_mask"])) for batch in dataset)

    read(dataset.take(20))

    def do_round() -> dict[str, Any]:
        count, start = 0, time.perf_counter()
        while not count or time.perf_counter() - start < settings["seconds"]:
            count += read(dataset)
        return {"seconds": time.perf_counter() - start, "count": count, "unit": "tokens"}

    return {"versions": versions("tensorflow", "tensorflow-text"), "cores": 1}, do_round


serve(setup)
