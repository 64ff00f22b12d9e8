"""Pre-training steps of this project: the compiled step of `pretrain` with its optimizer, and `updates` a call."""

import dataclasses
from typing import Any

from worker import Round, repeated, serve, versions, warmed_up


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    from bert_tf import quiet

    quiet.import_tensorflow()
    import tensorflow as tf
    from pretraining_batches import batches

    from bert_tf.config import BertConfig, TrainConfig
    from bert_tf.inputs.batching import stream
    from bert_tf.model.encoder import BertEncoder
    from bert_tf.tasks.masked_lm import MaskedLM
    from bert_tf.tasks.mlm_and_nsp import Pretraining
    from bert_tf.text import Tokenizer
    from bert_tf.text.base import BERT
    from bert_tf.training import strategy
    from bert_tf.training.dtype import policy
    from bert_tf.training.trainer import Trainer

    config = TrainConfig(batch_size=settings["batch"], steps=1_000_000, learning_rate=1e-4, dtype=settings["dtype"])
    where = strategy.create(train=config)  # as the program does
    with where.scope():
        model_config = BertConfig.from_name(settings["model"])
        # As the program does: without next sentences, nothing would train the pooler.
        model_config = dataclasses.replace(model_config, pooler=model_config.type_vocab_size > 0)
        encoder = BertEncoder(model_config, dtype=policy(settings["dtype"]))
        kind = Pretraining if model_config.pooler else MaskedLM
        task = kind(Tokenizer(BERT), settings["length"])  # any tokenizer: only its special tokens are read
        model = task.build(encoder)
    trainer = Trainer(task, model, config.check(), where, config.steps)
    made = batches(settings)
    rows = {name: tf.stack([batch[name] for batch in made]) for name in made[0]}
    iterator = iter(stream(lambda epoch: tf.data.Dataset.from_tensor_slices(rows)))
    call = trainer.train_step.compiled(iterator, lambda features: features, 1)
    zero, updates = tf.constant(0, tf.int64), tf.constant(settings["updates"], tf.int64)
    state = {"done": zero}

    def step() -> float:
        done, totals, *_ = call(state["done"], updates, zero, trainer.loss_scale.variable.read_value())
        state["done"] += done
        total, weight = totals.numpy()[trainer.train_step.names.index("mlm_loss")]
        return float(total / weight)

    losses = warmed_up(step)
    ready = {
        "versions": versions("tensorflow", "keras"), "dtype": settings["dtype"],
        "optimizer": "AdamW, clipped to norm 1", "updates_per_call": settings["updates"], "mlm_losses": losses[:2],
        "parameters": model.count_params(),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"] * settings["updates"], "sequences", settings["seconds"])


serve(setup)
