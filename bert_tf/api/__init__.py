"""Python API: a class per task with `from_pretrained`, `fit`, `predict`, `evaluate`, `save` and `export`.

Each class is a thin layer over a task in `bert_tf.tasks`: `fit` runs the code of `python -m bert_tf.finetune`,
`predict` that of `python -m bert_tf.predict`, and so on, on values in memory instead of files.
"""
