"""Measures the throughput of the tokenizer and of TF Text's: python -m tests.text.throughput VOCAB TEXT [--cased]."""

import sys
import time

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.text import Tokenizer


def main(vocab, text, cased):
    with open(text, "rb") as file:
        lines = file.read().split(b"\n")
    ours = Tokenizer(vocab, lower_case=not cased)
    stock = tf_text.FastBertTokenizer(ours.vocab, token_out_type=tf.int32, lower_case_nfd_strip_accents=not cased)
    ways = {
        "stock": stock.tokenize,
        "bert_tf": ours.tokenize,
        "stock, offsets": stock.tokenize_with_offsets,
        "bert_tf, offsets": ours.tokenize_with_offsets,
    }
    batches = list(tf.data.Dataset.from_tensor_slices(lines).batch(1024))
    signature = [tf.TensorSpec([None], tf.string)]
    functions = {name: tf.function(way, input_signature=signature) for name, way in ways.items()}
    times = {name: [] for name in ways}
    for _ in range(6):  # alternating, so that other load on the machine affects all equally; the first is a warm-up
        for name, function in functions.items():
            start = time.perf_counter()
            for batch in batches:
                function(batch)
            times[name].append(time.perf_counter() - start)
    megabytes = sum(map(len, lines)) / 1e6
    for name, seconds in times.items():
        print(f"{name:17} {megabytes / min(seconds[1:]):6.1f} MB/s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--cased" in sys.argv[3:])
