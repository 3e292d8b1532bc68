"""Names that checkpoints have, as exact pairs of module and qualified name, and names that no checkpoint needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nantrap.checkpoints.audit.pickles import Name

# ---- Classes of torch that hold data: what is saved when a whole module, optimizer or distribution is pickled.
#
# Exact pairs of module and name, from torch 2.4 to 2.13. Their constructors and `__setstate__` set attributes and do
# nothing else.

TORCH_CLASSES: Final[dict[str, str]] = {
    "torch.ao.nn.quantized.modules": "DeQuantize Quantize",
    "torch.ao.nn.quantized.modules.activation": (
        "ELU Hardswish LeakyReLU MultiheadAttention PReLU ReLU6 Sigmoid Softmax"
    ),
    "torch.ao.nn.quantized.modules.batchnorm": "BatchNorm2d BatchNorm3d _BatchNorm",
    "torch.ao.nn.quantized.modules.conv": (
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d _ConvNd _ConvTransposeNd"
    ),
    "torch.ao.nn.quantized.modules.dropout": "Dropout",
    "torch.ao.nn.quantized.modules.embedding_ops": "Embedding EmbeddingBag EmbeddingPackedParams",
    "torch.ao.nn.quantized.modules.functional_modules": "FXFloatFunctional FloatFunctional QFunctional",
    "torch.ao.nn.quantized.modules.linear": "Linear LinearPackedParams",
    "torch.ao.nn.quantized.modules.normalization": ("GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm"),
    "torch.ao.nn.quantized.modules.rnn": "LSTM",
    "torch.ao.nn.quantized.modules.utils": "WeightedQuantizedModule",
    "torch.distributions.bernoulli": "Bernoulli",
    "torch.distributions.beta": "Beta",
    "torch.distributions.binomial": "Binomial",
    "torch.distributions.categorical": "Categorical",
    "torch.distributions.cauchy": "Cauchy",
    "torch.distributions.chi2": "Chi2",
    "torch.distributions.constraints": (
        "Constraint MixtureSameFamilyConstraint _Boolean _Cat _CorrCholesky _Dependent _DependentProperty "
        "_GreaterThan _GreaterThanEq _HalfOpenInterval _IndependentConstraint _IntegerGreaterThan "
        "_IntegerInterval _IntegerLessThan _Interval _LessThan _LowerCholesky _LowerTriangular _Multinomial "
        "_OneHot _PositiveDefinite _PositiveSemidefinite _Real _Simplex _Square _Stack _Symmetric"
    ),
    "torch.distributions.continuous_bernoulli": "ContinuousBernoulli",
    "torch.distributions.dirichlet": "Dirichlet _Dirichlet",
    "torch.distributions.distribution": "Distribution",
    "torch.distributions.exp_family": "ExponentialFamily",
    "torch.distributions.exponential": "Exponential",
    "torch.distributions.fishersnedecor": "FisherSnedecor",
    "torch.distributions.gamma": "Gamma",
    "torch.distributions.generalized_pareto": "GeneralizedPareto",
    "torch.distributions.geometric": "Geometric",
    "torch.distributions.gumbel": "Gumbel",
    "torch.distributions.half_cauchy": "HalfCauchy",
    "torch.distributions.half_normal": "HalfNormal",
    "torch.distributions.independent": "Independent",
    "torch.distributions.inverse_gamma": "InverseGamma",
    "torch.distributions.kumaraswamy": "Kumaraswamy",
    "torch.distributions.laplace": "Laplace",
    "torch.distributions.lkj_cholesky": "LKJCholesky",
    "torch.distributions.log_normal": "LogNormal",
    "torch.distributions.logistic_normal": "LogisticNormal",
    "torch.distributions.lowrank_multivariate_normal": "LowRankMultivariateNormal",
    "torch.distributions.mixture_same_family": "MixtureSameFamily",
    "torch.distributions.multinomial": "Multinomial",
    "torch.distributions.multivariate_normal": "MultivariateNormal",
    "torch.distributions.negative_binomial": "NegativeBinomial",
    "torch.distributions.normal": "Normal",
    "torch.distributions.one_hot_categorical": "OneHotCategorical OneHotCategoricalStraightThrough",
    "torch.distributions.pareto": "Pareto",
    "torch.distributions.poisson": "Poisson",
    "torch.distributions.relaxed_bernoulli": "LogitRelaxedBernoulli RelaxedBernoulli",
    "torch.distributions.relaxed_categorical": "ExpRelaxedCategorical RelaxedOneHotCategorical",
    "torch.distributions.studentT": "StudentT",
    "torch.distributions.transformed_distribution": "TransformedDistribution",
    "torch.distributions.transforms": (
        "AbsTransform AffineTransform CatTransform ComposeTransform CorrCholeskyTransform "
        "CumulativeDistributionTransform ExpTransform IndependentTransform LowerCholeskyTransform "
        "PositiveDefiniteTransform PowerTransform ReshapeTransform SigmoidTransform SoftmaxTransform "
        "SoftplusTransform StackTransform StickBreakingTransform TanhTransform Transform _InverseTransform"
    ),
    "torch.distributions.uniform": "Uniform",
    "torch.distributions.von_mises": "VonMises",
    "torch.distributions.weibull": "Weibull",
    "torch.distributions.wishart": "Wishart",
    "torch.nn.modules.activation": (
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish "
        "MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus "
        "Softshrink Softsign Tanh Tanhshrink Threshold"
    ),
    "torch.nn.modules.adaptive": "AdaptiveLogSoftmaxWithLoss _ASMoutput",
    "torch.nn.modules.batchnorm": (
        "BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d SyncBatchNorm "
        "_BatchNorm _LazyNormBase _NormBase"
    ),
    "torch.nn.modules.channelshuffle": "ChannelShuffle",
    "torch.nn.modules.container": "Container ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "torch.nn.modules.conv": (
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d LazyConv2d "
        "LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d _ConvNd _ConvTransposeMixin "
        "_ConvTransposeNd _LazyConvXdMixin"
    ),
    "torch.nn.modules.distance": "CosineSimilarity PairwiseDistance",
    "torch.nn.modules.dropout": ("AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout _DropoutNd"),
    "torch.nn.modules.flatten": "Flatten Unflatten",
    "torch.nn.modules.fold": "Fold Unfold",
    "torch.nn.modules.instancenorm": (
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d "
        "LazyInstanceNorm3d _InstanceNorm"
    ),
    "torch.nn.modules.lazy": "LazyModuleMixin _LazyProtocol",
    "torch.nn.modules.linear": "Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear",
    "torch.nn.modules.linear_cross_entropy_options": "LinearCrossEntropyOptions _AutoDefault",
    "torch.nn.modules.loss": (
        "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss "
        "HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss "
        "MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss "
        "SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss _Loss _WeightedLoss"
    ),
    "torch.nn.modules.module": "Module _IncompatibleKeys _WrappedHook",
    "torch.nn.modules.normalization": "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm",
    "torch.nn.modules.padding": (
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
        "ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d "
        "ZeroPad2d ZeroPad3d _CircularPadNd _ConstantPadNd _ReflectionPadNd _ReplicationPadNd"
    ),
    "torch.nn.modules.pixelshuffle": "PixelShuffle PixelUnshuffle",
    "torch.nn.modules.pooling": (
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
        "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d LPPool1d "
        "LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d "
        "_AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _AvgPoolNd _LPPoolNd _MaxPoolNd _MaxUnpoolNd"
    ),
    "torch.nn.modules.rnn": "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase",
    "torch.nn.modules.sparse": "Embedding EmbeddingBag",
    "torch.nn.modules.transformer": (
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer"
    ),
    "torch.nn.modules.upsampling": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
    "torch.nn.parameter": (
        "Buffer Parameter UninitializedBuffer UninitializedParameter UninitializedTensorMixin _BufferMeta "
        "_ParameterMeta"
    ),
    "torch.optim": "Adafactor Muon",
    "torch.optim._stateless": "_GroupSwapinInfo",
    "torch.optim.adadelta": "Adadelta",
    "torch.optim.adagrad": "Adagrad",
    "torch.optim.adam": "Adam",
    "torch.optim.adamax": "Adamax",
    "torch.optim.adamw": "AdamW",
    "torch.optim.asgd": "ASGD",
    "torch.optim.lbfgs": "LBFGS",
    "torch.optim.lr_scheduler": (
        "ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR "
        "LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau "
        "SequentialLR StepLR _LRScheduler _SchedulePhase _enable_get_lr_call _initial_mode"
    ),
    "torch.optim.nadam": "NAdam",
    "torch.optim.optimizer": "Optimizer _RequiredParameter",
    "torch.optim.radam": "RAdam",
    "torch.optim.rmsprop": "RMSprop",
    "torch.optim.rprop": "Rprop",
    "torch.optim.sgd": "SGD",
    "torch.optim.sparse_adam": "SparseAdam",
    "torch.optim.swa_utils": "AveragedModel SWALR",
}


def _words(text: str) -> list[str]:
    return text.split()


def _pairs(table: Mapping[str, str]) -> frozenset[Name]:
    return frozenset(Name(module, name) for module, names in table.items() for name in names.split())


LOADER: Final = "torch.storage._load_from_bytes"
LOADER_NAME: Final = Name("torch.storage", "_load_from_bytes")

_TENSORS = "Float Double Half BFloat16 Long Int Short Char Byte Bool"
_STORAGES = f"{_TENSORS} ComplexFloat ComplexDouble QInt8 QUInt8 QInt32 QUInt4x2 QUInt2x4 Untyped Typed"
_STORAGE_NAMES = " ".join(f"{kind}Storage" for kind in _STORAGES.split(" "))
_TENSOR_NAMES = " ".join(f"{kind}Tensor" for kind in _TENSORS.split(" "))

_NUMPY_SCALARS = (
    "bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 intc uintc longlong ulonglong intp uintp float16 "
    "float32 float64 float128 longdouble complex64 complex128 complex256 clongdouble str_ bytes_ datetime64 timedelta64"
)
CALLABLE_SCALARS: Final = _pairs({"numpy": _NUMPY_SCALARS})
"""numpy's numbers, which may be made from plain values."""

