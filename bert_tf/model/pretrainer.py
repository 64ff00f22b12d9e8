"""Encoder with the pre-training heads (paper, section 3.1)."""

import keras

from bert_tf.model.heads import POSITIONS, MaskedLanguageModelHead, encoded, output


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(keras.Model):
    """Masked language model and next-sentence prediction on one encoder.

    Args:
        encoder: BertEncoder.
        next_sentence: False leaves the second head out, and with it the need of a pooler.

    Takes the encoder's inputs and `masked_lm_positions`, int32 [batch, predictions]; returns
        mlm_logits float32 [batch, predictions, vocab_size];
        nsp_logits float32 [batch, 2], of a packed encoder [batch, sequences, 2]: index 0 "the second part follows",
            1 "it does not".

    Raises:
        ConfigError: if the encoder has no pooler and `next_sentence` needs it.
    """

    def __init__(self, encoder, *, next_sentence=True, name="pretrainer", **kwargs):
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in (*encoder.input, POSITIONS)}
        outputs = encoded(encoder, inputs, pooled=next_sentence)
        masked_lm = MaskedLanguageModelHead(encoder.embeddings, name="masked_lm", dtype=encoder.policy)
        logits = {"mlm_logits": masked_lm(outputs["sequence_output"], inputs[POSITIONS])}
        if next_sentence:
            logits["nsp_logits"] = output(encoder, 2, "next_sentence")(outputs["pooled_output"])
        super().__init__(inputs=inputs, outputs=logits, name=name, **kwargs)
        self.encoder = encoder
        self.next_sentence = next_sentence

    def get_config(self):
        """What `keras.saving` writes."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, "next_sentence": self.next_sentence, "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The model that `get_config` described."""
        return cls(**(config | {"encoder": keras.saving.deserialize_keras_object(config["encoder"])}))
