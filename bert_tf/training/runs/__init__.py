"""Whole runs: pre-training, fine-tuning, sweeps, ablations."""
