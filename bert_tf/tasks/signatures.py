"""The signatures of an exported model: tf.functions from what a client sends to what it gets back.

    serving_default     texts in, the task's answers out
    tokens              token ids in, for clients that tokenize themselves
    classify, regress   serialized tf.train.Examples in, as TF Serving's Classify and Regress APIs want it
    attention           texts in, tokens and attention probabilities out

Each checks the shapes of what it is sent: a server hands tensors of any shape to the graph.
"""

import copy

import numpy as np
import tensorflow as tf

from bert_tf.model.attention import attention_probabilities
from bert_tf.model.chunks import chunked_map, map_in_chunks
from bert_tf.model.encoder import encoder_inputs, encoder_of

DEFAULT, TOKENS, CLASSIFY, REGRESS, ATTENTION = "serving_default", "tokens", "classify", "regress", "attention"


def signature(function, specs):
    """A tf.function that checks the shapes it is sent, and that all have as many rows.

    Args:
        function: of one tensor a spec, in their order, to a dict of tensors.
        specs: named tf.TensorSpecs.

    Returns:
        tf.function with these specs as its input signature.
    """

    def serve(*values):
        # Unlike an assertion on the rank, this is not optimized away because the signature promises the shape.
        first, *others = (tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True))
        checks = [
            tf.debugging.assert_equal(
                tf.shape(value)[0], tf.shape(first)[0], f"{spec.name} has another number of rows than {specs[0].name}"
            )
            for value, spec in zip(others, specs[1:], strict=True)
        ]
        with tf.control_dependencies(checks):
            return function(*map(tf.identity, (first, *others)))

    return tf.function(serve, input_signature=specs)


def text_signature(task, model):
    """From the task's texts to its answers; of many rows, or windows, some go through the model at a time.

    Args:
        task: FineTuningTask.
        model: what its `build` made.
    """
    names = [spec.name for spec in task.inputs()]
    inputs = [tensor.name for tensor in model.inputs]

    def serve(*values):
        columns = task.received(dict(zip(names, values, strict=True)))
        features = task.preprocess(columns)
        rows = features["row"]

        def decoded(part):
            return task.postprocess(part, model({name: part[name] for name in inputs}, training=False))

        return padded(task.aggregate_windows(columns, rows, map_in_chunks(decoded, task.pad(features))), task.counted)

    return signature(serve, task.inputs())


def token_signature(model, answer):
    """From token ids as the encoder takes them to answers.

    Args:
        model: keras.Model whose inputs are the encoder's, and maybe others.
        answer: function of the encoder's inputs, dict of int32 [rows, ..., length], to a dict of tensors [rows, ...].
    """
    config = encoder_of(model).config
    limit = config.max_position_embeddings
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    specs = [tf.TensorSpec(shapes[name], tf.int32, name=name) for name in encoder_inputs()]
    sizes = {"input_word_ids": config.vocab_size, "input_mask": 2}
    if config.type_vocab_size > 1:  # else they are not looked at
        sizes["input_type_ids"] = config.type_vocab_size

    def serve(*values):
        features = {spec.name: value for spec, value in zip(specs, values, strict=True)}
        shape = tf.shape(values[0])
        message = f"input_word_ids: a row has more tokens than the {limit} that the model takes"
        checks = [tf.debugging.assert_less_equal(shape[-1], limit, message=message)]
        for spec, value in zip(specs[1:], values[1:], strict=True):
            message = f"{spec.name}: its shape is not that of input_word_ids"
            checks.append(tf.debugging.assert_equal(tf.shape(value), shape, message=message))
        for name, size in sizes.items():
            message = f"{name}: a value is not from 0 to {size - 1}"
            within = tf.reduce_all((features[name] >= 0) & (features[name] < size))
            checks.append(tf.debugging.Assert(within, [message]))
        if len(specs[0].shape) == 2:  # of several sequences an example, one can stand for none
            there = tf.reduce_any(features["input_mask"] > 0, 1)
            checks.append(tf.debugging.Assert(tf.reduce_all(there), ["input_mask: a row has no token"]))
        # One token at least, for a model looks at the first, also in a request without rows.
        missing = tf.concat([[0], tf.maximum(1 - shape[1:], 0)], 0)
        with tf.control_dependencies(checks):
            return answer({name: tf.pad(value, _behind(missing)) for name, value in features.items()})

    return signature(serve, specs)


def _behind(counts):
    """How `tf.pad` fills so many up behind each dimension."""
    return tf.stack([tf.zeros_like(counts), counts], 1)


def example_signature(task, from_text):
    """TF Serving's Classify or Regress API: serialized tf.train.Examples with the task's inputs as features.

    Args:
        task: FineTuningTask with an `example_outputs`.
        from_text: its `text_signature`.
    """

    def parsed(spec):
        if spec.shape.rank == 1:
            return tf.io.FixedLenFeature([], tf.string)
        return tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)

    features = {spec.name: parsed(spec) for spec in task.inputs()}

    def serve(examples):
        columns = padded(tf.io.parse_example(examples, features))
        return task.example_outputs(columns, from_text(*(columns[name] for name in features)))

    return signature(serve, [tf.TensorSpec([None], tf.string, name="inputs")])


