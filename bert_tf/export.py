"""Exports a model for TF Serving: python -m bert_tf.export --model_dir=DIR --export_dir=DIR.

With --format=onnx, for ONNX Runtime and Optimum; with --format=litert, for phones.
"""

import functools

from absl import flags

from bert_tf.errors import ConfigError
from bert_tf.inference.session import FORMATS, TOLERANCES, Session

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that pretrain or finetune wrote.", required=True)
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir",
    None,
    "Directory of the served model; the SavedModel becomes its next version. For other formats, it must not exist.",
    required=True,
)
_FORMAT = flags.DEFINE_enum(
    "format",
    "saved_model",
    FORMATS,
    "saved_model takes text, for TF Serving; onnx and litert take token ids, for ONNX Runtime, Optimum and LiteRT.",
)
_ATTENTION = flags.DEFINE_bool("attention", False, "Add a signature that returns tokens and attention probabilities.")
_OPTIMIZE = flags.DEFINE_enum(
    "optimize",
    "none",
    list(TOLERANCES),
    "bfloat16, only in SavedModels: half the size, and faster on processors that multiply in bfloat16; xla: the same, "
    "compiled by XLA, for bert_tf's server on a GPU; int8: a quarter of the size, and faster on x86 processors with "
    "VNNI or AMX; int4, only in SavedModels: a sixth of the size, as fast as none.",
)
_CHECK = flags.DEFINE_bool(
    "check", True, "Verify the export: in a TensorFlow session, as TF Serving runs it, or in the format's own runtime."
)


def main(session: Session, _: list[str]) -> None:
    from bert_tf.inference import portable
    from bert_tf.inference.saved_model import export_run, summary
    from bert_tf.training.dtype import note_slow

    if _FORMAT.value != "saved_model":
        if _ATTENTION.value:
            raise ConfigError("--attention adds a signature to a SavedModel; leave --format out")
        file = portable.export_run(
            _MODEL_DIR.value, _EXPORT_DIR.value, _FORMAT.value, check=_CHECK.value, optimize=_OPTIMIZE.value
        )
        print(portable.summary(file))
        return
    note_slow(_OPTIMIZE.value)
    exported = export_run(
        _MODEL_DIR.value,
        _EXPORT_DIR.value,
        attention=_ATTENTION.value,
        check=_CHECK.value and session,
        optimize=_OPTIMIZE.value,
    )
    print(summary(exported))


if __name__ == "__main__":
    with Session() as session:  # before this process imports TensorFlow, which takes as long in the other one
        from bert_tf.app import run

        run(functools.partial(main, session))
