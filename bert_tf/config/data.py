"""Settings of the data: pre-training sequences, fine-tuning examples, the tokenizer."""

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Self

from bert_tf.config.encoder_distillation import OBJECTIVES
from bert_tf.config.values import Rule, check_fields, setting, shown
from bert_tf.errors import ConfigError

if TYPE_CHECKING:
    from bert_tf.config.train import PhaseConfig

# Limits of `PretrainingData.language_exponent`.
EXPONENT: Rule = {"above": 0, "at_most": 1}
# A name before the files of a language. Not the start of a path on another file system, such as gs://.
_NAMED = re.compile(r"([A-Za-z][\w-]*):(?!//)(.*)", re.ASCII | re.DOTALL)


def named_corpora(text: str, where: str) -> dict[str, str]:
    """Parses corpora with names: "en:english/*.txt,ko:korean/*.txt"; a name holds up to the next one.

    Args:
        text: of a setting.
        where: the name of the setting, for error messages.

    Returns:
        Paths and patterns separated by commas, by name, sorted by name: the order in `text` does not matter.
    """
    found: dict[str, list[str]] = {}
    for item in text.split(","):
        if named := _NAMED.match(item.strip()):
            name, item = named.groups()
            if name in found:
                raise ConfigError(
                    f"{where} is {shown(text)}, which has {shown(name)} twice; write all files of a language after one "
                    "name: en:FILE,FILE"
                )
            found[name] = []
        if not found:
            raise ConfigError(
                f"{where} is {shown(text)}; expected a name before the files of each language: en:FILE,ko:FILE"
            )
        if not item.strip():
            raise ConfigError(f"{where} is {shown(text)}, with an empty path for {shown(name)}; name its files")
        found[name].append(item)
    return {name: ",".join(found[name]) for name in sorted(found)}


def corpora(text: str, where: str) -> dict[str, str]:
    """As `named_corpora`, but text without names is a single corpus, {"": text}, as is an existing path."""
    first = text.split(",")[0].strip()
    return named_corpora(text, where) if _NAMED.match(first) and not os.path.exists(first) else {"": text}


