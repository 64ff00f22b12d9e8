"""Changes that a checkpoint can be given on its way: number format, more pieces, more positions."""

import dataclasses

import numpy as np

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import ConfigError, DataError
from bert_tf.text.vocabulary import check_vocabulary

DTYPES = ("float32", "float16", "bfloat16")


def cast(checkpoint, dtype):
    """The Checkpoint with every weight in the NumPy type named `dtype`; Adam's slots stay as they are.

    Raises:
        DataError: when a tensor is read whose values the type can not hold.
    """

    def converted(path, tensor):
        def read():
            values = tensor.read()
            with np.errstate(over="ignore"):
                result = values.astype(dtype)
            if np.isfinite(values).all() and not np.isfinite(result).all():
                largest = np.abs(values.astype(np.float64)).max()
                raise DataError(f"{path} holds {largest:.4g}, which {dtype} can not; convert to bfloat16 or float32")
            return result

        return dataclasses.replace(tensor, dtype=dtype, read=read)

    tensors = {path: converted(path, tensor) for path, tensor in checkpoint.tensors.items()}
    return dataclasses.replace(checkpoint, tensors=tensors)


def add_pieces(checkpoint, pieces):
    """The Checkpoint with pieces appended to its vocabulary.

    Each gets the mean of the word embeddings and of the masked-LM biases there are, so that it is neither likely nor
    unlikely from the start (Hewitt, 2021, "Initializing New Word Embeddings for Pretrained Language Models").

    Raises:
        ConfigError: the checkpoint has no vocabulary.
        DataError: a piece is there already or can not be one.
    """
    old = checkpoint.pieces
    if not old:
        raise ConfigError("the checkpoint has no WordPiece vocabulary, so no piece can be added to it")
    known = set(old)
    twice = [piece for piece in pieces if piece in known]
    if twice:
        raise DataError(f"the vocabulary has {twice[0]!r} already; leave out what is not new")
    check_vocabulary([*old, *pieces], "the vocabulary with the new pieces")
    count = len(pieces)
    changed = _with_rows(checkpoint, "embeddings/word_embeddings", count, _mean)
    changed = _with_rows(changed, "masked_lm/bias", count, _mean)
    config = dataclasses.replace(checkpoint.config, vocab_size=len(old) + count)
    warnings = [
        f"vocabulary: {count} added (ids {len(old)} to {len(old) + count - 1}), each with the mean of the {len(old)} "
        "word embeddings"
    ]
    result = dataclasses.replace(
        changed,
        config=config,
        pieces=[*old, *pieces],
        warnings=checkpoint.warnings + warnings,
        source_metadata=dict(checkpoint.source_metadata),
    )
    whole = [piece for piece in pieces if not piece.startswith("##")]
    found = result.tokenizer().tokenize(whole).to_list() if whole else []
    unseen = [piece for piece, ids in zip(whole, found, strict=True) if ids != [result.pieces.index(piece)]]
    if unseen:
        result.warnings.append(
            f"the tokenizer never makes these of a text, which it lower-cases or cuts at punctuation first: "
            f"{' '.join(unseen[:10])}"
        )
    return result


def extend_positions(checkpoint, length):
    """The Checkpoint with position embeddings for inputs of `length` tokens.

    The learned ones are repeated from the start (Beltagy et al., 2020, Longformer, section 5): attention that learned
    to look at neighbours finds them again everywhere but at the seams.

    Raises:
        ConfigError: it takes inputs of that length already.
    """
    config, path = checkpoint.config, "embeddings/position_embeddings"
    more = length - config.max_position_embeddings
    if more <= 0:
        raise ConfigError(f"max_position_embeddings {length}: the checkpoint has {config.max_position_embeddings}")

    def repeated(table, count):
        learned = table[config.position_offset :]
        return np.resize(learned, (count, table.shape[1]))  # from the start, as often as is needed

    source_metadata = dict(checkpoint.source_metadata)
    if "tokenizer_config" in source_metadata:  # it says how long a text may be, which is no longer so
        source_metadata["tokenizer_config"] = {
            name: value for name, value in source_metadata["tokenizer_config"].items() if name != "model_max_length"
        }
    return dataclasses.replace(
        _with_rows(checkpoint, path, more, repeated),
        config=dataclasses.replace(config, max_position_embeddings=length),
        source_metadata=source_metadata,
        warnings=[
            *checkpoint.warnings,
            f"positions: {config.max_position_embeddings} became {length}, the learned ones repeated from the start; "
            "train on long texts before you trust them",
        ],
    )


def _mean(table, count):
    return np.repeat(table.astype(np.float64).mean(0, keepdims=True), count, axis=0)


def _with_rows(checkpoint, path, count, make):
    """The Checkpoint with `count` rows, `make(array, count)`, appended to a variable that it may have.

    Adam's slots of the variable get zeros.
    """
    tensors, slots = dict(checkpoint.tensors), dict(checkpoint.slots)
    if path in tensors:
        tensors[path] = _longer(tensors[path], count, make)
    for name in (f"{path}/m", f"{path}/v"):
        if name in slots:
            slots[name] = _longer(slots[name], count, lambda table, count: np.zeros((count, *table.shape[1:])))
    return dataclasses.replace(checkpoint, tensors=tensors, slots=slots)


def _longer(tensor, count, make):
    def read():
        table = tensor.read()
        return np.concatenate([table, make(table, count).astype(table.dtype)])

    shape = (tensor.shape[0] + count, *tensor.shape[1:])
    return Tensor(shape, tensor.dtype, read, f"{tensor.source}, {count} rows added")
