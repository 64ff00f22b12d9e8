import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.inputs.corpus.languages import Language
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.runs import dry_run
from tests import zoo
from tests.training.small import features
from tests.zoo import LENGTH

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "house", "##s", "한국", "##어", "tree", "."]
PAD, UNK, CLS, SEP, MASK, THE, HOUSE, S, KOREA, N, TREE, DOT = range(len(PIECES))


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return Tokenizer(str(tmp_path / "vocab.txt"))


def test_masks_are_shown_with_the_original_and_the_input_token(tokenizer):
    seen = {
        "input_word_ids": [[CLS, THE, MASK, S, DOT, SEP, TREE, N, SEP, PAD]],
        "input_mask": [[1] * 9 + [0]],
        "masked_lm_positions": [[2, 4, 6, 0]],
        "masked_lm_ids": [[HOUSE, DOT, KOREA, 0]],
        "masked_lm_weights": [[1.0, 1.0, 1.0, 0.0]],
    }
    (shown,) = dry_run.examples({"next_sentence_labels": [1]}, seen, tokenizer)
    assert (shown["tokens"], shown["hidden"], shown["pair"]) == (9, 3, "random second segment")
    assert shown["text"] == "[CLS] the [house>MASK]s [.=] [SEP] [한국>tree]어 [SEP]"
    (swapped,) = dry_run.examples({"next_sentence_labels": [1]}, seen, tokenizer, swapped=True)
    assert swapped["pair"] == "swapped"


def test_each_sequence_of_a_packed_row_is_shown_separately(tokenizer):
    seen = {
        "input_word_ids": [[CLS, THE, MASK, SEP, CLS, KOREA, N, SEP, PAD]],
        "input_mask": [[1, 1, 1, 1, 2, 2, 2, 2, 0]],
        "masked_lm_positions": [[2, 6]],
        "masked_lm_ids": [[TREE, N]],
        "masked_lm_weights": [[1.0, 1.0]],
    }
    first, second = dry_run.examples({}, seen, tokenizer)
    assert [(one["tokens"], one["hidden"], one["pair"]) for one in (first, second)] == [(4, 1, "")] * 2
    assert (first["text"], second["text"]) == ("[CLS] the [tree>MASK] [SEP]", "[CLS] 한국[어=] [SEP]")


def test_stored_activations_grow_with_the_rows_and_are_fewer_with_remat(tokenizer):
    task = Pretraining(tokenizer, LENGTH)
    model = task.build(zoo.encoder(dropout=0.1, attention_dropout=0.1))
    one, two = ({name: tf.constant(value[:rows]) for name, value in features().items()} for rows in (16, 32))
    kept = dry_run.kept_bytes(task.objective, model, one, remat=False)
    # One layer with 32 units: its input, query, key, value, context, the two halves of the
    # feed-forward network, float32, as a lower limit.
    assert kept > 16 * LENGTH * 4 * (32 + 96 + 32 + 64 + 64)
    assert dry_run.kept_bytes(task.objective, model, two, remat=False) == pytest.approx(2 * kept, rel=0.02)
    assert dry_run.kept_bytes(task.objective, model, one, remat=True) < 0.7 * kept


@pytest.mark.parametrize("pairs", ["nsp", *(pytest.param(pairs, marks=pytest.mark.slow) for pairs in ("sop", "none"))])
def test_an_epoch_too_long_to_count_is_estimated(tmp_path, tokenizer, monkeypatch, pairs):
    random = np.random.default_rng(0)
    path = tmp_path / "corpus.txt"
    text = ["\n".join(" ".join(random.choice(PIECES[5:7], 6)) + " ." for _ in range(20)) for _ in range(150)]
    path.write_text("\n\n".join(text) + "\n")
    data = PretrainingData(max_length=64, max_predictions=10, pairs=pairs)
    batches = pretraining_dataset(Corpus([str(path)], tokenizer, data), seed=0, epoch=0, batch_size=64).cache()
    monkeypatch.setattr(dry_run, "_COUNTED_SECONDS", math.inf)
    counted, how = dry_run.rows_per_epoch(Corpus([str(path)], tokenizer, data), batches)
    assert how == "counted"
    monkeypatch.setattr(dry_run, "_COUNTED_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "_SAMPLED_ROWS", 256)
    estimated, how = dry_run.rows_per_epoch(Corpus([str(path)], tokenizer, data), batches)
    assert how == "estimated from the text's size and a sample of 256"
    assert estimated == pytest.approx(counted, rel=0.25)


def test_a_language_that_is_sampled_more_often_is_read_more_often():
    en, ko = Language("en", 0, (), text_share=0.75, share=0.6), Language("ko", 1, (), text_share=0.25, share=0.4)
    first, second = dry_run.languages_read([en, ko], 2.0)
    assert first == {"language": "en", "text_share": 0.75, "share": 0.6, "passes": 2.0}
    assert second == {"language": "ko", "text_share": 0.25, "share": 0.4, "passes": 4.0}


@pytest.mark.slow
def test_the_peak_memory_of_a_process_is_not_that_of_its_parent():
    own = "from bert_tf.training.runs.dry_run import peak_bytes; print(peak_bytes())"
    parent = f"import subprocess, sys; held = b'x' * 2**31; subprocess.run([sys.executable, '-c', {own!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 2**27 < int(done.stdout) < 2**31  # TensorFlow takes some 600 MB
