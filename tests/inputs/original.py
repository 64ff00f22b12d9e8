"""The original generator, rewritten in plain Python from the rules of google-research/bert's create_training_data.py.

Every rule that a test should be sensitive to is an argument, so that a generator with a different rule can be made.
"""

import random


def join(lists):
    return [element for part in lists for element in part]


def pairs_in(batch):
    """The pairs (first, second, label) of a batch of `sentence_pairs`, without special tokens: lists of int."""
    rows = zip(batch["ids"].to_list(), batch["types"].to_list(), batch["labels"].numpy(), strict=True)
    return [(row[1 : types.index(1) - 1], row[types.index(1) : -1], label) for row, types, label in rows]


def reference_pairs(
    documents,
    seed,
    max_tokens,
    *,
    short_sequence_rate=0.1,
    swap=False,
    label_odds=0.5,
    front_odds=0.5,
    put_back=True,
    start_anywhere=True,
    cut_second_on_a_tie=True,
):
    """Pairs of segments, built sentence by sentence and token by token.

    Args:
        documents: list of lists of sentences, lists of int.
        seed: for Python's random numbers.
        max_tokens: maximum number of tokens of both segments together.
        short_sequence_rate: share of documents whose target length is drawn from [2, max_tokens].
        swap: the rules of google-research/albert's create_pretraining_data.py with --random_next_sentence=false.
        label_odds: probability of label 1 if a chunk has several sentences.
        front_odds: probability that an excess token is removed from the front.
        put_back: whether sentences displaced by a random second part are used again.
        start_anywhere: whether a random second part starts at any sentence or at the start of its document.
        cut_second_on_a_tie: whether the second of two equally long parts loses a token.

    Returns:
        list of (first, second, label), in the order of the documents.
    """
    rng = random.Random(seed)
    made = []
    for index, document in enumerate(documents):
        target = rng.randint(2, max_tokens) if rng.random() < short_sequence_rate else max_tokens
        others = documents[:index] + documents[index + 1 :]
        waiting, chunk, length = list(document), [], 0
        while waiting:
            chunk.append(waiting.pop(0))
            length += len(chunk[-1])
            if waiting and length < target:
                continue
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first, rest = join(chunk[:cut]), chunk[cut:]
            second = join(rest)
            label = int(len(chunk) == 1 or rng.random() < label_odds)
            if label and swap and len(chunk) > 1:
                first, second = second, first
            elif label:
                other, second = rng.choice(others), []
                for sentence in other[rng.randrange(len(other)) if start_anywhere else 0 :]:
                    second = second + sentence
                    if len(second) >= target - len(first):
                        break
                if put_back:
                    waiting = rest + waiting
            while len(first) + len(second) > max_tokens:
                first_is_cut = len(first) > len(second) or (len(first) == len(second) and not cut_second_on_a_tie)
                (first if first_is_cut else second).pop(0 if rng.random() < front_odds else -1)
            made.append((first, second, label))
            chunk, length = [], 0
    return made


def reference_masks(tokens, specials, seed, *, mask_id, vocab_size, rate, max_predictions):
    """Masks one sequence.

    Args:
        tokens: list of int, including [CLS] and [SEP].
        specials: ids that are never masked.
        seed: for Python's random numbers.
        mask_id, vocab_size: id of [MASK], and number of ids that random ones are drawn from.
        rate, max_predictions: share of the sequence that is masked, and maximum number of masked tokens.

    Returns:
        list of (position, id in the input).
    """
    rng = random.Random(seed)
    places = [place for place, token in enumerate(tokens) if token not in specials]
    rng.shuffle(places)
    shown = []
    for place in places[: min(max_predictions, max(1, round(len(tokens) * rate)))]:
        if rng.random() < 0.8:
            shown.append((place, mask_id))
        else:
            shown.append((place, tokens[place] if rng.random() < 0.5 else rng.randrange(vocab_size)))
    return shown
