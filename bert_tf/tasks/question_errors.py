"""What a report shows of answers to questions, and what scores and report both ask of them."""

import numpy as np

from bert_tf.metrics import bootstrap
from bert_tf.metrics.squad import best_of_resamples, question_scores, squad_2_parts, squad_2_question_scores
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample

# Of the answers that are shown: how many, the characters around each, and what stands for none.
_SHOWN, _AROUND, _NOTHING = 20, 200, "(no answer)"


def by_id(examples, predictions):
    """dicts by id: the gold texts; the best span's text, "" if there is none; the null odds, None without."""
    gold = {example.id: [answer.text for answer in example.answers] for example in examples}
    found = {one["id"]: one["nbest"][0]["answer"] if one["nbest"] else "" for one in predictions}
    return gold, found, {one["id"]: one.get("null_odds") for one in predictions}


def question_errors(examples, predictions, threshold, *, korean):
    """What a report shows of answers.

    Args:
        examples, predictions: as for `FineTuningTask.error_analysis`.
        threshold: null odds above which there is no answer; None where there always is one.
        korean: whether they are scored by the rules of KorQuAD.

    Returns:
        ErrorAnalysis.
    """
    gold, found, odds = by_id(examples, predictions)
    if threshold is None:
        exact, f1 = question_scores(gold, found, korean=korean)
        intervals = _intervals(exact_match=exact, f1=f1)
    else:
        scores = squad_2_question_scores(gold, found)
        parts = squad_2_parts(gold, scores, odds, threshold)
        exact, f1 = parts[""]
        intervals = {}  # questions with and without an answer are drawn apart: a draw of all may have none of a kind
        for prefix, (of_exact, of_f1) in parts.items():
            intervals |= _intervals(**{f"{prefix}exact": of_exact, f"{prefix}f1": of_f1})
        best = [best_of_resamples(gold, found, values, odds) for values in scores]
        intervals |= bootstrap.intervals_of_counts(
            lambda counts: {"best_exact": best[0](counts), "best_f1": best[1](counts)},
            [np.arange(len(gold))],
            [len(gold)],
        )
        found = {name: "" if odds[name] > threshold else text for name, text in found.items()}
    answered = [index for index, example in enumerate(examples) if found[example.id]]
    sure = [predictions[index]["nbest"][0]["probability"] for index in answered]

    def case(index, confidence=None):
        one = examples[index]
        expected = " / ".join(dict.fromkeys(gold[one.id])) or _NOTHING
        return ErrorExample((one.question, _shown(one)), expected, found[one.id] or _NOTHING, one.location, confidence)

    # A wrong answer is worse than none, and one that the model was sure of is the worst.
    wrong = [(share, index) for share, index in zip(sure, answered, strict=True) if not f1[index]]
    wrong.sort(key=lambda pair: -pair[0])
    some = range(0, len(examples), max(1, len(examples) // _SHOWN))
    return ErrorAnalysis(
        intervals=intervals,
        confidences=sure,
        correct=[bool(exact[index]) for index in answered],
        errors=[case(index, share) for share, index in wrong[:LISTED]],
        examples=[case(index) for index in some][:_SHOWN],
    )


def _intervals(**scores):
    return {name: bootstrap.interval_of_mean(values) for name, values in scores.items()}


def _shown(example):
    """What of the context stands around the first answer, or its beginning."""
    placed = example.placed
    first = max(0, placed.start - _AROUND) if placed else 0
    last = placed.start + len(placed.text) + _AROUND if placed else 2 * _AROUND
    context = example.context
    return ("…" if first else "") + context[first:last] + ("…" if last < len(context) else "")
