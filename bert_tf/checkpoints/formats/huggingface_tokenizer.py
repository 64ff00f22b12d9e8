"""The tokenizer of a Hugging Face directory: vocab.txt or tokenizer.json, and tokenizer_config.json."""

import os

from bert_tf.errors import DataError
from bert_tf.files import read_json_object, write_json
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.vocabulary import check_size, check_vocabulary, read_vocabulary, write_vocabulary

# Classes whose text handling is BERT's, with or without "Fast" behind; None is what a BERT model has by default.
_BERT_CLASSES = {None, "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
# Classes that are whatever tokenizer.json says.
_GENERIC_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend"}
# Our setting: (what tokenizer_config.json calls it, what tokenizer.json does, Transformers' default).
_SETTINGS = {
    "lower_case": ("do_lower_case", "lowercase", True),
    "strip_accents": ("strip_accents", "strip_accents", None),
    "split_cjk": ("tokenize_chinese_chars", "handle_chinese_chars", True),
}
_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of SPECIAL_PIECES
# Of no use in another directory: where the files lay, and code that would be fetched and run.
_NOT_KEPT = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file"}
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false"}


def read_config(path):
    """The dict of tokenizer_config.json; empty where there is none."""
    file = os.path.join(path, "tokenizer_config.json")
    config = read_json_object(file) if os.path.exists(file) else {}
    kinds = {theirs: bool for theirs, _, _ in _SETTINGS.values()}
    return _checked(config, kinds | {"tokenizer_class": str, "added_tokens_decoder": dict}, file)


def _read_library(file):
    """The dict of tokenizer.json, its parts of the kinds that are expected below; None where there is no such file."""
    if not os.path.exists(file):
        return None
    kinds = {"model": dict, "normalizer": dict, "pre_tokenizer": dict, "added_tokens": list}
    library = _checked(read_json_object(file), kinds, file)
    model = library.get("model") or {}
    if model.get("type") == "WordPiece":  # other kinds list pieces with their scores
        _checked(model, {"vocab": dict}, file)
    _checked(library.get("normalizer") or {}, {theirs: bool for _, theirs, _ in _SETTINGS.values()}, file)
    return library


def _checked(values, kinds, where):
    """The dict `values`; raises DataError for one that is there and not of its kind."""
    for name, kind in kinds.items():
        if values.get(name) is not None and not isinstance(values[name], kind):
            raise DataError(f"{where}: {name} is {str(values[name])[:60]!r}; expected {_KINDS[kind]}")
    return values


def read_tokenizer(path, config, vocab_size, default_class=None):
    """Vocabulary and settings, as Transformers would use them.

    Args:
        path: directory.
        config: dict of tokenizer_config.json.
        vocab_size: pieces that the checkpoint was trained with.
        default_class: the tokenizer's class where `config` names none.

    Returns:
        pieces (list of str, or None where the ids do not come from a BERT tokenizer), keyword arguments of `Tokenizer`,
        warnings (list of str). None, {} and no warnings where there is no tokenizer at all.

    Raises:
        DataError: a file that is broken; a vocabulary that is not of this length.
    """
    vocab, fast = os.path.join(path, "vocab.txt"), os.path.join(path, "tokenizer.json")
    library = _read_library(fast)
    name = config.get("tokenizer_class", default_class)
    bare = name.removesuffix("Fast") if name else None
    reason = _foreign(path, library, bare, os.path.exists(vocab))
    if reason:
        return None, {}, [f"no tokenizer: {reason}; the ids have to come from the model's own tokenizer"]
    warnings, pieces, source = [], None, vocab
    if os.path.exists(vocab):
        pieces = read_vocabulary(vocab)
    if library:
        listed = _listed(library["model"].get("vocab") or {}, fast)
        differ = pieces is not None and pieces[: len(listed)] != listed
        if differ:
            warnings.append(
                "vocab.txt and tokenizer.json hold different pieces: the latter's are used, as Transformers does"
            )
        if pieces is None or differ:
            pieces, source = listed, fast
    if pieces is None:
        return None, {}, []
    added = _completed(pieces, _added(path, config, library), path)
    if added:
        warnings.append(
            f"added tokens stand at the end of the vocabulary ({', '.join(added[:10])}) and are found in a text as "
            "ordinary pieces are, not before everything else"
        )
    check_vocabulary(pieces, source)
    check_size(pieces, vocab_size, source)
    settings = {ours: config.get(theirs, default) for ours, (theirs, _, default) in _SETTINGS.items()}
    if library:
        settings = _settled(settings, library["normalizer"], bare in _GENERIC_CLASSES, warnings)
    return pieces, settings, warnings


def _foreign(path, library, name, has_vocab):
    """Why the ids are not those of a BERT tokenizer, or None."""
    if name not in _BERT_CLASSES | _GENERIC_CLASSES and (library or has_vocab):
        return f"{name} is not BERT's WordPiece"
    if name in _GENERIC_CLASSES and not library:
        return f"{name} needs a tokenizer.json, which is not there"
    if library:
        model = library.get("model") or {}
        kinds = {part: (library.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer")}
        if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
            return f"tokenizer.json holds {model.get('type')!r}, not WordPiece with ##"
        if kinds != {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}:
            return f"tokenizer.json has {' and '.join(map(str, kinds.values()))}, not BERT's two"
    others = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
    found = [file for file in others if os.path.exists(os.path.join(path, file))]
    if found and not has_vocab and not library:
        return f"{', '.join(found)} is not a WordPiece vocabulary"
    return None


def _listed(vocab, file):
    """The pieces of a dict piece -> id, by id."""
    pieces = {number: piece for piece, number in vocab.items() if isinstance(number, int)}
    if sorted(pieces) != list(range(len(vocab))):
        raise DataError(f"{file}: the ids of its pieces are not 0 to {len(vocab) - 1}; expected each number once")
    return [pieces[number] for number in range(len(vocab))]


def _added(path, config, library):
    """dict id -> token of all the places that name added ones."""
    file = os.path.join(path, "added_tokens.json")
    listed = list((config.get("added_tokens_decoder") or {}).items())
    try:
        tokens = [(number, token["content"]) for number, token in listed]
        tokens += [(token["id"], token["content"]) for token in (library or {}).get("added_tokens") or []]
        if os.path.exists(file):
            tokens += [(number, token) for token, number in read_json_object(file).items()]
        return {int(number): str(token) for number, token in tokens}
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{path}: its added tokens are not numbers with a 'content' each; save the tokenizer anew"
        ) from None


def _completed(pieces, added, path):
    """Appends to `pieces` the tokens with ids past its end; returns them."""
    new = {number: token for number, token in sorted(added.items()) if number >= len(pieces)}
    if list(new) != list(range(len(pieces), len(pieces) + len(new))):
        raise DataError(
            f"{path}: the added tokens have the ids {', '.join(map(str, new))}; expected them to follow the "
            f"{len(pieces)} pieces of the vocabulary without a gap"
        )
    pieces += new.values()
    return list(new.values())


def _settled(config, normalizer, generic, warnings):
    """The settings that hold where tokenizer.json's BertNormalizer and tokenizer_config.json may differ.

    Transformers' BERT classes (4.57 and 5.23, tried) go by tokenizer_config.json and their own defaults; its generic
    classes go by tokenizer.json.
    """
    library = {ours: normalizer.get(theirs, default) for ours, (_, theirs, default) in _SETTINGS.items()}
    used, file = (library, "tokenizer.json") if generic else (config, "tokenizer_config.json (or its defaults)")
    for name, value in config.items():
        if library[name] != value:
            warnings.append(
                f"{name} is {value} by tokenizer_config.json and {library[name]} by tokenizer.json: {file} is "
                "followed, as Transformers does"
            )
    return used


def kept(config):
    """What of tokenizer_config.json to write back: all but what `write_tokenizer` makes anew."""
    made = {theirs for theirs, _, _ in _SETTINGS.values()} | {"tokenizer_class", *_SPECIAL_NAMES}
    return {name: value for name, value in config.items() if name not in made | _NOT_KEPT}


def write_tokenizer(path, pieces, settings, config, model):
    """Writes vocab.txt and tokenizer_config.json.

    Args:
        path: directory.
        pieces: list of str.
        settings: keyword arguments of `Tokenizer`.
        config: what `kept` returned; or {}.
        model: BertConfig.
    """
    write_vocabulary(os.path.join(path, "vocab.txt"), pieces)
    result = {"model_max_length": model.max_position_embeddings} | config | {"tokenizer_class": "BertTokenizer"}
    result |= {theirs: settings.get(ours, default) for ours, (theirs, _, default) in _SETTINGS.items()}
    result |= dict(zip(_SPECIAL_NAMES, SPECIAL_PIECES, strict=True))
    if model.type_vocab_size < 2:
        # Else Transformers' BERT tokenizer makes types 0 and 1 for a pair, and the model has no row for 1.
        result.setdefault("model_input_names", ["input_ids", "attention_mask"])
    write_json(os.path.join(path, "tokenizer_config.json"), result)
