"""The files of a tokenizer in a Hugging Face directory, and what every kind of tokenizer needs of them."""

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

from bert_tf.checkpoints.tokenizer_files.comparison import differences, opened
from bert_tf.checkpoints.tokenizer_files.templates import accepts, template
from bert_tf.config.values import Rule
from bert_tf.errors import DataError
from bert_tf.files import checked, read_json
from bert_tf.text import BaseTokenizer
from bert_tf.text.base import FLAGS, NAMES, ROBERTA, SPECIAL, Added
from bert_tf.text.vocabulary import check_size
from bert_tf.types import Json

if TYPE_CHECKING:
    import tokenizers

CONFIG, LIBRARY = "tokenizer_config.json", "tokenizer.json"
_MAP = "special_tokens_map.json"
# Classes that follow tokenizer.json in everything.
GENERIC_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend"}
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of `Specials`
# In the order in which Transformers appends those that a vocabulary lacks.
_APPENDED = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_STEPS = ("normalizer", "pre_tokenizer")
_VERSION = "1.0"  # of tokenizer.json
# Largest share of texts of ordinary words whose ids may differ from tokenizer.json's.
_MOST_DIFFERENT = 0.1
_SHOWN = 10  # added tokens in a warning
_DIGITS = 9  # of an id: Python refuses to read thousands of them


class UnsupportedTokenizer(Exception):
    """The files are intact, but not of a tokenizer that is supported; the message completes "none, as ..."."""


class _Config(TypedDict, total=False):
    do_lower_case: bool
    keep_accents: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    tokenizer_class: str | None
    add_prefix_space: bool | None
    added_tokens_decoder: dict[str, "_Token"] | None


class _Token(TypedDict, total=False):
    content: Required[str]
    special: bool
    lstrip: bool
    rstrip: bool
    single_word: bool
    normalized: bool


_Id = Annotated[int, Rule(at_least=0)]


class _AddedToken(_Token):
    id: Required[_Id]


class _Component(TypedDict, total=False):
    """A step of tokenizer.json; its other keys are checked where they are used."""

    type: Required[str]
    # Of a Sequence:
    normalizers: "list[_Component]"
    pretokenizers: "list[_Component]"
    processors: "list[_Component]"


class _Model(TypedDict, total=False):
    type: str | None
    vocab: dict[str, Any] | list[Any] | None


class _Library(TypedDict, total=False):
    version: str
    model: _Model | None
    normalizer: _Component | None
    pre_tokenizer: _Component | None
    added_tokens: list[_AddedToken] | None
    post_processor: _Component | None


