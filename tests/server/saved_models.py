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


def half_plus(path, b):
    """Writes a x + b in a graph of TensorFlow 1, as the scripts of TF Serving's example models do.

    `x` is an op between the parser of examples and the result, so it can be fed, and has the static shape [?, 1].
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scale, shift = (tf.compat.v1.Variable(value, use_resource=False) for value in (0.5, b))
        examples = tf.compat.v1.placeholder(tf.string, [None], name="tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(scale * x, shift, name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        info = tf.compat.v1.saved_model.build_tensor_info
        method = "tensorflow/serving/{}".format
        signatures = {
            method("predict"): ({"x": x}, {"y": y}),
            method("regress"): ({"inputs": examples}, {"outputs": y}),
            method("classify"): ({"inputs": examples}, {"scores": y}),
        }
        definitions = {
            name: tf.compat.v1.saved_model.build_signature_def(
                *({key: info(value) for key, value in side.items()} for side in sides), name
            )
            for name, sides in signatures.items()
        }
        definitions["serving_default"] = definitions[method("predict")]
        definitions["regress_x_to_y"] = definitions[method("regress")]
        definitions["classify_x_to_y"] = definitions[method("classify")]
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], definitions)
        builder.save()
