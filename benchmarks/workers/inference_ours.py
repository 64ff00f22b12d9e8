"""Inference of this project: the model in this process, or an export in a session, as TF Serving runs it.

Settings as `inference.py` makes them; `how` is `evaluate` (a traced call of the model, as `predict --dtype` makes it)
or `export`, with `mode`, the value of `export --optimize`.
"""

import os
import tempfile
from typing import Any

from worker import Round, repeated, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    from bert_tf import quiet

    quiet.import_tensorflow()
    import inference_inputs
    import numpy as np
    import tensorflow as tf

    import bert_tf
    from bert_tf.config import EmbeddingConfig
    from bert_tf.inference.embedder import Embedder
    from bert_tf.model.mode import infer
    from bert_tf.text.wordpiece import Tokenizer
    from bert_tf.training.dtype import infer_in

    if settings["model"] == "minilm":
        encoder, tokenizer = bert_tf.load(settings["checkpoint"])
    else:
        encoder = bert_tf.BertEncoder(bert_tf.BertConfig.from_name(settings["model"]))
        tokenizer = Tokenizer(settings["vocabulary"])
    embedder = Embedder(encoder, tokenizer, EmbeddingConfig(max_length=settings["length"]))
    rows, texts = settings["batch"], inference_inputs.texts(settings)
    ids = np.array(inference_inputs.ids(settings), np.int32)
    mask = np.array(inference_inputs.mask(settings), np.int32)
    features = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
    ready = {"versions": versions("tensorflow", "keras"), "threads": len(os.sched_getaffinity(0))}
    if settings["how"] == "export":
        run, size = _exported(embedder, settings["mode"], settings["input"], texts, features)
        return ready | {"export_megabytes": size}, repeated(run, rows, "sequences", settings["seconds"])
    infer_in(settings["dtype"], embedder.model)
    if settings["input"] == "text":
        batch = tf.constant(texts)
        traced = tf.function(lambda text: embedder(text)["vector"], autograph=False)
        traced = traced.get_concrete_function(tf.TensorSpec([None], tf.string))
        call = lambda: traced(batch).numpy()  # noqa: E731
    else:
        tensors = {name: tf.constant(value) for name, value in features.items()}
        traced = tf.function(lambda **inputs: infer(encoder, inputs)["sequence_output"], autograph=False)
        traced = traced.get_concrete_function(**{name: tf.TensorSpec([None, None], tf.int32) for name in features})
        call = lambda: traced(**tensors).numpy()  # noqa: E731
    call()
    ready |= {"dtype": settings["dtype"], "parameters": encoder.count_params()}
    return ready, repeated(call, rows, "sequences", settings["seconds"])


def _exported(embedder: Any, mode: str, kind: str, texts: list[str], features: dict[str, Any]) -> tuple[Any, float]:
    """A function that asks an export of the embedder in a session, and the export's size in MB."""
    import tensorflow as tf

    from bert_tf.inference.saved_model import export
    from bert_tf.tasks.signatures import DEFAULT, TOKENS

    v1 = tf.compat.v1
    with tempfile.TemporaryDirectory() as folder:
        path = export(embedder.task, embedder.model, os.path.join(folder, "model"), check=False, optimize=mode).path
        size = sum(os.path.getsize(os.path.join(place, file)) for place, _, names in os.walk(path) for file in names)
        session = v1.Session(graph=tf.Graph())
        with session.graph.as_default():
            loaded = v1.saved_model.load(session, ["serve"], path)
    signature = loaded.signature_def[DEFAULT if kind == "text" else TOKENS]
    values = {"text": texts} if kind == "text" else features
    feeds = {signature.inputs[name].name: values[name] for name in signature.inputs}
    # As servers do: a callable, so that Python's part is not that of Session.run.
    names = list(feeds)
    with session.graph.as_default():
        tensors = [session.graph.get_tensor_by_name(name) for name in names]
        output = session.graph.get_tensor_by_name(next(iter(signature.outputs.values())).name)
    ask = session.make_callable(output, feed_list=tensors)

    def run() -> Any:
        return ask(*(feeds[name] for name in names))

    run()
    return run, round(size / 1e6, 1)


serve(setup)