VALUES: Final = _pairs({
    "torch": (
        f"{_STORAGE_NAMES} {_TENSOR_NAMES} bool half float double int long short cfloat cdouble chalf uint8 int8 "
        "int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
        "qint8 quint8 qint32 quint4x2 quint2x4 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
        "float8_e8m0fnu float4_e2m1fn_x2 bits1x8 bits2x4 bits4x2 bits8 bits16 int1 int2 int3 int4 int5 int6 int7 "
        "uint1 uint2 uint3 uint4 uint5 uint6 uint7 strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc "
        "jagged per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
        "per_channel_affine_float_qparams contiguous_format channels_last channels_last_3d preserve_format dtype "
        "layout memory_format qscheme"
    ),
    "torch.cuda": f"{_STORAGE_NAMES} {_TENSOR_NAMES}",
    "torch._utils": (
        "torch.contiguous_format torch.channels_last torch.channels_last_3d torch.preserve_format"  # as pickled
    ),
    "torch.sparse": _TENSOR_NAMES,
    "torch.cuda.sparse": _TENSOR_NAMES,
    "torch.storage": f"{_STORAGE_NAMES} _TypedStorage _UntypedStorage _LegacyStorage",
    "builtins": "Ellipsis NotImplemented type object property staticmethod classmethod memoryview BaseException",
    "typing": (
        "Any Union Optional List Dict Tuple Set FrozenSet Callable Literal Type Sequence Mapping Iterable "
        "Iterator MutableMapping MutableSequence ClassVar Final Annotated Generic TypeVar NamedTuple DefaultDict "
        "OrderedDict Counter Deque Collection Container Hashable Sized Generator NoReturn Never Text AnyStr"
    ),
    "numpy": (
        "ndarray bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 intc uintc longlong ulonglong intp "
        "uintp float16 float32 float64 float128 longdouble complex64 complex128 complex256 clongdouble str_ "
        "bytes_ object_ void datetime64 timedelta64 generic number integer floating inexact matrix recarray "
        "record"
    ),
    "zoneinfo": "ZoneInfo",
    "collections.abc": "Mapping MutableMapping Sequence MutableSequence Iterable Iterator Callable Hashable Set",
})  # fmt: skip
"""Constants and types that data name. Calling them is not expected."""

