"""Tokenizes a corpus once: python -m bert_tf.prepare --input='corpus/*.txt.gz' --vocab=vocab.txt --output=DIR.

Of several languages, --input=en:english/*.txt,ko:korean/*.txt, each gets a directory, DIR/en and DIR/ko.

An Apache Beam pipeline. Arguments after a lone -- are passed on to Beam:
--runner=DataflowRunner -- --project=P --region=R --temp_location=gs://B/temp --setup_file=./setup.py
"""

import itertools
import os

from absl import flags

from bert_tf.app import run
from bert_tf.config import PretrainingData
from bert_tf.config.data import TokenizerSettings, corpora
from bert_tf.errors import ConfigError
from bert_tf.files import check_output
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import corpus_warnings, sample
from bert_tf.inputs.corpus.readers import LAYOUTS, check_text_files, find_files
from bert_tf.locks import locked
from bert_tf.quiet import hide_beam_warnings
from bert_tf.text import open_tokenizer

_INPUT = flags.DEFINE_string(
    "input",
    None,
    "Text files, plain or .gz: names or glob patterns, separated by commas; of several languages with their names, "
    "en:FILES,ko:FILES.",
    required=True,
)
_VOCAB = flags.DEFINE_string(
    "vocab",
    None,
    "Vocabulary to tokenize with: vocab.txt, vocab.json (with merges.txt beside it), or a .model file.",
    required=True,
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Directory for the shards and, written last, corpus.json; of several languages for the directory of each.",
    required=True,
)
_LAYOUT = flags.DEFINE_enum("layout", "sentences", LAYOUTS, "One sentence per line, or one document per line.")
_LOWER_CASE = flags.DEFINE_bool("lower_case", None, "Lower-case the text; by default as the vocabulary needs it.")
_STRIP_ACCENTS = flags.DEFINE_bool("strip_accents", None, "Strip accents, likewise.")
_SPLIT_CJK = flags.DEFINE_bool("split_cjk", None, "Make every CJK ideograph a separate word, likewise.")
_SHARDS = flags.DEFINE_integer(
    "shards",
    0,
    "Number of files to write, at most one per input file; 0 for one per 100 MB.",
    lower_bound=0,
    upper_bound=99_999,  # their names have five digits
)
_MAX_BAD_SHARE = flags.DEFINE_float(
    "max_bad_share", 0.01, "Largest share of sentences that may be invalid UTF-8.", lower_bound=0.0, upper_bound=1.0
)
_RUNNER = flags.DEFINE_string("runner", "DirectRunner", "Beam runner of the pipeline.")


def main(argv: list[str]) -> None:
    hide_beam_warnings()
    try:
        from bert_tf.beam_options import pipeline_options
        from bert_tf.inputs.corpus.preparation import plan, prepare
    except ImportError as error:
        raise ConfigError(f"Apache Beam is not installed ({error}); pip install 'bert_tf[beam]'") from None

    options = pipeline_options(argv[1:], _RUNNER.value if _RUNNER.present else None)
    local = "://" not in _OUTPUT.value
    if local:
        check_output(_OUTPUT.value, directory=True)
    patterns = corpora(_INPUT.value, "--input")
    files = {name: find_files(own.split(",")) for name, own in patterns.items()}
    if local:
        check_output(_OUTPUT.value, directory=True, inputs=[*itertools.chain(*files.values()), _VOCAB.value])
    for own in files.values():
        check_text_files(own)
    settings = TokenizerSettings(_LOWER_CASE.value, _STRIP_ACCENTS.value, _SPLIT_CJK.value)
    tokenizer = open_tokenizer(_VOCAB.value, settings)
    # With the longest sequences of BERT, and without the limit that `prepare` checks itself.
    data = PretrainingData(_LAYOUT.value, max_length=512, max_bad_share=1.0)
    outputs = {name: os.path.join(_OUTPUT.value, name) if name else _OUTPUT.value for name in files}
    for name, own in files.items():
        corpus = Corpus(own, tokenizer, data)
        for warning in corpus_warnings(corpus, sample(corpus)):
            print(f"{patterns[name]}: {warning}")
    with locked(_OUTPUT.value):
        for name, own in files.items():
            planned = plan(own, _LAYOUT.value, tokenizer, _SHARDS.value)
            description = prepare(planned, tokenizer, outputs[name], options, _MAX_BAD_SHARE.value)
            counts = ", ".join(f"{count} {value:,}" for count, value in description["counts"].items())
            print(f"{outputs[name]}: {len(description['shards'])} shards from {len(own)} files; {counts}")
    named = ",".join(f"{name}:{output}" for name, output in outputs.items() if name)
    use = f"--config.data.languages={named}" if named else f"--config.input={_OUTPUT.value}"
    print(f"fingerprint {description['tokenizer']['fingerprint']}; train on it with {use}")


if __name__ == "__main__":
    run(main, arguments=True)
