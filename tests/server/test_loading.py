"""Graphs of all kinds are loaded as TensorFlow's own loaders load them."""

import json
import zlib

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.server import loading
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime, Servable
from bert_tf.server.status import ServingError

WORDS = np.array([b"two", b"one", b"?"], object)


@pytest.fixture
def run():
    """Runs `serving_default`, or another signature, of a SavedModel once."""

    def run(path, signature="serving_default", **inputs):
        runtime = Runtime(RunOptions(), Metrics())
        servable = Servable("m", 1, str(path), runtime)
        answer = servable.run(signature, inputs)
        servable.close()
        runtime.close()
        return answer

    return run


def vocabulary(folder):
    file = folder / "words.txt"
    file.write_text("zero\none\ntwo\n")
    return str(file)


@pytest.mark.parametrize("key", ["saved_model_main_op", "legacy_init_op", "signature"])
@pytest.mark.parametrize("as_text", [False, True])
def test_graphs_of_tensorflow_1_get_their_files_and_are_initialized(run, tmp_path, key, as_text):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        file = tf.constant(vocabulary(tmp_path))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS, file)
        initializer = tf.lookup.TextFileInitializer(
            file, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        table = tf.lookup.StaticHashTable(initializer, -1)
        words = tf.compat.v1.placeholder(tf.string, [None])
        ids = table.lookup(words)
        initialize = tf.group(tf.compat.v1.tables_initializer())
        tf.compat.v1.add_to_collection(key, initialize)
        info = tf.compat.v1.saved_model.build_tensor_info
        signature = tf.compat.v1.saved_model.build_signature_def({"words": info(words)}, {"ids": info(ids)})
        builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "1"))
        assets = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS)
        main_op = initialize if key == "signature" else None
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, assets, main_op=main_op
        )
        builder.save(as_text)
    (tmp_path / "words.txt").unlink()
    assert run(tmp_path / "1", words=WORDS)["ids"].tolist() == [2, 1, -1]


def test_graphs_of_tensorflow_2_get_their_files_and_variables(run, tmp_path):
    class Lookup(tf.Module):
        def __init__(self):
            super().__init__()
            initializer = tf.lookup.TextFileInitializer(
                vocabulary(tmp_path), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            )  # fmt: skip
            self.table, self.scale = tf.lookup.StaticHashTable(initializer, -1), tf.Variable(10, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
        def serve(self, words):
            return {"ids": self.table.lookup(words) * self.scale}

    module = Lookup()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
    (tmp_path / "words.txt").unlink()
    assert run(tmp_path / "1", words=WORDS)["ids"].tolist() == [20, 10, -10]


def test_a_tensor_between_ops_can_be_fed_with_any_shape_and_is_computed_otherwise(run, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholder = tf.compat.v1.placeholder(tf.float32, [2], name="p")
        _, between = tf.split(placeholder + 1.0, 2, name="between")  # the second output of an op
        doubled = between * 2.0
        info = tf.compat.v1.saved_model.build_tensor_info
        define = tf.compat.v1.saved_model.build_signature_def
        outputs = {"between": info(between), "doubled": info(doubled)}
        builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "1"))
        signatures = {
            "serving_default": define({"x": info(between)}, outputs),
            "whole": define({"p": info(placeholder)}, outputs),
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    found = run(tmp_path / "1", x=np.float32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(found["between"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found["doubled"], [[2, 4], [6, 8]])
    found = run(tmp_path / "1", "whole", p=np.float32([5, 7]))
    assert found["between"].tolist() == [8] and found["doubled"].tolist() == [16]
    with pytest.raises(ServingError, match="Number of ways to split should evenly divide"):  # the op looks at it
        run(tmp_path / "1", "whole", p=np.float32([5, 7, 9]))


def test_what_cannot_be_loaded_is_an_error_that_says_why(tmp_path):
    def load(path, *tags):
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            loading.load(session, tags, str(path))

    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(ValueError, match="no graph with the tags serve, gpu; found serve"):
        load(tmp_path / "1", "serve", "gpu")
    with pytest.raises(FileNotFoundError, match=r"no saved_model\.pb in"):
        load(tmp_path, "serve")
    (tmp_path / "saved_model.pb").write_bytes(b"\xff")
    with pytest.raises(DecodeError):
        load(tmp_path, "serve")


def test_a_graph_that_is_not_the_one_of_its_model_card_is_refused(run, tmp_path):
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": x}, [tf.TensorSpec([None], tf.float32, name="x")])
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    graph = (tmp_path / "saved_model.pb").read_bytes()
    (tmp_path / "assets.extra").mkdir()
    for checksum in (f"{zlib.crc32(graph):08x}", "0badcafe", None):
        card = {"format": "bert_tf", "signatures": {}, "crc32": checksum and {"saved_model.pb": checksum}}
        (tmp_path / "assets.extra/model_card.json").write_text(json.dumps(card))
        if checksum == "0badcafe":
            with pytest.raises(ServingError, match=r"saved_model\.pb is damaged"):
                run(tmp_path, x=np.float32([3]))
        else:
            assert run(tmp_path, x=np.float32([3]))["y"] == [3]
