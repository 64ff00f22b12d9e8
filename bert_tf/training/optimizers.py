"""BERT's Adam (google-research/bert, optimization.py) and its learning rate (paper, appendix A.2)."""

import tensorflow as tf

# Not decayed: LayerNorm and biases, by the last part of the variable's path.
_UNDECAYED = ("bias", "gamma", "beta")


def warmup_linear(step, *, peak, warmup_steps, total_steps):
    """Rises linearly to `peak` over `warmup_steps`, then falls linearly to 0 at `total_steps`.

    Args:
        step: int tensor, updates done before this one.

    Returns:
        float32 scalar: the rate of this update. Two quirks of google-research/bert are left out: there the first rate
        is 0, and the fall is counted from step 0, so that the rate jumps down where the warm-up ends.
    """
    step, warmup = tf.cast(step, tf.float32), float(warmup_steps)
    rising = (step + 1.0) / max(warmup, 1.0)
    falling = (total_steps - step) / max(total_steps - warmup, 1.0)
    return peak * tf.where(step < warmup, rising, tf.clip_by_value(falling, 0.0, 1.0))


class BertAdam(tf.Module):
    """Adam without bias correction, epsilon outside the root, decoupled weight decay.

    One fused kernel a variable; all of it runs inside a replica, on that replica's copy, so it needs no merge call:
    every replica applies the same reduced gradient.

    Args:
        variables: list of keras.Variable.
        weight_decay: rate, for all but LayerNorm and biases.
    """

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-6

    def __init__(self, variables, weight_decay=0.01):
        super().__init__(name="bert_adam")
        self._variables = [variable.value for variable in variables]
        self._decay = [
            0.0 if variable.path.rsplit("/", 1)[-1] in _UNDECAYED else weight_decay for variable in variables
        ]
        self.slots = {}
        for variable, keras_variable in zip(self._variables, variables, strict=True):
            for slot in ("m", "v"):
                self.slots[f"{keras_variable.path}/{slot}"] = tf.Variable(tf.zeros(variable.shape), trainable=False)
        self._slot_pairs = list(zip(*[iter(self.slots.values())] * 2, strict=True))

    def apply(self, gradients, learning_rate):
        """Updates every variable from its dense float32 gradient; in replica context.

        The decay uses the value before the update, as the reference does: w - rate * (m / (sqrt(v) + eps) + decay * w).
        """
        for variable, (m, v), decay, gradient in zip(
            self._variables, self._slot_pairs, self._decay, gradients, strict=True
        ):
            if decay:
                decayed = learning_rate * decay * variable
                tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=decayed)
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=m.handle, v=v.handle,
                beta1_power=0.0, beta2_power=0.0,  # the powers of the bias correction; 0 leaves it out
                lr=learning_rate, beta1=self.BETA_1, beta2=self.BETA_2, epsilon=self.EPSILON, grad=gradient,
            )  # fmt: skip
