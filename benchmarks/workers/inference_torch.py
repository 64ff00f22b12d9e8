"""Inference of Hugging Face Transformers on PyTorch, eager or compiled; from text with its fast tokenizer.

In bfloat16 all weights are bfloat16. From text, the result is the mean of the last layer over the tokens.
"""

from typing import Any

from worker import Round, repeated, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import inference_inputs
    import torch
    from inference_torch_model import bert

    model = bert(settings).to(getattr(torch, settings["dtype"]))
    called = torch.compile(model) if settings["compile"] else model
    if settings["input"] == "text":
        from transformers import BertTokenizerFast

        tokenizer = BertTokenizerFast(settings["vocabulary"])
        texts = inference_inputs.texts(settings)

    ids = torch.tensor(inference_inputs.ids(settings))
    mask = torch.tensor(inference_inputs.mask(settings))
    inputs = {"input_ids": ids, "attention_mask": mask}
    if hasattr(model.config, "type_vocab_size"):
        inputs["token_type_ids"] = torch.zeros_like(ids)

    @torch.inference_mode()
    def step() -> Any:
        if settings["input"] == "ids":
            return called(**inputs).last_hidden_state.float().numpy()
        batch = tokenizer(texts, padding=True, truncation=True, max_length=settings["length"], return_tensors="pt")
        mask = batch["attention_mask"][..., None].float()
        states = called(**batch).last_hidden_state.float()
        return ((states * mask).sum(1) / mask.sum(1)).numpy()

    for _ in range(2):
        step()
    ready = {
        "versions": versions("torch", "transformers"), "dtype": settings["dtype"], "compiled": settings["compile"],
        "threads": torch.get_num_threads(), "attention": model.config._attn_implementation,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


if __name__ == "__main__":
    serve(setup)
