"""The number format in which layers compute."""

import keras

from bert_tf.errors import ConfigError
from bert_tf.model.encoder import encoders_of
from bert_tf.model.precision.int8 import rounded_forms
from bert_tf.model.precision.optimize import to_bfloat16
from bert_tf.model.processors import fastest
from bert_tf.progress import log


def policy(dtype: str) -> str:
    """The Keras dtype policy for TrainConfig.dtype; "auto" takes the fastest format on this machine and reports it."""
    if dtype == "auto":
        dtype, reason = fastest()
        log(f"training in {dtype}, the fastest format here ({reason}); the setting train.dtype chooses another")
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def infer_in(dtype: str, model: keras.Model) -> str:
    """Makes a model predict in another number format from now on.

    Args:
        dtype: an `InferenceDtype`; "auto" takes bfloat16 where that is faster, and reports its choice. "int8" is the
            rounding of an int8 export, computed in float32.
        model: with float32 weights, of which nothing has been traced; created in the current strategy's scope. For
            bfloat16 it is then for inference only, and does not follow changes of its weights.

    Returns:
        The format: "float32", "bfloat16" or "int8".

    Raises:
        ConfigError: "int8" for a model that was not fine-tuned for it.
    """
    encoder = next(encoders_of(model), None)
    if encoder is None:  # a table of static vectors
        return "float32"
    if dtype == "int8":
        if encoder.ranges is None:
            raise ConfigError(
                "dtype is 'int8', but the model has no ranges: it was not fine-tuned with train.quantization=int8, or "
                "pruned since; use float32, and export it with --optimize=int8 to calibrate it"
            )
        for layer, form in rounded_forms(model):
            layer.converted = form
        return dtype
    if dtype == "float32":
        return dtype
    found, reason = fastest()
    if dtype == "auto":
        dtype = "bfloat16" if found == "bfloat16" else "float32"
        log(f"predicting in {dtype} ({reason}" + (", without bfloat16)" if found == "float16" else ")"))
    elif found != dtype:
        log(f"{dtype} is no faster than float32 on this machine ({reason})")
    if dtype == "bfloat16":
        to_bfloat16(encoder)
    return dtype


def note_slow(dtype: str) -> None:
    """Reports if "bfloat16" is requested on a machine where it brings nothing."""
    if dtype == "bfloat16" and fastest()[0] != dtype:
        log(f"bfloat16 is no faster than float32 on this machine ({fastest()[1]}); servers may differ")
