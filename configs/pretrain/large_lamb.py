"""BERT-large in 8,601 updates with LAMB (You et al., 2020): batches of 65,536 x 128, then of 32,768 x 512 tokens.

For hundreds of accelerators, or few and `accumulation`; give files and vocabulary as with base.py.
"""

from bert_tf.config import BertConfig, PhaseConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig

STEPS = 7038 + 1563


def get_config():
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        # As in base.py: cuDNN's fused attention has no dropout.
        model=BertConfig.from_name("large", vocab_size=0, attention_dropout=0.0),
        data=PretrainingData(max_length=128, max_predictions=20),
        train=TrainConfig(
            optimizer="lamb",
            steps=STEPS,
            # The learning rate warms up again in the second phase, as in the paper. Rates and warm-up (2,000 and 200
            # updates) are those of NVIDIA's DeepLearningExamples (PyTorch, BERT), which reproduces the paper.
            phases=(
                PhaseConfig(share=7038 / STEPS, batch_size=65_536, learning_rate=6e-3, warmup=0.2843),
                PhaseConfig(
                    share=1563 / STEPS,
                    batch_size=32_768,
                    max_length=512,
                    max_predictions=80,
                    learning_rate=4e-3,
                    warmup=0.128,
                ),
            ),
            # 65,536 / 256: a micro-batch has 256 sequences of 128 tokens over all replicas, or 128 of 512.
            accumulation=256,
            remat=True,
            save_every=100,
        ),
    )
