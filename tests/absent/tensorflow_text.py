"""Stands for a TensorFlow Text that cannot be imported: PYTHONPATH=tests/absent."""

raise ImportError("hidden by tests/absent")
