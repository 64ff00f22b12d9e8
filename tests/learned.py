"""Small tokenizers of each kind, learned from the bundled English and Korean text, with their Hugging Face twins."""

import functools
import gzip
import hashlib
import io
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import sentencepiece
import tokenizers

from bert_tf.bundled import bundled
from bert_tf.text import Tokenizer, learn_byte_pairs, learn_vocabulary
from bert_tf.text.base import BERT, GEMMA, BaseTokenizer
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer, albert_tokenizer, with_fairseq_ids, with_ids

SIZE = 1500  # of every vocabulary here
KINDS = ("wordpiece", "byte_bpe", "unigram")
TEXTS = ("data/korean/gnome_train.txt.gz", "data/sotu/train.txt.gz")


def lines(name: str, count: int = 3000) -> list[str]:
    """The first lines of a bundled text."""
    with gzip.open(bundled(name), "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in itertools.islice(file, count)]


class Learned(NamedTuple):
    """A tokenizer, and Hugging Face's of the same pieces, which adds the special tokens of this kind of model."""

    tokenizer: BaseTokenizer
    reference: Any


@functools.cache
def learned(kind: str) -> Learned:
    """A tokenizer of one of KINDS."""
    text = _text()
    if kind == "wordpiece":
        pieces = _kept("wordpiece", lambda: learn_vocabulary(text, SIZE, lower_case=False))
        ours: BaseTokenizer = Tokenizer(pieces, lower_case=False)
        twin = tokenizers.Tokenizer(tokenizers.models.WordPiece(_ids(ours), unk_token="[UNK]"))
        twin.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
        twin.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    elif kind == "byte_bpe":
        ours = BytePairTokenizer(*_kept("byte_bpe", lambda: learn_byte_pairs(text, SIZE)))
        merges = [tuple(merge.split(" ")) for merge in ours.merges]
        twin = tokenizers.Tokenizer(tokenizers.models.BPE(_ids(ours), merges))
        twin.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        single, pair = "<s> $A </s>", "<s> $A </s> </s>:0 $B:0 </s>:0"
    else:
        ours = sentence_piece()
        scores = [(piece, 0.0) for piece in ours.vocab[:4]]
        processor = sentencepiece.SentencePieceProcessor(model_proto=ours.model)
        scores += [(ours.vocab[at], processor.get_score(at)) for at in range(4, ours.vocab_size - 1)]
        twin = tokenizers.Tokenizer(tokenizers.models.Unigram([*scores, ("<mask>", 0.0)], unk_id=ours.unk_id))
        normalizers = tokenizers.normalizers
        one_space = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
        twin.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), one_space])
        twin.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        single, pair = "<s> $A </s>", "<s> $A </s> </s>:0 $B:0 </s>:0"
    names = list(ours.special_names)
    twin.add_special_tokens([tokenizers.AddedToken(name, special=True, lstrip=name == "<mask>") for name in names])
    twin.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, twin.token_to_id(name)) for name in names]
    )
    return Learned(ours, twin)


@functools.cache
def sentence_piece_model(**settings: Any) -> bytes:
    """A .model file with ids of its own, learned with these settings of the library."""
    return _trained(_text(), **settings)


@functools.cache
def albert_model() -> bytes:
    """ALBERT's spiece.model: with its special tokens, of text in lower case."""
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    return _trained([line.lower() for line in _text()], control_symbols="[CLS],[SEP],[MASK]", **ids)


@functools.cache
def sentence_piece(**settings: Any) -> SentencePieceTokenizer:
    """A SentencePiece tokenizer with XLM-R's ids, of `sentence_piece_model`."""
    return SentencePieceTokenizer(with_fairseq_ids(sentence_piece_model(**settings)))


@functools.cache
def camembert() -> SentencePieceTokenizer:
    """A SentencePiece tokenizer with CamemBERT's ids, of `sentence_piece_model`."""
    model = sentence_piece_model()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    own = [processor.id_to_piece(number) for number in range(1, processor.vocab_size())]
    first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    return SentencePieceTokenizer(with_ids(model, [*first, *own, "<mask>"]))


