"""Trains a reranker, which scores a query with a text (docs/search.md).

    python -m bert_tf.finetune --config=configs/finetune/reranker.py --data_dir=DIR --init=MODEL --model_dir=DIR

DIR has train.jsonl and dev.jsonl, with {"query": "...", "positive": "...", "negatives": [...]} in each line, as
`python -m bert_tf.mine` writes them; or with a number for each pair, or scores of another model.
"""

from bert_tf.config import ExampleData, FinetuneConfig, RerankerConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=RerankerConfig(),
        data=ExampleData(format="groups"),
        train=TrainConfig(batch_size=16, epochs=1.0),
    )
