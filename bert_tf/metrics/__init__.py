"""Measures of finished predictions, equal to those of the tasks' official scripts.

Arrays or lists in, a dict of name to float out. Shares are from 0 to 1, where the scripts print percentages.
"""
