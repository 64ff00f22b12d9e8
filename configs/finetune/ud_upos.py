"""Parts of speech of a Universal Dependencies treebank: --data_dir holds its .conllu files.

The default names are those of English EWT; another's: --config.data.train=ko_gsd-ud-train.conllu and so on.
"""

from bert_tf.config import ExampleData, FinetuneConfig, TaggingConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=TaggingConfig(max_length=128),
        data=ExampleData(
            format="conllu",
            train="en_ewt-ud-train.conllu",
            validation="en_ewt-ud-dev.conllu",
            test="en_ewt-ud-test.conllu",
            column="upos",
        ),
        train=TrainConfig(batch_size=32, epochs=3),
    )
