"""Inference of ONNX Runtime: the model of Transformers, exported and fused for BERT by its optimizer, or also int8.

`mode` is float32 or int8: `quantize_dynamic` of the fused model, with a scale per column.
"""

import os
import tempfile
from typing import Any

from worker import Round, repeated, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import inference_inputs
    import numpy as np
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = _optimized(settings, folder)
        size = os.path.getsize(path) / 1e6
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    ids = np.array(inference_inputs.ids(settings), np.int64)
    mask = np.array(inference_inputs.mask(settings), np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    if settings["input"] == "text":
        from transformers import BertTokenizerFast

        tokenizer = BertTokenizerFast(settings["vocabulary"])
        texts = inference_inputs.texts(settings)

    def step() -> Any:
        if settings["input"] == "ids":
            return session.run(None, {name: inputs[name] for name in names})[0]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=settings["length"], return_tensors="np")
        states = session.run(None, {name: batch[name].astype(np.int64) for name in names})[0]
        mask = batch["attention_mask"][..., None].astype(np.float32)
        return (states * mask).sum(1) / mask.sum(1)

    step()
    ready = {
        "versions": versions("onnxruntime", "transformers"), "dtype": settings["mode"],
        "threads": options.intra_op_num_threads, "file_megabytes": round(size, 1),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


def _optimized(settings: dict[str, Any], folder: str) -> str:
    """Writes the model, in another process, because the memory of the conversion is not that of the runtime."""
    path = os.path.join(folder, "model.onnx")
    if pid := os.fork():
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError("the model could not be exported to ONNX")
        return path
    status = 1
    try:
        _export(settings, folder, path)
        status = 0
    finally:
        os._exit(status)


def _export(settings: dict[str, Any], folder: str, path: str) -> None:
    import onnx
    import torch
    from inference_torch_model import bert
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    model = bert(settings)
    model.set_attn_implementation("eager")  # the form that the optimizer knows

    class Called(torch.nn.Module):
        """The model with its inputs by name: tracing passes them by position, of which it has others."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            outputs = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return outputs.last_hidden_state, outputs.pooler_output

    plain, ids = os.path.join(folder, "plain.onnx"), torch.ones(2, 8, dtype=torch.long)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        Called().eval(), (ids, ids, 0 * ids), plain, input_names=names, output_names=["states", "pooled"], dynamo=False,
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "states"]}, opset_version=17,
    )  # fmt: skip
    config = model.config
    options = FusionOptions("bert")
    fused = optimizer.optimize_model(
        plain, "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size,
        optimization_options=options, opt_level=0,
    )  # fmt: skip
    counts = fused.get_fused_operator_statistics()
    print("fused", counts)
    if not counts.get("Attention", 0) and not counts.get("MultiHeadAttention", 0):
        raise RuntimeError(f"the optimizer fused no attention: {counts}")
    written = path if settings["mode"] == "float32" else os.path.join(folder, "fused.onnx")
    fused.save_model_to_file(written)
    if settings["mode"] == "int8":
        # Shapes and types of the fused ops are not known to the quantizer.
        more = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(written, path, weight_type=QuantType.QInt8, per_channel=True, extra_options=more)


serve(setup)