CLASSES: Final = _pairs({
    "contextlib": "nullcontext",
    **TORCH_CLASSES,
    "torch": "Size device Tensor Generator",
    "torch._C": "Generator",
    "torch.torch_version": "TorchVersion",
    "torch.amp.grad_scaler": "GradScaler OptState _MultiDeviceReplicator",
    "torch.cuda.amp.grad_scaler": "GradScaler OptState",
    "torch.utils.data.dataset": "Subset TensorDataset ConcatDataset",
    "torch.utils.data.sampler": (
        "RandomSampler SequentialSampler BatchSampler SubsetRandomSampler WeightedRandomSampler"
    ),
    "torch.distributed.checkpoint.metadata": (
        "Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex "
        "StorageMeta _MEM_FORMAT_ENCODING"
    ),
    "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix SerializationFormat",
    "torch.distributed.checkpoint.planner": "SavePlan LoadPlan WriteItem WriteItemType TensorWriteData",
    "torch.distributed._shard.sharded_tensor.metadata": (
        "ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING ShardMetadata"
    ),
    "torch.distributed._shard.sharded_tensor.api": "ShardedTensor",
    "torch.distributed._shard.sharded_tensor.shard": "Shard",
    "torch.distributed._shard.metadata": "ShardMetadata",
    "torch.distributed._shard.sharding_spec.api": "EnumerableShardingSpec",
    "torch.distributed._shard.sharding_spec.chunk_sharding_spec": "ChunkShardingSpec",
    "torch.distributed.remote_device": "_remote_device",
    "torch.distributed.tensor": "DTensor",
    "torch.distributed.tensor._api": "DTensor",
    "torch.distributed._tensor.api": "DTensor",
    "torch.distributed.tensor._dtensor_spec": "DTensorSpec TensorMeta",
    "torch.distributed._tensor._dtensor_spec": "DTensorSpec TensorMeta",
    "torch.distributed._tensor.placement_types": "DTensorSpec TensorMeta Shard Replicate Partial _Partial Placement",
    "torch.distributed.tensor.placement_types": "Shard Replicate Partial _StridedShard Placement MaskPartial",
    "torch.distributed.device_mesh": "DeviceMesh",
    "torch.distributed._mesh_layout": "_MeshLayout",
    "torch.distributed.fsdp._common_utils": "FSDPMeshInfo",
    "builtins": (
        "set frozenset list dict tuple int float bool str bytes bytearray complex slice range object enumerate "
        "zip reversed ArithmeticError AssertionError AttributeError BlockingIOError BrokenPipeError BufferError "
        "ChildProcessError ConnectionError EOFError Exception FileExistsError FileNotFoundError "
        "FloatingPointError ImportError IndexError InterruptedError IsADirectoryError KeyError KeyboardInterrupt "
        "LookupError MemoryError ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError "
        "OverflowError PermissionError RecursionError ReferenceError RuntimeError RuntimeWarning StopIteration "
        "SyntaxError SystemError TimeoutError TypeError UnicodeDecodeError UnicodeError UserWarning ValueError "
        "Warning ZeroDivisionError"
    ),
    "collections": "OrderedDict Counter deque ChainMap UserDict UserList UserString defaultdict",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal Context",
    "fractions": "Fraction",
    "uuid": "UUID SafeUUID",
    "ipaddress": "IPv4Address IPv6Address IPv4Network IPv6Network IPv4Interface IPv6Interface",
    "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "pathlib._local": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "argparse": "Namespace",
    "types": "SimpleNamespace",
    "random": "Random",
    "string": "Template Formatter",
    "time": "struct_time",
    "re": "RegexFlag",
    "enum": "auto",
    "http": "HTTPStatus",
    "signal": "Signals",
    "logging": "Logger RootLogger",
    "dataclasses": "_MISSING_TYPE Field InitVar _KW_ONLY_TYPE _HAS_DEFAULT_FACTORY_CLASS",
    "inspect": "Signature Parameter _ParameterKind _empty",
    "itertools": "count chain repeat islice",
    "operator": "attrgetter itemgetter methodcaller",
    "_io": "BytesIO StringIO",
    "numpy": "dtype poly1d random.RandomState",
    "numpy.dtypes": (
        "Float16DType Float32DType Float64DType Int8DType Int16DType Int32DType Int64DType UInt8DType UInt16DType "
        "UInt32DType UInt64DType BoolDType Complex64DType Complex128DType StrDType BytesDType ObjectDType "
        "StringDType"
    ),
    "numpy.random.mtrand": "RandomState",
    "numpy.random._generator": "Generator",
    "numpy.random._mt19937": "MT19937",
    "numpy.random._pcg64": "PCG64 PCG64DXSM",
    "numpy.random._philox": "Philox",
    "numpy.random._sfc64": "SFC64",
    "numpy.random.bit_generator": "SeedSequence",
    "lightning.fabric.utilities.data": "AttributeDict",
    "lightning_fabric.utilities.data": "AttributeDict",
    "lightning.pytorch.utilities.parsing": "AttributeDict",
    "pytorch_lightning.utilities.parsing": "AttributeDict",
    "lightning.pytorch.core.mixins.hparams_mixin": "AttributeDict",
    "transformers.training_args": "TrainingArguments ParallelMode OptimizerNames",
    "transformers.training_args_seq2seq": "Seq2SeqTrainingArguments",
    "transformers.trainer_utils": (
        "IntervalStrategy EvaluationStrategy SaveStrategy HubStrategy SchedulerType FSDPOption "
        "RemoveColumnsCollator"
    ),
    "transformers.debug_utils": "DebugOption",
    "transformers.trainer_pt_utils": "AcceleratorConfig",
    "transformers.trainer_callback": "TrainerState TrainerControl",
    "accelerate.state": "PartialState AcceleratorState GradientState DistributedType",
    "accelerate.utils.dataclasses": (
        "DistributedType PrecisionType ComputeEnvironment DynamoBackend LoggerType RNGType "
        "SageMakerDistributedType DataLoaderConfiguration ProjectConfiguration GradientAccumulationPlugin "
        "TorchDynamoPlugin DeepSpeedPlugin FullyShardedDataParallelPlugin DDPCommunicationHookType"
    ),
    "transformers.tokenization_utils_tokenizers": "TokenizersBackend",
    "transformers.tokenization_utils_fast": "PreTrainedTokenizerFast",
    "tokenizers": "Tokenizer AddedToken",
    "tokenizers.models": "Model BPE WordPiece WordLevel Unigram",
    "deepspeed.utils.tensor_fragment": "fragment_address tensor_fragment",
    "deepspeed.runtime.fp16.loss_scaler": "LossScaler LossScalerBase DynamicLossScaler",
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "omegaconf.dictconfig": "DictConfig",
    "omegaconf.listconfig": "ListConfig",
    "omegaconf.base": "Metadata ContainerMetadata SCMode",
    "omegaconf.nodes": (
        "AnyNode StringNode IntegerNode FloatNode BooleanNode PathNode BytesNode EnumNode InterpolationResultNode"
    ),
})  # fmt: skip
"""Classes whose constructor and state setter set attributes and do nothing else."""

