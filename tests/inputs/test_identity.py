import tensorflow as tf

from bert_tf.inputs.identity import tensors_identity, weights_identity


def test_weights_that_differ_in_one_value_or_their_order_have_another_identity():
    ones, twos = tf.Variable(tf.ones([3, 2])), tf.Variable(2 * tf.ones([3, 2]))
    before = weights_identity([ones, twos])
    assert weights_identity([ones, twos]) == before != weights_identity([twos, ones])
    ones[1, 0].assign(1.0000001)
    assert weights_identity([ones, twos]) != before


def test_tensors_are_the_same_if_names_values_and_rows_are():
    def identity(texts=("a", "bc"), numbers=(1, 2, 3), lengths=(1, 2)):
        ragged = tf.RaggedTensor.from_row_lengths(list(numbers), list(lengths))
        return tensors_identity({"text": tf.constant(texts), "targets": ragged})

    others = [identity(("ab", "c")), identity(("a", "bc\0")), identity(numbers=(1, 3, 2)), identity(lengths=(2, 1))]
    assert len({identity(), *others}) == 5 and identity() == identity()
