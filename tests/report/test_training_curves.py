import struct

import pytest
from matplotlib.figure import Figure

from bert_tf.report.training_curves import draw_curves


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


def test_a_picture_that_can_not_be_written_leaves_the_one_before(tmp_path, monkeypatch):
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
