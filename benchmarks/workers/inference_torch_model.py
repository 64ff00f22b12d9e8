"""The model of inference.py's peers on PyTorch: BertModel or ModernBertModel, of random weights or MiniLM's."""

from typing import Any


def bert(settings: dict[str, Any]) -> Any:
    import torch
    from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

    torch.manual_seed(0)
    if settings["model"] == "modernbert_base":  # as its config has it
        return ModernBertModel(ModernBertConfig()).eval()
    if settings["model"] == "minilm":
        return BertModel.from_pretrained(settings["checkpoint"]).eval()
    layers, hidden, heads = settings["sizes"]
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden,
        hidden_act="gelu_pytorch_tanh",
    )  # fmt: skip
    return BertModel(config).eval()