TOUCHES: Final = frozenset(
    name
    for name in CLASSES
    if (
        name.module not in ("torch.optim.lr_scheduler", "torch.optim.swa_utils")
        and name.module.startswith(
            ("torch.optim", "torch.nn.modules.rnn", "torch.ao.", "torch.distributed", "torch.utils.data")
        )
    )
    or name.module
    in _words(
        "random inspect omegaconf.dictconfig omegaconf.listconfig string uuid _io itertools torch torch._C "
        "torch.nn.parameter torch.nn.modules.linear_cross_entropy_options"
    )
    or name.module.startswith(("transformers.tokenization", "tokenizers", "numpy"))
)
"""Classes among these whose `__setstate__` calls methods of the values in its state: these must be known."""

ACTS: Final = _pairs(
    {
        "torch.distributed.device_mesh": "DeviceMesh",
        "torch.distributed._shard.sharded_tensor.api": "ShardedTensor",
    }
)
"""Classes among these that join a process group while they are loaded."""

CONSTRUCTED: Final = frozenset(
    name
    for name in CLASSES
    if name.module.partition(".")[0] in (
        "builtins", "datetime", "decimal", "fractions", "ipaddress", "pathlib", "time", "re", "http", "signal",
        "operator", "itertools",
    )
) | _pairs({
    "torch": "Size device Generator",
    "torch._C": "Generator",
    "torch.torch_version": "TorchVersion",
    "torch.amp.grad_scaler": "OptState",
    "torch.cuda.amp.grad_scaler": "OptState",
    "torch.distributed.checkpoint.metadata": "_MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "SerializationFormat",
    "torch.distributed.checkpoint.planner": "WriteItemType",
    "torch.distributed._shard.sharded_tensor.metadata": "MEM_FORMAT_ENCODING",
    "collections": "OrderedDict Counter deque defaultdict",
    "uuid": "SafeUUID",
    "inspect": "_ParameterKind",
    "numpy": "dtype",
    "numpy.dtypes": "StringDType",
    "numpy.random.bit_generator": "SeedSequence",
})  # fmt: skip
"""Classes among these that a pickler calls with arguments. All others are made by `cls.__new__` and filled."""

