"""Attention by cuDNN's kernels: the programs that XLA gets for a GPU, and their numbers, computed on the CPU."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model import flash, fused
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.mode import Mode, Seeds, computing
from tests.model import gpu
from tests.model.small import MODERNBERT, features, randomize, small_config
from tests.model.test_packed import small_rows

BATCH, LENGTH, HEADS, SIZE = 2, 24, 4, 8
ROWS = ("padded", "causal", "packed")
CASES = {
    "BERT": {},
    "causal": {"attention": "causal", "pooler": False},
    "rotary, some layers local": MODERNBERT | {"pooler": False},
    "packed": {"pooler": False},
    "packed, long": {"pooler": False, "max_position_embeddings": 600},
}


@pytest.fixture
def on_the_cpu(monkeypatch):
    """cuDNN's calls are computed on the CPU, in float32; gets their texts."""
    texts = []

    def module(text, arguments, results):
        texts.append(text)
        return gpu.cudnn(text, arguments, results)

    monkeypatch.setattr(fused, "module", module)
    monkeypatch.setitem(flash._DTYPES, "float32", "F32")
    return texts


def states(dtype="bfloat16"):
    return [tf.cast(tf.random.stateless_normal([BATCH, LENGTH, HEADS, SIZE], [seed, 1]), dtype) for seed in range(4)]


def attention_and_gradients(query, key, value, upstream, mask):
    with computing(Mode(gpu_program=True, flash_attention=True)), tf.GradientTape() as tape:
        tape.watch([query, key, value])
        context = flash.attention(query, key, value, mask)
    return context, tape.gradient(context, [query, key, value], upstream)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("remat", [False, True])
def test_an_encoder_trains_as_in_the_plain_way(on_the_cpu, case, remat):
    config = small_config(**{"dropout": 0.0, "attention_dropout": 0.0} | CASES[case])
    encoder = randomize(BertEncoder(config, dtype="float32", packed="packed" in case))
    inputs = features()
    if encoder.packed:
        inputs = {tensor.name: small_rows()[tensor.name] for tensor in encoder.inputs}

    def trained(flash_attention):
        mode = Mode(seeds=Seeds(tf.zeros([2], tf.int64)), flash_attention=flash_attention, recompute=remat)
        with computing(mode), tf.GradientTape() as tape:
            outputs = encoder(inputs, training=True)["sequence_output"]
            # Of tokens alone: what padding attends to, means nothing.
            is_token = tf.cast(inputs["input_mask"] > 0, tf.float32)[..., tf.newaxis]
            loss = tf.reduce_sum(outputs * is_token * np.cos(np.arange(32)))
        variables = [weight.value for weight in encoder.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return outputs, *map(tf.convert_to_tensor, gradients)

    expected = trained(False)
    assert not on_the_cpu
    found = trained(True)
    layers = config.num_layers - len(config.local_layers)
    assert len(on_the_cpu) == layers * (3 if remat else 2)
    for one, of in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, of, rtol=1e-4, atol=1e-4 * np.abs(of).max())


def test_inference_keeps_nothing_for_a_gradient(on_the_cpu):
    encoder = randomize(BertEncoder(small_config(), dtype="float32"))
    inputs = features()
    outputs = []
    for flash_attention in (False, True):
        with computing(Mode(inference=True, flash_attention=flash_attention)):
            outputs.append(encoder(inputs, training=False)["sequence_output"])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4)
    assert ["%0:2 = " in text for text in on_the_cpu] == [True, True]  # the states, and cuDNN's workspace


@pytest.mark.parametrize("rows", ROWS)
def test_the_program_for_a_gpu_calls_cudnn_twice_and_copies_nothing(rows):
    given = {"padded": [tf.constant([24, 7])], "causal": [], "packed": [tf.zeros([BATCH, 1, LENGTH, LENGTH])]}[rows]
    hlo = gpu.program(
        lambda *arguments: attention_and_gradients(*arguments[:4], *arguments[4:] or [None]), *states(), *given
    )
    calls = re.findall(r"= (.* custom-call\(.*)", hlo)
    targets = [re.search(r'custom_call_target="(\S+?)"', call)[1] for call in calls]
    name = "ScaleBiasSoftmax" if rows == "packed" else "Softmax"
    assert targets == [f"__cudnn$fmha{name}", f"__cudnn$fmha{name}Backward"]
    state, kept = f"bf16[{BATCH},{LENGTH},{HEADS},{SIZE}]{{3,2,1,0}}", f"f32[{BATCH},{HEADS},{LENGTH}]{{2,1,0}}"
    numbers = [f"s32[{BATCH}]{{0}}"] * 2 if rows == "padded" else []
    bias = [f"bf16[{BATCH},1,{LENGTH},{LENGTH}]{{3,2,1,0}}"] if rows == "packed" else []
    operands = [state] * 3 + bias + numbers, [state] * 3 + [kept, state] + bias + [state] + numbers
    for call, expected in zip(calls, operands, strict=True):
        assert f"operand_layout_constraints={{{', '.join(expected)}}}" in call
    # The results lie in memory as the operands do: what follows them is no copy.
    result = f"bf16[{BATCH},{HEADS},{LENGTH},{SIZE}]{{3,1,2,0}}"
    forward, backward = calls
    assert forward.startswith(f"({result}, {kept}, ") and backward.startswith(f"({result}, {result}, {result}, ")
    transposes = re.findall(r"transpose\(.*dimensions=\{(.*?)\}", hlo)
    assert transposes == ["0,2,1,3"] * 4


