"""Model inputs: corpora, example data sets, masking, windows and batching."""
