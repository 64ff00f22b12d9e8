"""Classification from few examples: vectors of texts of a class get near each other, and a logistic regression on the
vectors gives the class (SetFit: Tunstall et al., 2022, arXiv:2209.11055).
"""

import types

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import ClassificationConfig
from bert_tf.errors import DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.contrastive import class_pairs
from bert_tf.tasks.contrastive.groups import Groups
from bert_tf.tasks.labels import LabelsState
from bert_tf.tasks.objective import JointObjective, SoftOutput, rows_of, whole_examples
from bert_tf.tasks.text_groups import FEATURES
from bert_tf.types import Array, Tensors

HEAD = "classification_vector"
_ABSENT = -30.0  # bias of a label without examples


class FewLabels(JointObjective):
    """Vectors by the labels of a batch; the dense layer on them is set by `fit`."""

    least = 2
    soft_outputs = types.MappingProxyType({"logits": SoftOutput()})  # for students of another head

    def __init__(self, config: ClassificationConfig, state: LabelsState) -> None:
        self._config, self._state = config, state

    def build(self, encoder: BertEncoder) -> keras.Model:
        model = build(encoder, HEAD, len(self._state.labels), self._config.vectors)
        model.get_layer("classifier").trainable = False
        return model

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": rows_of(features)}

    def pieces(self, features: Tensors) -> list[Tensors]:
        return [{name: features[name] for name in FEATURES}]

    def joined(self, outputs: list[Tensors], features: Tensors) -> Tensors:
        return {"vectors": outputs[0]["vector"]}

    def known(self, features: Tensors) -> Tensors:
        return {"labels": features["labels"]}

    def joint_loss(self, outputs: Tensors, known: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        labels, vectors = known["labels"], outputs["vectors"][:, tf.newaxis]
        groups = Groups(vectors, tf.zeros_like(labels, tf.int64)[:, tf.newaxis], tf.cast(labels, tf.float32))
        count = rows_of(known)
        return {"loss": (class_pairs.loss(groups) * count, count)}

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return whole_examples(features)

    def check(self, labels: Array) -> None:
        """Raises DataError for examples with which `fit` would end; arguments as for `fit`."""
        if len(present := np.unique(labels)) < 2:
            raise DataError(
                f"all training examples have the label {self._state.labels[present[0]]!r}; expected at least two labels"
            )

    def fit(self, model: keras.Model, vectors: Array, labels: Array) -> None:
        """Sets the dense layer of a model that `build` returned by a logistic regression (L2, C = 1).

        Args:
            vectors: float32 [rows, size], its output "vector" for the training examples.
            labels: int32 [rows], the numbers of their labels.
        """
        from sklearn.linear_model import LogisticRegression  # here: it takes a second to import

        present = np.unique(labels)
        weights = self._state.class_weights
        of_labels = {number: weights[number] for number in present} if weights else None
        found = LogisticRegression(max_iter=1000, class_weight=of_labels).fit(vectors, labels)
        kernel, bias = found.coef_, found.intercept_
        if len(present) == 2:  # scikit-learn has the difference of both alone
            kernel, bias = np.concatenate([-kernel, kernel]) / 2, np.concatenate([-bias, bias]) / 2
        kernels = np.zeros([vectors.shape[1], len(self._state.labels)], np.float32)
        biases = np.full([len(self._state.labels)], _ABSENT, np.float32)
        kernels[:, present], biases[present] = kernel.T, bias
        layer = model.get_layer("classifier")
        layer.kernel.assign(kernels)
        layer.bias.assign(biases)
