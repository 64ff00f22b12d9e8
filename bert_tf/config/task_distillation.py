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
        texts: further examples without labels: a file in --data_dir, or the absolute path of another one, in the format
            of the labelled ones or in JSON lines (.jsonl); "" for none.
        layers: number of layers of a new student that starts with as many evenly spaced layers of the teacher, and with
            its embeddings (Sanh et al., 2019, arXiv:1910.01108, section 3). A student that --init names has neither
            `layers` nor `size` nor `student`; a new one has one of them.
        size: of a new student, which starts with the principal components of the teacher's word embeddings and
            otherwise random weights: a name that `BertConfig.from_name` knows, such as "tiny".
        student: architecture of such a student; vocab_size 0 means the size of the teacher's vocabulary.
        answers: folder for the teacher's answers, which other runs with the same teacher and texts read instead of
            computing them; "" for one in the model directory.
    """

    temperature: float = setting(2.0, above=0, at_most=1000)
    weight: float = setting(0.9, above=0, at_most=1)
    texts: str = ""
    layers: int = setting(0, at_least=0, at_most=10_000)
    size: str = ""
    student: BertConfig | None = None
    answers: str = ""

    def check(self) -> Self:
        """Raises ConfigError for invalid values; `student` is checked when the size of the vocabulary is known."""
        check_fields(self, "distillation")
        if len(self.of_new_student) > 1:
            raise ConfigError(
                f"{' and '.join(self.of_new_student)} are set, each for another new student; leave all but one out"
            )
        if self.size:
            BertConfig.from_name(self.size)
        return self

    @property
    def of_new_student(self) -> list[str]:
        """The settings that say what a new student is."""
        return [f"distillation.{name}" for name in ("layers", "size", "student") if getattr(self, name)]

    def student_config(self, teacher: BertConfig, vocab_size: int) -> BertConfig:
        """The architecture of a new student without layers of its teacher.

        Args:
            teacher: the teacher's.
            vocab_size: of the teacher's tokenizer.
        """
        if self.student:
            config = dataclasses.replace(self.student, vocab_size=self.student.vocab_size or vocab_size)
        elif self.size:
            kept = {name: getattr(teacher, name) for name in _OF_TEXT}
            config = BertConfig.from_name(self.size, vocab_size=vocab_size, **kept)
        else:
            raise ConfigError(
                "there is no student; name its checkpoint with --init, or set distillation.layers to the number of the "
                "teacher's layers with which a new one starts, or distillation.size to its size, such as tiny"
            )
        if config.check().vocab_size < vocab_size:
            raise ConfigError(
                f"distillation.student.vocab_size is {config.vocab_size}, and the teacher's vocabulary has "
                f"{vocab_size} pieces; set it to 0"
            )
        return config
