"""Rows of exports share batches and get the answers that they get alone: as many items, and the same ones."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.server.monitoring import QUEUING_LATENCY, Metrics
from bert_tf.server.request_batching import BatchingOptions
from bert_tf.server.servable import RunOptions, Runtime, Servable
from bert_tf.server.status import Code, ServingError
from tests.inference import kinds

QUICK = ("tagging",)
# What cannot be batched: how wide these answers are depends on other rows, and no output says for which.
ALONE = {
    "classify": {"multiple choice"},
    "attention": set(kinds.WITH_ATTENTION),
}


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds.KINDS]
)
def test_rows_that_share_a_batch_get_the_answers_that_they_get_alone(kind, monkeypatch):
    case = kinds.case(kind)
    run, runs = Servable.run, []
    monkeypatch.setattr(Servable, "run", lambda *arguments, **named: runs.append(0) or run(*arguments, **named))
    metrics = Metrics()
    # Requests wait long enough to meet.
    runtime = Runtime(RunOptions(batching=BatchingOptions(wait=0.2)), metrics)
    servable = Servable("m", 1, case.path, runtime)
    batched = {name for name in servable.signatures if name in servable._queues}
    assert batched == {name for name in servable.signatures if kind not in ALONE.get(name, ())}
    sent = [
        (request.signature, {name: value[row : row + 1] for name, value in request.inputs.items()})
        for request in case.requests
        if request.signature in batched
        for row in range(min(len(next(iter(request.inputs.values()))), 9))
    ]

    async def main():
        return await asyncio.gather(*(servable.predict(signature, inputs) for signature, inputs in sent))

    runs.clear()  # of the warm-up
    answers = asyncio.run(main())
    batches = len(runs)
    for (signature, inputs), answer in zip(sent, answers, strict=True):
        alone = servable.run(signature, inputs)
        assert answer.keys() == alone.keys()
        for name, value in alone.items():
            assert answer[name].shape == value.shape, (signature, name)
            if value.dtype.kind == "f":
                np.testing.assert_allclose(answer[name], value, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(answer[name], value)
    waited = [line for line in metrics.page().splitlines() if line.startswith(f"{QUEUING_LATENCY}_count")]
    assert int(waited[0].split()[-1]) == len(sent) and batches < len(sent) / 2
    servable.close()
    runtime.close()


def test_ragged_outputs_are_refused_by_name(tmp_path):
    class Words(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def serve(self, text):
            words = tf.strings.split(text)
            return {"words": words, "count": words.row_lengths()}

    module = Words()
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    runtime = Runtime(RunOptions(batch_all=True), Metrics())
    servable = Servable("m", 1, str(tmp_path), runtime)
    inputs = {"text": np.array([b"a b", b"c"], object)}
    assert asyncio.run(servable.predict("", inputs, ["count"]))["count"].tolist() == [2, 1]
    with pytest.raises(ServingError, match="words is ragged or sparse; only dense tensors can be served") as error:
        asyncio.run(servable.predict("", inputs))
    assert error.value.code is Code.UNIMPLEMENTED
    servable.close()
    runtime.close()
