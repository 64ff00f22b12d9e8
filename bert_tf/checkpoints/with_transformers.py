"""Runs a Hugging Face model with Transformers: python with_transformers.py DIRECTORY INPUTS.npz OUTPUTS.npz PART.

Needs PyTorch and Transformers but not bert_tf, and is run by its path in a process of its own: TensorFlow and PyTorch's
compiler each bundle LLVM, and a process that loads both crashes.

INPUTS holds input_ids, attention_mask and token_type_ids, int [rows, length], and `choices`, the number of rows per
question of a multiple-choice model (else 0). OUTPUTS gets layer_0, layer_1, ... and, as far as the model has
them, pooled_output and the logits under Transformers' names. PART is "model" (the class that config.json names),
"encoder" or "encoder_without_pooler".
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import torch
import transformers


def parameters(function: Callable[..., Any]) -> Container[str]:
    """Names of the parameters of a function."""
    return inspect.signature(function).parameters


def main(directory: str, inputs: str, outputs: str, part: str) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        architectures = json.load(file).get("architectures")
    kind, version = transformers.AutoModel, transformers.__version__
    if part == "model" and architectures:
        if hasattr(transformers, architectures[0]):
            kind = getattr(transformers, architectures[0])
        else:
            version += f" (the encoder alone: it has no class {architectures[0]})"
    options = {}
    if part == "encoder_without_pooler":
        # Transformers would add a randomly initialized pooler to an encoder without one, if its class has poolers.
        encoder: Any = transformers.MODEL_MAPPING[type(transformers.AutoConfig.from_pretrained(directory))]
        options = {"add_pooling_layer": False} if "add_pooling_layer" in parameters(encoder) else {}
    model = kind.from_pretrained(directory, local_files_only=True, **options).float().eval()
    features = {name: torch.from_numpy(array.astype(np.int64)) for name, array in np.load(inputs).items()}
    choices = int(features.pop("choices"))
    features = {name: value for name, value in features.items() if name in parameters(model.forward)}
    with torch.no_grad():
        base = model.base_model(**features, output_hidden_states=True)
        results = {f"layer_{index}": state for index, state in enumerate(base.hidden_states[1:])}
        if getattr(base, "pooler_output", None) is not None:
            results["pooled_output"] = base.pooler_output
        if choices:
            features = {name: value.reshape(-1, choices, value.shape[-1]) for name, value in features.items()}
        results |= {name: value for name, value in model(**features).items() if name.endswith("logits")}
    np.savez(outputs, version=version, **{name: value.numpy() for name, value in results.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
