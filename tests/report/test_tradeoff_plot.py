"""The picture of `compress`: a metric by size and by latency."""

import re

import pytest

from bert_tf.report.plots import tradeoff_plot


@pytest.mark.parametrize(
    "megabytes, milliseconds",
    [
        ((18.5, 91), (2.5, 12.4)),
        ((4.6, 400), (0.3, 50)),
        ((22, 48), (3.0, 3.1)),
        ((0.5, 1300), (0.04, 180)),
        ((3,), (3,)),
    ],
    ids=["steps of compress", "tiny to large", "alike", "far apart", "one"],
)
def test_the_axes_are_labelled_by_at_least_two_plain_numbers_in_their_range(megabytes, milliseconds):
    rows = [
        {"name": f"step {size}", "value": 0.9, "interval": (0.8, 0.95), "megabytes": size, "ms_1_thread": time}
        for size, time in zip(megabytes, milliseconds, strict=True)
    ]
    drawn = tradeoff_plot(rows, "accuracy")
    axes = re.split(r'<g id="\w+-matplotlib\.axis_\d+">', drawn)
    for labels, values in ((axes[1], megabytes), (axes[3], milliseconds)):
        texts = re.findall(r">([^<]+)</text>", labels.split("MB on disk")[0].split("ms for a text")[0])
        numbers = [float(text) for text in texts if not text.endswith("%")]
        assert len(numbers) >= 2, texts
        assert numbers == sorted(set(numbers)) and min(values) / 12 < numbers[0] and numbers[-1] < 12 * max(values)
