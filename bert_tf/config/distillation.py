"""Settings of the distillation of a fine-tuned task into a smaller model."""

import dataclasses
from typing import Self

from bert_tf.config.model import BertConfig
from bert_tf.config.values import check_fields, setting
from bert_tf.errors import ConfigError


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
        student: architecture of a new student; vocab_size 0 means the size of the teacher's vocabulary. None for a
            student that is given, with --init.
        copy_layers: whether a new student starts with the teacher's embeddings and evenly spaced layers of it (Sanh et
            al., 2019, arXiv:1910.01108, section 3), which must have the same sizes.
        answers: folder for the teacher's answers, which other runs with the same teacher and texts read instead of
            computing them; "" for one in the model directory.
    """

    temperature: float = setting(2.0, above=0, at_most=1000)
    weight: float = setting(0.9, above=0, at_most=1)
    texts: str = ""
    student: BertConfig | None = None
    copy_layers: bool = False
    answers: str = ""

    def check(self) -> Self:
        """Raises ConfigError for invalid values; `student` is checked when the size of the vocabulary is known."""
        check_fields(self, "distillation")
        if self.copy_layers and self.student is None:
            raise ConfigError(
                "distillation.copy_layers is set, but there is no new student; set distillation.student to its "
                "architecture"
            )
        return self

    def student_config(self, vocab_size: int, *, pooler: bool) -> BertConfig:
        """The architecture of a new student.

        Args:
            vocab_size: of the teacher's tokenizer.
            pooler: whether the task reads the pooled output.
        """
        if self.student is None:
            raise ConfigError(
                "there is no student; name its checkpoint with --init, or set distillation.student to the architecture "
                "of a new one"
            )
        config = dataclasses.replace(self.student, vocab_size=self.student.vocab_size or vocab_size, pooler=pooler)
        if config.check().vocab_size < vocab_size:
            raise ConfigError(
                f"distillation.student.vocab_size is {config.vocab_size}, and the teacher's vocabulary has "
                f"{vocab_size} pieces; set it to 0"
            )
        return config
