"""Measures of finished predictions: lists or arrays of plain values in, no TensorFlow.

Where a task has an official script, its scores are those of the script: functions named after what is scored, as
`squad_1_scores`, give a dict of name to float. Shares are from 0 to 1, where the scripts print percentages. The others
are parts of these, for each example or of sums over examples (which intervals are drawn from), and say what they give.
"""
