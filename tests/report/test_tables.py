"""Tables in plain text and in Markdown."""

from bert_tf.report.tables import indented, markdown


def test_a_table_is_written_as_markdown():
    lines = ["| a   | long |", "| --- | ---- |", "| 123 |      |", "| b   | 4    |"]
    assert markdown(("a", "long"), [("123", ""), ("b", "4")]).splitlines() == lines


def test_numbers_end_below_each_other():
    assert indented([("", "now"), ("weights", "4"), ("all", "1,000")]).splitlines() == [
        "             now",
        "  weights      4",
        "  all      1,000",
    ]
