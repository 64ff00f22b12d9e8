"""Evaluates search by the vectors of a model: python -m bert_tf.retrieve --init=MODEL --data_dir=DIR --output=DIR.

DIR has corpus.jsonl, queries.jsonl and qrels/ as BEIR's data sets have; or it holds pairs, such as questions and
paragraphs (--data.format=squad), whose second texts are the collection.
"""

import functools
import os

from absl import flags

from bert_tf.app import data_flags, dtype_flag, run
from bert_tf.checkpoints.directory import files_of
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, replacing, write_json, write_text
from bert_tf.inference.embedder import embedder_of, open_vectors
from bert_tf.inference.reranking import open_reranker
from bert_tf.inference.reranking import score as scores_of
from bert_tf.inference.retrieval import (
    DEPTH,
    Collection,
    Encoding,
    Ranking,
    analysis_of,
    encoding_of,
    open_collection,
    reranked,
    search,
    write_run,
)
from bert_tf.inference.sparse_embedder import SparseEmbedder
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.metrics.retrieval import means
from bert_tf.metrics.units import metrics_line
from bert_tf.tasks.benchmark import ErrorAnalysis
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import print_report
from bert_tf.training.reporter import PAGE

_INIT = flags.DEFINE_string(
    "init", None, "Model in any format that bert_tf.load reads, e.g. hf://OWNER/NAME.", required=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "The collection: a folder, or a file of pairs.", required=True)
_SPLIT = flags.DEFINE_string("split", "test", "Split of the judgements or of the pairs.")
_RERANKER = flags.DEFINE_string("reranker", None, "Reranker or CrossEncoder that sorts what each query finds first.")
_RERANKED = flags.DEFINE_integer(
    "reranked", 20, "With --reranker: texts of each query.", lower_bound=1, upper_bound=DEPTH
)
_OUTPUT = flags.DEFINE_string("output", None, "Directory for results.json, report.html and run.trec.", required=True)
_SIZE = flags.DEFINE_integer(
    "size", None, "Number of values of a vector that are kept, the first ones, as of Matryoshka vectors.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Texts per batch.", lower_bound=1, upper_bound=10_000_000)
_DTYPE = dtype_flag()
_DATA = data_flags()
_MONITOR = "ndcg@10"


def main(_: list[str]) -> None:
    check_output(_OUTPUT.value, directory=True, inputs=files_of(_INIT.value))
    encoding, dtype = _opened()
    score = functools.partial(scores_of, *open_reranker(_RERANKER.value)) if _RERANKER.value else None
    report = ReadReport()
    collection = open_collection(_DATA_DIR.value, _DATA(ExampleData(format="groups")), _SPLIT.value, report)
    print_report(collection.where, report)
    ranking = search(encoding, collection)
    if score:
        ranking = reranked(ranking, collection, _RERANKED.value, score)
    columns = ranking.metrics(collection.judgements)
    metrics, analysis = means(columns), analysis_of(collection, ranking, columns)
    results = {
        "program": "retrieve",
        "init": _INIT.value,
        "reranker": _RERANKER.value,
        "data": collection.where,
        "dtype": dtype,
        "size": encoding.size,
        "queries": len(collection.queries),
        "skipped": report.counts,
        "final": metrics,
        "intervals": analysis.intervals,
    }
    _write(collection, ranking, metrics, analysis, report)
    write_json(os.path.join(_OUTPUT.value, "results.json"), results)
    print(
        f"{collection.where}: {metrics_line(metrics)}; wrote results.json, report.html and run.trec to {_OUTPUT.value}"
    )


def _opened() -> tuple[Encoding, str]:
    """The model, and the number format in which it computes."""
    checkpoint = open_vectors(_INIT.value)
    if isinstance(checkpoint, Checkpoint) and checkpoint.is_for(SparseEncoding):
        if _SIZE.value:
            raise ConfigError(f"--size={_SIZE.value}: sparse vectors have a value for each piece; leave it out")
        sparse = SparseEmbedder(checkpoint, _INIT.value)
        encode = functools.partial(sparse, batch_size=_BATCH_SIZE.value)
        return Encoding(encode, encode, sparse.task.tokenizer.vocab_size), infer_in(_DTYPE.value, sparse.model)
    embedder = embedder_of(checkpoint, _INIT.value)
    if _SIZE.value:
        embedder = embedder.replaced(size=_SIZE.value)
    return encoding_of(embedder, _BATCH_SIZE.value), infer_in(_DTYPE.value, embedder.model)


def _write(
    collection: Collection, ranking: Ranking, metrics: dict[str, float], analysis: ErrorAnalysis, report: ReadReport
) -> None:
    from bert_tf.report.pages import Evaluated, analysis_page  # takes a second to load

    evaluated = Evaluated("Retrieval", collection.where, len(collection.queries), _MONITOR, report)
    os.makedirs(_OUTPUT.value, exist_ok=True)
    write_text(os.path.join(_OUTPUT.value, PAGE), analysis_page(evaluated, metrics, {}, analysis))
    with replacing(os.path.join(_OUTPUT.value, "run.trec")) as temporary:
        write_run(temporary, ranking)


if __name__ == "__main__":
    run(main)
