"""Small SavedModels that nothing of bert_tf wrote."""

import pathlib

import tensorflow as tf

_EXAMPLES = [tf.TensorSpec([None], tf.string, name="inputs")]
_TYPES = [tf.TensorSpec(None, dtype, name=dtype.name) for dtype in (tf.bool, tf.uint8, tf.int64, tf.float64)]


class HalfPlusTwo(tf.Module):
    """a x + b, and the same for tf.Examples, as TF Serving's example model has it; b is in a variable."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = tf.constant(a), tf.Variable(b)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")], autograph=False)
    def predict(self, x):
        return {"y": self.a * x + self.b}

    @tf.function(input_signature=_EXAMPLES, autograph=False)
    def regress(self, inputs):
        return {"outputs": self._values(inputs)}

    @tf.function(input_signature=_EXAMPLES, autograph=False)
    def classify(self, inputs):
        scores = tf.stack([self._values(inputs), -self._values(inputs)], 1)
        classes = tf.tile([["up", "down"]], [tf.shape(scores)[0], 1])
        return {"classes": classes, "scores": scores}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids"),
                                  tf.TensorSpec([None], tf.string, name="raw_bytes")], autograph=False)  # fmt: skip
    def several(self, ids, raw_bytes):
        """Two inputs and two outputs; fails if an id is negative."""
        check = tf.debugging.assert_non_negative(ids, message="an id is negative")
        with tf.control_dependencies([check]):
            return {"sums": tf.reduce_sum(ids, 1), "twice_bytes": raw_bytes + raw_bytes}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="steps")], autograph=False)
    def slow(self, steps):
        """Counts to the first number: 100,000 take a second."""
        (count,) = tf.while_loop(lambda step: step < steps[0], lambda step: [step + 1], [0])
        return {"count": tf.fill(tf.shape(steps), count)}

    @tf.function(input_signature=_TYPES, autograph=False)
    def types(self, *values):
        """Its inputs, of any shapes."""
        return {value.dtype.name: tf.identity(value) for value in values}

    def _values(self, inputs):
        parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([], tf.float32)})
        return self.a * parsed["x"] + self.b


def half_plus_two(folder, version=1, *, a=0.5, b=2.0):
    """Writes version `version` of the model to `folder` and returns the version's path."""
    path = pathlib.Path(folder) / str(version)
    model = HalfPlusTwo(a, b)
    signatures = {
        "serving_default": model.predict,
        "regress_x_to_y": model.regress,
        "classify_x_to_y": model.classify,
        "several": model.several,
        "slow": model.slow,
        "types": model.types,
    }
    tf.saved_model.save(model, str(path), signatures=signatures)
    return path