PURE: Final = _pairs({
    "torch.nn.functional": (
        "relu relu6 gelu silu mish elu selu celu leaky_relu sigmoid tanh softmax log_softmax softplus softsign "
        "hardtanh hardswish hardsigmoid logsigmoid tanhshrink mse_loss l1_loss smooth_l1_loss huber_loss "
        "cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div cosine_similarity "
        "normalize layer_norm dropout"
    ),
    "torch": "relu tanh sigmoid softmax exp log sqrt abs sin cos mean sum",
    "torch._C._nn": "gelu silu softplus leaky_relu elu",
    "math": "sqrt exp log sin cos floor ceil pow tanh",
    "builtins": (
        "abs all any bin bool bytes chr divmod float hex int len list max min oct ord pow round set sorted str "
        "sum tuple"
    ),
})  # fmt: skip
"""Functions that compute from what they are given: they may be kept in a checkpoint, whoever calls them."""

FUNCTIONS: Final = _pairs({
    "torch._utils": (
        "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state "
        "_rebuild_qtensor _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor "
        "_rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass _rebuild_device_tensor_from_numpy "
        "_rebuild_device_tensor_from_cpu_tensor _rebuild_xla_tensor"
    ),
    "torch.serialization": "_get_layout",
    "numpy.core.multiarray": "scalar",
    "numpy._core.multiarray": "scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "numpy.random.bit_generator": "__pyx_unpickle_SeedSequence",
    "re": "_compile",
    "logging": "getLogger",
    "zoneinfo": "ZoneInfo._unpickle",
    "pandas._libs.internals": "_unpickle_block",
    "pandas._libs.tslibs.timestamps": "_unpickle_timestamp",
    "pandas._libs.tslibs.timedeltas": "_timedelta_unpickle",
})  # fmt: skip
"""Functions that build data from plain arguments."""


