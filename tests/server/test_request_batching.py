"""Requests share batches, and each gets what it would get alone."""

import asyncio
import concurrent.futures
import threading

import numpy as np
import pytest

from bert_tf.server.monitoring import QUEUING_LATENCY, Metrics
from bert_tf.server.request_batching import BatchingOptions, Queue
from bert_tf.server.status import Code, ServingError

COUNTED = {"count": ("words",)}
OUTPUTS = ("first", "words")
AT_ONCE = BatchingOptions(wait=0, threads=1)


class Model:
    """Splits texts into words, padded to the widest row of the batch; its first run waits for `let_go`."""

    def __init__(self):
        self.batches = []
        self.let_go = threading.Event()

    def __call__(self, inputs, outputs, timeout, apis=()):
        texts = inputs["text"].tolist()
        self.batches.append(texts)
        if len(self.batches) == 1:
            self.let_go.wait(10)
        if b"bad" in texts:
            raise ServingError(Code.INVALID_ARGUMENT, "a bad text")
        words = [text.split() for text in texts]
        width = max(map(len, words), default=0)
        padded = [row + [b""] * (width - len(row)) for row in words]
        answers = {
            "first": np.array([row[0] if row else b"" for row in words], object),
            "words": np.array(padded, object).reshape(len(texts), width),
            "count": np.array([len(row) for row in words], np.int32),
        }
        return {name: answers[name] for name in outputs}


def texts(*values):
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return {"text": array}


def test_two_batches_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30)

    def model(inputs, outputs, timeout, apis):
        both.wait()  # fails unless another batch runs, too
        return {"first": inputs["text"]}

    async def main():
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            queue = Queue(model, BatchingOptions(), executor, {}, Metrics(), "m", skips_padding=False)
            return await asyncio.gather(*(queue.submit(texts(text), ("first",), None) for text in "ab"))

    assert [answer["first"].tolist() for answer in asyncio.run(main())] == [[b"a"], [b"b"]]


def test_requests_that_wait_for_two_idle_threads_are_divided_between_them():
    go, batches = threading.Event(), []

    def model(inputs, outputs, timeout, apis):
        batches.append(len(inputs["text"]))
        if b"busy" in inputs["text"].tolist():
            go.wait(30)
        return {"first": inputs["text"]}

    async def main():
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            queue = Queue(model, BatchingOptions(wait=0.1), executor, {}, Metrics(), "m", skips_padding=False)

            def submit(*values):
                return [asyncio.create_task(queue.submit(texts(value), ("first",), None)) for value in values]

            tasks = submit("busy", "busy")
            while len(batches) < 2:
                await asyncio.sleep(0.001)
            tasks += submit("a", "b")
            await asyncio.sleep(0)
            go.set()
            await asyncio.gather(*tasks)  # a and b in one batch, after which the queue waits for more
            await asyncio.gather(*submit(*"cdefgh"))

    asyncio.run(main())
    assert batches == [1, 1, 2, 3, 3]


def ask(requests, *, options=AT_ONCE, timeout=None, outputs=OUTPUTS, skips_padding=False):
    """Sends requests at the same time, while the model is busy with another; returns the answers, and the batches."""

    async def main():
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            queue = Queue(model, options, executor, COUNTED, metrics, "m", skips_padding)
            busy = asyncio.create_task(queue.submit(texts("busy"), outputs, None))
            while not model.batches:
                await asyncio.sleep(0.001)
            waiting = [
                asyncio.create_task(asyncio.wait_for(queue.submit(texts(*request), outputs, None), timeout))
                for request in requests
            ]
            if timeout:
                await asyncio.wait(waiting)
            else:
                await asyncio.sleep(0)
            model.let_go.set()
            await busy
            return await asyncio.gather(*waiting, return_exceptions=True)

    model, metrics = Model(), Metrics()
    answers = asyncio.run(main())
    assert QUEUING_LATENCY in metrics.page()
    return answers, model.batches[1:]


def alone(request, outputs=OUTPUTS):
    model = Model()
    model.let_go.set()
    return model(texts(*request), outputs, None)


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


REQUESTS = [("one two three four",), ("five",), ("", "six seven"), ("eight nine ten",)]


def test_requests_to_a_busy_model_share_a_batch_and_get_the_answers_that_they_would_get_alone():
    answers, batches = ask(REQUESTS)
    assert len(batches) == 1 and len(batches[0]) == 5
    for request, answer in zip(REQUESTS, answers, strict=True):
        assert_equal(answer, alone(request))  # also as wide as alone, not as wide as the batch


