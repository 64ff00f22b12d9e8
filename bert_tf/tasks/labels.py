"""The labels of texts: which there are, their numbers, and what each weighs in the loss."""

import dataclasses

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.tasks.texts import TextConfig

# How labels are given in a flag.
WRITTEN = "write each once, as --config.task.labels=\"('neg','pos')\""


@dataclasses.dataclass
class LabelsConfig(TextConfig):
    """What tasks with a set of labels can be told.

    Attributes:
        labels: all of them, in the order of the logits; () for those that the format or the training examples have.
        balanced: whether rare labels weigh more in the loss: all classes the same in total, or, where each label is
            decided alone, its examples as much as all the others.
        class_weights: a weight a label in the order of `labels`, instead; () for equal ones.
    """

    labels: tuple[str, ...] = ()
    balanced: bool = False
    class_weights: tuple[float, ...] = ()

    def check(self):
        if not all(isinstance(label, str) and label for label in self.labels):
            raise ConfigError(f"task.labels is {self.labels!r}; expected names: {WRITTEN}")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"task.labels has a label twice: {', '.join(map(repr, self.labels))}; {WRITTEN}")
        if self.balanced and self.class_weights:
            raise ConfigError("task.balanced and task.class_weights are both set; leave one of them out")
        if self.class_weights and len(self.class_weights) != len(self.labels):
            raise ConfigError(
                f"task.class_weights has {len(self.class_weights)} weights for {len(self.labels)} task.labels; name "
                "all labels, and a weight for each"
            )
        if not all(0 < weight < np.inf for weight in self.class_weights):
            raise ConfigError(f"task.class_weights is {self.class_weights}; each must be a number above 0")
        return super().check()


def class_weights(config, counts, balance):
    """The weight of each label.

    Args:
        config: LabelsConfig.
        counts: int [labels], training examples of each.
        balance: function of the counts that are not 0 to as many balanced weights.

    Returns:
        tuple of floats; () where the config asks for none.
    """
    if not config.balanced:
        return tuple(map(float, config.class_weights))
    counts = np.asarray(counts, np.float64)
    weights = np.ones_like(counts)  # of a label without examples any number will do: no loss of training has it
    weights[counts > 0] = balance(counts[counts > 0])
    return tuple(weights.tolist())


def labels_of(labels, example, data):
    """The distinct labels, sorted; numbers by value.

    Args:
        labels: iterable of str, those of the training examples.
        example: the first of these.
        data: ExampleData.

    Raises:
        DataError: there is but one, or none.
    """
    found = sorted(set(labels), key=lambda text: (0, float(text), text) if text.isdecimal() else (1, 0.0, text))
    if len(found) < 2:
        every = f"every label is {found[0]!r}" if found else "there is no label"
        raise DataError(
            f"{example.location} and all that follows: {every}; expected at least two: is data.label (now "
            f"{data.label!r}) the right column?"
        )
    return tuple(found)


def number_of(label, numbers, location):
    """The number of a label.

    Args:
        label: str, or what a file has instead.
        numbers: dict label -> its number, in their order.
        location: where it stands.

    Raises:
        DataError: the model does not have it.
    """
    if label not in numbers:
        known = ", ".join(map(repr, list(numbers)[:20]))
        raise DataError(f"{location}: label {label!r} is not one of the model's: {known}")
    return numbers[label]
