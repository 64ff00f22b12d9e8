"""Plan and measured cost of a pre-training run, for `pretrain --dry_run`."""

import math
import os
import re
import resource
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.languages import Language, largest, passes
from bert_tf.inputs.corpus.shards import Shards, are_shards
from bert_tf.model.mode import Mode, Seeds, computing
from bert_tf.tasks.objective import Objective
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Json, Tensors

STEPS, EXAMPLES = 10, 5  # timed updates; sequences that are shown
# Ops whose output shares the memory of their input.
_SAME_MEMORY = ("Reshape", "Identity", "ExpandDims", "Squeeze")
_COUNTED_SECONDS = 10.0  # after which the number of rows is estimated
_SAMPLED_ROWS = 1000  # minimum: rows of an epoch differ in their number of tokens by a third
_SAMPLED_BYTES = 1 << 20  # of text per file, for the number of tokens per byte


def parameters(model: keras.Model) -> dict[str, int]:
    """Number of parameters by part: embeddings, all layers together, and each head."""
    parts: dict[str, int] = {}
    for variable in model.trainable_variables:
        names = variable.path.split("/")
        name = next((name for name in names[:-1] if name not in (model.name, "encoder")), names[-1])
        name = "layers" if re.fullmatch(r"layer_\d+", name) else name
        parts[name] = parts.get(name, 0) + math.prod(variable.shape)
    return parts


def kept_bytes(objective: Objective, model: keras.Model, features: Tensors, *, remat: bool) -> int:
    """Bytes that the forward pass keeps for the backward pass, counted in the traced graph.

    Args:
        model: built by `objective.build`.
        features: a micro-batch of one replica, masked.
        remat: as in TrainConfig. The tensors that exist while a layer is recomputed are not counted.

    Returns:
        Total size of the tensors that are computed in the forward pass and read by the backward pass, including copies
        of the weights in another number format, but not the weights.
    """
    forward: set[str] = set()

    @tf.function(autograph=False)
    def step(features: Tensors) -> list[tf.Tensor]:
        mode = Mode(seeds=Seeds(tf.zeros([2], tf.int64)), recompute=remat)
        with tf.GradientTape() as tape, computing(mode):
            outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
            metrics = objective.loss_and_metrics(features, outputs)
            loss = objective.total({name: metrics[name][0] for name in objective.losses})
        forward.update(op.name for op in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    specs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in features.items()}
    graph = step.get_concrete_function(specs).graph
    kept: dict[str, tf.Tensor] = {}
    for op in graph.get_operations():
        if op.name not in forward:
            for tensor in op.inputs:
                while tensor.op.type in _SAME_MEMORY:
                    tensor = tensor.op.inputs[0]
                if tensor.op.name in forward and tensor.op.type not in ("Const", "Placeholder", "ReadVariableOp"):
                    kept[tensor.name] = tensor
    return sum(
        math.prod(tensor.shape) * tensor.dtype.size for tensor in kept.values() if tensor.shape.is_fully_defined()
    )


def rows_per_epoch(corpus: Corpus, batches: tf.data.Dataset) -> tuple[int, str]:
    """Number of rows in an epoch.

    Args:
        batches: of one epoch of the corpus; of several languages, one pass over the largest.

    Returns:
        (rows, how the number was obtained). An estimate for pairs is some 10% too high, because tokens that were cut
        off to make the pairs fit are not seen.
    """
    rows = tokens = 0
    until = math.inf
    for features in batches:
        rows += len(features["input_mask"])
        tokens += _own_tokens(features, corpus)
        if rows == len(features["input_mask"]):  # the first batch includes the time to fill all buffers
            until = time.perf_counter() + _COUNTED_SECONDS
        if time.perf_counter() > until and rows >= _SAMPLED_ROWS:
            break
    else:
        return rows, "counted"
    whole: float
    share = 1.0  # of the tokens of an epoch that are those of the corpus
    if corpus.languages:
        language = largest(corpus.languages)
        corpus, share = corpus._replace(files=language.files), language.share
    if are_shards(corpus.files):
        whole, source = Shards(corpus.files).num_tokens, "the shards' count of tokens"
    else:
        whole, source = _tokens_in_text(corpus), "the text's size"
    return round(whole / share * rows / tokens), f"estimated from {source} and a sample of {rows:,}"


