"""Verification of an export: in a TensorFlow session, as TF Serving runs it, it must answer as the model in memory."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.inference.rest import decoded, plain
from bert_tf.inference.samples import Request
from bert_tf.inference.session import EXACT, NotServable
from bert_tf.types import Array, Json

# Ops of TensorFlow 2.12.1 and TF Text 2.12.1, which TF Serving 2.12.1 to 2.19.1 are built with; newer servers have
# them, too. The list holds those that exports were seen to contain and that were run on these versions
# (tests/inference/test_servers.py). TF Serving links every op of TensorFlow and TF Text, but an op, or a change to one,
# that is newer than the server would fail at the first request. So look at an op before you add it here.
SERVED_OPS = frozenset(
    """
    Abs Add AddV2 All Any ArgMax AsString Assert AssignVariableOp BatchMatMulV2 BiasAdd Bitcast BitwiseAnd BroadcastTo
    Case Cast ConcatV2 Const Cos Cumsum DecodeRaw DenseBincount DisableCopyOnRead DivNoNan EnsureShape Equal Erf
    ExpandDims FastBertNormalize FastWordpieceTokenizeWithOffsets Fill FlatMapDataset FloorDiv FloorMod GatherNd
    GatherV2 Greater GreaterEqual HashTableV2 Identity IdentityN If Less LessEqual Log1p LogicalAnd LogicalNot LogicalOr
    LookupTableFindV2 LookupTableImportV2 LowerBound MatMul MatchingFiles MatrixBandPart Max Maximum Mean Merge
    MergeV2Checkpoints Minimum Mul Neg NoOp NotEqual OneHot OnesLike OptionsDataset Pack Pad PadV2 ParseExampleV2
    PartitionedCall Placeholder PrintV2 Prod QuantizeV2 RaggedGather RaggedRange RaggedTensorToTensor Range
    ReadVariableOp RealDiv ReduceDataset ReduceJoin Relu Reshape RestoreV2 ReverseV2 Round Rsqrt SaveV2 ScatterNd
    Select SelectV2 SentencepieceOp SentencepieceTokenizeOp SentencepieceTokenizeWithOffsetsOp SerializeTensor Shape
    ShardedFilename Sigmoid Sin Size Softmax SparseSegmentMeanWithNumSegments Split Square Squeeze
    StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch StaticRegexReplace StridedSlice StringJoin
    StringLength StringSplitV2 StringToHashBucketFast Sub Substr Sum Switch TakeDataset Tanh TensorListConcatV2
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterUpdate
    TensorSliceDataset TextLineDataset Tile TopKV2 Transpose UnicodeDecodeWithOffsets UnicodeEncode UnicodeTranscode
    Unique Unpack UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum UpperBound VarHandleOp
    Where While ZerosLike
    _MklNativeFusedMatMul _MklSoftmax
    """.split()  # noqa: SIM905
)

# In TensorFlow since 2.17, so in TF Serving since 2.17.0: exports in int8 have it.
OPS_SINCE_2_17 = frozenset({"_QuantizedMatMul"})


def check_ops(path: str, *, compiled: bool = False) -> int:
    """Checks that TF Serving can run the graph of a version.

    Args:
        path: directory of the version.
        compiled: whether XLA may compile functions in it: then TF Serving, which has no XLA, cannot run it.

    Returns:
        The number of op types in the graph.

    Raises:
        NotServable: the graph has an op that TF Serving may lack, or a function that must be compiled by XLA.
    """
    ops, must_compile = _ops(path)
    if unknown := sorted(ops - SERVED_OPS - OPS_SINCE_2_17):
        raise NotServable(f"the graph has ops that TF Serving may lack: {', '.join(unknown)}; expected only ops in "
                          "bert_tf/inference/check.py, which TF Serving 2.12.1 and newer have")  # fmt: skip
    if must_compile and not compiled:
        raise NotServable("the graph has a function that must be compiled by XLA, which a server may not support")
    return len(ops)


def oldest_server(path: str) -> str:
    """The oldest version of TF Serving that has all ops in the graph of a version; "" if that is not known."""
    ops, _ = _ops(path)
    if ops - SERVED_OPS - OPS_SINCE_2_17:
        return ""
    return "2.17.0" if ops & OPS_SINCE_2_17 else "2.12.1"


def _ops(path: str) -> tuple[set[str], bool]:
    """The op types in the graph of a version, and whether a function in it must be compiled by XLA."""
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        graphs = [meta.graph_def for meta in saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs]
    functions = {function.signature.name: function for graph in graphs for function in graph.library.function}
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in functions.values() for node in function.node_def]
    must_compile = any(holder.attr["_XlaMustCompile"].b for holder in (*nodes, *functions.values()))
    return {node.op for node in nodes} - functions.keys(), must_compile


def rest_body(request: Request) -> Json:
    """Body of the request for the `predict` method of TF Serving's REST API, JSON-ready."""
    inputs = {name: plain(name, value, exact=True) for name, value in request.inputs.items()}
    return {"signature_name": request.signature, "inputs": inputs}


