"""Writes models of TF Model Garden and their outputs; run by the Python that has it, not by that of the tests.

Usage: python model_garden_reference.py DIRECTORY, which contains vocab.txt and features.npz (input_word_ids,
input_mask, input_type_ids, masked_lm_positions: int32). Each model is written to DIRECTORY/NAME, its outputs to
DIRECTORY/NAME.npz.
"""

import os
import shutil
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from official.legacy.bert import configs
from official.nlp.modeling import layers, models, networks
from official.nlp.tools import export_tfhub_lib

SIZES = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "type_vocab_size": 2}


def randomized(model, features, seed):
    model(features)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    return model


def outputs(model, features):
    result = {name: value for name, value in model(features).items() if name != "default"}
    states = result.pop("encoder_outputs")
    return result | {f"encoder_outputs_{index}": value for index, value in enumerate(states)}


def main(directory):
    features = {name: tf.constant(value) for name, value in np.load(f"{directory}/features.npz").items()}
    plain = {name: value for name, value in features.items() if name.startswith("input_")}
    vocabulary = f"{directory}/vocab.txt"
    legacy = configs.BertConfig(num_hidden_layers=2, max_position_embeddings=24, **SIZES)

    def save(name, checkpoint, result):
        checkpoint.save(f"{directory}/{name}/bert_model.ckpt")
        shutil.copy(vocabulary, f"{directory}/{name}/vocab.txt")
        np.savez(f"{directory}/{name}.npz", **result)

    def encoder(kind):
        return kind(num_layers=2, max_sequence_length=24, dict_outputs=True, **SIZES)

    for seed, kind in enumerate((networks.BertEncoder, networks.BertEncoderV2)):
        model = randomized(encoder(kind), plain, seed)
        save(kind.__name__, tf.train.Checkpoint(encoder=model), outputs(model, plain))

    next_sentence = layers.ClassificationHead(inner_dim=SIZES["hidden_size"], num_classes=2, name="next_sentence")
    pretrainer = models.BertPretrainerV2(
        encoder_network=encoder(networks.BertEncoder),
        mlm_activation=export_tfhub_lib.tf_utils.get_activation("gelu"),
        classification_heads=[next_sentence],
    )
    randomized(pretrainer, features, 3)
    result = outputs(pretrainer, features)
    result["pooled_output"] = next_sentence(result["sequence_output"], only_project=True)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(pretrainer.trainable_variables)
    step = tf.Variable(12, dtype=tf.int64)
    items = pretrainer.checkpoint_items
    save("pretrainer", tf.train.Checkpoint(model=pretrainer, optimizer=optimizer, global_step=step, **items), result)

    for name, with_mlm in (("saved_model", False), ("saved_model_with_mlm", True)):
        export_tfhub_lib.export_model(
            f"{directory}/{name}",
            bert_config=legacy,
            model_checkpoint_path=tf.train.latest_checkpoint(f"{directory}/pretrainer"),
            with_mlm=with_mlm,
            vocab_file=vocabulary,
            do_lower_case=False,
        )
        loaded = tf.saved_model.load(f"{directory}/{name}")
        result = outputs(loaded.mlm, features) if with_mlm else outputs(loaded, plain)
        np.savez(f"{directory}/{name}.npz", **result)


if __name__ == "__main__":
    main(sys.argv[1])
