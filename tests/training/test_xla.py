"""The whole training step compiled by XLA: the requirements of a TPU, and equality up to rounding.

From masking to the update: a TPU runs no part of it on the host, and supports no strings, no dynamic sizes and no
float64.
"""

import itertools
import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig, PretrainingData, TrainConfig
from bert_tf.inputs.batching import microbatch
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.inputs.masking import Masker
from bert_tf.model.encoder import BertEncoder
from bert_tf.text import Tokenizer
from bert_tf.training.runs.pretraining import pretraining_task
from bert_tf.training.trainer import Trainer
from tests.training.small import difference, weights_of

LENGTH, BATCH, STEPS = 32, 4, 2
DATA = ("objective", "pairs", "mask_on", "masking", "words", "pack")
# Settings of data and training, and the model's number format. Together they cover every optimizer, clipping, reduction
# and kind of masking.
CASES = {
    "BERT's own": ({"recipe": "google", "clip_norm": 0.1, "accumulation": 2}, "float32"),
    "everything at once": (
        {
            "optimizer": "lamb", "layer_decay": 0.9, "remat": True, "accumulation": 2, "mask_on": "device",
            "masking": "span", "words": "spaces",
        },
        "mixed_float16",
    ),
    "packed": ({"optimizer": "radam", "pack": True, "remat": True}, "float32"),
    "words masked on the device": (
        {"optimizer": "adamw", "schedule": "cosine", "mask_on": "device", "masking": "whole_word"},
        "mixed_bfloat16",
    ),
    "tokens masked on the device": (
        {"optimizer": "radam", "schedule": "noam", "mask_on": "device", "normalization": "replica_mean"},
        "float32",
    ),
    "ELECTRA": ({"objective": "electra", "pairs": "none", "mask_on": "device", "accumulation": 2}, "float32"),
    "spans and their bounds": (
        {"objective": "span_boundary", "pairs": "none", "mask_on": "device", "masking": "span", "words": "spaces"},
        "mixed_bfloat16",
    ),
    "packed, half precision": ({"pack": True, "accumulation": 2, "bias_correction": False}, "mixed_float16"),
}  # fmt: skip
QUICK = "tokens masked on the device"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A file of 8 documents with words of one to three letters, each letter a wordpiece, and its tokenizer."""
    random = np.random.default_rng(0)
    words = iter("".join(random.choice(list("abcdefgh"), random.integers(1, 4))) for _ in itertools.count())
    sentences = [" ".join(itertools.islice(words, 5)) for _ in range(64)]
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join("\n".join(sentences[first : first + 8]) for first in range(0, 64, 8)))
    letters = "abcdefgh"
    return [str(path)], Tokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    )


def make(corpus, case, dropout):
    """A Trainer, its replica step and the micro-batches of STEPS updates."""
    files, tokenizer = corpus
    settings, dtype = CASES[case]
    data = {"max_length": LENGTH, "max_predictions": 5, "short_sequence_rate": 0.5}
    data = PretrainingData(**data, **{name: value for name, value in settings.items() if name in DATA}).check()
    train = {"batch_size": BATCH, "steps": 20, "warmup_steps": 2, "learning_rate": 1e-3}
    train = TrainConfig(**train, **{name: value for name, value in settings.items() if name not in DATA})
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    keras.utils.set_random_seed(1)
    task = pretraining_task(data, tokenizer, LENGTH, data.max_predictions, ())
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, dropout=dropout, attention_dropout=dropout, pooler=data.pairs != "none",
    )  # fmt: skip
    with strategy.scope():
        model = task.build(BertEncoder(config, dtype=dtype, packed=data.pack))
    trained = Trainer(task, model, train, strategy, train.steps)
    prepare = Masker(data, tokenizer).in_step() if data.mask_on == "device" else lambda features: features

    def step(batches, number, scale):
        return trained.train_step.on_replica([prepare(features) for features in batches], number, scale)

    batches = pretraining_dataset(Corpus(files, tokenizer, data), seed=1, epoch=0, batch_size=BATCH).take(STEPS)
    for spec in batches.element_spec.values():
        assert spec.shape.is_fully_defined()
    cut = train.accumulation
    return trained, step, [[microbatch(batch, index, cut) for index in range(cut)] for batch in batches]


def arguments(batches, number, dtype):
    """Arguments of the replica step: with this loss scale, rounding in float16 is visible."""
    return batches, tf.constant(number, tf.int64), tf.constant(2.0**10 if dtype == "mixed_float16" else 1.0)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == QUICK else pytest.mark.slow) for case in CASES]
)
def test_the_step_is_one_program_of_fixed_shapes_without_host_ops_or_float64(corpus, case):
    _, step, batches = make(corpus, case, dropout=0.1)
    keys = itertools.count(1)

    def all_reduce(context, operation, value, options=None):
        # The op that XLA compiles to an all-reduce. Strategies use it on accelerators only; one group of one is enough.
        def reduced(tensor):
            return tf.raw_ops.CollectiveReduceV2(
                input=tensor, group_size=1, group_key=1, instance_key=next(keys), ordering_token=[], merge_op="Add",
                final_op="Id",
            )  # fmt: skip

        assert operation == "SUM"
        return tf.nest.map_structure(reduced, value)

    compiled = tf.function(step, jit_compile=True)
    with mock.patch.object(tf.distribute.ReplicaContext, "all_reduce", all_reduce):
        program = compiled.experimental_get_compiler_ir(*arguments(batches[0], 0, CASES[case][1]))(stage="hlo")

    types = set(re.findall(r"\b([a-z]+[0-9]+|pred)\[", program))
    assert types <= {"f32", "f16", "bf16", "s64", "u64", "s32", "u32", "u16", "s16", "u8", "pred"}
    assert "<=" not in program  # the notation of a size that is only bounded
    operations = set(re.findall(r"= \S+(?: \S+)*? ([a-z][a-z-]+)\(", program))
    assert {"all-reduce", "dot", "tanh", "scatter"} <= operations
    assert not operations & {"custom-call", "infeed", "outfeed", "send", "recv", "get-dimension-size"}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_step_trains_like_an_uncompiled_one(corpus, case):
    trained, step, batches = make(corpus, case, dropout=0.0)
    dtype = CASES[case][1]
    # RAdam's first five updates are of one kind, the others of another.
    trained.optimizer.slots["updates"].assign(4)
    variables = [weight.value for weight in trained.model.weights] + list(trained.optimizer.slots.values())
    before = [variable.numpy() for variable in variables]

    def train(**options):
        run = tf.function(step, **options)
        measured = [run(*arguments(parts, 4 + number, dtype))[0].numpy() for number, parts in enumerate(batches)]
        weights = weights_of(trained)
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return measured, weights

    plain, plain_weights = train()
    compiled, compiled_weights = train(jit_compile=True)
    # XLA keeps float32 inside of fused operations where other kernels round.
    rounding = {"float32": 2e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(compiled, plain, rtol=rounding)
    moments, compiled_moments = (
        {name: value for name, value in weights.items() if name.endswith("/m")}
        for weights in (plain_weights, compiled_weights)
    )
    assert difference(moments, compiled_moments) < rounding
    # Adam's update divides by the root of what may be only rounding.
    assert difference(plain_weights, compiled_weights) < 2 * rounding
    assert plain_weights["updates"] == compiled_weights["updates"] == 4 + STEPS
