import struct

import pytest
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bert_tf.report.plots import draw_curves


def points(steps, losses):
    rows = []
    for step in steps:
        row = {"step": step, "phase": int(step > 50), "learning_rate": 1e-4 / step, "sequences_per_second": 5.0}
        rows.append(row | {name: 1.0 / step for name in losses})
    return rows


def size(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


def test_each_loss_has_a_column(tmp_path):
    sizes = []
    for losses in (["loss"], ["loss", "mlm_loss", "nsp_loss"]):
        path = tmp_path / f"{len(losses)}.png"
        draw_curves(str(path), points(range(1, 101), losses), [{"step": 50, "loss": 1.0}], [20], title="a run")
        sizes.append(size(path))
    assert sizes[1][0] == sizes[0][0] * 3 // 2 and sizes[0][1] == sizes[1][1]


@pytest.fixture
def drawn(monkeypatch):
    """list of the figures drawn, which are not written to files."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


@pytest.mark.parametrize(
    "best, title, percent", [("f1", "F1", True), ("spearman", "Spearman", False), ("micro_f1", "Micro f1", True)]
)
def test_the_monitored_metric_is_below_the_only_loss(tmp_path, drawn, best, title, percent):
    evaluations = [{"step": step, "loss": 1.0, "accuracy": 0.99, best: step / 100} for step in (30, 60, 90)]
    rows = [row | {"accuracy": 0.98} for row in points(range(1, 101), ["loss"])]
    draw_curves(tmp_path / "curves.png", rows, evaluations, [], title="", monitor=best)
    below = drawn[0].axes[2]
    assert below.get_title(loc="left") == title
    (curve,) = (line for line in below.lines if line.get_label() == "validation")
    assert curve.get_xydata().tolist() == [[30, 0.3], [60, 0.6], [90, 0.9]]
    assert isinstance(below.yaxis.get_major_formatter(), PercentFormatter) == percent


def test_the_accuracy_is_below_each_of_several_losses_and_below_a_monitored_loss(tmp_path, drawn):
    losses = ["mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"]
    for names, expected in ((losses, ["Masked tokens: accuracy", "Sentence pairs: accuracy"]),
                            (["loss", "accuracy"], ["Accuracy"])):  # fmt: skip
        draw_curves(tmp_path / "curves.png", points(range(1, 11), names), [], [], title="")
        below = drawn[-1].axes[len(expected) + 1 : -1]
        assert [axes.get_title(loc="left") for axes in below] == expected
        assert all(axes.lines for axes in below)


def test_languages_have_a_column_with_the_loss_of_each_and_the_tokens_read_so_far(tmp_path, drawn):
    names = [f"{language}/{name}" for language in ("en", "ko") for name in ("mlm_loss", "tokens")]
    rows = points(range(1, 5), ["mlm_loss", "mlm_accuracy", *names])
    draw_curves(tmp_path / "curves.png", rows, [{"step": 4, "mlm_loss": 1.0, "ko/mlm_loss": 2.0}], [], title="")
    assert len(drawn[0].axes) == 2 * 3
    above, below = drawn[0].axes[1], drawn[0].axes[4]
    assert above.get_title(loc="left") == "Masked tokens: loss by language"
    english, korean = above.lines
    assert english.get_label() == "en" and len(english.get_xdata()) == 4  # of training: there is no validation text
    assert korean.get_label() == "ko" and korean.get_xydata().tolist() == [[4, 2.0]]
    assert below.lines[0].get_ydata().tolist() == pytest.approx([1.0, 1.5, 11 / 6, 25 / 12])


def test_a_plot_that_cannot_be_written_does_not_replace_the_previous_one(tmp_path, monkeypatch):
    path = tmp_path / "curves.png"
    path.write_bytes(b"before")

    def fail(figure, to, **_):
        with open(to, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        draw_curves(str(path), points([1, 2], ["loss"]), [], [], title="")
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
