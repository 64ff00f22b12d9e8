"""Scores of texts for queries by a reranker, opened from a checkpoint in any format."""

from collections.abc import Iterable, Iterator

import keras

from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.adapt import as_reranker
from bert_tf.checkpoints.directory import task_and_model
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextGroup
from bert_tf.model.chunks import map_in_chunks
from bert_tf.model.mode import infer
from bert_tf.progress import bar
from bert_tf.quiet import traced_function
from bert_tf.tasks.reranking import Reranking
from bert_tf.types import StrPath, Tensors


def open_reranker(path: StrPath) -> tuple[Reranking, keras.Model]:
    """Opens a reranker, or another model that predicts a number for a pair, such as a CrossEncoder."""
    checkpoint = as_reranker(open_with_warnings(path))
    if not checkpoint.is_for(Reranking):
        raise DataError(f"{path}: no reranker; expected a model that was fine-tuned as one, or a CrossEncoder")
    task, model = task_and_model(checkpoint, str(path))
    assert isinstance(task, Reranking)
    return task, model


def score(task: Reranking, model: keras.Model, groups: Iterable[tuple[str, list[str]]]) -> Iterator[list[float]]:
    """Streams the scores of each query's texts."""
    codec = task.codec

    def of_columns(columns: Tensors) -> Tensors:
        features = codec.preprocess(columns)
        decoded = map_in_chunks(lambda part: codec.postprocess(part, infer(model, part)), codec.pad(features))
        return codec.aggregate_windows(columns, features["row"], decoded)

    compute = traced_function(of_columns, reduce_retracing=True)
    with bar("rerank", None, "query") as line:
        for query, texts in groups:
            scores: list[float] = []
            if texts:
                example = TextGroup("", (query, *texts), None, query)
                answers = compute(codec.to_tensors([example], labelled=False))
                found = codec.predictions([example], {name: value.numpy() for name, value in answers.items()})
                scores = found[0]["scores"]
            yield scores
            line.update()
