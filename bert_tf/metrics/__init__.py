"""Metrics of finished predictions: lists or arrays of plain values in, no TensorFlow.

If a task has an official script, its metrics equal the script's. Functions such as `glue_scores` compute them and
return a dict of name to float; shares are from 0 to 1, where the scripts print percentages. Metrics that need texts or
tags are computed in two steps: a function such as `question_scores` computes each example's contribution, and one such
as `squad_1_scores` the metrics from these; `bootstrap_intervals` repeats only the second step.
"""