@pytest.mark.parametrize(
    "change, dtype, options, reason",
    [
        ({}, "bfloat16", {}, "of the machine"),
        ({}, "float16", {}, "of the machine"),
        ({}, "float32", {}, "the model computes in float32, not in bfloat16 or float16"),
        ({}, "bfloat16", {"packed": [512]}, "(8, 'bfloat16', 'packed')"),
        ({}, "bfloat16", {"packed": [512, 127]}, "rows of several sequences have 127 tokens"),
        ({"attention": "causal"}, "bfloat16", {}, "(8, 'bfloat16', 'causal')"),
        ({"attention_dropout": 0.1}, "bfloat16", {}, "model.attention_dropout is 0.1, not 0"),
        ({"hidden_size": 36, "num_heads": 3}, "bfloat16", {}, "12 columns; cuDNN has multiples of 8 up to 128"),
        ({"hidden_size": 136, "num_heads": 1}, "float16", {}, "136 columns; cuDNN has multiples of 8 up to 128"),
        (MODERNBERT | {"local_layers": (0, 1)}, "bfloat16", {}, "all layers of the model are local"),
    ],
)
def test_a_model_that_does_not_suit_is_refused_before_the_machine_is_tried(monkeypatch, change, dtype, options, reason):
    monkeypatch.setattr(flash, "fault", lambda *arguments: f"of the machine{arguments}")
    config = small_config(**{"attention_dropout": 0.0} | change)
    assert reason in flash.unsuited(config, dtype, **options)


@pytest.fixture
def with_a_gpu(monkeypatch):
    """TensorFlow seems to have one."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU"])
    flash.fault.cache_clear()
    yield
    flash.fault.cache_clear()


def test_a_machine_without_a_gpu_or_whose_kernels_fail_is_found_out(request):
    flash.fault.cache_clear()
    assert flash.fault(64, "bfloat16", "padded") == "there is no GPU"
    request.getfixturevalue("with_a_gpu")
    assert flash.fault(64, "bfloat16", "padded").startswith("cuDNN's kernel fails here (")


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("wrong", [1.0, 1.2, np.nan])
def test_a_machine_with_wrong_numbers_is_found_out(monkeypatch, with_a_gpu, rows, wrong):
    def module(text, arguments, results):
        arguments = [tf.cast(one, tf.float32) if one.dtype == tf.bfloat16 else one for one in arguments]
        found = gpu.cudnn(text, arguments, [(shape, tf.float32) for shape, _ in results])
        return [tf.cast(wrong * one, dtype) for one, (_, dtype) in zip(found, results, strict=True)]

    monkeypatch.setattr(fused, "module", module)
    monkeypatch.setattr(fused, "Compiled", lambda function: type("Compiled", (), {"fused": staticmethod(function)}))
    reason = flash.fault(8, "bfloat16", rows)
    assert (reason == "") if wrong == 1 else reason.startswith("cuDNN's numbers differ from those of the plain way by ")


def test_what_is_not_static_or_has_dropout_is_computed_in_the_plain_way():
    bias, shape = tf.zeros([BATCH, 1, 1, LENGTH]), tf.constant([BATCH, LENGTH])
    suited: dict = {"dtype": tf.bfloat16, "size": 64, "shape": shape, "seen": bias, "causal": False, "dropout": None}
    changes = [
        {"dtype": tf.float32},
        {"size": 12},
        {"seen": tf.zeros([BATCH, 1, 23, 23]), "shape": tf.constant([BATCH, 23])},  # packed rows of an odd length
        {"dropout": Dropout(0.1)},
    ]
    with computing(Mode(flash_attention=True)):
        assert flash.suits(**suited) and flash.suits(**suited | {"dropout": Dropout(0.0)})
        assert not any(flash.suits(**suited | change) for change in changes)
        assert flash.suits(**suited | changes[2] | {"causal": True})
        for packed in (tf.zeros([BATCH, 1, LENGTH, LENGTH]), tf.zeros([BATCH, LENGTH], tf.int32)):
            assert flash.suits(**suited | {"seen": packed})
        traced = []
        trace = tf.function(lambda x: traced.append(flash.suits(**suited | {"shape": tf.shape(x)})))
        for batch in (BATCH, None):
            trace.get_concrete_function(tf.TensorSpec([batch, LENGTH]))
        assert traced == [True, False]
    assert not flash.suits(**suited)
