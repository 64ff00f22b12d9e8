"""SST-2 from a fine-tuned teacher: --config=configs/distill/sst2.py:SIZE, with the data of configs/finetune/sst2.py.

SIZE is `layers3` (3 layers of 384 units), `tiny` (2 layers of 128 units) or `init`, for a student that --init names.
"""

from bert_tf.config import BertConfig, ClassificationConfig, ExampleData, FinetuneConfig, TaskDistillation, TrainConfig
from bert_tf.errors import ConfigError

STUDENTS = {
    "layers3": BertConfig(vocab_size=0, num_layers=3, hidden_size=384, num_heads=12, intermediate_size=1536),
    "tiny": BertConfig.from_name("tiny", vocab_size=0),
    "init": None,
}


def get_config(size="tiny"):
    if size not in STUDENTS:
        raise ConfigError(f"size {size!r}; expected {', '.join(STUDENTS)}")
    return FinetuneConfig(
        task=ClassificationConfig(max_length=128),
        data=ExampleData(format="sst"),
        distillation=TaskDistillation(student=STUDENTS[size]),
        train=TrainConfig(batch_size=32, epochs=10, learning_rate=3e-4),
    )
