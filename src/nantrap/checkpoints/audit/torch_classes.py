"""Classes of torch that hold data: what is saved when a whole module, optimizer or distribution is pickled.

Exact pairs of module and name, from torch 2.4 to 2.13. Their constructors and `__setstate__` set attributes and do
nothing else.
"""

from __future__ import annotations

from typing import Final

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
