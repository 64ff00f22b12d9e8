"""Fine-tuning sweeps: several seeds or a grid of settings; the best run becomes the model."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from bert_tf.checkpoints.run_files import RESULTS
from bert_tf.config import FinetuneConfig, GridConfig, TaskDistillation, to_dict
from bert_tf.config.train import FINETUNING_RATE, scaled_rate
from bert_tf.files import replacing, write_json
from bert_tf.locks import locked
from bert_tf.metrics.statistics import mean_and_deviation
from bert_tf.progress import log
from bert_tf.text.kinds import FILES as VOCABULARIES
from bert_tf.training.reporter import CURVES, PAGE
from bert_tf.training.runs import finetuning
from bert_tf.training.runs.finetuning import FineTuningRun, Start
from bert_tf.training.runs.run import DivergedError, Place, PlaceOptions, expect
from bert_tf.training.runs.stage import results_of, stage
from bert_tf.training.runs.task_distillation import ANSWERS, TaskDistillationRun
from bert_tf.training.state.run_manifest import RunManifest
from bert_tf.training.strategy import is_chief
from bert_tf.training.teacher import Teacher
from bert_tf.types import Json

# Copied from the best run to the model directory; the files that make it a model come last.
_COPIED = (CURVES, PAGE, *VOCABULARIES, "model.safetensors", "config.json")
# Keys of the best run's results in the summary.
_SUMMARIZED = ("task", "measure", "baseline", "steps", "final")
_NEEDED = (*_SUMMARIZED, "seconds", "inputs")  # of each run's
# Settings that a search varies -> their names in the names of folders.
_GRID = {"batch_size": "batch", "learning_rate": "rate", "epochs": "epochs"}


class Trial(NamedTuple):
    """One of the runs.

    Attributes:
        name: of its folder.
        settings: the fields of TrainConfig that the search varies, with their values in this run.
        config: of this run alone.
    """

    name: str
    settings: dict[str, Any]
    seed: int
    config: FinetuneConfig


def finetune_best(
    config: FinetuneConfig,
    data_dir: str,
    init: str,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    teacher: str = "",
    **how: Unpack[PlaceOptions],
) -> Json:
    """Fine-tunes once, or several times as `train.seeds` and `search` specify.

    Each of several runs has a folder in model_dir with its model, but without checkpoints once it is finished. The
    model in model_dir, for export and predict, is that of the best run, by the task's monitored metric on the
    validation set. The same command resumes an interrupted run, and repeats no finished run.

    Args:
        data_dir: the folder that holds the files named in config.data.
        init: checkpoint for `bert_tf.load` from which the runs start; "" for a new student.
        teacher: the same for `task_distillation.distill`; "" for none.
        model_dir, strategy, how: fields of `Place`; the reporter gets the summary of several runs, too.

    Returns:
        The contents of results.json. For several runs: trials, a list of dicts (name, settings, seed, steps, seconds,
        final, learned: whether it is better than the baseline); groups, a list of dicts, one for each choice of
        settings (settings, runs, mean, deviation of the sample or None, best, failed: names of runs that did not
        learn); best, the name of a trial; task, measure, baseline, steps, final and, if it has a
        teacher, teacher_results of that trial.
    """
    expect(config, FinetuneConfig)
    config.check()
    models = _Models.opened(init, teacher)
    place = Place(model_dir, strategy, **how)
    if config.train.seeds == 1 and not config.search:
        return models.run(config, data_dir, place).run()
    source, chief = finetuning.source_of(config.data, config.task, data_dir), is_chief(strategy)
    scaled = config.train.learning_rate is None or (config.search and config.grid.learning_rate is None)
    width = models.width(config.distillation) if scaled else 0
    trials, settled = trials_of(config, width), _with_rates(config, width) if scaled else config
    run: Json = {"program": "finetune", "data_dir": data_dir, "init": init, "config": to_dict(settled)}
    if teacher:
        run |= {"program": "distill", "teacher": teacher}
    run["inputs"] = {role: source.identity(role) for role in ("train", "validation")}
    places = {trial.name: dataclasses.replace(place, model_dir=os.path.join(model_dir, trial.name)) for trial in trials}
    results = {name: results_of(own.model_dir, *_NEEDED) for name, own in places.items()}
    if all(results.values()):  # else the next run compares it
        finetuning.check_inputs(
            results[trials[0].name]["inputs"] | models.identities(config.task), results[trials[0].name]
        )
    with locked(model_dir) if chief else contextlib.nullcontext():
        if chief:
            record = RunManifest(model_dir, run, place.accept_config_change)
            record.write(sum(map(bool, results.values())))
            run = record.value
        diverged: dict[str, DivergedError] = {}
        for number, trial in enumerate(trials, 1):
            own = places[trial.name]
            if not results[trial.name]:
                print(f"\n== {trial.name} ({number} of {len(trials)})", flush=True)
            first = next(filter(None, results.values()), None)
            make = functools.partial(models.results, trial.config, data_dir, own, first)
            try:
                results[trial.name] = stage(own.model_dir, _NEEDED, make)
            except DivergedError as error:
                diverged[trial.name] = error.with_traceback(None)  # which would keep the model in memory
                results[trial.name] = error.results
                log(f"{trial.name}: {error}; the other runs go on")
            if chief and trial.name not in diverged:
                shutil.rmtree(os.path.join(own.model_dir, "checkpoints"), ignore_errors=True)
        if len(diverged) == len(trials):
            raise diverged[trials[0].name]
        summary = run | summarize(trials, results, diverged)
        if chief:
            place.reporter.trials(model_dir, summary)
            _copy(os.path.join(model_dir, summary["best"]), model_dir)
            write_json(os.path.join(model_dir, RESULTS), summary)
        return summary


class _Models(NamedTuple):
    """The open models from which runs start.

    Attributes:
        start: what is fine-tuned; None for a new student.
        teacher: None without one.
    """

    start: Start | None
    teacher: Start | None

    @classmethod
    def opened(cls, init: str, teacher: str) -> "_Models":
        return cls(*(Start.open(path) if path else None for path in (init, teacher)))

    def run(
        self, config: FinetuneConfig, data_dir: str, place: Place, like: Json | None = None, answers: str = ""
    ) -> FineTuningRun:
        """The run of one config; `answers` and `like` as for `TaskDistillationRun`."""
        if self.teacher:
            return TaskDistillationRun(
                config, data_dir, self.start, place, teacher=self.teacher, answers=answers, like=like
            )
        finetuning.check(config)
        return FineTuningRun(config, data_dir, self.start, place, like=like)

    def results(self, config: FinetuneConfig, data_dir: str, place: Place, like: Json | None) -> Json:
        """The results of one of several runs, which share the answers of a teacher."""
        answers = os.path.join(os.path.dirname(place.model_dir), ANSWERS)
        return self.run(config, data_dir, place, like, answers).run()

    def width(self, distillation: TaskDistillation | None) -> int:
        """`hidden_size` of the encoder that will be fine-tuned."""
        known = self.start or self.teacher
        assert known is not None
        new, of = None if self.start else distillation, known.checkpoint.config
        return (of if not new or new.layers else new.student_config(of, of.vocab_size)).hidden_size

    def identities(self, task: object) -> Json:
        """The parts of the inputs of a run for the task with this config that are these models."""
        identities: Json = {}
        if self.start:
            identities["init"] = finetuning.opened(task, self.start)[2]
        if self.teacher:
            identities["teacher"] = Teacher(*self.teacher).identity
        return identities


def trials_of(config: FinetuneConfig, width: int) -> list[Trial]:
    """The runs that a config specifies, grouped by choice of settings: the seeds of a choice follow each other.

    Args:
        width: of the encoder, for the rates of a grid that has none of its own.
    """
    values_of = vars(config.grid) | ({"learning_rate": config.grid.rates(width)} if width else {})
    varied = {name: values_of[name] for name in _GRID if config.search and values_of[name]}
    trials: list[Trial] = []
    for values in itertools.product(*varied.values()):
        settings = dict(zip(varied, values, strict=True))
        for seed in range(config.train.seed, config.train.seed + config.train.seeds):
            parts = [f"{_GRID[name]}_{value:g}" for name, value in settings.items()]
            parts += [f"seed_{seed}"] if config.train.seeds > 1 else []
            train = dataclasses.replace(config.train, **settings, seed=seed, seeds=1).check()
            single = dataclasses.replace(config, train=train, search=False, grid=GridConfig())
            trials.append(Trial("-".join(parts), settings, seed, single))
    return trials


def _with_rates(config: FinetuneConfig, width: int) -> FinetuneConfig:
    """The config with the learning rates of an encoder of `width` units, where it has none of its own."""
    own = config.train.learning_rate
    rate = scaled_rate(FINETUNING_RATE, width) if own is None else own
    grid = dataclasses.replace(config.grid, learning_rate=config.grid.rates(width)) if config.search else config.grid
    return dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=rate), grid=grid)


def summarize(trials: Sequence[Trial], results: Mapping[str, Json], diverged: Collection[str] = ()) -> Json:
    """Summary of the runs, as returned by `finetune_best`.

    Args:
        results: of each trial by name, from `finetune_best`.
        diverged: names of trials that have no model, whatever their metrics are.
    """
    name, mode = results[trials[0].name]["measure"]
    sign = {"max": 1.0, "min": -1.0}[mode]
    rows: list[Json] = []
    for trial in trials:
        result = results[trial.name]
        final = {key: value for key, value in result["final"].items() if key not in ("kind", "step")}
        rows.append(
            {
                "name": trial.name,
                "settings": trial.settings,
                "seed": trial.seed,
                "steps": result["steps"],
                "seconds": result["seconds"],
                "final": final,
                # False for nan.
                "learned": trial.name not in diverged and sign * final[name] > sign * result["baseline"][name],
            }
        )

    def value(row: Json) -> float:
        lost = row["name"] in diverged or math.isnan(row["final"][name])
        return -math.inf if lost else sign * row["final"][name]

    groups: list[Json] = []
    for settings, grouped in itertools.groupby(rows, lambda row: row["settings"]):
        same = list(grouped)
        # The runs can have different metrics: entity types that a model predicts but the examples lack have some, too.
        common = [key for key in same[0]["final"] if all(key in row["final"] for row in same)]
        finals = {key: mean_and_deviation([row["final"][key] for row in same]) for key in common}
        groups.append(
            {
                "settings": settings,
                "runs": len(same),
                "mean": {key: mean for key, (mean, _) in finals.items()},
                "deviation": {key: deviation for key, (_, deviation) in finals.items()} if len(same) > 1 else None,
                "best": max(same, key=value)["name"],
                "failed": [row["name"] for row in same if not row["learned"]],
            }
        )
    best = max((row for row in rows if row["name"] not in diverged), key=value)
    return {
        "trials": rows,
        "groups": groups,
        "best": best["name"],
    } | {key: value for key, value in results[best["name"]].items() if key in (*_SUMMARIZED, "teacher_results")}


def _copy(folder: str, model_dir: str) -> None:
    for name in _COPIED:
        if os.path.exists(os.path.join(folder, name)):
            with replacing(os.path.join(model_dir, name)) as temporary:
                shutil.copyfile(os.path.join(folder, name), temporary)
