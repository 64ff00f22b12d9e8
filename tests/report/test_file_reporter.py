"""Result tables, and the plot of an ablation."""

import statistics

import matplotlib.image

from bert_tf.report.file_reporter import ablation_table
from bert_tf.report.plots import draw_ablation


def row(name, *accuracies):
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return {
        "name": name, "size": "tiny", "parameters": 1_234_567, "accuracies": list(accuracies),
        "mean": statistics.mean(accuracies), "deviation": deviation,
    }  # fmt: skip


def test_the_table_has_one_row_per_model_with_mean_deviation_and_difference():
    header, rule, *lines = ablation_table([row("BERT", 0.70, 0.74), row("No NSP", 0.69, 0.71)]).splitlines()
    assert header.count("|") == rule.count("|") == lines[0].count("|") == lines[1].count("|")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:2]]
    assert cells[0] == ["BERT", "tiny", "1.2 M", "0.720", "0.028", "0.700, 0.740", ""]
    assert cells[1] == ["No NSP", "tiny", "1.2 M", "0.700", "0.014", "0.690, 0.710", "-0.020"]
    assert "2 seeds" in lines[-1]


def test_one_seed_has_no_deviation():
    cells = [cell.strip() for cell in ablation_table([row("BERT", 0.7)]).splitlines()[2].split("|")]
    assert cells[4:7] == ["0.700", "", "0.700"]


def test_the_plot_grows_with_the_rows(tmp_path):
    heights = []
    for count in (1, 5):
        path = tmp_path / f"{count}.png"
        draw_ablation(path, [row(f"model {number}", 0.6, 0.7, 0.65) for number in range(count)])
        heights.append(matplotlib.image.imread(path).shape[0])
    assert heights[0] < heights[1]
