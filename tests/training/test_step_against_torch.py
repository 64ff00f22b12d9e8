"""Training steps of the loop against PyTorch's gradients of Hugging Face's BERT and Adam written in NumPy.

Everything is compared to 1e-5 of the largest magnitude in its tensor. A bound relative to each element would need
digits that float32 does not have: gradients are sums whose terms cancel (that of the key's bias to zero, because it
shifts all scores of a row equally), so their error depends on the size of the terms. The reference uses float64.
"""

import re
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import TrainConfig
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.phases import Input
from bert_tf.training.trainer import Trainer
from tests.model.numpy_bert import tensors_of
from tests.model.small import randomize, small_config
from tests.training.small import features, loop_of
from tests.zoo import LENGTH, VOCABULARY

BATCH, HIDDEN, PEAK = 8, 32, 1e-3
DECAY = 0.5  # so large that it shows in five digits of the weights
CLIP = 0.5  # below the norm of every gradient here
BETA_1, BETA_2 = (float(np.float32(beta)) for beta in (0.9, 0.999))  # rounding changes 1 - 0.999 by 1.3e-5
RATES = {1: [1.0], 4: [0.5, 1.0, 1.0, 0.5]}  # shares of the peak; warm-up is half of the steps, rounded down
ACTIVATIONS = {"tanh_gelu": "gelu_new", "erf_gelu": "gelu"}


def data(steps):
    """Features of `steps` batches, arrays [steps, batch, ...]."""
    rows = features() | {"labels": np.arange(96, dtype=np.int32) % 3}
    rows |= {name: np.zeros(96, np.int32) for name in ("window", "truncated")}
    rows = {name: value[-BATCH * steps :] for name, value in rows.items()}  # the last ones: with and without weights
    return {name: value.reshape(steps, BATCH, *value.shape[1:]) for name, value in rows.items()}


def train(name, activation, steps, folder):
    """Our side: the initial weights, weights and slots by Hugging Face's names, and the last point of the curve."""
    dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    config = small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, activation=activation, **dropout)
    if name == "pretraining":
        task = Pretraining(Tokenizer(VOCABULARY), LENGTH)
    else:
        task = Classification(None, labels=("a", "b", "c"), pair=False)
    model = randomize(task.build(BertEncoder(config, dtype="float32")))
    initial = tensors_of(model, HIDDEN)
    settings = TrainConfig(
        batch_size=BATCH, steps=steps, warmup=0.5, learning_rate=PEAK, weight_decay=DECAY, clip_norm=CLIP,
        bias_correction=False, log_every=1, steps_per_call=2,
    )  # fmt: skip
    trainer = Trainer(task, model, settings, tf.distribute.OneDeviceStrategy("/cpu:0"), steps)
    batches = tf.data.Dataset.from_tensor_slices(data(steps))
    history = loop_of(trainer, [Input(lambda epoch: batches)], str(folder)).run()
    found = {"weights": tensors_of(model, HIDDEN)}
    for slot in "mv":
        values = [
            types.SimpleNamespace(path=path.removesuffix(f"/{slot}"), numpy=variable.numpy)
            for path, variable in trainer.optimizer.slots.items()
            if path.endswith(f"/{slot}")
        ]
        found[slot] = tensors_of(types.SimpleNamespace(weights=values), HIDDEN)
    return initial, found, history.points


class Reference:
    """Hugging Face's model in float64, and BERT's Adam (google-research/bert, optimization.py)."""

    def __init__(self, name, activation, initial):
        self.torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
        config = transformers.BertConfig(
            vocab_size=len(VOCABULARY), hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=LENGTH, hidden_act=ACTIVATIONS[activation],
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3, attn_implementation="eager",
        )  # fmt: skip
        heads = {"pretraining": "BertForPreTraining", "classification": "BertForSequenceClassification"}
        self.model = getattr(transformers, heads[name])(config).double()
        self.parameters = {name.removeprefix("bert."): value for name, value in self.model.named_parameters()}
        assert self.parameters.keys() == initial.keys()
        self.weights = {name: value.astype(np.float64) for name, value in initial.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def step(self, batch, rate):
        """One update; returns the losses by name and the norm of the gradient."""
        with self.torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.torch.from_numpy(self.weights[name]))
        self.model.zero_grad()
        metrics, loss = self.losses({name: self.torch.tensor(value).long() for name, value in batch.items()})
        loss.backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in self.parameters.items()}
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, CLIP / norm)
            decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else DECAY
            m = self.m[name] = BETA_1 * self.m[name] + (1 - BETA_1) * gradient
            v = self.v[name] = BETA_2 * self.v[name] + (1 - BETA_2) * gradient**2
            self.weights[name] = self.weights[name] - rate * (m / (np.sqrt(v) + 1e-6) + decay * self.weights[name])
        return {key: float(value.detach()) for key, value in metrics.items()} | {"gradient_norm": norm}

    def losses(self, batch):
        """The reported losses, and the one that is minimized."""
        entropy = self.torch.nn.functional.cross_entropy
        outputs = self.model(
            input_ids=batch["input_word_ids"],
            attention_mask=batch["input_mask"],
            token_type_ids=batch["input_type_ids"],
        )
        if hasattr(outputs, "logits"):
            loss = entropy(outputs.logits, batch["labels"])
            return {"loss": loss}, loss
        logits = outputs.prediction_logits[self.torch.arange(BATCH)[:, None], batch["masked_lm_positions"]]
        weights = batch["masked_lm_weights"].double()
        masked = entropy(logits.transpose(1, 2), batch["masked_lm_ids"], reduction="none")
        total, count = (weights * masked).sum(), weights.sum()
        following = entropy(outputs.seq_relationship_logits, batch["next_sentence_labels"])
        return {"mlm_loss": total / count, "nsp_loss": following}, total / (count + 1e-5) + following


def fused(tensors):
    """Query, key and value as one tensor: the key's bias has no gradient, so its largest magnitude is rounding."""
    groups = {}
    for name, value in tensors.items():
        groups.setdefault(re.sub(r"\.(query|key|value)\.", ".qkv.", name), []).append(value)
    return {name: np.concatenate(values) for name, values in groups.items()}


def differences(ours, theirs):
    """dict name -> largest difference, relative to the largest magnitude in the tensor."""
    assert ours.keys() == theirs.keys()
    ours, theirs = fused(ours), fused(theirs)
    assert all(ours[name].shape == theirs[name].shape for name in theirs)
    return {name: np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max() for name in theirs}


@pytest.mark.slow
@pytest.mark.parametrize("steps", RATES)
@pytest.mark.parametrize("name, activation", [("pretraining", "tanh_gelu"), ("classification", "erf_gelu")])
def test_steps_equal_those_of_pytorch_and_a_numpy_adam(tmp_path, name, activation, steps):
    initial, ours, points = train(name, activation, steps, tmp_path)
    reference, batches = Reference(name, activation, initial), data(steps)
    for step, rate in enumerate(RATES[steps]):
        measured = reference.step({name: value[step] for name, value in batches.items()}, PEAK * rate)
        assert measured["gradient_norm"] > CLIP
        assert {key: points[step][key] for key in measured} == pytest.approx(measured, rel=1e-5)
    # After one step from zero, m is a tenth of the clipped gradient: so this compares every gradient.
    for kind, theirs in {"m": reference.m, "v": reference.v, "weights": reference.weights}.items():
        far = {name: value for name, value in differences(ours[kind], theirs).items() if not value < 1e-5}
        assert not far, kind
