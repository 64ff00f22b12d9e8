"""ELECTRA's training model: a generator predicts selected tokens, a discriminator finds those that it got wrong.

Clark et al., 2020, arXiv:2003.10555. The generator is a small masked language model with the discriminator's word,
position and segment embeddings and their LayerNorm, as in google-research/electra, and layers of its own.
"""

import dataclasses

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.inputs.masking import SAMPLES, SEED, added_at, draw
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import POSITIONS, WEIGHTS, BertPretrainer, ReplacedTokenHead

GENERATOR = "generator"  # the first part of the paths of the generator's own variables
LABELS = "masked_lm_ids"  # input name: the masked tokens


def generator_config(config: BertConfig, size: float) -> BertConfig:
    """The architecture of the generator for a discriminator.

    Args:
        config: of the discriminator.
        size: share of its hidden size, feed-forward size and heads; rounded to whole heads, at least one.
    """
    heads = max(1, round(size * config.num_heads))
    hidden = heads * config.hidden_size // config.num_heads
    return dataclasses.replace(
        config,
        # As in google-research/electra, no projection to the size that the embeddings have.
        embedding_size=0 if hidden == config.embedding_width else config.embedding_width,
        num_heads=heads,
        hidden_size=hidden,
        intermediate_size=max(1, heads * config.intermediate_size // config.num_heads),
        pooler=False,
        heads_per_layer=(),
        intermediate_sizes=(),
    )


class Corruption(keras.layers.Layer):
    """Puts tokens that the generator samples into the selected positions; nothing flows back through them.

    Inputs: the generator's logits float32 [batch, predictions, vocabulary]; input_word_ids int32 [batch, length];
    masked_lm_positions and masked_lm_ids int32 and masked_lm_weights float32 [batch, predictions]; mask_seed int32
    [batch, 2]. Outputs, each int32 [batch, length]: the ids with sampled tokens, and 1 at those that differ from the
    original ones.
    """

    def call(
        self,
        logits: tf.Tensor,
        ids: tf.Tensor,
        positions: tf.Tensor,
        labels: tf.Tensor,
        weights: tf.Tensor,
        seeds: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        sampled = sample(tf.stop_gradient(logits), seeds, positions)
        used = tf.cast(weights > 0, tf.int32)
        differences = (sampled - tf.gather(ids, positions, batch_dims=1)) * used
        replaced = tf.cast(sampled != labels, tf.int32) * used
        return added_at(ids, positions, differences), added_at(tf.zeros_like(ids), positions, replaced)

    def compute_output_spec(
        self, logits: keras.KerasTensor, ids: keras.KerasTensor, *others: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        return keras.KerasTensor(ids.shape, "int32"), keras.KerasTensor(ids.shape, "int32")


def sample(logits: tf.Tensor, seeds: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Draws a token from the softmax at each position, by numbers that depend on row seed and position alone.

    First a block of about sqrt(vocabulary) tokens, then a token of the block: random numbers for the whole vocabulary
    would take longer than its probabilities.

    Args:
        logits: float32 [batch, predictions, vocabulary].
        seeds: int32 [batch, 2].
        positions: int32 [batch, predictions], different ones in used slots.

    Returns:
        int32 [batch, predictions].
    """
    vocabulary = logits.shape[-1]
    width = round(vocabulary**0.5)
    blocks = -(-vocabulary // width)
    probabilities = tf.nn.softmax(tf.reshape(logits, [-1, vocabulary]))
    probabilities = tf.pad(probabilities, [[0, 0], [0, blocks * width - vocabulary]])
    probabilities = tf.reshape(probabilities, [-1, blocks, width])
    numbers = max(blocks, width)  # of a position, in each of the two streams
    counters = positions[:, :, tf.newaxis] * numbers + tf.range(numbers)
    draws = draw(seeds, SAMPLES, tf.reshape(counters, [tf.shape(seeds)[0], -1]))
    of_blocks, of_tokens = (tf.reshape(numbers_of, [-1, numbers]) for numbers_of in draws)
    block = _first(tf.reduce_sum(probabilities, 2), of_blocks[:, :blocks])
    token = _first(tf.gather(probabilities, block, batch_dims=1), of_tokens[:, :width])
    return tf.reshape(block * width + token, tf.shape(positions))


def _first(rates: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Draws a column of each row, with probabilities in proportion to the rates: the first of exponential times.

    Rounding changes the result only if two times are equal up to rounding. The inverse of the distribution function
    takes a single random number, but there rounding moves the bounds of all columns.

    Args:
        rates: float32 [rows, n], at least one of each row above 0.
        draws: int32 [rows, n], uniform in [0, 2**31).

    Returns:
        int32 [rows].
    """
    # From just above 0, where float32 is finest, to the largest number below 1.
    uniform = tf.minimum((tf.cast(draws, tf.float32) + 0.5) * 2.0**-31, 1.0 - 2.0**-24)
    return tf.argmax(rates / -tf.math.log1p(-uniform), 1, tf.int32)


def electra(encoder: BertEncoder, size: float) -> keras.Model:
    """Generator and discriminator as one model, for training.

    Args:
        encoder: of the discriminator.
        size: as for `generator_config`.

    Returns:
        Model from the encoder's inputs, masked, masked_lm_positions, masked_lm_ids, masked_lm_weights and mask_seed, as
        a `Masker` returns them, to {"mlm_logits": float32 [batch, predictions, vocabulary], of the generator;
        "rtd_logits": float32 [batch, length], of the discriminator; "replaced": int32 [batch, length], 1 at tokens that
        are not the original ones}. Its variables are those of the discriminator and, under `GENERATOR`, those that only
        the generator has.
    """
    config = generator_config(encoder.config, size)
    with keras.name_scope(GENERATOR):
        small = BertEncoder(config, dtype=encoder.dtype_policy, tables=encoder.embeddings, name=GENERATOR)
        generator = BertPretrainer(small, next_sentence=False, name=GENERATOR)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in (*encoder.input, POSITIONS, LABELS)}
    inputs[WEIGHTS] = keras.Input((None,), dtype="float32", name=WEIGHTS)
    inputs[SEED] = keras.Input((2,), dtype="int32", name=SEED)
    logits = generator({name: inputs[name] for name in (*encoder.input, POSITIONS)})["mlm_logits"]
    ids = inputs["input_word_ids"]
    corruption = Corruption(name="corruption", dtype="float32")
    corrupted, replaced = corruption(logits, ids, inputs[POSITIONS], inputs[LABELS], inputs[WEIGHTS], inputs[SEED])
    states = encoder({name: inputs[name] for name in encoder.input} | {"input_word_ids": corrupted})["sequence_output"]
    head = ReplacedTokenHead(encoder.config, name="detector", dtype=encoder.dtype_policy)
    model = keras.Model(inputs, {"mlm_logits": logits, "rtd_logits": head(states), "replaced": replaced})
    model.dtype_policy = encoder.dtype_policy
    return model