@dataclasses.dataclass
class PretrainingData:
    """How text becomes training sequences; the defaults are google-research/bert's, without its duplicates on disk.

    Attributes:
        objective: what is predicted: "mlm", masked tokens and, unless pairs is "none", the order of the pair (BERT,
            RoBERTa, ALBERT); "electra", masked tokens by a small generator and, by the model, which tokens were
            replaced by the generator's; "span_boundary", masked tokens and, from its boundaries, those of each span
            (SpanBERT); and, with a teacher, "minilm", "distilbert" or "tinybert", what a larger encoder computes
            (`EncoderDistillation`).
        generator_size: for "electra": hidden size, feed-forward size and heads of the generator, as a share of the
            model's; rounded to whole heads.
        layout: of the text: "sentences" (one per line, blank lines between documents) or "documents" (one per line).
        languages: training text of several languages instead of `input`, each after its name:
            "en:english/*.txt,ko:korean/*.txt" (or folders of prepared shards); "" for none.
        language_exponent: languages are sampled in proportion to the size of their text to this power: 0.7 as
            multilingual BERT, 0.3 as XLM-R; 1 leaves their shares as they are in the files.
        max_bad_share: largest share of sentences (in prepared shards: documents) that may be dropped as undecodable.
        service: address of the dispatcher of a tf.data service whose workers make the batches, e.g.
            "grpc://10.0.0.2:5000"; "" makes them in this process.
        service_workers: number of workers of that service.
        pairs: "nsp": two segments, the second from another document half of the time (BERT); "sop": two segments,
            swapped half of the time (ALBERT); "none": full sentences across documents, only the masked language model
            (RoBERTa).
        max_length: maximum tokens per sequence, including special tokens.
        masking: unit that is masked: "token" (BERT), "whole_word" (its later models), "ngram" (one to three words,
            ALBERT) or "span" (one to ten words, SpanBERT). With "causal_lm" nothing is masked, and each position
            predicts the next token; needs model.attention "causal". With "none" text stays as it is, for "minilm" and
            "tinybert", which predict no tokens.
        words: unless masking is "token": "pieces" (each wordpiece without ## starts a word; of other tokenizers, each
            piece with white space in front, so that punctuation belongs to the word before it) or "spaces" (words are
            separated by white space and punctuation: for Korean that contains Chinese characters, or segmented text).
        mask_on: "host" (in the input pipeline) or "device" (in the training step); both give the same masks.
        max_predictions: maximum masked tokens per sequence.
        mask_special: whether the special tokens at the ends of segments are masked like others (ModernBERT); in
            training only, since they are easy to predict.
        validation_masking_rate: masking_rate of validation text; None for the same.
        masking_rate: share of the tokens of a sequence to mask. At least one is masked if possible, even at rate 0, as
            in google-research/bert.
        short_sequence_rate: share of documents that are cut into shorter pairs; ignored if pairs is "none".
        group_size: number of documents that are shuffled together, and from which random second segments are drawn.
        length_multiple: None pads every batch to max_length. A number batches pairs of similar length and pads each
            batch to a multiple of it.
        pack: fills rows up to max_length. Several short pairs share a row, each attending only to itself; batch_size
            then counts rows, and max_predictions applies per row. With pairs "none", sentences are cut at the end of a
            row and continue in another one, so that every row is one full sequence.
    """

    objective: str = setting("mlm", choices=("mlm", "electra", "span_boundary", *OBJECTIVES))
    generator_size: float = setting(0.25, above=0, at_most=1)  # larger than the discriminator, it wastes its work
    layout: str = setting("sentences", choices=("sentences", "documents"))
    languages: str = ""
    language_exponent: float = setting(0.7, **EXPONENT)
    max_bad_share: float = setting(0.01, at_least=0, at_most=1)
    service: str = ""
    service_workers: int = setting(1, at_least=1, at_most=100_000)
    pairs: str = setting("nsp", choices=("nsp", "sop", "none"))
    # The shortest pair has two tokens and three special tokens; some tokenizers need more (`check_corpus`).
    max_length: int = setting(128, at_least=5, at_most=1_000_000)
    masking: str = setting("token", choices=("token", "whole_word", "ngram", "span", "causal_lm", "none"))
    words: str = setting("pieces", choices=("pieces", "spaces"))
    mask_on: str = setting("host", choices=("host", "device"))
    max_predictions: int = setting(20, at_least=1, at_most=1_000_000)
    masking_rate: float = setting(0.15, at_least=0, at_most=1)
    mask_special: bool = setting(False, sparse=True)
    validation_masking_rate: float | None = setting(None, at_least=0, at_most=1, sparse=True)
    short_sequence_rate: float = setting(0.1, at_least=0, at_most=1)
    group_size: int = setting(1000, at_least=2, at_most=10_000_000)
    length_multiple: int | None = setting(None, at_least=1, at_most=1_000_000)
    pack: bool = False

    def in_phase(self, phase: "PhaseConfig") -> Self:
        """The settings during a phase of the run."""
        return dataclasses.replace(self, **phase.own("max_length", "max_predictions"))

    def of_validation(self) -> Self:
        """The settings of validation text."""
        rate = self.masking_rate if self.validation_masking_rate is None else self.validation_masking_rate
        return dataclasses.replace(self, mask_special=False, masking_rate=rate)

    @property
    def masks_words(self) -> bool:
        """Whether the units that are masked are words."""
        return self.masking in ("whole_word", "ngram", "span")

    @property
    def shares_rows(self) -> bool:
        """Whether a row can contain several sequences, which must not attend to each other."""
        return self.pack and self.pairs != "none"

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        check_fields(self, "data")
        if self.languages:
            named_corpora(self.languages, "data.languages")
        if self.service and not re.fullmatch(r"\w+://[^/]+:\d+", self.service):
            raise ConfigError(f"data.service is {self.service!r}; expected an address like grpc://10.0.0.2:5000")
        if self.objective != "mlm" and (self.pairs != "none" or self.masking == "causal_lm"):
            raise ConfigError(
                f"data.objective is {self.objective!r}, data.pairs {self.pairs!r} and data.masking {self.masking!r}; "
                "it needs single sequences with masked tokens: set data.pairs=none and another masking than causal_lm"
            )
        if self.masking == "causal_lm" and (self.pairs != "none" or self.max_predictions < self.max_length - 1):
            raise ConfigError(
                f"data.masking is 'causal_lm', data.pairs {self.pairs!r} and data.max_predictions "
                f"{self.max_predictions}; set data.pairs=none and data.max_predictions={self.max_length - 1}: all "
                "tokens but the first are predicted"
            )
        if self.objective == "span_boundary" and self.masking != "span":
            raise ConfigError(
                f"data.objective is 'span_boundary' and data.masking {self.masking!r}; set data.masking=span"
            )
        if self.masking == "none" and self.objective not in ("minilm", "tinybert"):
            raise ConfigError(
                f"data.masking is 'none', but data.objective {self.objective!r} predicts masked tokens; set another "
                "data.masking, such as token"
            )
        if self.objective != "electra" and self.generator_size != type(self).generator_size:
            raise ConfigError(
                f"data.generator_size is {self.generator_size}, but data.objective is {self.objective!r}; set "
                "data.objective=electra, or leave data.generator_size out"
            )
        if self.words != "pieces" and not self.masks_words:
            raise ConfigError(
                f"data.words is {self.words!r}, but data.masking {self.masking!r} ignores words; set data.masking "
                "to whole_word, ngram or span, or leave data.words out"
            )
        if self.mask_special and self.masking != "token":
            raise ConfigError(
                f"data.mask_special is True, but data.masking is {self.masking!r}; set data.masking=token, or leave "
                "data.mask_special out"
            )
        if self.pack and self.length_multiple is not None:
            raise ConfigError(
                f"data.length_multiple is {self.length_multiple}, but with data.pack all rows have max_length; "
                "leave one of the two out"
            )
        if self.shares_rows and self.mask_on == "device":
            raise ConfigError(
                "data.mask_on is 'device', which masks whole rows, but data.pack needs each sequence in a row masked "
                "separately; set data.mask_on=host"
            )
        return self


