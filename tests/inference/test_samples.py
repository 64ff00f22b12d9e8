"""The requests that check exports and warm servers up."""

from bert_tf.inference.samples import sample_requests
from tests.inference import kinds


def test_all_inputs_of_a_request_have_as_many_rows_and_one_request_has_none():
    task, _ = kinds.KINDS["multiple choice"]()
    rows = {}
    for request in sample_requests(task.codec, ["serving_default"]):
        (rows[request.kind],) = {len(value) for value in request.inputs.values()}
    assert (rows["no rows"], rows["short"], rows["full"]) == (0, 1, 32)