def _own_tokens(features: Tensors, corpus: Corpus) -> int:
    """Tokens that are neither special nor in a random second segment, whose text occurs elsewhere again."""
    ids, mask = (features[name].numpy() for name in ("input_word_ids", "input_mask"))
    is_separator = ids == corpus.tokenizer.sep_id
    own = (mask > 0) & (ids != corpus.tokenizer.cls_id) & ~is_separator
    if corpus.data.pairs == "nsp":
        labels = features["next_sentence_labels"].numpy().reshape([len(ids), -1])  # [rows, sequences]
        random = np.take_along_axis(labels, np.clip(mask - 1, 0, labels.shape[1] - 1), axis=1) > 0
        # Not by the types, which RoBERTa does not have: the second segment follows the first separator of a sequence.
        before = np.cumsum(is_separator, axis=1) - is_separator
        own &= ~(random & (before % (corpus.tokenizer.specials(pairs=True) - 1) > 0))
    return int(own.sum())


def _tokens_in_text(corpus: Corpus) -> float:
    """Estimated tokens in text files, from the first mebibyte of at most eight of them."""
    sampled = corpus.files[:: -(-len(corpus.files) // 8)]
    tokens = size = 0
    for path in sampled:
        with tf.io.gfile.GFile(path, "rb") as file:
            raw = file.read(_SAMPLED_BYTES)
        text = raw
        if path.endswith(".gz"):
            text = zlib.decompressobj(wbits=31).decompress(raw)
        lines = text.decode("utf-8", errors="ignore").splitlines()
        tokens += int(corpus.tokenizer.tokenize(lines).row_splits[-1])
        size += len(raw)
    return tokens / size * sum(tf.io.gfile.stat(path).length for path in corpus.files)


def languages_read(languages: Sequence[Language], epochs: float) -> list[Json]:
    """The mixture of a run and how often it reads the text of each language.

    Args:
        languages: of the corpus.
        epochs: of the run, each one pass over the largest language.

    Returns:
        For each: "language", "text_share" and "share" as in results.json, and "passes".
    """
    return [
        {
            "language": one.name,
            "text_share": one.text_share,
            "share": one.share,
            "passes": epochs * passes(one, languages),
        }
        for one in languages
    ]


def peak_bytes() -> int:
    """Peak memory so far: of the first GPU, if there is one, else of this process."""
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    if os.uname().sysname == "Darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/status") as file:  # Linux's ru_maxrss also counts what the process's parent had
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def examples(
    features: Mapping[str, Any], masked: Mapping[str, Any], tokenizer: BaseTokenizer, *, swapped: bool = False
) -> Iterator[Json]:
    """The sequences of some rows as the model sees them, with the tokens that it has to predict.

    Args:
        features: arrays or tensors of the rows, masked or not.
        masked: the same rows masked.
        swapped: whether label 1 means swapped segments rather than a random second segment.

    Yields:
        For each sequence "tokens" and "hidden", their numbers; "pair", how its segments belong together, or ""; and
        "text", in which a hidden token is [house>MASK] (the model sees the mask token), [house=] (it sees the token
        itself, and has to predict it all the same) or [house>tree] (it sees another token).
    """
    features, masked = ({name: np.asarray(value) for name, value in rows.items()} for rows in (features, masked))
    labels = ("in order", "swapped") if swapped else ("second segment follows", "random second segment")
    texts, readable = tokenizer.texts, tokenizer.readable
    for special in (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id):
        texts[special] = f" {readable[special]} ".encode()
    for row, numbers in enumerate(masked["input_mask"]):
        hidden = _hidden({name: value[row] for name, value in masked.items()})
        for number in range(1, int(numbers.max()) + 1):
            positions = np.flatnonzero(numbers == number).tolist()
            pair = ""
            if "next_sentence_labels" in features:
                pair = labels[int(np.reshape(features["next_sentence_labels"][row], [-1])[number - 1])]
            parts = []
            for position in positions:
                seen = int(masked["input_word_ids"][row, position])
                label = hidden.get(position, seen)
                text = texts[label]
                if position in hidden:
                    visible = "MASK" if seen == tokenizer.mask_id else readable[seen]
                    shown = f"{readable[label]}=" if seen == label else f"{readable[label]}>{visible}"
                    text = b" " * text[:1].isspace() + f"[{shown}]".encode()
                parts.append(text)
            yield {
                "tokens": len(positions),
                "hidden": len(hidden.keys() & set(positions)),
                "pair": pair,
                "text": " ".join(b"".join(parts).decode("utf-8", "backslashreplace").split()),
            }


def _hidden(row: Mapping[str, Array]) -> dict[int, int]:
    """The labels of a masked row by position."""
    columns = (row[f"masked_lm_{name}"].tolist() for name in ("positions", "ids", "weights"))
    return {position: label for position, label, weight in zip(*columns, strict=True) if weight > 0}
