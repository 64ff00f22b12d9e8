"""The ops that an exported graph may have."""

# Of TensorFlow 2.12.1 and TF Text 2.12.1, which TF Serving 2.12.1 to 2.19.1 are built with; later ones have them, too.
# Those that exports were seen to have, and run with there (tests/serving/test_servers.py). TF Serving links every op of
# TensorFlow and of TF Text, but an op, or a change to one, that is newer than the server would fail at the first
# request: so what is not listed is looked at by a person first.
SERVED_OPS = frozenset(
    """
    Add AddV2 All Any ArgMax AsString Assert AssignVariableOp BatchMatMulV2 BiasAdd BitwiseAnd BroadcastTo Cast
    ConcatV2 Const Cumsum DecodeRaw DenseBincount DisableCopyOnRead DivNoNan EnsureShape Equal Erf ExpandDims
    FastBertNormalize FastWordpieceTokenizeWithOffsets Fill FloorDiv FloorMod GatherNd GatherV2 Greater GreaterEqual
    Identity IdentityN If Less LessEqual LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart Max
    Maximum Mean MergeV2Checkpoints Minimum Mul Neg NoOp NotEqual OneHot OnesLike Pack Pad PadV2 ParseExampleV2
    Placeholder Prod RaggedGather RaggedRange RaggedTensorToTensor Range ReadVariableOp RealDiv ReduceJoin Relu Reshape
    RestoreV2 ReverseV2 Round Rsqrt SaveV2 ScatterNd Select SelectV2 SerializeTensor Shape ShardedFilename Sigmoid
    Size Softmax Split Square Squeeze StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch
    StaticRegexReplace StridedSlice StringJoin StringLength Sub Substr Sum Tanh TensorListConcatV2
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterUpdate
    Tile TopKV2 Transpose UnicodeDecodeWithOffsets Unique Unpack UnsortedSegmentJoin UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentSum UpperBound VarHandleOp Where While ZerosLike
    """.split()  # noqa: SIM905
)
