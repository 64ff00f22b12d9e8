"""Training a sentence encoder as users of sentence-transformers write it: in-batch negatives, the Trainer.

Prints a JSON line: MRR@10 of the validation questions, and seconds of each update and of each evaluation.
"""

import argparse
import json

from datasets import Dataset
from finetuning_trainer import Clock
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", help="folder with train.jsonl and dev.jsonl: query and positive")
    parser.add_argument("--init", help="folder of the model to start from")
    parser.add_argument("--output", help="folder for the trained model")
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--learning_rate", type=float)
    parser.add_argument("--max_length", type=int)
    parser.add_argument("--eval_steps", type=int, help="updates between evaluations; the last one is at the end")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    model = SentenceTransformer(arguments.init, device="cpu")
    model.max_seq_length = arguments.max_length

    def pairs(name):
        with open(f"{arguments.data_dir}/{name}.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    validation = pairs("dev")
    numbers = {text: str(number) for number, text in enumerate(dict.fromkeys(one["positive"] for one in validation))}
    evaluator = InformationRetrievalEvaluator(
        {str(number): one["query"] for number, one in enumerate(validation)},
        {number: text for text, number in numbers.items()},
        {str(number): {numbers[one["positive"]]} for number, one in enumerate(validation)},
        mrr_at_k=[10], ndcg_at_k=[10], accuracy_at_k=[1], precision_recall_at_k=[10], map_at_k=[100],
        show_progress_bar=False, write_csv=False, name="dev",
    )  # fmt: skip
    clock = Clock()
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=arguments.output, num_train_epochs=1, learning_rate=arguments.learning_rate, warmup_steps=0.1,
            weight_decay=0.01, per_device_train_batch_size=arguments.batch_size, eval_strategy="steps",
            eval_steps=arguments.eval_steps, save_strategy="no", logging_steps=10, report_to="none", use_cpu=True,
            bf16=arguments.dtype == "bfloat16", disable_tqdm=True, batch_sampler=BatchSamplers.NO_DUPLICATES,
            seed=arguments.seed,
        ),
        train_dataset=Dataset.from_list([{"anchor": one["query"], "positive": one["positive"]}
                                         for one in pairs("train")]),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=evaluator,
        callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    log = trainer.state.log_history
    found = [entry["eval_dev_cosine_mrr@10"] for entry in log if "eval_dev_cosine_mrr@10" in entry]
    seconds = [entry["eval_runtime"] for entry in log if "eval_runtime" in entry]
    model.save_pretrained(arguments.output)
    print(json.dumps({"mrr@10": float(found[-1]), "updates": clock.seconds, "evaluations": seconds or found}))


if __name__ == "__main__":
    main()
