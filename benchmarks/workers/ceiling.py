"""The machine's ceiling: the rate of TensorFlow's matrix products alone, for the shapes of a model."""

import time
from typing import Any

from worker import Round, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """Settings.

    `dtype`: float32, bfloat16 or int8; `shapes`: lists [m, k, n, times], products of [m, k] and [k, n];
    `flops`: floating-point operations of one unit of work; `unit`; `seconds`: of a round.
    """
    import tensorflow as tf

    products = [(shape, _product(tf, settings["dtype"], *shape[:3])) for shape in settings["shapes"]]

    def do_round() -> dict[str, Any]:
        flops = seconds = 0.0
        for (m, k, n, times), product in products:
            # The best of many: other processes take the cores away during some of them.
            until, best = time.perf_counter() + settings["seconds"] / len(products), float("inf")
            while time.perf_counter() < until:
                start = time.perf_counter()
                product()
                best = min(best, time.perf_counter() - start)
            flops += times * 2 * m * k * n
            seconds += times * best
        rate = flops / seconds
        return {"seconds": settings["flops"] / rate, "count": 1, "unit": settings["unit"], "gflops": rate / 1e9}

    do_round()
    return {"versions": versions("tensorflow"), "dtype": settings["dtype"], "shapes": settings["shapes"]}, do_round


def _product(tf: Any, dtype: str, m: int, k: int, n: int) -> Any:
    """A function that multiplies [m, k] with [k, n] and returns when it is done."""
    left, right = (tf.random.stateless_normal(shape, [0, 0]) for shape in ([m, k], [k, n]))
    if dtype != "int8":
        left, right = tf.cast(left, dtype), tf.cast(right, dtype)
        return lambda: tf.matmul(left, right)
    scale = 1 / 30
    left = tf.cast(tf.clip_by_value(left / scale + 128, 0, 255), tf.uint8)
    right = tf.cast(tf.clip_by_value(right / scale, -127, 127), tf.int8)
    bias = tf.zeros([n])
    return lambda: tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
        a=tf.bitcast(left, tf.quint8), b=tf.bitcast(right, tf.qint8), bias=bias, Toutput=tf.float32,
        min_a=0.0, max_a=255 * scale, min_b=-127 * scale, max_b=127 * scale,
        min_freezed_output=0.0, max_freezed_output=0.0, input_quant_mode="SCALED",
    )  # fmt: skip


serve(setup)