@functools.cache
def modern() -> Learned:
    """A tokenizer like ModernBERT's, with NFC and pieces for several spaces, and Hugging Face's of the same pieces."""
    plain = learned("byte_bpe").tokenizer
    names = dict(zip(plain.special_names, BERT, strict=True))
    spaces, marker, special = [" " * count for count in range(8, 1, -1)], "|||IP_ADDRESS|||", "<|padding|>"
    pieces = [names.get(piece, piece) for piece in plain.vocab] + [*spaces, marker, special, "[unused0]"]
    flags = {piece: ["normalized"] for piece in (*spaces, marker, "[unused0]")}
    flags |= {special: ["special"], BERT.mask: ["special", "lstrip"]}
    ours = BytePairTokenizer(pieces, plain.merges, added_pieces=flags, nfc=True)  # type: ignore[attr-defined]
    twin = tokenizers.Tokenizer(tokenizers.models.BPE(_ids(ours), [tuple(one.split(" ")) for one in ours.merges]))
    twin.normalizer = tokenizers.normalizers.NFC()
    twin.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    twin.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == BERT.mask) for name in (*BERT, special)])
    twin.add_tokens([tokenizers.AddedToken(name, normalized=True) for name in (*spaces, marker, "[unused0]")])
    twin.post_processor = around(twin)
    return Learned(ours, twin)


@functools.cache
def gemma_model() -> bytes:
    """A .model file like Gemma's: BPE that keeps all spaces, with bytes, runs of white space and tags of HTML."""
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    names = {"pad_piece": GEMMA.pad, "eos_piece": GEMMA.sep, "bos_piece": GEMMA.cls, "unk_piece": GEMMA.unk}
    runs = [character * count for character in "\n\t\u2581" for count in range(1, 8)]
    own = [GEMMA.mask, "<unused0>", *(run for run in runs if run not in "\t\u2581"), "<s>", "</s>", "<b>"]
    return _trained(
        _text(), model_type="bpe", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, character_coverage=0.99,
        user_defined_symbols=own, **ids, **names,
    )  # fmt: skip


@functools.cache
def gemma() -> Learned:
    """A tokenizer like mmBERT's, of `gemma_model`, and Hugging Face's of the same pieces."""
    ours = SentencePieceTokenizer(gemma_model())
    processor = sentencepiece.SentencePieceProcessor(model_proto=gemma_model())
    # As Transformers writes Gemma's: a tab instead of its byte, and all merges by the scores of their results.
    ids = {"\t" if piece == "<0x09>" else piece: number for number, piece in enumerate(ours.vocab)}
    pairs = [(piece[:at], piece[at:], number) for piece, number in ids.items() for at in range(1, len(piece))]
    known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
    known.sort(key=lambda pair: (processor.get_score(pair[2]), len(pair[0]), len(pair[1])), reverse=True)
    merges = [(first, second) for first, second, _ in known]
    model = tokenizers.models.BPE(ids, merges, unk_token=GEMMA.unk, fuse_unk=True, byte_fallback=True)
    twin = tokenizers.Tokenizer(model)
    twin.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    twin.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    last = ours.vocab.index("<0x00>")
    own = [tokenizers.AddedToken(piece, normalized=False) for piece in ours.vocab[len(GEMMA) : last]]
    twin.add_tokens(own)
    twin.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in GEMMA])
    twin.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>",
        special_tokens=[(name, ids[name]) for name in (GEMMA.cls, GEMMA.sep)],
    )  # fmt: skip
    return Learned(ours, twin)


def around(twin: Any) -> Any:
    """ModernBERT's post_processor, which also trims offsets."""
    processors = tokenizers.processors
    special = [(name, twin.token_to_id(name)) for name in (BERT.cls, BERT.sep)]
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=special
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=True, add_prefix_space=False), template])


# Every kind of model that files may hold.
TOKENIZERS: dict[str, Callable[[], BaseTokenizer]] = {
    "wordpiece": lambda: learned("wordpiece").tokenizer,
    "byte_bpe": lambda: learned("byte_bpe").tokenizer,
    "unigram": sentence_piece,
    "bpe": lambda: sentence_piece(model_type="bpe"),
    "bytes": lambda: sentence_piece(byte_fallback=True),
    "camembert": camembert,
    "albert": lambda: albert_tokenizer(albert_model()),
    "gemma": lambda: gemma().tokenizer,
}
# With those that need settings beside their files.
ALL_TOKENIZERS = TOKENIZERS | {"modern": lambda: modern().tokenizer}


def _trained(text: list[str], **settings: Any) -> bytes:
    def train() -> bytes:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, **settings)
        return model.getvalue()

    settings |= {"vocab_size": SIZE, "minloglevel": 2}
    named = hashlib.sha256(repr(sorted(settings.items())).encode())
    named.update("\n".join(text).encode())
    return _kept(named.hexdigest(), train, f"sentencepiece {sentencepiece.__version__}")


def _kept(name: str, learn: Callable[[], Any], library: str = "") -> Any:
    """Learning takes a second for each."""
    from tests import zoo  # which imports this module

    return zoo.kept(f"learned/{name}", learn, library)


def _text() -> list[str]:
    return [line for name in TEXTS for line in lines(name)]


def _ids(tokenizer: BaseTokenizer) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(tokenizer.vocab)}
