"""What a pre-training run would do and cost, found out by trying: for `pretrain --dry_run`."""

import math
import os
import re
import resource
import textwrap
import time
import zlib

import numpy as np
import tensorflow as tf

from bert_tf.inputs.corpus.shards import Shards, are_shards
from bert_tf.model.dropout import seed_scope
from bert_tf.model.remat import remat_scope
from bert_tf.progress import duration

STEPS, EXAMPLES = 10, 5  # updates that are timed; sequences that are shown
_WIDTH = 110  # of the text
# Ops whose result lies where their input does.
_SAME_MEMORY = ("Reshape", "Identity", "ExpandDims", "Squeeze")
_COUNTED_SECONDS = 10.0  # how long examples are counted before the rest is estimated
_SAMPLED_ROWS = 1000  # at least: the rows of an epoch differ in their number of tokens by a third
_SAMPLED_BYTES = 1 << 20  # of text, for the number of tokens in a byte


def parameters(model):
    """dict part -> number of parameters: embeddings, the layers together, and each head."""
    parts = {}
    for variable in model.trainable_variables:
        names = variable.path.split("/")
        name = next((name for name in names[:-1] if name not in (model.name, "encoder")), names[-1])
        name = "layers" if re.fullmatch(r"layer_\d+", name) else name
        parts[name] = parts.get(name, 0) + math.prod(variable.shape)
    return parts


def kept_bytes(task, model, features, *, remat):
    """Bytes of what a forward pass keeps for the backward pass, counted in the traced graph.

    Args:
        task: Task.
        model: what `task.build` made.
        features: dict of tensors: what one replica takes at once, masked.
        remat: as in TrainConfig. What a layer keeps while it is computed again is left out.

    Returns:
        int: the sizes of all tensors that ops made in the forward pass and the backward pass reads. Copies of the
        weights in another number format are among them, weights are not.
    """
    forward = set()

    @tf.function
    def step(features):
        with tf.GradientTape() as tape, seed_scope(tf.zeros([2], tf.int64)), remat_scope(remat):
            outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
            metrics = task.loss_and_metrics(features, outputs)
            loss = sum(metrics[name][0] for name in task.losses)
        forward.update(op.name for op in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    specs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in features.items()}
    graph = step.get_concrete_function(specs).graph
    kept = {}
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


def rows_per_epoch(files, tokenizer, pairs, batches):
    """How many rows an epoch has.

    Args:
        files: list of str, as `inputs.corpus.tokenized.find_corpus` gives.
        tokenizer: bert_tf.Tokenizer.
        pairs: as in bert_tf.config.PretrainingData.
        batches: Dataset, an epoch's batches.

    Returns:
        (rows, where the number is from: a phrase). An estimate for pairs is some 10% too high: what was cut off to make
        them fit is not seen.
    """
    rows = tokens = 0
    until = math.inf
    for features in batches:
        rows += len(features["input_mask"])
        tokens += _own_tokens(features, tokenizer, pairs)
        if rows == len(features["input_mask"]):  # the first batch takes the time of filling all buffers
            until = time.perf_counter() + _COUNTED_SECONDS
        if time.perf_counter() > until and rows >= _SAMPLED_ROWS:
            break
    else:
        return rows, "counted"
    if are_shards(files):
        whole, source = Shards(files).num_tokens, "the shards' count of tokens"
    else:
        whole, source = _tokens_in_text(files, tokenizer), "the text's size"
    return round(whole * rows / tokens), f"estimated from {source} and a sample of {rows:,}"


def _own_tokens(features, tokenizer, pairs):
    """Tokens that are not special, nor of a random second part, whose text comes in its own place again."""
    ids, mask, types = (features[name].numpy() for name in ("input_word_ids", "input_mask", "input_type_ids"))
    own = (mask > 0) & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
    if pairs == "nsp":
        labels = features["next_sentence_labels"].numpy().reshape([len(ids), -1])  # [rows, sequences]
        random = np.take_along_axis(labels, np.clip(mask - 1, 0, labels.shape[1] - 1), axis=1) > 0
        own &= ~(random & (types > 0))
    return int(own.sum())


