"""Extracts vectors of texts, words or tokens: python -m bert_tf.extract --init=DIR --input=FILE --output=FILE.

With --export_dir=DIR instead of --input and --output, exports a SavedModel that takes text and returns the vectors, or
with --format=onnx or litert a model that takes token ids. With --static_dir=DIR, makes a static model of the encoder: a
table of the vectors of single pieces.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from absl import flags, logging

from bert_tf.app import dtype_flag, run
from bert_tf.checkpoints import static_model
from bert_tf.checkpoints.directory import files_of
from bert_tf.config import FeatureConfig
from bert_tf.config.embeddings import POOLS
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, replacing
from bert_tf.inference import portable
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.extraction import WRITERS, extract, read_texts
from bert_tf.inference.saved_model import export, on_cpu, summary
from bert_tf.inference.session import FORMATS, TOLERANCES
from bert_tf.inference.static_vectors import SIZE as STATIC_SIZE
from bert_tf.inference.static_vectors import static_of
from bert_tf.progress import Counted
from bert_tf.training.dtype import infer_in, note_slow

_Number = TypeVar("_Number", int, float)

_INIT = flags.DEFINE_string(
    "init", None, "Model in any format that bert_tf.load reads, e.g. hf://OWNER/NAME.", required=True
)
_INPUT = flags.DEFINE_string(
    "input", None, "Texts: .txt (one per line), .tsv, .csv, .jsonl; - for JSON lines on standard input."
)
_OUTPUT = flags.DEFINE_string(
    "output", None, f"File to write; its extension determines the format: {', '.join(WRITERS)}."
)
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir", None, "Directory of the served model; the SavedModel becomes its next version."
)
_STATIC_DIR = flags.DEFINE_string(
    "static_dir",
    None,
    f"Directory for a static model, in model2vec's layout: vectors of pieces with --size values ({STATIC_SIZE}).",
)
_TEXT = flags.DEFINE_string(
    "text", "text", "Column or JSON field with the text. JSON lines may have a list `words` instead."
)
_PER = flags.DEFINE_enum("per", "sentence", list(POOLS), "Unit that gets one vector.")
_POOL = flags.DEFINE_string(
    "pool",
    None,
    f"How token vectors are pooled: {', '.join(POOLS['sentence'])} per sentence, or several joined by +; "
    f"{', '.join(POOLS['word'])} per word.",
)
_LAYERS = flags.DEFINE_list(
    "layers", [], "Layer numbers: 0 for the embeddings, 1 for the first layer, -1 for the last (default), ..."
)
_COMBINE = flags.DEFINE_enum("combine", "sum", ["sum", "concat"], "How several layers are combined.")
_WEIGHTS = flags.DEFINE_list("weights", [], "Weights of the layers in a sum; empty for 1 each.")
_MAX_LENGTH = flags.DEFINE_integer(
    "max_length", None, "Tokens per text or window; 0 for the model's maximum.", lower_bound=0, upper_bound=1_000_000
)
_LONG_TEXTS = flags.DEFINE_enum(
    "long_texts", None, ["window", "head"], "Whether longer texts are split into windows or cut; per sentence."
)
_PROMPT_NAME = flags.DEFINE_string(
    "prompt_name", None, "The prompt to put in front of each text, of those the model was published with; per sentence."
)
_SIZE = flags.DEFINE_integer(
    "size", None, "Number of values of a vector that are kept, the first ones; per sentence.", lower_bound=0
)
_VALUES = flags.DEFINE_enum(
    "values", "float32", ["float32", "float16", "int8"], "With --export_dir: number format of the vectors it returns."
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 32, "Texts per batch, fewer if they are long.", lower_bound=1, upper_bound=10_000_000
)
_DTYPE = dtype_flag()
_FORMAT = flags.DEFINE_enum("format", "saved_model", FORMATS, "With --export_dir: as for the program export.")
_OPTIMIZE = flags.DEFINE_enum("optimize", "none", list(TOLERANCES), "With --export_dir: as for the program export.")
_CHECK = flags.DEFINE_bool("check", True, "With --export_dir: as for the program export.")


def main(_: list[str]) -> None:
    source, output, export_dir = _INPUT.value or "", _OUTPUT.value or "", _EXPORT_DIR.value or ""
    if _STATIC_DIR.value:
        _write_static(_STATIC_DIR.value)
        return
    if not export_dir and not (source and output):
        raise ConfigError("nothing to do: give --input and --output, --export_dir or --static_dir")
    if export_dir and (source or output):
        raise ConfigError("--export_dir writes a SavedModel and reads no texts; leave --input and --output out")
    ending = os.path.splitext(output)[1]
    if output:
        check_output(output, inputs=[source, *files_of(_INIT.value)])
        if ending not in WRITERS:
            raise ConfigError(f"--output={output}: unknown extension; choose one of {', '.join(WRITERS)}")
    if export_dir:
        check_output(export_dir, directory=True)
        if _FORMAT.value != "saved_model":
            portable.check_portable(export_dir, _FORMAT.value, _OPTIMIZE.value)
        if _DTYPE.value != "float32":
            raise ConfigError(f"--dtype={_DTYPE.value} is for vectors that are written; for an export use --optimize")
    else:
        for flag in (_OPTIMIZE, _FORMAT, _VALUES):
            if flag.value != flag.default:
                raise ConfigError(f"--{flag.name}={flag.value} is for exports; give --export_dir, too, or leave it out")
    with on_cpu() if export_dir else contextlib.nullcontext():  # an export is compared with the model on the CPU
        embedder = open_embedder(_INIT.value, _PER.value, **_settings())
    unused = ", ".join(name for name, prompt in embedder.config.prompts.items() if prompt)
    if _PROMPT_NAME.value is None and unused and not embedder.config.prompt_name:
        logging.warning("%s has the prompts %s, and none is used; --prompt_name chooses one", _INIT.value, unused)
    if export_dir and _FORMAT.value != "saved_model":
        settings: Any = {"check": _CHECK.value, "optimize": _OPTIMIZE.value}
        print(portable.summary(portable.export_embedder(embedder, export_dir, _FORMAT.value, **settings)))
        return
    if export_dir:
        note_slow(_OPTIMIZE.value)
        exported = export(embedder.task, embedder.model, export_dir, check=_CHECK.value, optimize=_OPTIMIZE.value)
        print(summary(exported))
        return
    infer_in(_DTYPE.value, embedder.model)
    with replacing(output) as temporary:
        embedded = Counted(extract(embedder, read_texts(source, _TEXT.value), _BATCH_SIZE.value))
        WRITERS[ending](temporary, embedded)
    print(f"{output}: vectors of {embedded.count:,} texts")


def _write_static(directory: str) -> None:
    """Makes and writes a static model."""
    for flag in (_INPUT, _OUTPUT, _EXPORT_DIR, _VALUES, _OPTIMIZE, _FORMAT):
        if flag.value != flag.default:
            raise ConfigError(f"--static_dir writes a model; leave --{flag.name} out, and run extract on it afterwards")
    static_model.check_place(directory)
    check_output(directory, directory=True, inputs=files_of(_INIT.value))
    settings = _settings()
    size = settings.pop("size", STATIC_SIZE)
    embedder = open_embedder(_INIT.value, _PER.value, **settings)
    infer_in(_DTYPE.value, embedder.model)
    static = static_of(embedder, size)
    static_model.write(static, directory)
    print(f"{directory}: static vectors of {len(static.table):,} pieces, {size} values each")


def _settings() -> dict[str, Any]:
    """The fields of EmbeddingConfig that flags set; what the model was published with holds for the others."""
    given = {"pool": _POOL, "max_length": _MAX_LENGTH, "long_texts": _LONG_TEXTS, "prompt_name": _PROMPT_NAME}
    given |= {"size": _SIZE} | ({"values": _VALUES} if _VALUES.value != "float32" else {})
    settings: dict[str, Any] = {name: flag.value for name, flag in given.items() if flag.value is not None}
    if _LAYERS.value or _WEIGHTS.value or _COMBINE.value != "sum":
        layers, weights = _numbers("layers", _LAYERS.value or ["-1"], int), _numbers("weights", _WEIGHTS.value, float)
        settings["features"] = FeatureConfig(layers, _COMBINE.value, weights)
    return settings


def _numbers(name: str, values: Sequence[str], kind: type[_Number]) -> tuple[_Number, ...]:
    """The values of a list flag as numbers."""
    try:
        return tuple(kind(value) for value in values)
    except ValueError:
        kinds = {int: "whole numbers", float: "numbers"}
        raise ConfigError(f"--{name}={','.join(values)}: expected {kinds[kind]} separated by commas") from None


if __name__ == "__main__":
    run(main)
