"""Converts checkpoints: python -m bert_tf.convert --input=PATH --format=bert_tf|google|huggingface --output=DIR."""

from absl import flags

from bert_tf.app import run
from bert_tf.checkpoints import adapt, conversion
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, read_bytes
from bert_tf.inputs.corpus.readers import find_files
from bert_tf.report.terminal import conversion_text
from bert_tf.text.encoding import decode

_INPUT = flags.DEFINE_string(
    "input", None, "Checkpoint in any format that bert_tf.load reads, or hf://OWNER/NAME.", required=True
)
_FORMAT = flags.DEFINE_enum("format", None, list(conversion.WRITERS), "Format to write.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Directory to write; it must not exist.", required=True)
_DTYPE = flags.DEFINE_enum("dtype", None, adapt.DTYPES, "Number format of the weights; unchanged by default.")
_TRIM_VOCAB = flags.DEFINE_string(
    "trim_vocab",
    None,
    "Keep only the pieces that these texts use: text files, plain or .gz, one text per line; names or glob patterns, "
    "separated by commas.",
)
_KEEP_CHARACTERS = flags.DEFINE_bool(
    "keep_characters",
    True,
    "With --trim_vocab, keep also all pieces that are one character, so that other texts get no new unknown tokens.",
)
_ADD_TOKENS = flags.DEFINE_string("add_tokens", None, "File with wordpieces to add to the vocabulary, one per line.")
_POSITIONS = flags.DEFINE_integer(
    "max_position_embeddings",
    None,
    "Longest input of the converted model, in tokens.",
    lower_bound=1,
    upper_bound=1_000_000,
)
_ALLOW_PICKLE = flags.DEFINE_bool(
    "allow_pickle",
    False,
    "Also read pickled PyTorch files (needs bert_tf[torch]); code in them is not executed.",
)
_VERIFY = flags.DEFINE_bool(
    "verify", False, "Run source and converted checkpoint on the same sentences and print the largest difference."
)


def main(_: list[str]) -> None:
    check_output(_OUTPUT.value, directory=True, new=True)
    if _KEEP_CHARACTERS.present and _TRIM_VOCAB.value is None:
        raise ConfigError("--keep_characters has no effect without --trim_vocab; add --trim_vocab=CORPUS")
    report = conversion.convert(
        _INPUT.value,
        _FORMAT.value,
        _OUTPUT.value,
        dtype=_DTYPE.value,
        trim_vocab=find_files(_TRIM_VOCAB.value.split(",")) if _TRIM_VOCAB.value is not None else (),
        keep_characters=_KEEP_CHARACTERS.value,
        add_pieces=_pieces(_ADD_TOKENS.value) if _ADD_TOKENS.value else (),
        max_position_embeddings=_POSITIONS.value,
        allow_pickle=_ALLOW_PICKLE.value,
        verify=_VERIFY.value,
    )
    print(conversion_text(report))


def _pieces(path: str) -> list[str]:
    pieces = decode(read_bytes(path, "one wordpiece per line"), path).split()
    if not pieces:
        raise ConfigError(f"--add_tokens: {path} contains no wordpieces; expected one per line")
    return pieces


if __name__ == "__main__":
    run(main)
