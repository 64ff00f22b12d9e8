"""Optimizers: AdamW with and without bias correction (without it: BERT's Adam), StableAdamW, LAMB, RAdam, Muon.

The whole update runs inside a replica, on that replica's copy of the variables: every replica applies the same reduced
gradient, so none needs a merge call.
"""

import math
import re
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.model.processors import only_cpus

# Neither decayed nor adapted by LAMB: LayerNorm and biases, by the last part of the variable's path.
_EXCLUDED = ("bias", "gamma", "beta")
# Variables of fewer elements are updated by TensorFlow's kernel: to call a compiled program takes longer.
_COMPILED = 2**17
_MOMENTUM = 0.95  # of Muon


def create(variables: Sequence[keras.Variable], config: TrainConfig) -> "Optimizer":
    """The optimizer that a config describes.

    Args:
        config: resolved (`TrainConfig.resolved`).
    """
    classes: dict[str, type[Optimizer]] = {
        "adamw": AdamW,
        "stable_adamw": StableAdamW,
        "lamb": Lamb,
        "radam": RAdam,
        "muon": Muon,
    }
    return classes[config.optimizer](variables, config)


def layer_rates(paths: Sequence[str], layer_decay: float) -> list[float]:
    """Shares of the learning rate for layer-wise decay (ELECTRA, Clark et al., 2020; its model/optimization.py).

    Args:
        paths: variable paths.
        layer_decay: factor of the rate from one depth to the next lower one.

    Returns:
        layer_decay ** (layers + 2 - depth) for each path. The depth of the embeddings is 0, of layer i (from 0) i + 1
        and of heads layers + 2. Depth layers + 1, which is free in ELECTRA, belongs to the pooler, which ELECTRA lacks,
        and to the LayerNorm at the end of pre-LayerNorm models.
    """
    layers = [_layer(path) for path in paths]
    count = max((layer + 1 for layer in layers if layer is not None), default=0)

    def depth(path: str, layer: int | None) -> int:
        if layer is not None:
            return layer + 1
        if re.search(r"(^|/)embeddings/", path):
            return 0
        return count + 1 if re.search(r"(^|/)(pooler|final_norm)/", path) else count + 2

    return [layer_decay ** (count + 2 - depth(path, layer)) for path, layer in zip(paths, layers, strict=True)]


def _layer(path: str) -> int | None:
    match = re.search(r"(?:^|/)layer_(\d+)/", path)
    return int(match[1]) if match else None