HARMLESS_MODULES: Final = frozenset((
    "math", "cmath", "operator", "_operator", "functools", "itertools", "collections", "collections.abc", "typing",
    "enum", "dataclasses", "datetime", "decimal", "fractions", "numbers", "statistics", "random", "re", "string",
    "textwrap", "time", "calendar", "uuid", "pathlib", "json", "json.encoder", "json.decoder", "copy", "abc", "heapq",
    "bisect", "logging", "argparse", "types", "array", "colorsys", "unicodedata", "difflib", "pprint", "zlib",
))  # fmt: skip
"""Modules of the standard library whose functions may be named, as a sort key is. None reaches the system."""

HARMLESS_BUILTINS: Final = frozenset(_words(
    "abs all any ascii bin bool bytes callable chr divmod enumerate filter float format hash hex id int "
    "isinstance issubclass iter len list map max min next oct ord pow print range repr reversed round set "
    "sorted str sum super tuple zip"
))  # fmt: skip

GADGETS: Final = frozenset(_words(
    "IPython aiohttp ansible bdb celery cffi click cloudpickle code cython dask dill distributed distutils "
    "docker fabric fire fsspec git hypothesis importlib_metadata invoke jedi jinja2 joblib jsonpickle jupyter "
    "keras mako numba numexpr paramiko pdb pexpect pip pkg_resources plumbum prompt_toolkit psutil py_compile "
    "pyximport ray requests setuptools sh sympy tensorflow tornado traitlets typer urllib3 yaml zmq httpx "
    "nantrap pytest _pytest pluggy networkx pygments parso huggingface_hub mpmath nt posix"
))  # fmt: skip
"""Packages with many names that run commands, load code or open files: only known names pass."""