def _tokens_in_text(files, tokenizer):
    """Tokens in text files, from the first mebibyte of each of eight at most."""
    sampled = files[:: -(-len(files) // 8)]
    tokens = size = 0
    for path in sampled:
        with tf.io.gfile.GFile(path, "rb") as file:
            raw = file.read(_SAMPLED_BYTES)
        text = raw
        if path.endswith(".gz"):
            text = zlib.decompressobj(wbits=31).decompress(raw)
        lines = text.decode("utf-8", errors="ignore").splitlines()
        tokens += int(tokenizer.tokenize(lines).row_splits[-1])
        size += len(raw)
    return tokens / size * sum(tf.io.gfile.stat(path).length for path in files)


def peak_bytes():
    """The most memory that was in use so far: the first GPU's, if there is one, else this process'."""
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def bytes_text(number):
    """A number of bytes: 0.4 MiB, 12 MiB, 1.3 GiB."""
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 999.5 or unit == "TiB":
            return f"{number:.{0 if number >= 9.95 else 1}f} {unit}"


def example_texts(features, masked, tokenizer, *, swapped=False):
    """What a model sees of each sequence of some rows, and what it has to find.

    Args:
        features: dict of arrays or tensors: the rows' features, maybe not masked yet.
        masked: the same masked.
        tokenizer: bert_tf.Tokenizer.
        swapped: whether label 1 means swapped segments, not a random second part.

    Yields:
        str, one a sequence: pieces in text order, a hidden one as [house>MASK] (the model sees [MASK]), [house=]
        (it sees the piece itself, and has to say it all the same) or [house>tree] (it sees another).
    """
    features, masked = ({name: np.asarray(value) for name, value in some.items()} for some in (features, masked))
    told = ("in order", "swapped") if swapped else ("the second part follows", "a random second part")
    for row, numbers in enumerate(masked["input_mask"]):
        shown, hidden = _shown({name: value[row] for name, value in masked.items()}, tokenizer)
        for number in range(1, int(numbers.max()) + 1):
            positions = np.flatnonzero(numbers == number)
            head = f"{len(positions)} tokens, {len(hidden.intersection(positions))} hidden"
            if "next_sentence_labels" in features:
                head += f", {told[int(np.reshape(features['next_sentence_labels'][row], [-1])[number - 1])]}"
            words = []
            for piece in (shown[position] for position in positions):
                if piece.startswith("##") and words and not words[-1].endswith("]"):
                    words[-1] += piece[2:]
                else:
                    words.append(piece)
            indent = " " * 4
            yield f"  {head}\n" + textwrap.fill(
                " ".join(words), _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )


def _shown(row, tokenizer):
    """Of a masked row: a list of str, what `example_texts` shows at each position; the set of hidden positions."""
    ids, hidden = row["input_word_ids"], set()
    shown = [tokenizer.vocab[piece] for piece in ids]
    columns = (row[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
    for position, label, weight in zip(*columns, strict=True):
        if weight > 0:
            original = tokenizer.vocab[label]
            now = "MASK" if ids[position] == tokenizer.mask_id else shown[position]
            shown[position] = f"[{original}=]" if now == original else f"[{original}>{now}]"
            hidden.add(int(position))
    return shown, hidden


def plan_text(*, counts, memory, epochs, phases, examples):
    """The plan as text.

    Args:
        counts: what `parameters` gives.
        memory: dict name -> bytes, of one replica.
        epochs: list of what `rows_per_epoch` gives, one a phase.
        phases: list of (Work, seconds an update takes, share of the peak_flops).
        examples: list of what `example_texts` gives.

    Returns:
        str.
    """
    counts = counts | {"all": sum(counts.values())}
    body, whole = [], 0.0
    for number, ((work, seconds, share), (rows, _)) in enumerate(zip(phases, epochs, strict=True), 1):
        whole += work.steps * seconds
        cells = (f"{number}", f"{work.steps:,}", f"{work.batch_size:,}", f"{work.length}")
        cells += (f"{work.steps * work.batch_size / rows:.1f}", f"{work.flops() / 1e9:,.1f}", f"{1000 * seconds:,.0f}")
        cells += (f"{work.batch_size / seconds:,.1f}", f"{share:.0%}", duration(work.steps * seconds))
        body.append(cells)
    heading = ("", "updates", "batch", "length", "epochs", "GFLOP", "ms", "rows/s", "MFU", "time")
    sections = {
        "Parameters": table([(name, f"{count:,}") for name, count in counts.items()]),
        "Memory of a replica": table([(name, bytes_text(size)) for name, size in memory.items()]),
        "An epoch": "\n".join(
            f"  {rows:,} rows of {work.length} ({source})"
            for (work, *_), (rows, source) in zip(phases, epochs, strict=True)
        ),
        "Phases": table(body, heading) + "\n  GFLOP and ms: of an update, the latter measured on ten. "
        f"Time in all: {duration(whole)}, evaluations and checkpoints apart.",
        "What the model sees: [house>MASK] masked, [house=] kept, [house>tree] random; it has to say house": (
            "\n".join(examples)
        ),
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in sections.items())


def table(rows, heading=None):
    """Rows of strings as text, the first column to the left, the others to the right."""
    rows = [heading, *rows] if heading else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row):
        cells = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        return "  " + "  ".join((row[0].ljust(widths[0]), *cells))

    return "\n".join(map(line, rows))
