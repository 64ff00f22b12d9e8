"""How text becomes examples."""

import dataclasses
import re

from bert_tf.config.values import check_renamed
from bert_tf.errors import ConfigError


@dataclasses.dataclass
class PretrainingData:
    """How text becomes examples; the defaults are google-research/bert's, but for its duplicates on disk.

    Attributes:
        layout: of text: "sentences" (one a line, blank lines between documents) or "documents" (one a line).
        max_bad_share: of the sentences (prepared shards: documents), that may be undecodable and so left out.
        service: address of the dispatcher of a tf.data service whose workers make the batches, e.g.
            "grpc://10.0.0.2:5000"; "" makes them in this process.
        service_workers: how many workers that service has.
        pairs: "nsp": two segments, the second from another document at even odds (BERT); "sop": two segments, swapped
            at even odds (ALBERT); "none": full sentences across documents, masked language model alone (RoBERTa).
        max_length: tokens of a sequence, at most, [CLS] and [SEP] counted.
        masking: "token" (BERT), "whole_word" (its later models) or "span" (SpanBERT): what is masked together. Or
            "causal_lm": nothing is, and at each position the next token is predicted; for model.attention "causal".
        words: for "whole_word" and "span", "pieces" (a piece without ## begins a word) or "spaces" (a word is what
            stands between white space, punctuation apart: for Korean with Chinese characters in it, or segmented text).
        mask_on: "host" (in the input pipeline) or "device" (in the training step); the same masks either way.
        max_predictions: masked tokens a sequence, at most.
        masking_rate: share of the tokens of a sequence that is masked; at least one is, where one can be, also at a
            rate of 0, as in google-research/bert.
        short_sequence_rate: share of documents that aim at shorter pairs; "none" makes no shorter sequences.
        group_size: documents that are shuffled together and lend each other random second parts.
        length_multiple: None pads every batch to max_length; a number puts pairs of similar length into a batch and
            pads it to a multiple of that number.
        pack: fills rows up to max_length. Several short pairs share a row, each attending to itself only; batch_size
            then counts rows, and max_predictions is a row's limit, too. With pairs "none", sentences are cut where the
            row ends and go on in another one, so that every row is one full sequence.
    """

    layout: str = "sentences"
    max_bad_share: float = 0.01
    service: str = ""
    service_workers: int = 1
    pairs: str = "nsp"
    max_length: int = 128
    masking: str = "token"
    words: str = "pieces"
    mask_on: str = "host"
    max_predictions: int = 20
    masking_rate: float = 0.15
    short_sequence_rate: float = 0.1
    group_size: int = 1000
    length_multiple: int | None = None
    pack: bool = False

    def in_phase(self, phase):
        """The settings of a phase of the run, a PhaseConfig."""
        names = ("max_length", "max_predictions")
        own = {name: getattr(phase, name) for name in names if getattr(phase, name) is not None}
        return dataclasses.replace(self, **own)

    @property
    def shares_rows(self):
        """Whether a row can hold several sequences, which the model has to keep apart."""
        return self.pack and self.pairs != "none"

    def check(self):
        """Raises ConfigError for values that no run can have."""
        check_renamed(self, "masking")
        if self.layout not in ("sentences", "documents"):
            raise ConfigError(f"data.layout {self.layout!r} is unknown; choose sentences or documents")
        if self.pairs not in ("nsp", "sop", "none"):
            raise ConfigError(f"data.pairs {self.pairs!r} is unknown; choose nsp, sop or none")
        # Two tokens and the three specials are the shortest pair there is.
        for field, least in (("max_length", 5), ("max_predictions", 1), ("group_size", 2), ("service_workers", 1)):
            if getattr(self, field) < least:
                raise ConfigError(f"data.{field} is {getattr(self, field)}; it must be at least {least}")
        if self.service and not re.fullmatch(r"\w+://[^/]+:\d+", self.service):
            raise ConfigError(f"data.service is {self.service!r}; expected an address like grpc://10.0.0.2:5000")
        for field in ("masking_rate", "short_sequence_rate", "max_bad_share"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"data.{field} is {getattr(self, field)}; it is a share, in [0, 1]")
        for field, choices in (
            ("masking", ("token", "whole_word", "span", "causal_lm")),
            ("words", ("pieces", "spaces")),
            ("mask_on", ("host", "device")),
        ):
            if getattr(self, field) not in choices:
                raise ConfigError(
                    f"data.{field} {getattr(self, field)!r} is unknown; choose one of {', '.join(choices)}"
                )
        if self.masking == "causal_lm" and (self.pairs != "none" or self.max_predictions < self.max_length - 1):
            raise ConfigError(
                f"data.masking is 'causal_lm', data.pairs {self.pairs!r} and data.max_predictions "
                f"{self.max_predictions}; set data.pairs=none and data.max_predictions={self.max_length - 1}, for each "
                "token but the first"
            )
        if self.masking in ("token", "causal_lm") and self.words != "pieces":
            raise ConfigError(
                f"data.words is {self.words!r}, but data.masking {self.masking!r} looks at no words; set data.masking "
                "to whole_word or span, or leave data.words out"
            )
        if self.length_multiple is not None and self.length_multiple < 1:
            raise ConfigError(f"data.length_multiple is {self.length_multiple}; it must be at least 1, or null")
        if self.pack and self.length_multiple is not None:
            raise ConfigError(
                f"data.length_multiple is {self.length_multiple}, but rows of data.pack are all of max_length; "
                "leave one of the two out"
            )
        if self.shares_rows and self.mask_on == "device":
            raise ConfigError(
                "data.mask_on is 'device', where rows are masked, but data.pack needs each sequence in a row masked by "
                "itself; set data.mask_on=host"
            )
        return self


@dataclasses.dataclass
class ExampleData:
    """Where the examples come from that a task is fine-tuned on.

    Attributes:
        source: "" for the files of --data_dir; "tfds:NAME" for a data set of TensorFlow Datasets, as "tfds:glue/mrpc".
        format: how the files are laid out, a key of `inputs.datasets.sources.FORMATS`: "table" for anybody's own TSV, CSV or
            JSON lines, "glue/mrpc" and its like for files as their authors publish them.
        train, validation, test: names of files in --data_dir, or of the data set's own splits; "" for those that the
            format has. `evaluate` takes the second, `predict` the third.
        text, second_text, label: names of a table's columns (TFDS: of features); second_text "" for single texts.
        column: of tagged words, which column holds the tags, such as "-1" or "upos"; "" for the format's usual one.
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


@dataclasses.dataclass
class TokenizerConfig:
    """How text becomes pieces.

    Attributes:
        vocab: path of vocab.txt.
        lower_case, strip_accents, split_cjk: as in `Tokenizer`; strip_accents None follows lower_case.
    """

    vocab: str = "vocab.txt"
    lower_case: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True
