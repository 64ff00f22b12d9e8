import dataclasses
import math

import pytest
import tensorflow as tf

from bert_tf.config import BertConfig, EncoderDistillation, PretrainingData
from bert_tf.model.encoder import BertEncoder, encoder_inputs
from bert_tf.model.head_table import build
from bert_tf.tasks.encoder_distillation import DistilledEncoder
from bert_tf.text import Tokenizer
from bert_tf.training import speed
from bert_tf.training.runs.pretraining import pretraining_task
from bert_tf.training.speed import Speed, Work
from tests.model.small import PIECES


def products(function, specs):
    """Floating-point operations of the matrix products in a traced function, without those with a row of ones.

    Only of those whose results are used.
    """
    total, used = 0, set()
    left = [tensor.op for tensor in tf.function(function).get_concrete_function(specs).graph.outputs]
    while left:
        op = left.pop()
        if op.name not in used:
            used.add(op.name)
            left += [tensor.op for tensor in op.inputs] + op.control_inputs
            total += _products(op)
    return total


def _products(op):
    """Those of a single operation."""
    if op.type not in ("MatMul", "BatchMatMulV2"):
        return 0
    left, right = (tensor.shape.as_list() for tensor in op.inputs)
    (result,) = op.outputs
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    shared = left[-2] if op.get_attr(names[0]) else left[-1]
    assert shared == (right[-1] if op.get_attr(names[1]) else right[-2])
    # The gradient of a bias is a product with ones.
    return 2 * shared * math.prod(result.shape) if result.shape[-2] != 1 else 0


@pytest.mark.parametrize(
    "packed, head, shape",
    [
        (False, "pretraining", {}),
        (True, "pretraining", {}),
        (False, "masked_lm", {}),
        (False, "pretraining", {"embedding_size": 16, "shared_layers": True}),
        (True, "pretraining", {"heads_per_layer": (3, 1), "intermediate_sizes": (40, 8)}),
    ],
)
def test_the_operations_of_a_row_equal_those_of_the_products_in_the_traced_step(packed, head, shape):
    rows, length, predictions = 3, 24, 5
    config = BertConfig(
        vocab_size=500, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48, max_position_embeddings=40,
        pooler=head == "pretraining",
        type_vocab_size=1,  # no look-up of types, which is a product too
        **shape,
    )  # fmt: skip
    model = build(BertEncoder(config, packed=packed), head)
    widths = {"masked_lm_positions": predictions, "first_token_positions": 4}
    specs = {tensor.name: tf.TensorSpec([rows, widths.get(tensor.name, length)], tf.int32) for tensor in model.inputs}

    def forward_and_backward(features):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(logits**2) for logits in model(features, training=False).values())
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    pooled = {"pretraining": 4 if packed else 1, "masked_lm": 0}[head]
    counted = rows * speed.row_flops(length, config, predictions=predictions, pooled=pooled)
    assert counted == products(forward_and_backward, specs)


@pytest.mark.parametrize(
    "objective, masking", [("electra", "token"), pytest.param("span_boundary", "span", marks=pytest.mark.slow)]
)
def test_the_operations_of_an_objective_are_those_of_its_whole_model(objective, masking):
    rows, length, predictions = 3, 24, 5
    config = BertConfig(
        vocab_size=500, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48, max_position_embeddings=40,
        pooler=False, type_vocab_size=1,
    )  # fmt: skip
    data = PretrainingData(objective=objective, masking=masking, pairs="none", max_predictions=predictions)
    model = pretraining_task(data, Tokenizer(PIECES), length, predictions, ()).build(BertEncoder(config))
    specs = {
        tensor.name: tf.TensorSpec(
            [rows, predictions if "masked_lm" in tensor.name else tensor.shape[1] or length], tensor.dtype
        )
        for tensor in model.inputs
    }

    def forward_and_backward(features):
        with tf.GradientTape() as tape:
            outputs = model(features, training=False)
            loss = sum(tf.reduce_sum(value**2) for name, value in outputs.items() if name.endswith("logits"))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    counted = rows * speed.pretraining_flops(length, config, data)
    assert counted == products(forward_and_backward, specs)


@pytest.mark.parametrize("objective, width", [("minilm", 48), pytest.param("distilbert", 32, marks=pytest.mark.slow)])
def test_the_operations_of_a_distillation_are_those_of_student_and_teacher_up_to_what_is_compared(objective, width):
    rows, length, predictions = 3, 24, 5
    student = BertConfig(
        vocab_size=500, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48, max_position_embeddings=40,
        pooler=False, type_vocab_size=1,
    )  # fmt: skip
    larger = dataclasses.replace(student, num_layers=4, hidden_size=width)
    settings = EncoderDistillation(**({"relation_heads": 8, "teacher_layer": 3} if objective == "minilm" else {}))
    teacher = build(BertEncoder(larger), "masked_lm" if objective == "distilbert" else None)
    task = DistilledEncoder(
        Tokenizer(PIECES), length, objective=objective, settings=settings, student=student, teacher=teacher
    )
    model = task.build(BertEncoder(student))
    specs = {name: tf.TensorSpec([rows, length], tf.int32) for name in encoder_inputs()}
    for name in ("positions", "ids", "weights"):
        kind = tf.float32 if name == "weights" else tf.int32
        specs[f"masked_lm_{name}"] = tf.TensorSpec([rows, predictions], kind)

    def forward_and_backward(features):
        with tf.GradientTape() as tape:
            outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=False)
            metrics = task.objective.loss_and_metrics(features, outputs)
            loss = sum(metrics[name][0] for name in task.objective.losses)
        variables = [variable.value for variable in model.trainable_variables]
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    data = PretrainingData(objective=objective, pairs="none", max_predictions=predictions)
    counted = rows * speed.distillation_flops(length, student, larger, data, settings)
    assert counted == products(forward_and_backward, specs)


