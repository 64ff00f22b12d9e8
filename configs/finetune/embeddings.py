"""Trains a sentence encoder on texts that belong together; the examples decide what is learned (docs/search.md).

    python -m bert_tf.finetune --config=configs/finetune/embeddings.py --data_dir=DIR --init=MODEL --model_dir=DIR

DIR has train.jsonl and dev.jsonl, with {"query": "...", "positive": "..."} in each line, or another kind of groups.
Questions and the paragraphs that answer them: --config.data.format=squad, or korquad; a corpus with judgements: beir.
"""

from bert_tf.config import EmbeddingsConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=EmbeddingsConfig(),
        data=ExampleData(format="groups"),
        # Larger batches have more negatives: --config.train.batch_size=1024 --config.train.accumulation=16 takes the
        # memory of 64 examples.
        train=TrainConfig(batch_size=64, epochs=1.0),
    )
