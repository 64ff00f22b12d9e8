"""A model as a graph from token ids to the outputs of its head, under the names of Hugging Face's Optimum.

What exports to ONNX and LiteRT contain: their runtimes have no ops for text.
"""

import dataclasses
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.inference.samples import sample_requests
from bert_tf.model.encoder import encoder_of
from bert_tf.model.heads import POSITIONS
from bert_tf.model.mode import computing, current, inferred
from bert_tf.quiet import traced_function
from bert_tf.tasks.signatures import TOKENS
from bert_tf.tasks.task import Task
from bert_tf.types import Array, Tensors

# Input of the encoder -> its name in Transformers and Optimum.
_INPUTS = {
    "input_word_ids": "input_ids",
    "input_mask": "attention_mask",
    "input_type_ids": "token_type_ids",
}
# Output of a head -> its name there; others, and those of heads that Transformers lacks, keep theirs.
_OUTPUTS = {"mlm_logits": "logits", "nsp_logits": "seq_relationship_logits"}


class TokenGraph:
    """From token ids to the outputs of a model, in float32; padding is computed like tokens, and attention to long rows
    without loops, which LiteRT lacks.

    Args:
        task: of the model.
        model: computes in float32.
        dtype: of the inputs, an integer type.

    Attributes:
        axes: names of the inputs' dimensions, batch first.
        limit: the most tokens that a row may have.
        vocab_size: number of pieces.
        function: tf.function with the input signature `specs`, which returns a dict of float32 tensors.
        specs: named; without token_type_ids if the model does not use them.
    """

    def __init__(self, task: Task, model: keras.Model, dtype: tf.DType) -> None:
        config = encoder_of(model).config
        self._codec, self.limit, self.vocab_size = task.codec, config.max_position_embeddings, config.vocab_size
        for layer in model.layers:
            if isinstance(layer, keras.layers.LSTM):
                layer.use_cudnn = False  # a graph traced for cuDNN runs on no other device
        shapes = {tensor.name: tensor.shape for tensor in model.inputs}
        shape = shapes["input_word_ids"]
        self.axes = ("batch_size", *(["num_choices"] if len(shape) == 3 else []), "sequence_length")
        self._names = dict(_INPUTS)
        if config.type_vocab_size < 2:
            del self._names["input_type_ids"]
        self.specs = tuple(tf.TensorSpec(shape, dtype, name=name) for name in self._names.values())

        def compute(model: keras.Model, features: Tensors) -> Tensors:
            if POSITIONS in shapes:  # logits for all positions, as Transformers' models have them
                ids = features["input_word_ids"]
                features = features | {POSITIONS: tf.zeros_like(ids) + tf.range(tf.shape(ids)[1])}
            found = self._codec.token_outputs(model, features)
            return {_OUTPUTS.get(name, name): value for name, value in found.items()}

        def outputs(*values: tf.Tensor) -> Tensors:
            features = {name: tf.cast(value, tf.int32) for name, value in zip(self._names, values, strict=True)}
            if "input_type_ids" not in features:
                features["input_type_ids"] = tf.zeros_like(features["input_word_ids"])
            with computing(dataclasses.replace(current(), whole_rows=True)):
                return inferred(compute, model, features, skip_padding=False)

        self.function = traced_function(outputs, input_signature=self.specs)

    def samples(self) -> list[dict[str, Array]]:
        """Token ids of sample texts as inputs of the graph: some rows are short, some have padding, some are long."""
        requests = sample_requests(self._codec, [TOKENS])
        return [self._arrays(request.inputs) for request in requests if request.inputs["input_word_ids"].size]

    def _arrays(self, features: Mapping[str, Array]) -> dict[str, Array]:
        return {
            spec.name: features[name][..., : self.limit].astype(spec.dtype.as_numpy_dtype)
            for spec, name in zip(self.specs, self._names, strict=True)
        }

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the model, by name."""
        with tf.device("/CPU:0"):  # a GPU computes with fewer digits
            tensors = [tf.constant(inputs[spec.name], spec.dtype) for spec in self.specs]
            return {name: value.numpy() for name, value in self.function(*tensors).items()}
