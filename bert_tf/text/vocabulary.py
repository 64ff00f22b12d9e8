"""WordPiece vocabularies: one piece a line, the line's number (from 0) its id."""

import os

from bert_tf.errors import DataError
from bert_tf.files import write_text
from bert_tf.text.codepoints import SPECIAL_PIECES

MAX_PIECE_BYTES = 256  # what TF Text's WordPiece op holds, "##" not counted


def read_vocabulary(path):
    """Reads a vocabulary file, as google-research/bert writes it.

    Lines end in LF or CRLF. Blank lines at the end do not count; another blank line keeps its id.

    Args:
        path: of a UTF-8 text file.

    Returns:
        list of str, the pieces by id.

    Raises:
        DataError: no such file, not UTF-8, or one of `check_vocabulary`'s.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"cannot read the vocabulary {path}: {error.strerror}; name a vocab.txt") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 text; convert the vocabulary to UTF-8") from error
    # Not str.splitlines: a piece may be a character that it takes for the end of a line, such as U+2028.
    pieces = [line.removesuffix("\r") for line in text.split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    check_vocabulary(pieces, path)
    return pieces


def write_vocabulary(path, pieces):
    """Writes a vocabulary file: all of it or, when anything fails, nothing.

    Args:
        path: of the file; one that is there is replaced.
        pieces: sequence of str.

    Raises:
        DataError: one of `check_vocabulary`'s.
        OSError: the file cannot be written.
    """
    check_vocabulary(pieces, f"the vocabulary for {os.fspath(path)}")
    write_text(path, "".join(f"{piece}\n" for piece in pieces))


def check_vocabulary(pieces, source="the vocabulary"):
    """Checks that pieces can serve as a vocabulary.

    Args:
        pieces: sequence of str.
        source: where they come from, for the message.

    Raises:
        DataError: empty, a special piece missing, a piece twice, or one that is too long or holds NUL or a line end.
    """
    if not pieces:
        raise DataError(f"{source} is empty; expected one piece a line")
    lines = {}
    for line, piece in enumerate(pieces, start=1):
        if piece in lines:
            raise DataError(
                f"{source}, line {line}: the piece {piece!r} is already on line {lines[piece]}; remove one of the two"
            )
        if len(piece.removeprefix("##").encode()) > MAX_PIECE_BYTES:
            raise DataError(
                f"{source}, line {line}: more than {MAX_PIECE_BYTES} bytes; expected a vocabulary, one piece a line"
            )
        if "\0" in piece or "\n" in piece or piece.endswith("\r"):
            raise DataError(f"{source}, line {line}: NUL or a line end in the piece {piece!r}; remove it")
        lines[piece] = line
    missing = [piece for piece in SPECIAL_PIECES if piece not in lines]
    if missing:
        raise DataError(
            f"{source}: no {', '.join(missing)} among its {len(pieces)} pieces; a BERT vocabulary has all of "
            f"{' '.join(SPECIAL_PIECES)}"
        )


def check_size(pieces, expected, source="the vocabulary"):
    """Checks that a vocabulary is the one of a checkpoint.

    Args:
        pieces: sequence of str.
        expected: the checkpoint's `vocab_size`.
        source: where the pieces come from, for the message.

    Raises:
        DataError: the sizes differ.
    """
    missing = expected - len(pieces)
    if not missing:
        return
    advice = "use the vocab.txt that came with the checkpoint"
    if missing > 0:  # often rows that were added for the hardware, which likes multiples of 8
        advice += (
            f"; if this is the one, and the checkpoint's table was only padded, append {missing} lines to vocab.txt, "
            f"[padding0] to [padding{missing - 1}]"
        )
    raise DataError(f"{source} has {len(pieces)} pieces, but the checkpoint was trained with {expected}; {advice}")
