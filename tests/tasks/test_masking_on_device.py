"""Masks drawn in the training step equal those of the input pipeline."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig, PretrainingData, TrainConfig
from bert_tf.inputs.batching import microbatch
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.inputs.masking import SEED, WORD_STARTS, Masker
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import evaluator
from bert_tf.training.phases import Input
from bert_tf.training.trainer import Trainer
from tests.training.small import loop_of

KINDS = [("token", "pieces"), ("whole_word", "pieces"), ("span", "spaces")]
MASKED = {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A file of 12 documents with words of one to three letters, each letter a wordpiece, and its tokenizer."""
    random = np.random.default_rng(0)
    letters = "abcdefghij"

    def sentence():
        return " ".join("".join(random.choice(list(letters), random.integers(1, 4))) for _ in range(6)) + "."

    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join("\n".join(sentence() for _ in range(8)) for _ in range(12)))
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer([*specials, ".", *letters, *(f"##{letter}" for letter in letters)])
    return [str(path)], tokenizer


def data_of(kind=("token", "pieces"), mask_on="host", **fields):
    masking, words = kind
    fields = {"max_length": 32, "max_predictions": 5} | fields
    return PretrainingData(masking=masking, words=words, mask_on=mask_on, **fields).check()


def epochs(corpus, data, batch_size=8):
    """Function from the epoch to its batches; traced once, because tracing a pipeline takes seconds."""
    files, tokenizer = corpus
    return tf.function(
        lambda epoch: pretraining_dataset(Corpus(files, tokenizer, data), seed=1, epoch=epoch, batch_size=batch_size),
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
    )


@pytest.fixture(scope="module")
def unmasked(corpus):
    """Batches of two epochs, with spans of whole words that are masked on the device."""
    of_epoch = epochs(corpus, data_of(KINDS[2], "device"))
    return [list(of_epoch(0)), list(of_epoch(1))]


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[:2]), KINDS[2]])
def test_the_step_draws_the_same_masks_as_the_pipeline(corpus, kind, unmasked):
    prepare = Masker(data_of(kind), corpus[1]).in_step()
    expected = list(epochs(corpus, data_of(kind))(0))
    devices = unmasked[0] if kind == KINDS[2] else list(epochs(corpus, data_of(kind, "device"))(0))
    assert len(expected) == len(devices) > 2
    for host, device in zip(expected, devices, strict=True):
        assert device.keys() - host.keys() <= {SEED, WORD_STARTS} and not device.keys() & MASKED
        prepared = prepare(device)
        assert prepared.keys() == host.keys()
        for name, value in host.items():
            np.testing.assert_array_equal(prepared[name], value)
    assert any((batch["input_word_ids"] == corpus[1].mask_id).numpy().any() for batch in expected)


def test_microbatches_get_the_masks_of_the_whole_batch_and_epochs_differ(corpus, unmasked):
    prepare = Masker(data_of(KINDS[2], "device"), corpus[1]).in_step()
    seen = []
    for batches in unmasked:
        whole = [prepare(batch) for batch in batches]
        quarters = [prepare(microbatch(batches[0], number, 4)) for number in range(4)]
        for name in (*MASKED, "input_word_ids"):
            np.testing.assert_array_equal(np.concatenate([part[name] for part in quarters]), whole[0][name])
        seen.append({row.tobytes() for batch in whole for row in batch["masked_lm_ids"].numpy()})
    assert len(seen[0] & seen[1]) < len(seen[0]) / 2


@pytest.mark.slow
def test_a_run_with_masking_on_the_device_has_the_weights_and_metrics_of_one_on_the_host(corpus, tmp_path):
    tokenizer = corpus[1]

    def run(mask_on, accumulation):
        data = data_of(("span", "spaces"), mask_on)
        keras.utils.set_random_seed(0)
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        task = Pretraining(tokenizer, 32)
        shape = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "dropout": 0.0}
        config = BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=32, attention_dropout=0.0, **shape)
        with strategy.scope():
            model = task.build(BertEncoder(config, dtype="float32"))
        train = TrainConfig(batch_size=8, steps=3, learning_rate=1e-3, accumulation=accumulation, dtype="float32")
        trainer = Trainer(task, model, train, strategy, 3)
        source = Input(epochs(corpus, data))
        if mask_on == "device":
            source = source._replace(prepare=Masker(data, tokenizer).in_step())
        check = evaluator(task.objective, model, epochs(corpus, data)(-1).take(2), strategy, source.prepare)
        source = source._replace(evaluate=check)
        history = loop_of(trainer, [source], str(tmp_path / f"{mask_on}{accumulation}")).run()
        return [point["loss"] for point in history.points] + [row["loss"] for row in history.evaluations]

    # Without dropout, micro-batches change nothing unless masks depend on them.
    np.testing.assert_allclose(run("device", 2), run("host", 1), rtol=1e-5)
