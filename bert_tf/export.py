"""Exports a model for TF Serving: python -m bert_tf.export --model_dir=DIR --export_dir=DIR."""

import functools

from absl import flags

from bert_tf.inference.session import TOLERANCES, Session

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that pretrain or finetune wrote.", required=True)
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir", None, "Directory of the served model; the SavedModel becomes its next version.", required=True
)
_ATTENTION = flags.DEFINE_bool("attention", False, "Add a signature that returns tokens and attention probabilities.")
_OPTIMIZE = flags.DEFINE_enum(
    "optimize",
    "none",
    list(TOLERANCES),
    "bfloat16: half the size, and faster on processors that multiply in bfloat16; int8: a quarter of the size, and "
    "faster on x86 processors with VNNI or AMX.",
)
_CHECK = flags.DEFINE_bool("check", True, "Verify the export in a TensorFlow session, as TF Serving runs it.")


def main(session: Session, _: list[str]) -> None:
    from bert_tf.inference.saved_model import export_run, summary
    from bert_tf.training.dtype import note_slow

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
