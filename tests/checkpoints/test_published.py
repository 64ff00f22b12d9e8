"""Published models with other vocabularies than WordPiece, against what their own code and authors publish."""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file
from sentencepiece import sentencepiece_model_pb2

import bert_tf
from bert_tf.checkpoints import load_model
from tests.checkpoints import e5
from tests.packages import package

# README of sapiens: a sequence of an antibody, and probabilities of the residues A, C, D and E at its first positions.
ANTIBODY = (
    "**QLV*SGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNF"
    "NEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS"
)
PUBLISHED = [
    [0.003272, 0.004147, 0.004011, 0.004590],
    [0.012038, 0.003854, 0.006803, 0.008174],
    [0.003384, 0.003895, 0.003726, 0.004068],
    [0.004612, 0.005325, 0.004443, 0.004641],
    [0.005519, 0.003664, 0.003555, 0.005269],
]
# Of a layer: Hugging Face's name, that of fairseq.
_LAYER = {
    "attention.self.query": "self_attn.q_proj", "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj", "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm", "intermediate.dense": "fc1", "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}  # fmt: skip


def write_antibodies(path):
    """Writes a language model of antibodies as a Hugging Face directory; each residue is a token."""
    torch = pytest.importorskip("torch", reason="needs pip install 'bert_tf[peers]'")
    folder = package("sapiens", "sapiens==1.0.5") / "models/v1"
    saved = torch.load(folder / "checkpoint_vh.pt", weights_only=False, map_location="cpu")  # has settings, too
    theirs = {name.removeprefix("decoder."): value.numpy() for name, value in saved["model"].items()}
    encoder = "sentence_encoder"
    names = {"roberta.embeddings.LayerNorm": f"{encoder}.emb_layer_norm", "lm_head.dense": "lm_head.dense"}
    names["lm_head.layer_norm"] = "lm_head.layer_norm"
    for layer in range(4):
        names |= {
            f"roberta.encoder.layer.{layer}.{ours}": f"{encoder}.layers.{layer}.{name}" for ours, name in _LAYER.items()
        }
    tensors = {
        f"{ours}.{part}": theirs[f"{name}.{part}"] for ours, name in names.items() for part in ("weight", "bias")
    }
    positions = theirs[f"{encoder}.embed_positions.weight"]
    words = theirs[f"{encoder}.embed_tokens.weight"]
    tensors |= {
        "roberta.embeddings.word_embeddings.weight": words,
        "roberta.embeddings.position_embeddings.weight": positions,
        "roberta.embeddings.token_type_embeddings.weight": np.zeros([1, words.shape[1]], np.float32),
        "lm_head.bias": theirs["lm_head.bias"],
    }
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "hidden_act": "gelu", "hidden_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 256, "vocab_size": len(words),
        "max_position_embeddings": len(positions), "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    residues = [line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()]
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.normalizer_spec.add_dummy_prefix = False
    proto.pieces.add(piece="<unk>", type=proto.SentencePiece.UNKNOWN)
    for name in ("<s>", "</s>"):
        proto.pieces.add(piece=name, type=proto.SentencePiece.CONTROL)
    for residue in residues:
        proto.pieces.add(piece=residue, score=-1.0)
    (path / "sentencepiece.bpe.model").write_bytes(proto.SerializeToString())
    return residues


def test_a_roberta_of_proteins_gives_the_published_probabilities_from_text(tmp_path):
    residues = write_antibodies(tmp_path)
    model, tokenizer, _ = load_model(str(tmp_path))
    text = ANTIBODY.replace("*", "<mask>")
    ids, types = tokenizer.pack(tokenizer.tokenize([text], special_tokens=True))
    assert [tokenizer.vocab[number] for number in ids[0].numpy()] == [
        "<s>", *(char if char != "*" else "<mask>" for char in ANTIBODY), "</s>"
    ]  # fmt: skip
    inputs = {"input_word_ids": ids.to_tensor(), "input_type_ids": types.to_tensor()}
    inputs |= {"input_mask": tf.ones_like(inputs["input_word_ids"])}
    inputs["masked_lm_positions"] = tf.range(1, 6)[tf.newaxis]
    shares = tf.nn.softmax(model(inputs)["mlm_logits"])[0].numpy()
    columns = [tokenizer.vocab.index(residue) for residue in "ACDE"]
    assert residues[:4] == [*"ACDE"]
    np.testing.assert_allclose(shares[:, columns], PUBLISHED, atol=1e-6)

    filled = bert_tf.MaskedLM.from_pretrained(tmp_path).predict([text])[0]
    assert len(filled) == ANTIBODY.count("*")
    best = np.argmax(shares[0])
    assert (filled[0][0]["token"], filled[0][0]["probability"]) == (
        tokenizer.vocab[best], pytest.approx(shares[0, best], abs=1e-6)
    )  # fmt: skip


@pytest.mark.slow
def test_vectors_of_multilingual_e5_are_those_of_another_engine(tmp_path):
    e5.write(tmp_path)
    texts = [
        "The weather is lovely today.", "How much protein should a woman eat per day?", "A film to remember.",
        "영화가 정말 재미있었어요.", "대한민국의 수도는 서울이다.", "배우들의 연기는 좋았지만 이야기가 지루했다 ㅠㅠ",
    ]  # fmt: skip
    vectors = bert_tf.SentenceEncoder.from_pretrained(tmp_path).encode([f"query: {text}" for text in texts])
    cosines = (vectors * e5.Engine().vectors(texts)).sum(1)
    # It rounds what it multiplies to eight bits.
    assert cosines.min() > 0.9998 and cosines.mean() > 0.9999
