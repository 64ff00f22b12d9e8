"""Model inputs: corpora, example data sets, packing, masking, windows and batching."""
