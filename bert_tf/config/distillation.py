"""Settings of the distillation of a fine-tuned task into a smaller model."""

import dataclasses
from typing import Self

from bert_tf.config.model import BertConfig
from bert_tf.config.values import check_fields, setting
from bert_tf.errors import ConfigError

_OF_TEXT = ("max_position_embeddings", "position_offset", "type_vocab_size")  # sizes that the teacher's tokenizer needs


@dataclasses.dataclass
class TaskDistillation:
    """How a student learns a task from a teacher, a larger model that was fine-tuned for it.

    Attributes:
        temperature: divides the logits of both before they become probabilities (Hinton et al., 2015,
            arXiv:1503.02531, section 2); the loss is multiplied by its square. Numbers have none.
        weight: share of the teacher's answers in the loss; the rest is for the labels. With 1 the training file may
            have no labels.
        texts: further examples without labels: a file in --data_dir, in the format of the labelled ones or in JSON
            lines (.jsonl); "" for none.
        student: architecture of a new student: a name that `BertConfig.from_name` knows, such as "tiny", or a
            BertConfig, in which vocab_size 0 means the size of the teacher's vocabulary. "" for a student that is
            given, with --init.
        layers: instead of `student`, the number of layers of a new student that starts with as many evenly spaced
            layers of the teacher, and with its embeddings (Sanh et al., 2019, arXiv:1910.01108, section 3).
        answers: folder for the teacher's answers, which other runs with the same teacher and texts read instead of
            computing them; "" for one in the model directory.
    """

    temperature: float = setting(2.0, above=0, at_most=1000)
    weight: float = setting(0.9, above=0, at_most=1)
    texts: str = ""
    student: BertConfig | str = ""
    layers: int = setting(0, at_least=0, at_most=10_000)
    answers: str = ""

    def check(self) -> Self:
        """Raises ConfigError for invalid values; `student` is checked when the size of the vocabulary is known."""
        check_fields(self, "distillation")
        if self.layers and self.student:
            raise ConfigError(
                f"distillation.layers is {self.layers}, and distillation.student another new student; leave one of "
                "them out"
            )
        if isinstance(self.student, str) and self.student:
            BertConfig.from_name(self.student)
        return self

    def student_config(self, teacher: BertConfig, vocab_size: int) -> BertConfig:
        """The architecture of a new student without layers of its teacher.

        Args:
            teacher: the teacher's.
            vocab_size: of the teacher's tokenizer.
        """
        if isinstance(self.student, BertConfig):
            config = dataclasses.replace(self.student, vocab_size=self.student.vocab_size or vocab_size)
        elif self.student:
            kept = {name: getattr(teacher, name) for name in _OF_TEXT}
            config = BertConfig.from_name(self.student, vocab_size=vocab_size, **kept)
        else:
            raise ConfigError(
                "there is no student; name its checkpoint with --init, or set distillation.student to the architecture "
                "of a new one, or distillation.layers to the number of the teacher's layers with which it starts"
            )
        if config.check().vocab_size < vocab_size:
            raise ConfigError(
                f"distillation.student.vocab_size is {config.vocab_size}, and the teacher's vocabulary has "
                f"{vocab_size} pieces; set it to 0"
            )
        return config