def attention_signature(task, model):
    """From texts to their tokens and what attends to what, of the first window of each.

    Of a task that reads several sequences an example, such as choices, each output has one more dimension for these.

    Args:
        task: Task with `inputs` and `token_features`.
        model: what its `build` made.

    Returns:
        tf.function of the task's inputs to a dict: tokens string, starts and ends int32 (bytes of the text that the
        token is of), texts int32 (which of the inputs that is, from 0; -1 for the special tokens) [batch, length];
        token_count int32 [batch]; attention_bytes string [batch]: uint8 [layers, heads, tokens, tokens] in C order,
        255 for probability 1, each token's attention in the last dimension; attention_shape int32 [batch, 4].
    """
    encoder = encoder_of(model)

    def serve(*values):
        tokenizer = _NumberingTokenizer(task.tokenizer)
        numbering = copy.copy(task)
        numbering.tokenizer = tokenizer
        columns = dict(zip((spec.name for spec in task.inputs()), values, strict=True))
        features = numbering.token_features(task.received(columns))
        features, tokens = tokenizer.resolved({name: features[name] for name in encoder_inputs()})
        outer = tf.shape(features["input_word_ids"])[:-1]  # [batch], or [batch, sequences]
        length = tf.shape(features["input_word_ids"])[-1]
        flat = {name: tf.reshape(value, tf.stack([-1, length])) for name, value in features.items()}

        def computed(first, last):
            part = {name: value[first:last] for name, value in flat.items()}
            counts = tf.reduce_sum(part["input_mask"], 1)
            levels = tf.cast(tf.round(attention_probabilities(encoder, part) * 255), tf.uint8)
            encoded = tf.map_fn(_bytes_of, (levels, counts), fn_output_signature=tf.TensorSpec([], tf.string))
            return {"attention_bytes": encoded, "token_count": counts}

        rows = tf.shape(flat["input_word_ids"])[0]
        # Memory is that of the probabilities, which are many more than the tokens.
        found = chunked_map(computed, rows, length * length // 8 + length)
        counts = found["token_count"]
        shape = [tf.fill([rows], size) for size in (encoder.config.num_layers, encoder.config.num_heads)]
        found["attention_shape"] = tf.stack([*shape, counts, counts], 1)
        found = {name: tf.reshape(value, tf.concat([outer, tf.shape(value)[1:]], 0)) for name, value in found.items()}
        return tokens | found

    return signature(serve, task.inputs())


def _bytes_of(one):
    """string scalar: the attention uint8 [layers, heads, length, length] of one sequence, cut to its tokens."""
    levels, count = one
    levels = levels[..., :count, :count]
    # There is no op that makes a string of numbers. A serialized tensor ends with its values as they lie in memory.
    serialized = tf.io.serialize_tensor(levels)
    size = tf.size(levels)
    return tf.strings.substr(serialized, tf.strings.length(serialized) - size, size)


class _NumberingTokenizer:
    """A tokenizer that gives each token a number of its own in the place of its id.

    Tasks pack, cut and pad ids and do not look at them; so from what comes out at the other end it can be told which
    token of which text stands where.

    Args:
        tokenizer: Tokenizer.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._found = []  # ids, starts, ends and text of the tokens of each call

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def tokenize(self, strings, special_tokens=False):
        return self.tokenize_with_offsets(strings, special_tokens)[0]

    def tokenize_with_offsets(self, strings, special_tokens=False):
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(strings, special_tokens)
        text = tf.fill(tf.shape(ids.values), len(self._found))
        before = sum((tf.size(one[0]) for one in self._found), self._tokenizer.vocab_size)
        self._found.append((ids.values, starts.values, ends.values, text))
        return ids.with_values(before + tf.range(tf.size(ids.values))), starts, ends

    @property
    def continues(self):
        known = self._tokenizer.continues
        return tf.concat([known, *(tf.gather(known, ids) for ids, *_ in self._found)], 0)

    def resolved(self, features):
        """What the numbers stand for.

        Args:
            features: dict of the encoder's inputs, with numbers for ids.

        Returns:
            The same with ids, and what `attention_signature` returns of the tokens.
        """
        numbers = features["input_word_ids"]
        size = self._tokenizer.vocab_size
        special = tf.range(size), tf.zeros([size], tf.int32), tf.zeros([size], tf.int32), tf.fill([size], -1)
        columns = zip(special, *self._found, strict=True)
        ids, starts, ends, texts = (tf.gather(tf.concat(column, 0), numbers) for column in columns)
        there = features["input_mask"] > 0
        tokens = tf.where(there, tf.gather(tf.constant(self._tokenizer.vocab), ids), "")
        texts = tf.where(there, texts, -1)
        return features | {"input_word_ids": ids}, {"tokens": tokens, "starts": starts, "ends": ends, "texts": texts}


def padded(answers, counted=None):
    """Answers as a server gives them: RaggedTensors filled up with 0 or "", with the number of what is not filling.

    Args:
        answers: dict of tensors and RaggedTensors [examples, ...].
        counted: as `FineTuningTask.counted`; None to count nothing.

    Returns:
        dict of dense tensors.
    """
    dense = {name: _dense(value) for name, value in answers.items()}
    for name, (first, *_) in (counted or {}).items():
        if first in answers:
            dense[name] = tf.cast(answers[first].row_lengths(), tf.int32)
    return dense


def _dense(value):
    return value.to_tensor() if isinstance(value, tf.RaggedTensor) else value


def unpadded(answers, counted):
    """What `padded` was given, of arrays: a dict of arrays, those of ragged values as arrays of arrays."""
    counts = {member: answers[name] for name, members in counted.items() for member in members if name in answers}
    found = {}
    for name, values in answers.items():
        if name in counted:
            continue
        if name in counts:
            rows = [row[:count] for row, count in zip(values, counts[name], strict=True)]
            values = np.empty(len(rows), object)
            for index, row in enumerate(rows):
                values[index] = row
        found[name] = values
    return found
