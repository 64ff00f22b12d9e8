"""The ops that an exported graph may contain."""

# Ops of TensorFlow 2.12.1 and TF Text 2.12.1, which TF Serving 2.12.1 to 2.19.1 are built with; newer servers have
# them, too. The list holds those that exports were seen to contain and that were run on these versions
# (tests/inference/test_servers.py). TF Serving links every op of TensorFlow and TF Text, but an op, or a change to one,
# that is newer than the server would fail at the first request. So look at an op before you add it here.
SERVED_OPS = frozenset(
    """
    Add AddV2 All Any ArgMax AsString Assert AssignVariableOp BatchMatMulV2 BiasAdd Bitcast BitwiseAnd BroadcastTo Case
    Cast ConcatV2 Const Cumsum DecodeRaw DenseBincount DisableCopyOnRead DivNoNan EnsureShape Equal Erf ExpandDims
    FastBertNormalize FastWordpieceTokenizeWithOffsets Fill FlatMapDataset FloorDiv FloorMod GatherNd GatherV2 Greater
    GreaterEqual HashTableV2 Identity IdentityN If Less LessEqual LogicalAnd LogicalNot LogicalOr LookupTableFindV2
    LookupTableImportV2 LowerBound MatMul MatchingFiles MatrixBandPart Max Maximum Mean Merge MergeV2Checkpoints
    Minimum Mul Neg NoOp NotEqual OneHot OnesLike OptionsDataset Pack Pad PadV2 ParseExampleV2 Placeholder PrintV2 Prod
    QuantizeV2 RaggedGather RaggedRange RaggedTensorToTensor Range ReadVariableOp RealDiv ReduceDataset ReduceJoin Relu
    Reshape RestoreV2 ReverseV2 Round Rsqrt SaveV2 ScatterNd Select SelectV2 SerializeTensor Shape ShardedFilename
    Sigmoid Size Softmax Split Square Squeeze StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch
    StaticRegexReplace StridedSlice StringJoin Switch StringLength Sub Substr Sum TakeDataset Tanh TensorListConcatV2
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterUpdate
    TensorSliceDataset TextLineDataset Tile TopKV2 Transpose UnicodeDecodeWithOffsets Unique Unpack UnsortedSegmentJoin
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum UpperBound VarHandleOp Where While ZerosLike
    _MklNativeFusedMatMul _MklSoftmax
    """.split()  # noqa: SIM905
)

# In TensorFlow since 2.17, so in TF Serving since 2.17.0: exports in int8 have it.
OPS_SINCE_2_17 = frozenset({"_QuantizedMatMul"})
