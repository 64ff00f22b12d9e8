"""Every kind of model that can be exported, in small: exports, requests, and the answers of the models in memory.

    python -m tests.inference.kinds FOLDER

writes those of EVERY_OP for other processes, with another version of TensorFlow.
"""

import functools
import itertools
import pathlib
import pickle
import sys
import tempfile
from typing import NamedTuple

import numpy as np

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import EmbeddingConfig, FeatureConfig, IntentAndSlotsConfig
from bert_tf.inference.embedder import Embedder
from bert_tf.inference.samples import request_of, sample_requests
from bert_tf.inference.saved_model import export
from bert_tf.model.static_vectors import StaticVectors
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.intent_and_slots import IntentAndSlots
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.multi_label import MultiLabel, MultiLabelConfig
from bert_tf.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.tasks.signatures import attention_signature
from bert_tf.tasks.static_vectors import Static
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests import zoo
from tests.learned import ALL_TOKENIZERS, learned
from tests.model.small import FAMILY, GTE, MODERNBERT, NOMIC_BERT, randomize
from tests.zoo import LENGTH, VOCABULARY

TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")
ROBERTA = {"activation": "erf_gelu", "position_offset": 2, "type_vocab_size": 1}
# Members of the family: their tokenizers, of ALL_TOKENIZERS, and their architectures.
MEMBERS = {
    "RoBERTa": ("byte_bpe", ROBERTA),
    "XLM-R": ("unigram", ROBERTA),
    "CamemBERT": ("camembert", ROBERTA),
    "DistilBERT": ("wordpiece", FAMILY["distilbert"]),
    "ELECTRA": ("wordpiece", FAMILY["electra"]),
    "ALBERT": ("albert", FAMILY["albert"]),
    "ModernBERT": ("modern", MODERNBERT | {"num_layers": 2}),
    "mmBERT": ("gemma", MODERNBERT | {"num_layers": 2}),
    "nomic_bert": ("wordpiece", NOMIC_BERT),
    "GTE": ("unigram", GTE),
}


def _tokenizer(**options):
    return Tokenizer(VOCABULARY, **options)


def _classification(tokenizer=None, *, pair=False, **config):
    config = ClassificationConfig(max_length=LENGTH, **config)
    return Classification(tokenizer or _tokenizer(), config, labels=("negative", "긍정"), pair=pair)


def _regression(pair=True, scale=(0.0, 5.0), activation="linear", **config):
    config = RegressionConfig(max_length=LENGTH, **config)
    return Regression(_tokenizer(), config, labels=("value",), pair=pair, scale=scale, activation=activation)


def _tagging(unit="words", tokenizer=None, **config):
    config = TaggingConfig(max_length=LENGTH, **config)
    return Tagging(tokenizer or _tokenizer(), config, labels=TAGS, unit=unit)


def _questions(tokenizer=None, **config):
    config = QuestionAnsweringConfig(max_length=LENGTH, stride=8, max_question_length=8, n_best=3, **config)
    return QuestionAnswering(tokenizer or _tokenizer(), config)


def _packed():
    """A pre-training model, loaded after training on packed rows."""
    task = Pretraining(_tokenizer(), LENGTH)
    encoder = BertEncoder(zoo.encoder().config, packed=True)
    with tempfile.TemporaryDirectory() as folder:
        directory.save(folder, randomize(task.build(encoder), scale=0.5), encoder, task)
        return directory.load_task(folder)


def _made(task, **config):
    encoder = zoo.encoder(task.tokenizer.vocab_size, **config)
    return task, randomize(task.build(encoder), scale=0.5)  # small weights give all texts the same answer


def _member(name, head):
    """A model of a member of the family: "classification" of texts, the "masks" in them, or "tagging"."""
    kind, config = MEMBERS[name]
    tokenizer = ALL_TOKENIZERS[kind]()
    if head == "masks":
        return _made(MaskedLM(tokenizer, LENGTH), **config, pooler=False)
    return _made((_tagging if head == "tagging" else _classification)(tokenizer=tokenizer), **config)


def _vectors(per, tokenizer=None, **config):
    tokenizer = tokenizer or _tokenizer()
    encoder = randomize(zoo.encoder(tokenizer.vocab_size), scale=0.5)
    embedder = Embedder(encoder, tokenizer, EmbeddingConfig(per, max_length=16, **config))
    return embedder.task, embedder.model


def _static():
    """A table of vectors of pieces."""
    tokenizer, draw = _tokenizer(), np.random.default_rng(0)
    table = draw.normal(size=[tokenizer.vocab_size, 8]).astype(np.float32)
    config = EmbeddingConfig(max_length=16, long_texts="head", normalize=True)
    return Static(tokenizer, config), StaticVectors(table, np.arange(tokenizer.vocab_size, dtype=np.int32))


