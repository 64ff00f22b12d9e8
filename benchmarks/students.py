"""Students of six tasks, with and without a teacher: python benchmarks/students.py --data=DIR --output=runs/students.

For each task a teacher is fine-tuned, and distilled into students with three of its layers and into new ones with two
layers of 128 units. Each learns with the teacher's answers (`distillation.weight=0.9`) and by labels alone (0.001),
with three seeds. What is there already is not trained again.

DIR holds sst2/, clinc150/, stsb/, ud/ (en_ewt-*.conllu), snips/ and nsmc/, each as the config of `finetune` reads it.
"""

import argparse
import copy
import dataclasses
import json
import pathlib
import sys
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


class Task(NamedTuple):
    """How a task is trained.

    Attributes:
        config: its name in configs/finetune, with an argument after a colon.
        folder: in --data.
        metric: that is shown.
        teacher, layers, tiny: epochs and learning rate of the teacher, and of both kinds of students.
        batch_size: of all of them.
        files: fields of the ExampleData.
        new_student: fields of the task's config for students with random weights.
        temperature: of the distillation; lower for many classes.
        english: whether --english is the teacher's start, not --korean.
    """

    config: str
    folder: str
    metric: str
    teacher: tuple[float, float]
    layers: tuple[float, float]
    tiny: tuple[float, float]
    batch_size: int = 32
    files: dict[str, str] = {}  # noqa: RUF012
    new_student: dict[str, str] = {}  # noqa: RUF012
    temperature: float = 2.0
    english: bool = True


EWT = {"train": "en_ewt-dev.conllu", "validation": "en_ewt-test.conllu", "test": ""}
TASKS = {
    "SST-2": Task("sst2", "sst2", "accuracy", (3, 1e-4), (3, 1e-4), (10, 3e-4)),
    "CLINC150": Task("clinc150", "clinc150", "accuracy", (4, 3e-4), (3, 3e-4), (10, 1.5e-3), 64, temperature=1.0),
    "STS-B": Task(
        "glue:stsb", "stsb", "spearman", (3, 1.5e-4), (3, 1.5e-4), (10, 8e-4), 64, new_student={"head": "cosine"}
    ),
    "EWT": Task("ud_upos", "ud", "accuracy", (4, 2e-4), (6, 2e-4), (20, 1e-3), files=EWT),
    "SNIPS": Task("snips", "snips", "slot_f1", (3, 1.5e-4), (2, 1.5e-4), (6, 1.5e-3), 64, temperature=1.0),
    "NSMC": Task("nsmc", "nsmc", "accuracy", (2, 1e-4), (2, 1e-4), (6, 5e-4), english=False),
}
STUDENTS: dict[str, dict[str, Any]] = {"3 layers": {"layers": 3}, "2 x 128": {"size": "tiny"}}
WEIGHTS = (0.9, 0.001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="the folder with the data sets; without it, only prints")
    parser.add_argument("--english", help="MiniLM's checkpoint, or another")
    parser.add_argument("--korean", help="the start of NSMC's teacher, such as a trimmed multilingual-e5-small")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/students"))
    parser.add_argument("--tasks", default=",".join(TASKS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks.split(",")) - TASKS.keys():
        parser.error(f"--tasks: unknown {', '.join(sorted(unknown))}; choose from {', '.join(TASKS)}")
    for name in arguments.tasks.split(","):
        if arguments.data:
            train(name, arguments)
    print(table(arguments.output))


def train(name: str, arguments: argparse.Namespace) -> None:
    """Trains the teacher of a task and its students."""
    from bert_tf import quiet

    quiet.import_tensorflow()
    from bert_tf.bundled import config
    from bert_tf.config import TaskDistillation
    from bert_tf.training import strategy
    from bert_tf.training.runs import sweep

    task, folder = TASKS[name], arguments.output / name
    file, _, argument = task.config.partition(":")
    settings = config(f"finetune/{file}.py", *filter(None, [argument]))
    settings.data = dataclasses.replace(settings.data, **task.files)
    devices = strategy.create(train=settings.train)
    data, start = str(arguments.data / task.folder), arguments.english if task.english else arguments.korean

    def run(where: str, recipe: tuple[float, float], init: str, distillation: TaskDistillation | None) -> None:
        own = copy.deepcopy(settings)
        own.train.epochs, own.train.learning_rate = recipe
        own.train.batch_size, own.train.evaluate_every = task.batch_size, 100_000  # at the end
        if distillation:
            if distillation.size:
                own.task = dataclasses.replace(own.task, **task.new_student)
            own.distillation, own.train.seeds = distillation, arguments.seeds
        teacher = str(folder / "teacher") if distillation else ""
        sweep.finetune_best(own, data, init, str(folder / where), devices, teacher=teacher)

    run("teacher", task.teacher, start, None)
    for student, choice in STUDENTS.items():
        for weight in WEIGHTS:
            distillation = TaskDistillation(
                weight=weight, temperature=task.temperature, answers=str(folder / "answers"), **choice
            )
            run(f"{student}, {weight}", task.layers if "layers" in choice else task.tiny, "", distillation)


def table(output: pathlib.Path) -> str:
    """The results as a table in Markdown: a line per task and student; the mean, and the metric of each seed."""
    lines = ["| task, metric | student | teacher | with it | labels alone |", "|---|---|---|---|---|"]
    for name, task in TASKS.items():
        teacher = _final(output / name / "teacher", task.metric)
        for student in STUDENTS:
            found = [_final(output / name / f"{student}, {weight}", task.metric) for weight in WEIGHTS]
            if all(found):
                shown = [f"{sum(one) / len(one):.3f} ({', '.join(f'{value:.3f}' for value in one)})" for one in found]
                lines.append(f"| {name}, {task.metric} | {student} | {teacher[0]:.3f} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _final(folder: pathlib.Path, metric: str) -> list[float]:
    """The metric at the end of each run of a folder."""
    path = folder / "results.json"
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    return [run["final"][metric] for run in results.get("trials", [results])]


if __name__ == "__main__":
    main()
