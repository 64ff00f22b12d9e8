"""Fine-tuning as users of Transformers write it: a classifier, the Trainer, padding to the longest row of a batch.

Prints a JSON line: accuracy on the validation sentences, and seconds of each update.
"""

import argparse
import json
import time

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Clock(TrainerCallback):
    """Seconds of each update, with the making of its batch and without evaluations."""

    def __init__(self):
        self.seconds = []
        self._last = time.perf_counter()

    def on_train_begin(self, *_, **__):
        self._last = time.perf_counter()

    def on_step_end(self, *_, **__):
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    def on_evaluate(self, *_, **__):
        self._last = time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", help="folder with train.tsv and dev.tsv: sentence<TAB>label")
    parser.add_argument("--init", help="folder of the model to start from")
    parser.add_argument("--output", help="folder for the fine-tuned model")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--eval_steps", type=int, help="updates between evaluations; the last one is at the end")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--by_length", action="store_true", help="batches of rows of similar length")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.init)

    def examples(name):
        with open(f"{arguments.data_dir}/{name}.tsv", encoding="utf-8") as file:
            sentences, labels = zip(*(line.rstrip("\n").split("\t") for line in file), strict=True)
        rows = tokenizer(list(sentences), truncation=True, max_length=128)
        return [
            {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
            for ids, mask, label in zip(rows["input_ids"], rows["attention_mask"], labels, strict=True)
        ]

    clock = Clock()
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(arguments.init, num_labels=2),
        args=TrainingArguments(
            output_dir=arguments.output, num_train_epochs=arguments.epochs, learning_rate=5e-5, warmup_steps=0.1,
            weight_decay=0.01, per_device_train_batch_size=32, per_device_eval_batch_size=32, eval_strategy="steps",
            eval_steps=arguments.eval_steps, save_strategy="no", logging_steps=10, report_to="none", use_cpu=True,
            bf16=arguments.dtype == "bfloat16", torch_compile=arguments.compile, disable_tqdm=True,
            train_sampling_strategy="group_by_length" if arguments.by_length else "random",
        ),
        train_dataset=examples("train"),
        eval_dataset=examples("dev"),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda outputs: {"accuracy": np.mean(outputs.predictions.argmax(-1) == outputs.label_ids)},
        callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    evaluated = [entry["step"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    if evaluated[-1:] != [trainer.state.global_step]:
        trainer.evaluate()
    trainer.save_model()
    accuracies = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    evaluations = [entry["eval_runtime"] for entry in trainer.state.log_history if "eval_runtime" in entry]
    print(json.dumps({"accuracy": float(accuracies[-1]), "updates": clock.seconds, "evaluations": evaluations}))


if __name__ == "__main__":
    main()
