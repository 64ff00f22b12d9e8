"""Encoder with the pre-training heads (paper, section 3.1)."""

from typing import Any, Self

import keras

from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import POSITIONS, MaskedLanguageModelHead, call_encoder, logits_layer
from bert_tf.types import Json


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(keras.Model):
    """Masked language model and next-sentence prediction on one encoder.

    Takes the encoder's inputs and `masked_lm_positions`, int32 [batch, predictions]; returns
        mlm_logits float32 [batch, predictions, vocab_size];
        nsp_logits float32 [batch, 2], with a packed encoder [batch, sequences, 2]: index 0 is "the second segment
            follows the first", 1 "it does not".

    Args:
        encoder: must have a pooler if `next_sentence` is True.
        next_sentence: False omits the next-sentence head, which needs a pooler.
    """

    def __init__(
        self, encoder: BertEncoder, *, next_sentence: bool = True, name: str = "pretrainer", **kwargs: Any
    ) -> None:
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in (*encoder.input, POSITIONS)}
        outputs = call_encoder(encoder, inputs, pooled=next_sentence)
        masked_lm = MaskedLanguageModelHead(encoder.embeddings, name="masked_lm", dtype=encoder.policy)
        logits = {"mlm_logits": masked_lm(outputs["sequence_output"], inputs[POSITIONS])}
        if next_sentence:
            logits["nsp_logits"] = logits_layer(encoder, 2, "next_sentence")(outputs["pooled_output"])
        super().__init__(inputs=inputs, outputs=logits, name=name, **kwargs)
        self.encoder = encoder
        self.next_sentence = next_sentence

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, "next_sentence": self.next_sentence, "name": self.name}

    @classmethod
    def from_config(cls, config: Json, custom_objects: Json | None = None) -> Self:
        """Creates the model from the output of `get_config`."""
        return cls(**(config | {"encoder": keras.saving.deserialize_keras_object(config["encoder"])}))
