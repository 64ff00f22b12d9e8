"""Metrics of finished predictions: lists or arrays of plain values in, no TensorFlow.

If a task has an official script, its metrics equal the script's. Functions such as `squad_1_scores` compute them and
return a dict of name to float; shares are from 0 to 1, where the scripts print percentages. The other functions compute
parts of these metrics, per example or from sums over examples (for bootstrap intervals), and describe what they return.
"""
