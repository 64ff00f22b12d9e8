"""Asks exports to ONNX as users of Optimum and sentence-transformers do: python optimum_client.py < cases > answers.

A case, a line of JSON, has the folder of an export as `folder` and a class of optimum.onnxruntime as `class`. With
`texts`, the arguments of the tokenizer, the answer is the inputs and the outputs of the model; with `pipeline`, that of
the pipeline of this name for `input` and the arguments `options`; with `vectors_of` or
`scores_of`, the vectors of texts or the scores of pairs by sentence-transformers.
"""

import json
import sys
from typing import Any


def answer(case: dict[str, Any]) -> Any:
    import onnxruntime
    import optimum.onnxruntime
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from transformers import AutoTokenizer, pipeline

    if "vectors_of" in case:
        return SentenceTransformer(case["folder"], backend="onnx").encode(case["vectors_of"])
    if "scores_of" in case:
        return CrossEncoder(case["folder"], backend=case["backend"]).predict(case["scores_of"])
    model = getattr(optimum.onnxruntime, case["class"]).from_pretrained(case["folder"])
    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    if "pipeline" in case:
        return pipeline(case["pipeline"], model=model, tokenizer=tokenizer)(case["input"], **case["options"])
    tokens = tokenizer(*case["texts"], padding=True, return_tensors="np")
    if case["class"] == "ORTModelForMultipleChoice":  # one row with all choices
        tokens = {name: value[None] for name, value in tokens.items()}
    if case["kind"] == "regression by cosine":  # two texts in each row
        first, second = case["texts"]
        tokens = tokenizer(
            [text for pair in zip(first, second, strict=True) for text in pair], padding=True, return_tensors="np"
        )
        tokens = {name: value.reshape(len(first), 2, -1) for name, value in tokens.items()}
    # Alone it takes exactly the inputs that it has.
    onnxruntime.InferenceSession(f"{case['folder']}/model.onnx").run(None, dict(tokens))
    return {"inputs": dict(tokens), "outputs": dict(model(**tokens))}


if __name__ == "__main__":
    sys.stdout, output = sys.stderr, sys.stdout  # what the libraries print
    for line in sys.stdin:
        # Scores and arrays are NumPy's.
        print(json.dumps(answer(json.loads(line)), default=lambda value: value.tolist()), file=output, flush=True)