def test_bert_base_takes_seventy_billion_operations_per_sequence_of_128():
    # 6 x parameters x tokens (Kaplan et al., 2020, section 2.1) for the 85.1 million in the layers, plus those of
    # attention and of the vocabulary.
    config = BertConfig.from_name("base")
    layers = 6 * 12 * 12 * 768**2 * 128
    attention = 3 * 12 * 4 * 128**2 * 768
    vocabulary = 6 * 20 * 768 * 30522
    whole = speed.row_flops(128, config, predictions=20, pooled=1)
    assert whole == pytest.approx(layers + attention + vocabulary, rel=2e-3)
    assert 65e9 < whole < 75e9


def test_peak_flops_is_the_speed_of_matrix_products(monkeypatch):
    monkeypatch.setattr(speed, "_measured", {})
    monkeypatch.setattr(speed, "_SIZES", (512, 1024))
    monkeypatch.setattr(speed, "_TRIES", 5)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    matrix = tf.random.stateless_normal([1024, 1024], [0, 0])
    seconds = []
    for _ in range(5):
        started = tf.timestamp()
        tf.matmul(matrix, matrix)
        seconds.append(float(tf.timestamp() - started))
    reached = 2 * 1024**3 / min(seconds)
    # Other processes may use the cores during either measurement: only a larger difference is an error.
    peak = speed.peak_flops(strategy, "float32")
    assert 0.1 < peak / reached < 20
    assert speed.peak_flops(strategy, "float32") == peak  # is not measured again
    assert speed.peak_flops(tf.distribute.get_strategy(), "float32") > 0


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until advanced: clock(seconds)."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def pass_by(seconds):
        now[0] += seconds

    return pass_by


def call(stopwatch, clock, seconds, steps, phase=0, metrics=None):
    stopwatch.start()
    clock(seconds)
    stopwatch.update(phase, steps, metrics or {})


def test_speed_excludes_evaluations_and_the_first_call_of_each_phase(clock):
    stopwatch = Speed([Work(20, 8), Work(20, 4)])
    with stopwatch.timing("start"):
        clock(3.0)
    call(stopwatch, clock, 50.0, 5)
    call(stopwatch, clock, 2.0, 10)
    with stopwatch.timing("evaluation"):
        clock(7.0)
    assert stopwatch.rates() == {"steps_per_second": 5.0, "sequences_per_second": 40.0}
    point = stopwatch.point()
    seconds = {"training_seconds": 2.0, "evaluation_seconds": 7.0, "start_seconds": 53.0}
    assert point == {"steps_per_second": 5.0, "sequences_per_second": 40.0} | seconds
    call(stopwatch, clock, 60.0, 5, phase=1)
    assert stopwatch.point() == {"start_seconds": 60.0}
    call(stopwatch, clock, 1.0, 5, phase=1)
    assert stopwatch.rates()["sequences_per_second"] == 20.0


def test_padding_is_not_counted_as_tokens_but_as_operations(clock):
    stopwatch = Speed([Work(20, 8, 100, row_flops=lambda length: 1000.0 * length)], peak_flops=1e6)
    call(stopwatch, clock, 9.0, 1)
    call(stopwatch, clock, 2.0, 5, metrics={"padding_share": (300.0, 40 * 50.0)})  # 40 rows of 50, 300 of it padding
    assert stopwatch.rates()["tokens_per_second"] == (40 * 50 - 300) / 2
    assert stopwatch.rates()["mfu"] == pytest.approx(40 * 50 * 1000 / 2 / 1e6)


def test_the_time_left_allows_for_a_slower_second_phase(clock):
    work = [
        Work(100, 8, 128, row_flops=lambda length: 1.0 * length),
        Work(10, 4, 512, row_flops=lambda length: 2.0 * length),
    ]
    stopwatch = Speed(work)
    assert stopwatch.seconds_left(0) is None
    call(stopwatch, clock, 30.0, 10)
    assert stopwatch.seconds_left(10) is None
    call(stopwatch, clock, 20.0, 10)  # 2 s per update of 8 * 128 = 1024 tokens; in the second phase 4096: 8 s
    assert stopwatch.seconds_left(20) == pytest.approx(80 * 2 + 10 * 8)
    with stopwatch.timing("evaluation"):  # every 10 updates
        clock(5.0)
    assert stopwatch.seconds_left(20) == pytest.approx((80 * 2 + 10 * 8) * 25 / 20)
    call(stopwatch, clock, 100.0, 5, phase=1)
    assert stopwatch.seconds_left(105) == pytest.approx(5 * 8 * 25 / 20)
    assert stopwatch.seconds_left(110) == 0
