"""Whatever is given to a public callable, it returns, or says in one line which argument does not fit."""

import pytest

import bert_tf
from tests.public_api import Api, matrix

# Training is reached by hundreds of cells, each after a short run of what comes before it; the first two go the way of
# SentencePieceTokenizer and SentenceEncoder.
LONG = {"BytePairTokenizer", "MaskedLM"}
LONG |= {"IntentAndSlots", "MultiLabelClassifier", "MultipleChoice", "QuestionAnswerer", "TextClassifier"}
LONG |= {"Reranker", "SparseEncoder", "TextRegressor", "TokenClassifier", "distill"}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    return Api(str(tmp_path_factory.mktemp("api")))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in bert_tf.__all__]
)
def test_no_argument_raises_anything_but_one_line_that_names_it(api, name):
    results = list(matrix(api, name))
    assert not [cell for _, _, wrong in results for cell in wrong]
    assert sum(counts["refused"] for _, counts, _ in results) > 30
