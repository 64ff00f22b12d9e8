"""BERT-base with the numbers of the paper's appendix A.2: a million updates of 256 sequences, mostly of 128 tokens.

A start for a corpus of your own; give its files and vocabulary:

    python -m bert_tf.prepare --input='corpus/*.txt.gz' --vocab=vocab.txt --output=prepared
    python -m bert_tf.pretrain --config=configs/pretrain/base.py --config.input=prepared \\
        --config.tokenizer.vocab=vocab.txt --model_dir=DIR
"""

from bert_tf.config import BertConfig, PhaseConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig


def get_config():
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        # No dropout of attention probabilities, unlike the paper: cuDNN's fused attention on GPUs has none that a
        # resumed run could repeat. It moves half of the memory (docs/decisions/model.md).
        model=BertConfig.from_name("base", vocab_size=0, attention_dropout=0.0),
        data=PretrainingData(max_length=128, max_predictions=20),
        train=TrainConfig(
            # --config.train.recipe=google also optimizes exactly as google-research/bert does, whose model has
            # --config.model.attention_dropout=0.1.
            batch_size=256,
            steps=1_000_000,
            # One learning-rate schedule for both phases. The micro-batches keep the number of tokens in memory about
            # equal; replicas divide them further.
            phases=(
                PhaseConfig(share=0.9, accumulation=1),
                PhaseConfig(share=0.1, accumulation=4, max_length=512, max_predictions=77),
            ),
            learning_rate=1e-4,
            warmup_steps=10_000,
            save_every=1000,
            log_every=100,
        ),
    )