@dataclasses.dataclass
class ExampleData:
    """Source and format of the examples for fine-tuning.

    Attributes:
        source: "" for the files in --data_dir; "tfds:NAME" for TensorFlow Datasets, e.g. "tfds:glue/mrpc".
        format: file format, a key of `inputs.datasets.formats.FORMATS`: "table" for TSV, CSV or JSON lines with columns
            of any name (a file that ends in none of .tsv, .csv and .jsonl is TSV or CSV, as its first line shows);
            "glue/mrpc" and the like for files as their authors published them.
        train, validation, test: names of files in --data_dir, or of the data set's own splits; "" for the format's
            default. By default `evaluate` reads the second, `predict` the third.
        text, second_text, label: names of table columns (TFDS: of features), or numbers from 1 if the table has no
            header; second_text is "" for single texts.
        column: for tagged words: column with the tags, such as "-1" or "upos"; "" for the format's default.
    """

    source: str = ""
    format: str = "table"
    train: str = ""
    validation: str = ""
    test: str = ""
    text: str = "sentence"
    second_text: str = ""
    label: str = "label"
    column: str = ""

    def check(self) -> Self:
        """Raises ConfigError for values that are no text."""
        check_fields(self, "data")
        if not self.text:
            raise ConfigError("data.text is empty; expected the name of a column, or its number from 1")
        return self


@dataclasses.dataclass
class TokenizerSettings:
    """Settings of WordPiece tokenizers, and of ALBERT's SentencePiece, of which the first two apply.

    They do nothing for other kinds: what these do with text is in their files. By default (None) the vocabulary
    decides, as for `Tokenizer`: they are True unless it was made without them.

    Attributes:
        lower_case: lower-case the text.
        strip_accents: strip accents.
        split_cjk: make every CJK ideograph a separate word.
    """

    lower_case: bool | None = None
    strip_accents: bool | None = None
    split_cjk: bool | None = None


@dataclasses.dataclass
class SavedTokenizer(TokenizerSettings):
    """What a model directory and an export say of the tokenizer in their files.

    Attributes:
        kind: of `Tokenizer`, `BytePairTokenizer` or `SentencePieceTokenizer`. Settings of `Tokenizer` that are missing
            are as they were before the vocabulary could decide; others have the defaults of the class.
        max_input_chars_per_word: of `Tokenizer`.
        add_prefix_space, nfc: of `BytePairTokenizer`.
        double_quotes: of `SentencePieceTokenizer`.
        added_pieces: as in `BaseTokenizer`.
    """

    lower_case: bool = True
    split_cjk: bool = True
    kind: str = setting("wordpiece", choices=("wordpiece", "byte_bpe", "sentencepiece"))
    max_input_chars_per_word: int = 200
    add_prefix_space: bool = False
    nfc: bool = False
    double_quotes: bool = False
    added_pieces: dict[str, list[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TokenizerConfig(TokenizerSettings):
    """The tokenizer of a pre-training.

    Attributes:
        vocab: path of its vocabulary, whose ending tells its kind: vocab.txt (WordPiece), vocab.json with merges.txt
            beside it (byte-level BPE) or a .model file (SentencePiece).
    """

    vocab: str = "vocab.txt"

    def check(self) -> Self:
        """Raises ConfigError for values of the wrong type."""
        check_fields(self, "tokenizer")
        return self