class Optimizer(tf.Module):
    """Base class: first and second moments, decoupled weight decay, layer-wise rates.

    LayerNorm and biases are not decayed. Args as for `create`.

    Attributes:
        slots: the state to save, by name: PATH/m and, except for matrices of Muon, PATH/v, float32 of the variable's
            shape, and `updates`, int64, the number of calls of `apply`: skipped updates do not count in the bias
            correction.
    """

    def __init__(self, variables: Sequence[keras.Variable], config: TrainConfig) -> None:
        super().__init__()
        paths = [variable.path for variable in variables]
        self._variables = [variable.value for variable in variables]
        self._excluded = [path.rsplit("/", 1)[-1] in _EXCLUDED for path in paths]
        self._decay = [0.0 if excluded else config.weight_decay for excluded in self._excluded]
        self._shares = layer_rates(paths, config.layer_decay)
        # Rounded to float32, which moves 1 - 0.999 by 1.3e-5: the corrections must use the same number as the kernels.
        self._beta_1, self._beta_2 = (float(np.float32(beta)) for beta in (config.beta_1, config.beta_2))
        self._epsilon, self._bias_correction = config.epsilon, config.bias_correction
        self.slots: dict[str, tf.Variable] = {}
        self._moments: list[list[tf.Variable]] = []
        for path, variable in zip(paths, self._variables, strict=True):
            names = [f"{path}/{slot}" for slot in self._slots_of(variable, path)]
            self._moments.append([tf.Variable(tf.zeros(variable.shape), trainable=False) for _ in names])
            self.slots |= dict(zip(names, self._moments[-1], strict=True))
        self._updates = self.slots["updates"] = tf.Variable(0, dtype=tf.int64, trainable=False)

    def _slots_of(self, variable: tf.Variable, path: str) -> tuple[str, ...]:
        """The moments of a variable."""
        return ("m", "v")

    def apply(
        self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor | float, factor: tf.Tensor | float = 1.0
    ) -> None:
        """Updates every variable; in replica context.

        Args:
            gradients: dense float32 tensors, one per variable, the same on every replica.
            learning_rate: float32 scalar.
            factor: float32 scalar by which the gradients are multiplied first.
        """
        # Ops on handles: a replica changes its own copy, where tf.Variable.assign would try to change all of them.
        tf.raw_ops.AssignAddVariableOp(resource=self._updates.handle, value=tf.constant(1, tf.int64))
        count = tf.cast(tf.raw_ops.ReadVariableOp(resource=self._updates.handle, dtype=tf.int64), tf.float32)
        learning_rate = tf.convert_to_tensor(learning_rate, tf.float32)
        self._apply(gradients, tf.convert_to_tensor(factor, tf.float32), learning_rate, count)

    def _apply(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        """`apply` for update number `count`, a float32 scalar, from 1."""
        raise NotImplementedError

    def _corrections(self, count: tf.Tensor) -> list[tf.Tensor]:
        """1 - beta ** count for both moments, float32; by subtraction it would have no correct digits at first."""
        return [-tf.math.expm1(count * math.log(beta)) for beta in (self._beta_1, self._beta_2)]

    def _adam(
        self,
        index: int,
        gradient: tf.Tensor,
        factor: tf.Tensor,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        epsilon: tf.Tensor | float,
    ) -> None:
        """Decoupled weight decay, from the value before the update, moments and w -= step * m / (sqrt(v) + epsilon)."""
        variable, (m, v), decay = self._variables[index], self._moments[index], learning_rate * self._decay[index]
        if only_cpus() and variable.shape.num_elements() >= _COMPILED:
            handles = (one.handle for one in (variable, m, v))
            _compiled_adam(*handles, gradient, factor, decay, step, epsilon, self._beta_1, self._beta_2)
            return
        if self._decay[index]:
            _subtract(variable, decay * variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=m.handle, v=v.handle,
            # 0 turns off the kernel's own bias correction, which applies epsilon elsewhere than the papers do and
            # computes 1 - power with few correct digits.
            beta1_power=0.0, beta2_power=0.0,
            lr=step, beta1=self._beta_1, beta2=self._beta_2, epsilon=epsilon, grad=gradient * factor,
        )  # fmt: skip

    def _scaled(self, learning_rate: tf.Tensor, index: int) -> tf.Tensor:
        share = self._shares[index]
        return learning_rate if share == 1.0 else learning_rate * share


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2).

    Without bias correction it is BERT's Adam (google-research/bert, optimization.py):
    w - rate * (m / (sqrt(v) + epsilon) + decay * w).
    """

    def _apply(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        first, second = self._corrections(count) if self._bias_correction else (tf.constant(1.0), tf.constant(1.0))
        # m / first / (sqrt(v / second) + epsilon), with the common factor taken out.
        step, epsilon = learning_rate * tf.sqrt(second) / first, self._epsilon * tf.sqrt(second)
        for index, gradient in enumerate(gradients):
            share = self._share(index, gradient, factor, second)
            if share is not None:
                self._adam(index, gradient, factor, learning_rate * share, step * share, epsilon)

    def _share(self, index: int, gradient: tf.Tensor, factor: tf.Tensor, second: tf.Tensor) -> tf.Tensor | float | None:
        """By what the learning rate of a variable is multiplied; None if Adam does not update it.

        Args:
            second: 1 - beta_2 ** count, or 1 without bias correction.
        """
        return self._shares[index]


class StableAdamW(AdamW):
    """AdamW that slows down where gradients outgrow their second moment (Wortsman et al., 2023, arXiv:2304.13013,
    algorithm 2).

    The rate of each variable is divided by the root of the mean of gradient ** 2 / second moment, if that is above 1.
    """

    def _share(self, index: int, gradient: tf.Tensor, factor: tf.Tensor, second: tf.Tensor) -> tf.Tensor | float | None:
        v = self._moments[index][1]
        compiled = only_cpus() and v.shape.num_elements() >= _COMPILED
        excess = (_compiled_excess if compiled else _excess)(
            v.handle, gradient, factor, second, self._beta_2, self._epsilon
        )
        return self._shares[index] / tf.maximum(excess, 1.0)


class Muon(AdamW):
    """Momentum whose update is made orthogonal, for the matrices of blocks; AdamW for all else (Jordan et al., 2024).

    Momentum is Nesterov's, 0.95. Updates are scaled to those of AdamW, so that both share a learning rate (Liu et al.,
    2025, arXiv:2502.16982, section 2.2). Query, key and value are matrices of their own.
    """

    def __init__(self, variables: Sequence[keras.Variable], config: TrainConfig) -> None:
        super().__init__(variables, config)
        self._parts = [_parts(variable) for variable in variables]

    def _slots_of(self, variable: tf.Variable, path: str) -> tuple[str, ...]:
        is_matrix_of_block = variable.shape.rank == 2 and _layer(path) is not None and path.endswith("/kernel")
        return ("m",) if is_matrix_of_block else super()._slots_of(variable, path)

    def _apply(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        super()._apply(gradients, factor, learning_rate, count)
        for index, gradient in enumerate(gradients):
            if len(self._moments[index]) == 1:
                self._orthogonal(index, gradient * factor, self._scaled(learning_rate, index))

    def _share(self, index: int, gradient: tf.Tensor, factor: tf.Tensor, second: tf.Tensor) -> tf.Tensor | float | None:
        return None if len(self._moments[index]) == 1 else super()._share(index, gradient, factor, second)

    def _orthogonal(self, index: int, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        (m,) = self._moments[index]
        momentum = m + (gradient - m) * (1.0 - _MOMENTUM)
        _assign(m, momentum)
        ahead = gradient + (momentum - gradient) * _MOMENTUM
        # [parts, rows, columns]
        matrices = tf.stack(tf.split(ahead, self._parts[index], -1))
        size = 0.2 * math.sqrt(max(matrices.shape[1:]))
        update = tf.concat(tf.unstack(orthogonalized(matrices)), -1)
        variable = self._variables[index]
        _subtract(variable, learning_rate * (size * update + self._decay[index] * variable))


class RAdam(Optimizer):
    """Adam that rectifies the step while the estimate of the second moment is poor (Liu et al., 2020, algorithm 2).

    Where the variance has no finite estimate, in the first five updates for beta_2 0.999, it is momentum alone.
    Epsilon, which the paper lacks, is added to the root of the uncorrected second moment, as in its authors' program.
    """

    def _apply(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        first, second = self._corrections(count)
        longest = 2.0 / (1.0 - self._beta_2) - 1.0
        length = self._average_length(count, longest)
        # As in PyTorch; 5 or more in the authors' program (github.com/LiyuanLucasLiu/RAdam, radam.py). Algorithm 2 of
        # the paper has 4: with beta_2 0.999 the fifth update would be adaptive, too.
        known = length > 5.0
        length = tf.where(known, length, 5.0)  # below 4 the radicand is negative
        rectification = tf.sqrt(
            (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        )
        adaptive = tf.where(known, learning_rate * rectification * tf.sqrt(second) / first, 0.0)
        for index, gradient in enumerate(gradients):
            rate = self._scaled(learning_rate, index)
            self._adam(index, gradient, factor, rate, self._scaled(adaptive, index), self._epsilon)

        def follow_momentum() -> None:
            for index, (m, _) in enumerate(self._moments):
                _subtract(self._variables[index], self._scaled(learning_rate, index) / first * m)

        tf.cond(known, lambda: None, follow_momentum)

    def _average_length(self, count: tf.Tensor, longest: float) -> tf.Tensor:
        """Length of the approximated simple moving average: longest - 2 count beta ** count / (1 - beta ** count).

        In this form it is the small difference of two large numbers, of which float32 keeps three digits. With
        y = -count log(beta) / 2, the subtracted term is (y coth(y) - y) * scale, where scale is nearly longest + 1.
        """
        scale = -2.0 / math.log(self._beta_2)
        y = count / scale
        squared = y * y
        series = squared * (
            1 / 3 - squared * (1 / 45 - squared * (2 / 945 - squared * (1 / 4725 - squared * 2 / 93555)))
        )
        # y coth(y) - 1; by subtraction it would have no correct digits for small y. The next term of the series is
        # below 1e-7 of it.
        excess = tf.where(y < 0.5, series, y / tf.tanh(y) - 1.0)
        return longest - scale + scale * (y - excess)


class Lamb(Optimizer):
    """Adam and decay, scaled to the norm of each weight: LAMB (You et al., 2020, algorithm 2, phi(z) = z).

    LayerNorm and biases are neither decayed nor adapted, as in the paper's experiments. Where a norm is 0, the ratio
    is 1. Query, key and value are one variable here but three in other implementations, so each has its own ratio.
    """

    def __init__(self, variables: Sequence[keras.Variable], config: TrainConfig) -> None:
        super().__init__(variables, config)
        self._parts = [_parts(variable) for variable in variables]

    def _apply(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, learning_rate: tf.Tensor, count: tf.Tensor
    ) -> None:
        first, second = self._corrections(count) if self._bias_correction else (1.0, 1.0)
        for index, gradient in enumerate(gradients):
            variable, (m, v), gradient = self._variables[index], self._moments[index], gradient * factor
            next_m = self._beta_1 * m + (1.0 - self._beta_1) * gradient
            next_v = self._beta_2 * v + (1.0 - self._beta_2) * tf.square(gradient)
            _assign(m, next_m)
            _assign(v, next_v)
            update = next_m / first / (tf.sqrt(next_v / second) + self._epsilon)
            if not self._excluded[index]:
                weight = tf.convert_to_tensor(variable)
                update += self._decay[index] * weight
                update *= _trust_ratio(weight, update, self._parts[index])
            _subtract(variable, self._scaled(learning_rate, index) * update)


def _parts(variable: keras.Variable) -> int:
    """Number of matrices side by side in this one, which other implementations have as variables of their own."""
    return 3 if variable.path.endswith("qkv/kernel") else 1


def orthogonalized(matrices: tf.Tensor) -> tf.Tensor:
    """The nearest matrices with orthogonal rows, or columns if there are fewer of these, up to factors of 0.7 to 1.2.

    Five steps of a Newton-Schulz iteration of fifth order, with the coefficients of Jordan et al., which are the
    steepest at 0 and need not converge.

    Args:
        matrices: float32 [n, rows, columns].
    """
    flipped = matrices.shape[1] > matrices.shape[2]
    x = tf.linalg.matrix_transpose(matrices) if flipped else matrices
    x /= tf.sqrt(tf.reduce_sum(tf.square(x), [1, 2], keepdims=True)) + 1e-7
    for _ in range(5):
        product = tf.matmul(x, x, transpose_b=True)
        x = 3.4445 * x + tf.matmul(-4.775 * product + 2.0315 * tf.matmul(product, product), x)
    return tf.linalg.matrix_transpose(x) if flipped else x


def _excess(
    v: tf.Tensor, gradient: tf.Tensor, factor: tf.Tensor, second: tf.Tensor, beta_2: float, epsilon: float
) -> tf.Tensor:
    """Root of the mean of gradient ** 2 / its corrected second moment, in which the gradient is counted, float32."""
    squared = tf.square(gradient * factor)
    old = tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32)
    moment = (old + (squared - old) * (1.0 - beta_2)) / second
    return tf.sqrt(tf.reduce_mean(squared / tf.maximum(moment, epsilon**2)))


_compiled_excess = tf.function(_excess, autograph=False, jit_compile=True)


@tf.function(autograph=False, jit_compile=True)
def _compiled_adam(
    variable: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    gradient: tf.Tensor,
    factor: tf.Tensor,
    decay: tf.Tensor,
    step: tf.Tensor,
    epsilon: tf.Tensor | float,
    beta_1: float,
    beta_2: float,
) -> None:
    """`Optimizer._adam` on the handles of a variable and its moments: two thirds of the time of separate operations."""
    weight, old_m, old_v = (tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.float32) for one in (variable, m, v))
    gradient *= factor
    next_m = old_m + (gradient - old_m) * (1.0 - beta_1)
    next_v = old_v + (tf.square(gradient) - old_v) * (1.0 - beta_2)
    update = decay * weight + step * next_m / (tf.sqrt(next_v) + epsilon)
    for resource, value in ((variable, weight - update), (m, next_m), (v, next_v)):
        tf.raw_ops.AssignVariableOp(resource=resource, value=value)


def _trust_ratio(weight: tf.Tensor, update: tf.Tensor, parts: int) -> tf.Tensor:
    """Norm of the weight divided by the norm of its update, float32 [columns], for each of `parts` column groups."""

    def norms(value: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(tf.reduce_sum(tf.square(tf.reshape(value, [-1, parts, columns // parts])), [0, 2]))  # [parts]

    columns = weight.shape[-1]
    weights, updates = norms(weight), norms(update)
    ratios = tf.where((weights > 0.0) & (updates > 0.0), tf.math.divide_no_nan(weights, updates), 1.0)
    return tf.repeat(ratios, columns // parts)


def _subtract(variable: tf.Variable, value: tf.Tensor) -> None:
    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=value)


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