def compare(
    requests: Sequence[Request],
    expected: Sequence[dict[str, Array]],
    answers: Sequence[Json],
    tolerance: float = EXACT,
) -> float:
    """Compares the answers of an export with the outputs of the model in memory.

    Args:
        requests: used in error messages.
        expected: the model's outputs for each request, by name.
        answers: as returned by `Session.ask`.
        tolerance: above `EXACT`, strings and integers are not compared, nor outputs whose shapes depend on them: a
            small difference can select another label.

    Returns:
        The largest `difference`.

    Raises:
        NotServable: an answer is an error; a string or integer differs; or a number differs by more than `tolerance`,
            relative to the largest number in its output.
    """
    largest = 0.0
    for request, model_outputs, answer in zip(requests, expected, answers, strict=True):
        where = f"signature {request.signature!r}, request {request.kind!r}"
        for name, values in model_outputs.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise NotServable(f"{where}: the model itself answers NaN or infinity in {name!r}; check its training")
        if "error" in answer:
            raise NotServable(f"{where}: {_cause(answer['error'])}")
        # The REST API does not name the output of a signature that has only one.
        outputs = answer["outputs"] if len(model_outputs) > 1 else dict.fromkeys(model_outputs, answer["outputs"])
        for name, values in model_outputs.items():
            found = _array(outputs.get(name), values)
            if tolerance > EXACT and name in outputs and (found is None or values.dtype.kind != "f"):
                continue
            if found is not None and values.dtype == np.int8 and np.abs(found - values.astype(int)).max(initial=0) <= 1:
                continue  # rounded differently
            if found is None:
                raise NotServable(f"{where}: the shape of output {name!r} differs from the model's")
            apart = difference(name, found, values)
            if not apart <= tolerance:
                amount = f" by {apart:.1e}" if np.isfinite(apart) else ""
                raise NotServable(f"{where}: output {name!r} differs from the model's{amount}")
            largest = max(largest, apart)
    return largest


def difference(name: str, found: Array, expected: Array) -> float:
    """Computes the difference between two outputs of the same shape.

    Args:
        name: name of the output.
        found, expected: arrays of float32, int32, bool or objects (bytes).

    Returns:
        For float32 the largest difference, relative to the largest number if that is above 1. For other types 0 if the
        arrays are equal, else infinity; `attention_bytes` are equal if no level, 0 to 255, differs by more than 1.
    """
    if expected.dtype.kind != "f":
        same = np.array_equal(found, expected)
        if not same and name == "attention_bytes":  # levels may be rounded differently
            pairs = [(np.frombuffer(one, np.uint8).astype(int), np.frombuffer(other, np.uint8).astype(int))
                     for one, other in zip(found.ravel(), expected.ravel(), strict=True)]  # fmt: skip
            same = all(len(one) == len(other) and np.abs(one - other).max(initial=0) <= 1 for one, other in pairs)
        return 0.0 if same else np.inf
    expected = expected.astype(np.float64)  # float16 has no 1e30
    apart = np.abs(found - expected, where=found != expected, out=np.zeros(expected.shape)).max(initial=0.0)
    # The largest float32 stands for "none".
    return float(apart / np.abs(expected[np.abs(expected) < 1e30]).max(initial=1.0))


def _cause(error: str) -> str:
    """Message for an error of the session."""
    if "Could not find variable" in error:
        name = error.partition("Could not find variable ")[2].split(".")[0]
        return f"the variable {name} is not restored by a session, so TF Serving could not answer"
    return error


def _array(answer: Any, like: Array) -> Array | None:
    """Converts nested lists to an array of the shape and dtype of `like`; None if the sizes differ."""
    if answer is None:
        return None
    try:
        found = np.array(decoded(answer, like.dtype.kind), like.dtype)
    except (TypeError, ValueError):  # null, or rows of different lengths
        return None
    return found.reshape(like.shape) if found.size == like.size else None
