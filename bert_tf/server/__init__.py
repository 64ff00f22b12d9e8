"""A model server with TF Serving's protocols, for CPUs, and a page to try models on: `python -m bert_tf.serve`."""