def test_a_request_to_an_idle_model_does_not_wait_for_others():
    async def main():
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            queue = Queue(model, BatchingOptions(wait=3600), executor, COUNTED, Metrics(), "m", skips_padding=False)
            for _ in range(2):
                answer = await asyncio.wait_for(queue.submit(texts("a b"), OUTPUTS, None), 60)
                assert_equal(answer, alone(("a b",)))

    model = Model()
    model.let_go.set()
    asyncio.run(main())


def test_widths_are_right_for_a_client_that_does_not_ask_for_the_counts():
    answers, _ = ask(REQUESTS, outputs=("words",))
    for request, answer in zip(REQUESTS, answers, strict=True):
        assert_equal(answer, alone(request, ("words",)))


def test_one_bad_request_fails_alone():
    answers, batches = ask([("good one",), ("bad",), ("good two",)])
    assert len(batches) == 4  # the batch, and each of its requests
    assert isinstance(answers[1], ServingError) and answers[1].code is Code.INVALID_ARGUMENT
    assert_equal(answers[0], alone(("good one",)))
    assert_equal(answers[2], alone(("good two",)))


def test_a_batch_holds_texts_of_similar_length():
    short, long = "word " * 2, "word " * 100
    _, batches = ask([(long,), (short,), (long,), (short,)], options=AT_ONCE._replace(tokens=300))
    assert [sorted({len(text) for text in batch}) for batch in batches] == [[500], [10]]


@pytest.mark.parametrize(("skips_padding", "count"), [(False, 2), (True, 1)])
def test_texts_of_different_length_share_a_batch_if_the_model_computes_no_padding(skips_padding, count):
    requests = [("word " * words,) for words in (5, 40, 8, 30)]
    assert len(ask(requests, skips_padding=skips_padding)[1]) == count


def test_batches_have_at_most_so_many_rows_and_a_larger_request_runs_alone():
    requests = [("a",)] * 5 + [("b",) * 9]
    _, batches = ask(requests, options=AT_ONCE._replace(rows=4))
    assert sorted(map(len, batches)) == [1, 4, 9]


def test_requests_of_other_shapes_do_not_share_a_batch():
    def run(inputs, outputs, timeout, apis):
        batches.append(inputs["x"].shape)
        return {"y": inputs["x"].sum(1)}

    async def main():
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            queue = Queue(run, AT_ONCE, executor, {}, Metrics(), "m", skips_padding=False)
            values = [np.ones([1, width]) for width in (7, 2, 3, 2, 3)]
            return await asyncio.gather(*(queue.submit({"x": value}, ("y",), None) for value in values))

    batches = []
    answers = asyncio.run(main())
    assert [float(answer["y"][0]) for answer in answers] == [7, 2, 3, 2, 3]
    assert sorted(batches) == [(1, 7), (2, 2), (2, 3)]


def test_a_full_queue_refuses_requests_and_answers_those_that_wait():
    answers, _ = ask([("a",), ("b",), ("c",)], options=AT_ONCE._replace(queued_rows=2))
    assert_equal(answers[0], alone(("a",)))
    assert isinstance(answers[2], ServingError) and answers[2].code is Code.UNAVAILABLE


def test_requests_that_were_given_up_do_not_fill_the_queue():
    async def main():
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            queue = Queue(
                model, AT_ONCE._replace(queued_rows=2), executor, COUNTED, Metrics(), "m", skips_padding=False
            )
            busy = asyncio.create_task(queue.submit(texts("busy"), OUTPUTS, None))
            while not model.batches:
                await asyncio.sleep(0.001)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(queue.submit(texts("a", "b"), OUTPUTS, None), 0.001)
            model.let_go.set()
            await busy

    model = Model()
    asyncio.run(main())


def test_a_request_that_waits_too_long_is_not_run():
    answers, batches = ask([("a",), ("b",)], timeout=0.01)
    assert {type(answer) for answer in answers} == {TimeoutError}
    assert batches == []


@pytest.mark.parametrize("count", [1, 40])
def test_no_answer_is_lost_or_mixed_up(count):
    requests = [
        tuple(f"{row} {'x ' * (row % 7)}" for row in range(first, first + 1 + first % 3)) for first in range(count)
    ]
    answers, batches = ask(requests, options=BatchingOptions(wait=0.001, rows=7, threads=1))
    for request, answer in zip(requests, answers, strict=True):
        assert_equal(answer, alone(request))
    assert sum(map(len, batches)) == sum(map(len, requests))