def read_config(path: str) -> Json:
    """The content of tokenizer_config.json; empty if there is none."""
    file = os.path.join(path, CONFIG)
    return {**read_json(file, _Config)} if os.path.exists(file) else {}


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer.

    Attributes:
        path: their directory.
        config: content of tokenizer_config.json, {} if there is none.
        library: content of tokenizer.json, None if there is none.
        name: class of the tokenizer, without "Fast" at its end; None if none is named.
        generic: whether tokenizer.json says everything, as no class of Transformers that is known here is named.
        vocab_size: number of word embeddings.
        added_pieces: in `BaseTokenizer`; set by `completed`.
        warnings: on what differs from Transformers, and on guesses; readers append to it.
    """

    path: str
    config: Json
    library: Json | None
    name: str | None
    generic: bool
    vocab_size: int
    added_pieces: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def open(
        cls, path: str, config: Json, *, default_class: str | None, known: Collection[str], vocab_size: int
    ) -> "TokenizerFiles":
        """Reads tokenizer.json.

        Args:
            path, config, vocab_size: as the attributes.
            default_class: class of the tokenizer if tokenizer_config.json names none.
            known: classes that do what is known here, whatever tokenizer.json says.
        """
        file, library = os.path.join(path, LIBRARY), None
        if os.path.exists(file):
            library = {**read_json(file, _Library)}
            if not library.get("model"):  # only the special tokens of a .model beside it
                library = None
        name = (config.get("tokenizer_class") or default_class or "").removesuffix("Fast") or None
        generic = name is not None and name not in known
        files = cls(path, config, library, name, generic, vocab_size)
        if generic and name not in GENERIC_CLASSES:
            files.warnings.append(f"tokenizer: {name} is not known here; what its files hold is read, not what it adds")
        return files

    def without_library(self) -> "TokenizerFiles":
        """The same files without tokenizer.json, except for its added tokens."""
        added = {str(token["id"]): token for token in self.added_tokens}
        config = self.config | {"added_tokens_decoder": (self.config.get("added_tokens_decoder") or {}) | added}
        return dataclasses.replace(self, config=config, library=None, added_pieces={}, warnings=[*self.warnings])

    def check_version(self) -> None:
        """Raises UnsupportedTokenizer if tokenizer.json has another layout than the one that is read here."""
        version = (self.library or {}).get("version", _VERSION)
        if version != _VERSION:
            raise UnsupportedTokenizer(f"{LIBRARY} is of the version {version!r}, not {_VERSION!r}")

    def file(self, name: str) -> str:
        """Path of a file."""
        return os.path.join(self.path, name)

    def has(self, *names: str) -> bool:
        """Whether all of these files exist."""
        return all(os.path.exists(self.file(name)) for name in names)

    @functools.cached_property
    def opened(self) -> "tokenizers.Tokenizer":
        """tokenizer.json as the library opens it; raises UnsupportedTokenizer if it does not."""
        try:
            return opened(self.file(LIBRARY))
        except DataError as error:
            raise UnsupportedTokenizer(f"{error}; get the file again, or update the package") from None

    @property
    def model(self) -> Json:
        """The model in tokenizer.json; {} if there is none."""
        return (self.library or {}).get("model") or {}

    @property
    def algorithm(self) -> str | None:
        """The type of the model in tokenizer.json, which old files do not name."""
        model = self.model
        old = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
        return model.get("type", old if model else None)

    def components(self, part: str) -> list[Json]:
        """The normalizers or pre_tokenizers of tokenizer.json, in their order."""
        return _flat((self.library or {}).get(part), f"{part.replace('_', '')}s")

    @property
    def added_tokens(self) -> list[_AddedToken]:
        """The added tokens in tokenizer.json."""
        return (self.library or {}).get("added_tokens") or []

    def added(self) -> dict[str, _Token]:
        """The added tokens of all files that list them: content -> what is known of it."""
        return {token["content"]: token for token in self._numbered().values()}

    def _numbered(self) -> dict[int, _Token]:
        """The added tokens of all files that list them, by id."""
        decoder = self.config.get("added_tokens_decoder") or {}
        if not all(number.isdecimal() and len(number) <= _DIGITS for number in decoder):
            raise DataError(
                f"{self.path}: added tokens without an integer id; save the tokenizer again with Transformers"
            )
        tokens = {int(number): token for number, token in decoder.items()}
        tokens |= {token["id"]: token for token in self.added_tokens}
        if self.has("added_tokens.json") and not decoder:  # otherwise Transformers does not read it
            for content, number in read_json(self.file("added_tokens.json"), dict[str, _Id]).items():
                tokens[number] = {**tokens.get(number, {}), "content": content}
        return tokens

    def listed(self) -> list[str]:
        """The pieces of a vocabulary {piece: id} in tokenizer.json, by id."""
        file = self.file(LIBRARY)
        vocab = checked(self.model.get("vocab") or {}, dict[str, int], file, "model.vocab")
        pieces = {number: piece for piece, number in vocab.items()}
        if sorted(pieces) != list(range(len(vocab))):
            raise DataError(f"{file}: the ids of its pieces are not 0 to {len(vocab) - 1}; expected each number once")
        return [pieces[number] for number in range(len(vocab))]

    def differ(self, name: str) -> None:
        """Appends a warning that a vocabulary in the file `name` is another one than that in tokenizer.json."""
        self.warnings.append(
            f"tokenizer: {name} and {LIBRARY} hold different pieces; {LIBRARY} is used, as in Transformers"
        )

    def completed(self, pieces: Sequence[str], source: str, *, fill: bool) -> list[str]:
        """A vocabulary of as many pieces as the model has word embeddings: with the added tokens.

        Args:
            pieces: by id.
            source: where they come from, for errors.
            fill: whether special tokens that files only name, and then pieces that no text has, may follow: tables are
                padded, or have the rows of a default. Not if the ids are numbers of lines: the missing line may be
                anywhere.
        """
        complete = list(pieces)
        added = self._append_added(complete)
        if fill:
            added |= {token: [] for token in self._append_named(complete)}
        known = set(complete)
        # CamemBERT's NOTUSED are in no text, and special tokens are known, unless they take white space as others do.
        found = (token for token in added if token in known and not token.endswith("NOTUSED"))
        self.added_pieces.update({token: added[token] for token in found if not _usual(token, added[token])})
        missing = self.vocab_size - len(complete)
        if fill and missing > 0:
            self.warnings.append(
                f"tokenizer: {missing:,} of the {self.vocab_size:,} word embeddings have no piece in {source}; no text "
                "uses them"
            )
            complete += [_unused(number) for number in range(len(complete), self.vocab_size)]
        check_size(complete, self.vocab_size, source)
        return complete

    def _warn_of_added(self, tokenizer: BaseTokenizer) -> None:
        """Appends a warning of ordinary added pieces, which Transformers looks for in all texts."""
        ordinary = [token for token in self.added_pieces if not tokenizer.searches(token) and token not in NAMES]
        if ordinary:
            self.warnings.append(
                f"tokenizer: added tokens ({', '.join(ordinary[:_SHOWN])}) are ordinary pieces here; Transformers "
                "looks for them in texts before everything else"
            )

    def _append_added(self, pieces: list[str]) -> dict[str, list[str]]:
        """Appends the added tokens, from all files that list them, to `pieces`.

        Returns:
            Those that it lacked, those that texts have as special tokens, and those that Transformers looks for in all
            texts, with their flags.
        """
        tokens = self._numbered()
        added = {number: token["content"] for number, token in tokens.items()}
        for number, token in added.items():
            if token in NAMES and number < len(pieces) and pieces[number] != token:
                raise DataError(
                    f"{self.path}: {token} has the id {number} beside the vocabulary, and in it that of "
                    f"{pieces[number]!r}; expected the vocabulary of this model, with all of its lines, as their "
                    "numbers are the ids"
                )
        new = {number: token for number, token in sorted(added.items()) if number >= len(pieces)}
        if list(new) != list(range(len(pieces), len(pieces) + len(new))):
            raise DataError(
                f"{self.path}: the added tokens have the ids {', '.join(map(str, new))}; expected them to follow the "
                f"{len(pieces)} pieces of the vocabulary without a gap"
            )
        pieces += new.values()
        listed = {token: (SPECIAL,) for token in self._additional_special()}
        return {
            token["content"]: [flag for flag in FLAGS if token.get(flag, flag in listed.get(token["content"], ()))]
            for token in tokens.values()
        }

    def _append_named(self, pieces: list[str]) -> list[str]:
        """Appends special tokens that files name and no file numbers; returns them."""
        named: dict[str, str] = {}
        for names in self._special_names().values():
            named |= names
        known = set(pieces)
        tokens = dict.fromkeys(named[name] for name in _APPENDED if name in named)
        new = [token for token in tokens if token not in known]
        pieces += new
        return new

    def _maps(self) -> dict[str, Json]:
        """The contents of the files that name special tokens, by file."""
        file = self.file(_MAP)
        return {_MAP: read_json(file, Json) if os.path.exists(file) else {}, CONFIG: self.config}

    def _additional_special(self) -> set[str]:
        """Special tokens that files name besides those in SPECIAL_NAMES."""
        lists = (names.get("additional_special_tokens") or [] for names in self._maps().values())
        tokens = (token for listed in lists if isinstance(listed, list) for token in listed)
        return {str(token.get("content") if isinstance(token, dict) else token) for token in tokens}

    def _special_names(self) -> dict[str, dict[str, str]]:
        """Special tokens by the files that name them: SPECIAL_NAMES -> token."""
        found = self._maps()
        result: dict[str, dict[str, str]] = {}
        for source, names in found.items():
            tokens = {name: names[name] for name in SPECIAL_NAMES if name in names}
            tokens = {name: one.get("content") if isinstance(one, dict) else one for name, one in tokens.items()}
            result[source] = {name: one for name, one in tokens.items() if isinstance(one, str)}
        return result

    def compare_texts(self, tokenizer: BaseTokenizer, *, beside: str | None = None) -> None:
        """Appends a warning on the kinds of texts whose ids differ from tokenizer.json's, if any.

        Args:
            tokenizer: to compare.
            beside: name of the file that the tokenizer was read from instead.

        Raises:
            UnsupportedTokenizer: ordinary texts differ, and the tokenizer was read from tokenizer.json.
        """
        if not self.library:
            return
        try:
            library = self.opened
        except UnsupportedTokenizer as reason:
            if not beside:
                raise
            self.warnings.append(f"tokenizer: {beside} is used, as {reason}")
            return
        ordinary, kinds = differences(tokenizer, library)
        if ordinary > _MOST_DIFFERENT and not beside:
            steps = [str(one.get("type")) for part in _STEPS for one in self.components(part)]
            raise UnsupportedTokenizer(
                f"{LIBRARY} splits {ordinary:.0%} of ordinary texts in other ways ({', '.join(steps)})"
            )
        if kinds:
            used = f"{beside} is used, which segments" if beside else "it segments"
            self.warnings.append(f"tokenizer: {used} some texts otherwise than {LIBRARY}: {', '.join(kinds)}")

    def compare(self, tokenizer: BaseTokenizer) -> None:
        """Appends warnings on added tokens, special tokens of other names, and of another order around a text."""
        self._warn_of_added(tokenizer)
        for source, names in self._special_names().items():
            for name, piece in zip(SPECIAL_NAMES, tokenizer.special_names, strict=True):
                if names.get(name, piece) != piece:
                    self.warnings.append(
                        f"tokenizer: {name} is {names[name]!r} in {source}, which is not applied: it is {piece} here"
                    )
        processor = (self.library or {}).get("post_processor")
        typed = "token_type_ids" in (self.config.get("model_input_names") or ["token_type_ids"])
        if processor and not accepts(_flat(processor, "processors"), tokenizer.special_names, typed):
            text, pair = (
                " ".join("text" if name.startswith("$") else name for name, _ in part)
                for part in template(tokenizer.special_names)
            )
            self.warnings.append(
                f"tokenizer: the post_processor of {LIBRARY} is not applied; a text is {text}, a pair is {pair}"
            )


def _flat(part: Json | None, name: str) -> list[Json]:
    """A component of tokenizer.json, or those of a Sequence, which are under the key `name`."""
    if part and part.get("type") == "Sequence":
        return [one for inner in part.get(name) or [] for one in _flat(inner, name)]
    return [part] if part else []


def _usual(token: str, flags: Sequence[str]) -> bool:
    """Whether a token is a special one of a model, and texts are split at it as `text.segments` does."""
    usual = {"lstrip"} if token == ROBERTA.mask else set()
    return token in NAMES and usual == {*flags} - {SPECIAL, "normalized"}


def _unused(number: int) -> str:
    return f"[padding{number}]"


def real_pieces(pieces: Sequence[str]) -> list[str]:
    """A vocabulary without the pieces at its end with which `TokenizerFiles.completed` filled it."""
    count = len(pieces)
    while count and pieces[count - 1] == _unused(count - 1):
        count -= 1
    return list(pieces[:count])


def write_library(
    path: str, library: "tokenizers.Tokenizer", tokenizer: BaseTokenizer, others: Iterable[str] = ()
) -> Json:
    """Writes tokenizer.json, for tokenizers that no class of Transformers reads from other files.

    Args:
        path: directory.
        library: converts text; the special tokens are added to it.
        tokenizer: the same tokenizer.
        others: more special tokens.

    Returns:
        Settings for tokenizer_config.json.
    """
    from tokenizers import AddedToken, processors

    names = tokenizer.special_names
    single, pair = (" ".join(f"{name}:{kind}" for name, kind in part) for part in template(names))
    library.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(names.cls, tokenizer.cls_id), (names.sep, tokenizer.sep_id)]
    )
    added = tokenizer.added_pieces
    tokens = [name for name in dict.fromkeys((*names, *others)) if name not in added]
    library.add_special_tokens([AddedToken(name, lstrip=name == ROBERTA.mask, normalized=False) for name in tokens])
    add_pieces(library, added)
    library.save(os.path.join(path, LIBRARY))
    return {"tokenizer_class": "PreTrainedTokenizerFast"}


def add_pieces(library: "tokenizers.Tokenizer", added: Added) -> None:
    """Adds pieces that were added to a vocabulary."""
    from tokenizers import AddedToken

    for piece, flags in added.items():
        token = AddedToken(piece, **{flag: flag in flags for flag in FLAGS})
        (library.add_special_tokens if SPECIAL in flags else library.add_tokens)([token])
