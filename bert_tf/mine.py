"""Finds hard negatives for pairs of texts: python -m bert_tf.mine --init=MODEL --data_dir=FILE --output=train.jsonl.

A killed run continues with the vectors that it has computed.
"""

import functools
import itertools
import os

from absl import flags

from bert_tf.app import data_flags, dtype_flag, run
from bert_tf.checkpoints.directory import files_of
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_output, replacing
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.extraction import read_texts
from bert_tf.inference.mining import Limits, filtered, mine, vectors_in, write_groups
from bert_tf.inference.reranking import open_reranker, score
from bert_tf.inference.retrieval import check_unscored
from bert_tf.inputs.datasets.examples import ReadReport, TextGroup, is_blank
from bert_tf.inputs.datasets.groups import read_texts_by_id
from bert_tf.inputs.datasets.sources import Source
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import print_report

_INIT = flags.DEFINE_string(
    "init", None, "Model in any format that bert_tf.load reads, e.g. hf://OWNER/NAME.", required=True
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The pairs: a file, or a folder with the format's files.", required=True
)
_SPLIT = flags.DEFINE_string("split", "train", "Split of a folder.")
_CORPUS = flags.DEFINE_string(
    "corpus",
    None,
    "Further texts to find: corpus.jsonl as in BEIR, .txt, .tsv or .csv with a column text; by default corpus.jsonl in "
    "--data_dir, if it is there.",
)
_OUTPUT = flags.DEFINE_string("output", None, "JSON lines to write: query, positive, negatives.", required=True)
_RANKS = flags.DEFINE_list("ranks", ["10", "100"], "First and last rank of negatives.")
_NEGATIVES = flags.DEFINE_integer("negatives", 5, "Negatives for each pair.", lower_bound=1, upper_bound=1000)
_MARGIN = flags.DEFINE_float("margin", None, "A negative's cosine is at least so much below that of the right text.")
_MAX_SCORE = flags.DEFINE_float("max_score", None, "Highest cosine of a negative.")
_DRAW = flags.DEFINE_bool("draw", False, "Draws negatives from the ranks instead of taking the first ones.")
_RERANKER = flags.DEFINE_string(
    "reranker",
    None,
    "Reranker or CrossEncoder whose scores take the place of cosines in --margin, --max_score and --scores.",
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the draw.", lower_bound=0, upper_bound=2**32 - 1)
_SCORES = flags.DEFINE_bool("scores", False, "Writes the cosines, too, to learn from.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Texts per batch.", lower_bound=1, upper_bound=10_000_000)
_DTYPE = dtype_flag()
_DATA = data_flags()


def main(_: list[str]) -> None:
    output = _OUTPUT.value
    of_folder, queries = (os.path.join(_DATA_DIR.value, name) for name in ("corpus.jsonl", "queries.jsonl"))
    data = _DATA(ExampleData(format="beir" if os.path.exists(of_folder) and os.path.exists(queries) else "groups"))
    source, report = Source(data, _DATA_DIR.value, TextGroup), ReadReport()
    further = _CORPUS.value or (of_folder if os.path.exists(of_folder) else "")
    corpus_files = [further] if further else []
    check_output(output, inputs=[*files_of(_INIT.value), *source.files(_SPLIT.value), *corpus_files])
    if not output.endswith(".jsonl"):
        raise ConfigError(f"--output={output}: expected a name that ends in .jsonl")
    limits = _limits().check()
    embedder = open_embedder(_INIT.value)
    dtype = infer_in(_DTYPE.value, embedder.model)
    examples = list(source.examples(report, _SPLIT.value))
    print_report(source.where(_SPLIT.value), report)
    pairs: list[tuple[str, str]] = []
    for example in examples:
        if len(example.texts) < 2:
            raise DataError(f"{example.location}: a single text; expected a query and a text that belongs to it")
        check_unscored(example)
        pairs.append((example.texts[0], example.texts[1]))
    given = (text for example in examples for text in example.texts[1:])
    corpus = list(dict.fromkeys(itertools.chain(given, _further(further))))
    folder = f"{output}.vectors"
    with vectors_in(folder), replacing(output) as temporary:
        before = limits.before_scores() if _RERANKER.value else limits
        found = mine(embedder, pairs, corpus, folder, before, _BATCH_SIZE.value, dtype)
        if _RERANKER.value:
            found = filtered(found, limits, functools.partial(score, *open_reranker(_RERANKER.value)))
        count, without = write_groups(temporary, found, scores=_SCORES.value)
        if without == len(pairs):
            raise DataError(
                f"no pair has a negative among {len(corpus):,} texts: lower --ranks ({limits.first} to {limits.last}) "
                "or --margin, raise --max_score, or add texts (--corpus)"
            )
    none = f"; {without:,} without any negative{' were left out' if _SCORES.value else ''}" if without else ""
    print(f"{output}: {count:,} pairs with negatives from {len(corpus):,} texts{none}")


def _limits() -> Limits:
    try:
        first, last = map(int, _RANKS.value)
    except ValueError:
        raise ConfigError(f"--ranks={','.join(_RANKS.value)}: expected two whole numbers, such as 10,100") from None
    return Limits(first, last, _NEGATIVES.value, _MARGIN.value, _MAX_SCORE.value, _DRAW.value, _SEED.value)


def _further(path: str) -> list[str]:
    """The texts of a further file; "" for none."""
    if not path:
        return []
    if path.endswith(".jsonl"):
        return [text for _, text, _ in read_texts_by_id(path, title=True) if not is_blank(text)]
    return [example.text for example in read_texts(path) if not is_blank(example.text)]


if __name__ == "__main__":
    run(main)
