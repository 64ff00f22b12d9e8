"""Encoder with both pre-training heads (paper, section 3.1)."""

import keras

from bert_tf.model.encoder import encoder_inputs
from bert_tf.model.heads import POSITIONS, MaskedLanguageModelHead, output, positions_input


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(keras.Model):
    """Masked language model and next-sentence prediction on one encoder.

    Args:
        encoder: BertEncoder.

    Takes the encoder's inputs and `masked_lm_positions`, int32 [batch, predictions]; returns
        mlm_logits float32 [batch, predictions, vocab_size];
        nsp_logits float32 [batch, 2]: index 0 "the second part follows", 1 "it is from another document".
    """

    def __init__(self, encoder, *, name="pretrainer", **kwargs):
        inputs = encoder_inputs() | {POSITIONS: positions_input()}
        encoded = encoder({key: inputs[key] for key in encoder_inputs()})
        masked_lm = MaskedLanguageModelHead(encoder.embeddings, name="masked_lm", dtype=encoder.policy)
        next_sentence = output(encoder, 2, "next_sentence")
        super().__init__(
            inputs=inputs,
            outputs={
                "mlm_logits": masked_lm(encoded["sequence_output"], inputs[POSITIONS]),
                "nsp_logits": next_sentence(encoded["pooled_output"]),
            },
            name=name,
            **kwargs,
        )
        self.encoder = encoder

    def get_config(self):
        """What `keras.saving` writes."""
        return {"encoder": keras.saving.serialize_keras_object(self.encoder), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The pre-trainer that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["encoder"]), name=config["name"])
