"""Vectors of texts, words or tokens from any model: python -m bert_tf.extract --init=DIR --input=FILE --output=FILE.

Or as a SavedModel that takes text: --export_dir=DIR instead of --input and --output.
"""

import contextlib
import os

from absl import flags

from bert_tf.app import run
from bert_tf.checkpoints import load
from bert_tf.config import FeatureConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import replacing
from bert_tf.serving.embeddings import POOLS, Embedder, EmbeddingConfig
from bert_tf.serving.export import export, on_cpu, summary
from bert_tf.serving.extraction import WRITERS, extract, read_texts

_INIT = flags.DEFINE_string("init", None, "Model: whatever bert_tf.load reads, e.g. hf://OWNER/NAME.")
_INPUT = flags.DEFINE_string("input", None, "Texts: .txt (one a line), .tsv, .csv, .jsonl; - for JSON lines on stdin.")
_OUTPUT = flags.DEFINE_string("output", None, f"What is written; the ending says how: {', '.join(WRITERS)}.")
_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "The model's folder; gets a SavedModel as its next version.")
_TEXT = flags.DEFINE_string(
    "text", "text", "Column of tables, field of JSON lines; there a list `words` is taken, too."
)
_PER = flags.DEFINE_enum("per", "sentence", list(POOLS), "What has a vector.")
_POOL = flags.DEFINE_enum(
    "pool",
    "",
    ["", "mean", "cls", "max", "first"],
    "Of tokens: per sentence mean, cls or max; per word first, mean, max.",
)
_LAYERS = flags.DEFINE_list("layers", ["-1"], "Numbers: 0 the embeddings, 1 the first layer, -1 the last, -2, ...")
_COMBINE = flags.DEFINE_enum("combine", "sum", ["sum", "concat"], "What becomes of several layers.")
_WEIGHTS = flags.DEFINE_list("weights", [], "Of the layers in a sum; empty for 1 each.")
_MAX_LENGTH = flags.DEFINE_integer("max_length", 0, "Tokens of a window; 0 for what the model takes.", lower_bound=0)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Texts at once, fewer where they are long.", lower_bound=1)
_CHECK = flags.DEFINE_bool("check", True, "Verify the SavedModel in a TensorFlow session, as TF Serving runs it.")
flags.mark_flags_as_required(["init"])


def main(_):
    ending = os.path.splitext(_OUTPUT.value or "")[1]
    if not _EXPORT_DIR.value and not (_INPUT.value and _OUTPUT.value):
        raise ConfigError("nothing to do: give --input and --output, or --export_dir")
    if _EXPORT_DIR.value and (_INPUT.value or _OUTPUT.value):
        raise ConfigError("--export_dir writes a SavedModel and reads no texts; leave --input and --output out")
    if _OUTPUT.value and ending not in WRITERS:
        raise ConfigError(f"--output={_OUTPUT.value}: unknown ending; choose one of {', '.join(WRITERS)}")
    layers, weights = _numbers("layers", _LAYERS.value, int), _numbers("weights", _WEIGHTS.value, float)
    features = FeatureConfig(layers, _COMBINE.value, weights)
    config = EmbeddingConfig(_PER.value, _POOL.value, features, _MAX_LENGTH.value)
    with on_cpu() if _EXPORT_DIR.value else contextlib.nullcontext():  # whose answers the export is compared with
        encoder, tokenizer = load(_INIT.value)
    if tokenizer is None:
        raise DataError(f"{_INIT.value}: no WordPiece vocabulary, so no text can go in")
    embedder = Embedder(encoder, tokenizer, config)
    if _EXPORT_DIR.value:
        exported = export(embedder, embedder.model, _EXPORT_DIR.value, check=_CHECK.value)
        print(summary(exported))
        return
    with replacing(_OUTPUT.value) as temporary:
        embedded = extract(embedder, read_texts(_INPUT.value, _TEXT.value), _BATCH_SIZE.value)
        count = WRITERS[ending](temporary, embedded)
    print(f"{_OUTPUT.value}: vectors of {count:,} texts")


def _numbers(name, values, kind):
    """The values of a list flag as numbers of a kind, int or float."""
    try:
        return tuple(kind(value) for value in values)
    except ValueError:
        kinds = {int: "whole numbers", float: "numbers"}
        raise ConfigError(f"--{name}={','.join(values)}: expected {kinds[kind]} divided by commas") from None


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
