"""The examples in the docstrings of the public names run and print what they show."""

import doctest
from pathlib import Path

import pytest

import bert_tf
from bert_tf.checkpoints import directory, hub
from bert_tf.tasks.masked_lm import MaskedLM
from tests.model.small import randomize, small_config
from tests.packages import minilm
from tests.zoo import VOCABULARY

# Examples with a training or a real model.
SLOW = {
    "IntentAndSlots",
    "MultiLabelClassifier",
    "MultipleChoice",
    "QuestionAnswerer",
    "Reranker",
    "SentenceEncoder",
    "SparseEncoder",
    "SentencePieceTokenizer",
    "TextClassifier",
    "TextRegressor",
    "TokenClassifier",
    "distill",
    "load",
}
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The directory of each model on the Hub that the examples name, a small one instead of BERT-base."""
    path = str(tmp_path_factory.mktemp("bert"))
    # Larger than BERT-tiny, the student of `distill`, which must not be larger than its teacher.
    shape = {"num_layers": 3, "hidden_size": 128, "num_heads": 2, "intermediate_size": 512}
    encoder = bert_tf.BertEncoder(small_config(vocab_size=len(VOCABULARY), max_position_embeddings=512, **shape))
    task = MaskedLM(bert_tf.Tokenizer(VOCABULARY), 128)
    directory.save(path, randomize(task.build(encoder)), encoder, task)
    return {
        "hf://google-bert/bert-base-uncased": path,
        "hf://cross-encoder/ms-marco-MiniLM-L6-v2": path,
        "hf://sentence-transformers/all-MiniLM-L6-v2": str(minilm()),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in bert_tf.__all__]
)
def test_the_example_of_a_public_name_runs_as_printed(name, models, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda path, allow_pickle=False: models[path])
    monkeypatch.chdir(ROOT)
    [found] = doctest.DocTestFinder(recurse=False).find(getattr(bert_tf, name), name, globs={"bert_tf": bert_tf})
    assert found.examples
    output = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert not doctest.DocTestRunner(optionflags=flags).run(found, out=output.append).failed, "".join(output)
