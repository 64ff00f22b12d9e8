"""Exports for other runtimes, compared with the Keras model on single rows without padding."""

import dataclasses
import os
import tempfile

import numpy as np

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.tensor import tensor_of_variable
from bert_tf.inference.embedder import Embedder
from bert_tf.inference.portable import export_portable
from bert_tf.model.encoder import encoder_of
from bert_tf.tasks.vectors import Vectors
from tests.inference.kinds import BESIDE, KINDS
from tests.packages import minilm

# Kinds that differ in their graphs, their files or their outputs.
QUICK = (
    "classification of pairs",
    "classification on bilstm",
    "classification from left to right",
    "regression",
    "regression by cosine",
    "tagging",
    "intent and slots",
    "questions of byte pairs",
    "multiple choice",
    "pre-training on packed rows",
    "masks by XLM-R",
    "classification by ModernBERT",
    "masks by mmBERT",
    "vectors of sentences",
    "vectors of words",
)
TEXTS = ("a b the good c d a b c good", "the", "a good b, the end")
# Input of the model -> its name in the export.
_INPUTS = {"input_word_ids": "input_ids", "input_mask": "attention_mask", "input_type_ids": "token_type_ids"}


def made(kind, path, format, **options):
    """Exports a small random model; returns it, its task, and the exported file."""
    task, model = (KINDS | BESIDE)[kind]()
    return task, model, exported(task, model, path, format, **options)


def exported(task, model, path, format, **options):
    """Exports a model as its directory is exported, which is written and read for it."""
    return export_portable(task, model, checkpoint_of(task, model), str(path), format, **options)


def checkpoint_of(task, model):
    """The checkpoint of a model, as it is read from its directory."""
    if isinstance(task, Vectors):
        return Embedder(encoder_of(model), task.tokenizer, task.config).checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        directory.save(folder, model, encoder_of(model), task)
        checkpoint = directory.read(folder)
    stored = {variable.path: variable for variable in model.weights}  # the file is gone
    tensors = {path: tensor_of_variable(stored[path]) for path in checkpoint.tensors}
    return dataclasses.replace(checkpoint, tensors=tensors)


def inputs_of(task, names, dtype="int64"):
    """Inputs of the export for `TEXTS`, of which two have padding: name -> [batch, ..., length]."""
    columns = {
        spec.name: np.array(TEXTS if spec.shape.rank == 1 else [TEXTS[:2]] * len(TEXTS), object)
        for spec in task.codec.inputs()
    }
    features = task.codec.token_features(columns)
    return {name: features[ours].numpy().astype(dtype) for ours, name in _INPUTS.items() if name in names}


def expected_of(task, model, inputs):
    """The outputs of the Keras model for each row without its padding: list of dicts name -> [1, ...]."""
    rows = []
    for row in range(len(inputs["input_ids"])):
        length = inputs["attention_mask"][row].sum(-1).max()
        ours = {name: inputs.get(theirs, 0 * inputs["input_ids"])[row : row + 1] for name, theirs in _INPUTS.items()}
        ours = {name: value[..., :length].astype("int32") for name, value in ours.items()}
        ours["masked_lm_positions"] = np.arange(length, dtype="int32")[np.newaxis]
        outputs = model(ours if "masked_lm_positions" in model.input else {n: ours[n] for n in _INPUTS}, training=False)
        if isinstance(task, Vectors):
            outputs = {"last_hidden_state": outputs}
            if task.config.per == "sentence":
                outputs["sentence_embedding"] = outputs["last_hidden_state"].numpy().mean(1)
        names = {"mlm_logits": "logits", "rtd_logits": "logits", "nsp_logits": "seq_relationship_logits"}
        rows.append({names.get(name, name): np.asarray(value) for name, value in outputs.items()})
    return rows


def check_outputs(task, model, inputs, found, **tolerance):
    """Compares the outputs of a runtime for `inputs` with those of the Keras model, without padding."""
    for row, expected in enumerate(expected_of(task, model, inputs)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            cut = tuple(slice(size) for size in value.shape[1:])
            np.testing.assert_allclose(found[name][row][cut], value[0], **tolerance)


def real_vectors(format, folder):
    """Exports a real encoder; returns its file, inputs of texts in two languages, and their sentence vectors."""
    encoder = bert_tf.SentenceEncoder.from_pretrained(minilm())
    exported = encoder.export(folder, format=format)
    texts = ["A film to remember.", "오늘 본 영화는 정말 재미있었다.", "The acting is fine; the story is not. " * 20]
    features = encoder.tokenizer.encode(texts, max_length=256)
    small = encoder.export(f"{folder}-int8", format=format, optimize="int8")
    assert os.path.getsize(small.path) < 0.27 * os.path.getsize(exported.path)
    return exported, {_INPUTS[name]: value.numpy() for name, value in features.items()}, encoder.encode(texts)