_TORCH_THAT_RUNS = _words(
    "hub jit package utils.cpp_extension utils.model_zoo utils._config_module utils.collect_env utils.bottleneck "
    "utils._strobelight utils.data.datapipes utils.show_pickle utils.benchmark utils.file_baton utils.hipify _dynamo "
    "_inductor _strobelight multiprocessing distributed.run distributed.launch distributed.launcher "
    "distributed.elastic distributed.rpc distributed.nn fx export _export onnx testing _C ops _ops classes _classes "
    "compiler _functorch _vendor _lazy library csrc"
)
_NUMPY_THAT_RUNS = _words("testing f2py distutils lib compat ctypeslib _pyinstaller tests")
MODULES_THAT_RUN: Final = frozenset(
    [f"torch.{module}" for module in _TORCH_THAT_RUNS] + [f"numpy.{module}" for module in _NUMPY_THAT_RUNS]
)
"""Modules of torch and numpy, with all below them, in which names that run commands or load code are found."""

RUNS: Final = frozenset((
    Name("torch", "load"), Name("torch.serialization", "load"), LOADER_NAME, Name("torch", "compile"),
    Name("numpy", "load"), Name("numpy", "fromfile"), Name("numpy", "save"), Name("numpy", "savez"),
    Name("numpy", "memmap"), Name("pandas", "read_pickle"), Name("pandas", "eval"),
))  # fmt: skip

SYSTEM_MODULES: Final = frozenset(_words(
    "os posix nt subprocess shutil socket ctypes _ctypes importlib runpy code codeop pty tempfile pickle _pickle "
    "marshal shelve dbm sqlite3 multiprocessing asyncio http urllib ftplib smtplib ssl telnetlib xmlrpc webbrowser "
    "zipfile tarfile zipimport pkgutil signal mmap fcntl builtins atexit concurrent io _io site sys gc resource"
))  # fmt: skip
"""Modules of the standard library that reach files, processes, the network, the import system or other pickles."""

SYSTEM_CALLS: Final = frozenset(_words(
    "open exec eval compile __import__ input breakpoint torch.load torch.hub.load torch.jit.load torch.save "
    "torch.serialization.load torch.ops.load_library torch.from_file numpy.load numpy.save numpy.fromfile "
    "pandas.read_pickle joblib.load cloudpickle.loads dill.loads torch.classes.load_library"
))  # fmt: skip

CLASSES_THAT_RUN: Final = frozenset(_words(
    "Popen FileIO CDLL PyDLL WinDLL OleDLL Process Pool ThreadPool Thread Timer TemporaryFile NamedTemporaryFile "
    "TemporaryDirectory SpooledTemporaryFile ZipFile TarFile SourceFileLoader SourcelessFileLoader ExtensionFileLoader "
    "Unpickler InteractiveInterpreter InteractiveConsole Pdb HTTPServer TCPServer ServerProxy HTTPConnection "
    "SMTP FTP ProcessPoolExecutor ThreadPoolExecutor FileHandler"
))  # fmt: skip
"""Classes of the standard library whose constructor acts. `__main__.Popen` is one of them if the script imports it."""
