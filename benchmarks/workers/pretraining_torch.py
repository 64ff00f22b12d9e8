"""Pre-training steps of Hugging Face Transformers on PyTorch, eager or compiled.

As it comes, `BertForPreTraining` computes logits for all positions; with `gather` only for the masked ones, as the
other contestants do, with the same modules. bfloat16 is autocast's. AdamW is the fused one, with decay on weights only.
"""

import itertools
from typing import Any

from worker import Round, repeated, serve, versions, warmed_up


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import torch
    from pretraining_batches import SIZES, VOCABULARY, batches
    from transformers import BertConfig, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM

    torch.manual_seed(0)
    is_modern = settings["model"] == "modernbert_base"
    if is_modern:
        model = ModernBertForMaskedLM(ModernBertConfig(sparse_prediction=settings["gather"]))
    else:
        layers, hidden = SIZES[settings["model"]]
        model = BertForPreTraining(
            BertConfig(
                vocab_size=VOCABULARY, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 64,
                intermediate_size=4 * hidden, hidden_act="gelu_pytorch_tanh",
            )
        )  # fmt: skip
    model.train()
    named = dict(model.named_parameters())
    plain = [parameter for parameter in named.values() if parameter.ndim == 1]
    decayed = [parameter for parameter in named.values() if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=1e-6, fused=True)

    def tensors(batch: dict[str, Any]) -> dict[str, Any]:
        as_long = {name: torch.from_numpy(value).long() for name, value in batch.items() if value.dtype == "int32"}
        positions, ids = as_long["masked_lm_positions"], as_long["masked_lm_ids"]
        labels = torch.full_like(as_long["input_word_ids"], -100).scatter(1, positions, ids)
        return as_long | {"labels": labels}

    def loss_of(batch: dict[str, Any]) -> Any:
        if is_modern:
            return model(batch["input_word_ids"], batch["input_mask"], labels=batch["labels"]).loss
        inputs = (batch["input_word_ids"], batch["input_mask"], batch["input_type_ids"])
        if not settings["gather"]:
            outputs = model(*inputs, labels=batch["labels"], next_sentence_label=batch["next_sentence_labels"])
            return outputs.loss
        states, pooled = model.bert(*inputs)[:2]
        index = batch["masked_lm_positions"][:, :, None].expand(-1, -1, hidden)
        words, pairs = model.cls(states.gather(1, index), pooled)
        cross_entropy = torch.nn.functional.cross_entropy
        masked = cross_entropy(words.float().view(-1, VOCABULARY), batch["masked_lm_ids"].view(-1))
        return masked + cross_entropy(pairs.float(), batch["next_sentence_labels"])

    if settings["compile"]:
        loss_of = torch.compile(loss_of)
    data = itertools.cycle([tensors(batch) for batch in batches(settings)])

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["dtype"] == "bfloat16"):
            loss = loss_of(next(data))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    losses = warmed_up(step)
    ready = {
        "versions": versions("torch", "transformers"), "dtype": settings["dtype"], "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation, "compiled": settings["compile"],
        "logits": "masked positions" if settings["gather"] else "all positions",
        "optimizer": "fused AdamW, clipped to norm 1", "losses": losses[:2],
        "parameters": sum(parameter.numel() for parameter in named.values()),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


serve(setup)
