"""Labelled data: one table of formats, and their readers."""
