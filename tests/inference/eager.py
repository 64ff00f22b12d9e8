"""Embedders without graphs, whose loop over chunks takes half a second to trace for each of them."""

from unittest import mock

from bert_tf.inference import embedder
from bert_tf.tasks import vectors


def one_chunk():
    """A context in which embedders run their model on all windows at once."""
    return mock.patch.object(vectors, "chunked_map", lambda compute, rows, tokens: compute(0, rows))


class EagerEmbedder(embedder.Embedder):
    """An embedder that is never traced."""

    def __call__(self, *texts, **words):
        with one_chunk():
            return super().__call__(*texts, **words)

    traced = __call__
