"""Fine-tuning sweeps: several seeds or a grid of settings; the best run becomes the model."""

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.checkpoints.run_files import RESULTS
from bert_tf.config import FinetuneConfig, GridConfig, to_dict
from bert_tf.config.train import FINETUNING_RATE, scaled_rate
from bert_tf.files import replacing, write_json
from bert_tf.locks import locked
from bert_tf.metrics.statistics import mean_and_deviation
from bert_tf.progress import log
from bert_tf.text.kinds import FILES as VOCABULARIES
from bert_tf.training.reporter import CURVES, PAGE, SILENT, Reporter
from bert_tf.training.runs import finetuning
from bert_tf.training.runs.distillation import ANSWERS
from bert_tf.training.runs.runner import DivergedError, expect, isolated_session, results_of
from bert_tf.training.state.run_manifest import RunManifest
from bert_tf.training.strategy import is_chief
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


def finetune(
    config: FinetuneConfig,
    data_dir: str,
    init: str,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    accept_config_change: bool = False,
    teacher: str = "",
    reporter: Reporter = SILENT,
) -> Json:
    """Fine-tunes once, or several times as `train.seeds` and `search` specify.

    Each of several runs has a folder in model_dir with its model, but without checkpoints once it is finished. The
    model in model_dir, for export and predict, is that of the best run, by the task's monitored metric on the
    validation set. The same command resumes an interrupted run, and repeats no finished run.

    Args:
        data_dir, init, model_dir, strategy, accept_config_change, teacher: as in `finetuning.finetune`.
        reporter: gets the curves and the last evaluation of each run, and the summary of several.

    Returns:
        The contents of results.json. For several runs: trials, a list of dicts (name, settings, seed, steps, seconds,
        final, learned: whether it is better than the baseline); groups, a list of dicts, one for each choice of
        settings (settings, runs, mean, deviation of the sample or None, best, failed: names of runs that did not
        learn); best, the name of a trial; task, measure, baseline, steps, final and, if it has a
        teacher, teacher_results of that trial.
    """
    expect(config, FinetuneConfig)
    config.check()
    if config.train.seeds == 1 and not config.search:
        return finetuning.finetune(
            config,
            data_dir,
            init,
            model_dir,
            strategy,
            accept_config_change=accept_config_change,
            teacher=teacher,
            reporter=reporter,
        )
    source, chief = finetuning.source_of(config, data_dir), is_chief(strategy)
    scaled = config.train.learning_rate is None or (config.search and config.grid.learning_rate is None)
    width = finetuning.width(config, init, teacher) if scaled else 0
    trials, settled = trials_of(config, width), _with_rates(config, width) if scaled else config
    run: Json = {"program": "finetune", "data_dir": data_dir, "init": init, "config": to_dict(settled)}
    if teacher:
        run |= {"program": "distill", "teacher": teacher}
    run["inputs"] = {role: source.identity(role) for role in ("train", "validation")}
    folders = {trial.name: os.path.join(model_dir, trial.name) for trial in trials}
    results = {name: results_of(folder, *_NEEDED) for name, folder in folders.items()}
    if all(results.values()):  # else the next run compares it
        finetuning.check_init(config, init, teacher, results[trials[0].name])
    with locked(model_dir) if chief else contextlib.nullcontext():
        if chief:
            record = RunManifest(model_dir, run, accept_config_change)
            record.write(sum(map(bool, results.values())))
            run = record.value
        diverged: dict[str, DivergedError] = {}
        for number, trial in enumerate(trials, 1):
            if not results[trial.name]:
                print(f"\n== {trial.name} ({number} of {len(trials)})", flush=True)
                first = next(filter(None, results.values()), None)
                try:
                    with isolated_session():
                        results[trial.name] = finetuning.finetune(
                            trial.config,
                            data_dir,
                            init,
                            folders[trial.name],
                            strategy,
                            accept_config_change=accept_config_change,
                            like=first,
                            teacher=teacher,
                            answers=os.path.join(model_dir, ANSWERS) if teacher else "",
                            reporter=reporter,
                        )
                except DivergedError as error:
                    diverged[trial.name] = error.with_traceback(None)  # which would keep the model in memory
                    results[trial.name] = error.results
                    log(f"{trial.name}: {error}; the other runs go on")
            if chief and trial.name not in diverged:
                shutil.rmtree(os.path.join(folders[trial.name], "checkpoints"), ignore_errors=True)
        if len(diverged) == len(trials):
            raise diverged[trials[0].name]
        summary = run | summarize(trials, results, diverged)
        if chief:
            reporter.trials(model_dir, summary)
            _copy(os.path.join(model_dir, summary["best"]), model_dir)
            write_json(os.path.join(model_dir, RESULTS), summary)
        return summary


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
    """Summary of the runs, as returned by `finetune`.

    Args:
        results: of each trial by name, from `finetuning.finetune`.
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