KINDS = {
    "classification": lambda: _made(_classification(_tokenizer(lower_case=False)), activation="relu"),
    "classification of pairs": lambda: _made(_classification(pair=True, long_texts="window")),
    "classification on bilstm": lambda: _made(_classification(head="bilstm")),
    "classification from left to right": lambda: _made(_classification(), attention="causal"),
    "regression": lambda: _made(_regression(), norm="pre"),
    "regression by cosine": lambda: _made(_regression(head="cosine")),
    "any number of labels": lambda: _made(
        MultiLabel(_tokenizer(), MultiLabelConfig(max_length=LENGTH), labels=("a", "b", "c"), pair=False)
    ),
    "tagging": lambda: _made(_tagging()),
    "tagging of characters in documents": lambda: _made(
        _tagging(unit="characters", tokenizer=_tokenizer(lower_case=False), context="document")
    ),
    "tagging on bilstm": lambda: _made(_tagging(head="bilstm", features=FeatureConfig((0, -1)), frozen=True)),
    "intent and slots": lambda: _made(
        IntentAndSlots(_tokenizer(), IntentAndSlotsConfig(max_length=LENGTH), labels=TAGS, intents=("play", "예약"))
    ),
    "questions": lambda: _made(_questions()),
    "questions without answer": lambda: _made(_questions(unanswerable=True)),
    "multiple choice": lambda: _made(MultipleChoice(_tokenizer(), MultipleChoiceConfig(max_length=LENGTH))),
    "pre-training on packed rows": _packed,
    **{
        f"{head} by {name}": functools.partial(_member, name, head)
        for name in MEMBERS
        for head in ("classification", "masks")
    },
    "tagging by mmBERT": functools.partial(_member, "mmBERT", "tagging"),
    "questions of byte pairs": lambda: _made(_questions(learned("byte_bpe").tokenizer), type_vocab_size=1),
    "classification of pairs of unigrams": lambda: _made(
        _classification(learned("unigram").tokenizer, pair=True), type_vocab_size=1
    ),
    "tagging of unigrams": lambda: _made(_tagging(tokenizer=learned("unigram").tokenizer), type_vocab_size=1),
    "vectors of sentences": lambda: _vectors("sentence"),
    "static vectors": _static,
    "vectors of words of byte pairs": lambda: _vectors("word", learned("byte_bpe").tokenizer),
    "vectors of words": lambda: _vectors("word", features=FeatureConfig((0, -1), "concat")),
}
# For exports to other runtimes alone, which differ in the files beside the model.
BESIDE = {
    **{
        f"classification of pairs by BERT with {kind}": functools.partial(
            lambda kind: _made(_classification(ALL_TOKENIZERS[kind](), pair=True)), kind
        )
        for kind in ALL_TOKENIZERS
    },
    "classification by pruned layers": lambda: _made(_classification(), heads_per_layer=(2,), intermediate_sizes=(24,)),
    "scores": lambda: _made(_regression(activation="sigmoid", scale=None)),
}
WITH_ATTENTION = (
    "classification of pairs",
    "regression by cosine",
    "tagging of characters in documents",
    "questions",
    "multiple choice",
    "pre-training on packed rows",
    "masks by RoBERTa",
    "questions of byte pairs",
    "masks by XLM-R",
    "tagging of unigrams",
    "tagging by mmBERT",
)


# Each kind of tokenizer, also with a text of 100 kB and with 10,000 rows.
LARGE = ("classification from left to right", "classification by RoBERTa", "classification of pairs of unigrams")

# Together they have every op of all kinds.
EVERY_OP = (
    "questions of byte pairs",
    "tagging on bilstm",
    "classification by DistilBERT",
    "masks by XLM-R",
    "classification from left to right",
    "vectors of sentences",
    "static vectors",
    "classification by ModernBERT",
)


class Case(NamedTuple):
    """An export with requests for it.

    Attributes:
        path: folder of the version.
        requests: list of Request.
        expected: list of dicts name -> array: the answers of the model in memory.
    """

    path: str
    requests: list
    expected: list


def case(kind):
    """The Case of a key of `KINDS`."""
    path = zoo.made(f"exports/{kind}", lambda new: _make(kind, new))
    found = pickle.loads((path / "case.pickle").read_bytes())
    return found._replace(path=str(path / found.path))


def _make(kind, folder):
    """Exports a model of this kind below `folder`, and writes its Case, with the relative path of the version."""
    task, model = KINDS[kind]()
    signatures = task.signatures(model)
    if kind in WITH_ATTENTION:
        signatures["attention"] = attention_signature(task.codec, model)
    task.signatures = lambda model: signatures  # traced once, for the export and for the answers
    path = export(task, model, str(folder / kind.replace(" ", "_")), check=False).path
    functions = {name: function.get_concrete_function() for name, function in signatures.items()}
    requests = sample_requests(task.codec, functions) + (_large(task, functions) if kind in LARGE else [])
    answers = [request.answered(functions) for request in requests]
    found = Case(str(pathlib.Path(path).relative_to(folder)), requests, answers)
    (folder / "case.pickle").write_bytes(pickle.dumps(found))


def _large(task, signatures):
    """Texts of 100 kB, and 10,000 rows."""
    mask = task.tokenizer.special_names.mask.encode()
    words = [*b"the good film , 1998 caf\xc3\xa9 \xec\x98\xa4\xeb\x8a\x98 .".split(), mask]
    long = b" ".join(itertools.islice(itertools.cycle(words), 30_000))
    assert len(long) > 100_000
    rows = [b"%d %b %b" % (row, words[row % len(words)], mask) for row in range(10_000)]
    return [
        request_of(
            task.codec, signature, kind, {spec.name: _column(spec.shape.rank, texts) for spec in task.codec.inputs()}
        )
        for kind, texts in (("100 kB", [long]), ("10,000 rows", rows))
        for signature in signatures
    ]


def _column(rank, texts):
    return np.array(texts if rank == 1 else [[b"the good", text[:1000], b""] for text in texts], object)


def main(folder):
    pathlib.Path(folder, "cases.pickle").write_bytes(pickle.dumps([case(kind) for kind in EVERY_OP]))


if __name__ == "__main__":
    from tests.inference import kinds  # not __main__, because unpickling needs the module name

    kinds.main(*sys.argv[1:])
