import logging
import re
from pathlib import Path

import pytest

from bert_tf import quiet
from bert_tf.progress import TRAINING, bar, duration, training_line

ROOT = Path(__file__).parents[1]
LINE = re.compile(
    r"(?:pretrain|finetune|distill) \d+/\d+(?:, \w+ [\d.]+(?: [\d.]+%)?)+, lr [\d.e-]+"
    r"(?:, [\d.]+[kM]? seq(?: [\d.]+[kM]? tok)?/s)?(?:, pad \d+%)?(?:, unknown \d+%)?(?:, \d+% peak)?"
    r"(?:, [\ddhm: ]+ left)?"
)


def test_the_line_of_pretraining_fits_into_120_columns():
    metrics = {"loss": 7.4, "mlm_loss": 6.7231, "mlm_accuracy": 0.123, "nsp_loss": 0.6931, "nsp_accuracy": 0.999}
    metrics |= {"padding_share": 0.1234, "gradient_norm": 1.0}
    rates = {
        "steps_per_second": 1.0,
        "sequences_per_second": 12345.6,
        "tokens_per_second": 1234567.0,
        "mfu": 0.417,
    }
    shown = training_line(metrics, rates, 1.26e-4, 3 * 86400.0)
    assert shown == ("mlm 6.72 12.3%, nsp 0.693 99.9%, lr 1.3e-4, 12.3k seq 1.23M tok/s, pad 12%, 42% peak, 3d 0h left")
    assert len(f"pretrain 100000/100000, {shown}") <= 120
    assert LINE.fullmatch(f"pretrain 100000/100000, {shown}")


def test_lines_in_pages_and_notebooks_are_as_they_are_printed_now():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    lines = [
        line for page in pages for line in re.findall(r"\w+ \d+/\d+, [^\"\n`|]*", page.read_text(encoding="utf-8"))
    ]
    lines = [line.removesuffix("\\n") for line in lines if re.match("pretrain|finetune|distill", line)]
    assert len(lines) > 20
    for line in lines:
        assert LINE.fullmatch(line), line


def test_a_log_file_gets_one_line_per_state_without_control_characters(capfd):
    with bar("pretrain", 4, "step", layout=TRAINING) as line:
        for _ in range(4):
            line.set_postfix_str("loss 1.0", refresh=False)
            line.update()
            line.refresh()
    written = capfd.readouterr().err
    assert "\r" not in written
    assert written.splitlines() == ["pretrain 0/4", *(f"pretrain {step}/4, loss 1.0" for step in range(1, 5))]


@pytest.mark.parametrize(
    "seconds, shown", [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (18720, "5h 12m"), (273600, "3d 4h")]
)
def test_durations_are_given_in_two_units(seconds, shown):
    assert duration(seconds) == shown


def test_the_line_of_skipped_updates_omits_undefined_shares():
    metrics = {"mlm_loss": float("nan"), "mlm_accuracy": float("nan"), "padding_share": float("nan")}
    assert training_line(metrics, {}, 1e-3, None) == "mlm nan, lr 1.0e-3"


def test_messages_below_warnings_are_hidden_for_a_while_in_tensorflows_own_logger_too():
    own = logging.getLogger("tensorflow")
    before = own.level
    own.setLevel(logging.INFO)  # as in a notebook
    try:
        with quiet.warnings_only():
            assert own.isEnabledFor(logging.WARNING) and not own.isEnabledFor(logging.INFO)
        assert own.isEnabledFor(logging.INFO)
    finally:
        own.setLevel(before)
