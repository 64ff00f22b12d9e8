"""Tokenizes a corpus once: python -m bert_tf.prepare --input='corpus/*.txt.gz' --vocab=vocab.txt --output=DIR.

An Apache Beam pipeline. What follows a lone -- are Beam's own flags:
--runner=DataflowRunner -- --project=P --region=R --temp_location=gs://B/temp --setup_file=./setup.py
"""

from absl import flags

from bert_tf.app import run
from bert_tf.errors import ConfigError
from bert_tf.inputs.corpus.readers import LAYOUTS, check_text_file, find_files
from bert_tf.text import read_vocabulary

_INPUT = flags.DEFINE_string("input", None, "Text files, plain or .gz: names or patterns, separated by commas.")
_VOCAB = flags.DEFINE_string("vocab", None, "The vocab.txt to tokenize with.")
_OUTPUT = flags.DEFINE_string("output", None, "Directory that gets the shards and, last, corpus.json.")
_LAYOUT = flags.DEFINE_enum("layout", "sentences", LAYOUTS, "A sentence a line, or a document a line.")
_LOWER_CASE = flags.DEFINE_bool("lower_case", True, "Lower-case the text.")
_STRIP_ACCENTS = flags.DEFINE_bool("strip_accents", None, "Drop accents; as --lower_case when not given.")
_SPLIT_CJK = flags.DEFINE_bool("split_cjk", True, "Make every CJK ideograph a word of its own.")
_SHARDS = flags.DEFINE_integer(
    "shards", 0, "Files to write, at most one for each that is read; 0: one for every 100 MB.", lower_bound=0
)
_MAX_BAD_SHARE = flags.DEFINE_float(
    "max_bad_share", 0.01, "Share of the sentences that may not be UTF-8.", lower_bound=0.0, upper_bound=1.0
)
_RUNNER = flags.DEFINE_string("runner", "DirectRunner", "Where Beam runs the pipeline.")
flags.mark_flags_as_required(["input", "vocab", "output"])


def main(argv):
    try:
        from apache_beam.options.pipeline_options import PipelineOptions

        from bert_tf.inputs.corpus.preparation import plan, prepare
    except ImportError as error:
        raise ConfigError(f"Apache Beam is not there ({error}); pip install 'bert_tf[beam]'") from None

    files = find_files(_INPUT.value.split(","))
    for file in files:
        check_text_file(file)
    tokenizer_config = {
        "lower_case": _LOWER_CASE.value,
        "strip_accents": _STRIP_ACCENTS.value,
        "split_cjk": _SPLIT_CJK.value,
    }
    planned = plan(files, _LAYOUT.value, read_vocabulary(_VOCAB.value), tokenizer_config, _SHARDS.value)
    options = PipelineOptions([f"--runner={_RUNNER.value}", *argv[1:]])
    description = prepare(planned, _OUTPUT.value, options, _MAX_BAD_SHARE.value)
    counts = ", ".join(f"{name} {value:,}" for name, value in description["counts"].items())
    print(f"{_OUTPUT.value}: {len(description['shards'])} shards of {len(files)} files; {counts}")
    print(f"fingerprint {description['tokenizer']['fingerprint']}; train on it with --config.input={_OUTPUT.value}")


def cli():
    """The console command."""
    run(main, arguments=True)


if __name__ == "__main__":
    cli()
