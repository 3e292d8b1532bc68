"""Operations that a replay may call by a name from a file: exact names, on the file's own tensors, of bounded size.

A bundle can come from an untrusted source. These operations compute from tensors and numbers, and what they change in
place are the tensors they were given. None opens a file, makes memory that no input justifies, or reaches Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from nantrap.errors import FormatError
from nantrap.finite import size_in_bytes
from nantrap.incident.wording import escaped

MOST_BYTES: Final = 1 << 30
"""A result larger than this, and larger than 16 times its inputs, is refused."""
_LARGEST_NUMBER = 1_000_000
"""Where torch does not know the size of a result beforehand, no whole number in the arguments may be larger."""

_NAMES = (
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _add_relu "
    "_addmm_activation _aminmax _amp_foreach_non_finite_check_and_unscale _batch_norm_no_update "
    "_batch_norm_with_update_functional _cdist_backward _cdist_forward _cholesky_solve_helper _conv_depthwise2d "
    "_convolution _convolution_double_backward _ctc_loss _ctc_loss_backward _cudnn_ctc_loss _dirichlet_grad "
    "_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only _euclidean_dist "
    "_fft_c2c _fft_c2r _fft_r2c _foreach_abs _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_clamp_max "
    "_foreach_clamp_min _foreach_copy _foreach_cos _foreach_div _foreach_erf _foreach_exp _foreach_expm1 "
    "_foreach_frac _foreach_lerp _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max "
    "_foreach_maximum _foreach_minimum _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_reciprocal "
    "_foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sqrt _foreach_sub "
    "_foreach_tan _foreach_tanh _foreach_zero _fused_adagrad _fused_adam _fused_adamw _fused_rms_norm "
    "_fused_rms_norm_backward _fused_sgd _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward "
    "_linalg_det _linalg_eigvals _linalg_slogdet _linalg_solve_ex _log_softmax _log_softmax_backward_data "
    "_logcumsumexp _masked_scale _masked_softmax _masked_softmax_backward _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _pad_circular _pdist_backward "
    "_pdist_forward _prelu_kernel _prelu_kernel_backward _safe_softmax _scaled_dot_product_attention_math "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward _scaled_mm "
    "_scaled_mm_v2 _softmax _softmax_backward_data _thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy "
    "_transform_bias_rescale_qkv _unsafe_index _unsafe_index_put _weight_norm _weight_norm_interface "
    "_weight_norm_interface_backward abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d "
    "adaptive_max_pool3d_backward add addbmm addcdiv addcmul addmm addmv addr adjoint affine_grid_generator all amax "
    "amin aminmax angle any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort as_strided "
    "asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool2d_backward "
    "avg_pool3d avg_pool3d_backward baddbmm batch_norm batch_norm_backward batch_norm_backward_elemt "
    "batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts "
    "batch_norm_stats batch_norm_update_stats bilinear binary_cross_entropy binary_cross_entropy_backward "
    "binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
    "bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize cat cdist ceil celu chain_matmul "
    "channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone col2im "
    "column_stack complex concat concatenate conj conj_physical constant_pad_nd contiguous conv1d conv2d conv3d "
    "conv_depthwise3d conv_tbc conv_tbc_backward conv_transpose1d conv_transpose2d conv_transpose3d convolution "
    "convolution_backward convolution_backward_overrideable convolution_overrideable copy corrcoef cos cosh "
    "cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss cudnn_batch_norm "
    "cudnn_batch_norm_backward cudnn_convolution cummax cummaxmin_backward cummin cumprod cumprod_backward cumsum "
    "cumulative_trapezoid deg2rad det detach diag diag_embed diagflat diagonal diagonal_backward diagonal_scatter "
    "diff digamma dist div divide dot dsplit dstack elu elu_backward embedding embedding_backward embedding_bag "
    "embedding_dense_backward eq erf erfc erfinv exp exp2 expand expand_as expm1 fft_fft fft_ifft fft_irfft fft_rfft "
    "fill fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac fractional_max_pool2d "
    "fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward frexp frobenius_norm gather "
    "gather_backward gcd ge gelu gelu_backward geqrf ger glu glu_backward glu_backward_jvp glu_jvp gradient greater "
    "greater_equal grid_sampler grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward "
    "group_norm gru_cell gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish "
    "hardswish_backward hardtanh hardtanh_backward heaviside hinge_embedding_loss histc hsplit hstack huber_loss "
    "huber_loss_backward hypot i0 igamma igammac im2col imag index index_add index_fill index_put index_reduce "
    "index_select index_select_backward inner instance_norm inverse isclose isfinite isin isinf isnan isneginf "
    "isposinf isreal kl_div kron kthvalue l1_loss layer_norm lcm ldexp le leaky_relu leaky_relu_backward lerp less "
    "less_equal lgamma linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal "
    "linalg_eig linalg_eigvals linalg_householder_product linalg_inv linalg_inv_ex linalg_lu linalg_lu_factor "
    "linalg_lu_solve linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank "
    "linalg_multi_dot linalg_norm linalg_pinv linalg_slogdet linalg_solve linalg_solve_triangular linalg_tensorinv "
    "linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm linear linear_backward log log10 log1p log2 "
    "log_sigmoid log_sigmoid_backward log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logdet "
    "logical_and logical_not logical_or logical_xor logit logit_backward logsumexp lstm_cell lt lu_solve lu_unpack mH "
    "mT margin_ranking_loss masked_fill masked_scatter masked_scatter_backward masked_select_backward matmul "
    "matmul_backward matrix_H matrix_exp matrix_exp_backward matrix_power max max_pool1d max_pool1d_with_indices "
    "max_pool2d max_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d "
    "max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d maximum mean median meshgrid "
    "min minimum miopen_batch_norm mish mish_backward mkldnn_convolution mkldnn_linear mkldnn_rnn_layer mm mode "
    "moveaxis movedim mse_loss mse_loss_backward msort mul multi_margin_loss multi_margin_loss_backward "
    "multilabel_margin_loss multilabel_margin_loss_backward multilabel_margin_loss_forward multiply mv mvlgamma "
    "nan_to_num nanmean nanmedian nansum narrow native_batch_norm native_batch_norm_backward native_channel_shuffle "
    "native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm "
    "native_layer_norm_backward ne neg negative nextafter nll_loss nll_loss2d nll_loss2d_backward nll_loss2d_forward "
    "nll_loss_backward nll_loss_forward nll_loss_nd norm not_equal nuclear_norm numpy_T orgqr ormqr outer "
    "pairwise_distance pdist permute pixel_shuffle pixel_unshuffle polar polygamma positive pow prelu prod put qr "
    "rad2deg ravel real reciprocal reflection_pad1d reflection_pad1d_backward reflection_pad2d "
    "reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward relu relu6 remainder renorm repeat "
    "replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d "
    "replication_pad3d_backward reshape reshape_as resolve_conj resolve_neg rms_norm roll rot90 round row_stack "
    "rrelu_with_noise_backward rsqrt rsub scaled_dot_product_attention scatter scatter_add scatter_reduce "
    "searchsorted select select_backward select_scatter selu sgn sigmoid sigmoid_backward sign signbit silu "
    "silu_backward sin sinc sinh slice slice_backward slice_scatter slogdet slow_conv3d slow_conv3d_forward "
    "slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d smooth_l1_loss "
    "smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax softplus softplus_backward softshrink "
    "softshrink_backward sort special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr "
    "special_ndtri special_xlog1py special_zeta split split_with_sizes sqrt square squeeze stack std std_mean sub "
    "subtract sum svd swapaxes swapdims t take tan tanh tanh_backward tensordot thnn_conv2d threshold "
    "threshold_backward tile topk trace trace_backward transpose trapezoid trapz tril triplet_margin_loss triu "
    "true_divide trunc unbind unfold unfold_backward unsqueeze upsample_bicubic2d upsample_bicubic2d_backward "
    "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d "
    "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d "
    "upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward "
    "value_selecting_reduction_backward var var_mean vdot view view_as_complex view_as_real vsplit vstack where xlogy "
    "zero"
)
PURE: Final = frozenset(_NAMES.split())
"""Names without overload and without the underscore of the in-place form."""


def pure_operation(name: str, arguments: Any) -> Callable[..., Any]:
    """The operation of PyTorch with this name (`aten.div.Tensor`), if it may be called with these arguments.

    Raises:
        FormatError: it is no operation, not one of the pure ones, or its result would be too large.
    """
    parts = name.split(".")
    shown = escaped(name, most=80)
    if len(parts) != 3 or parts[0] != "aten" or not all(part.isidentifier() for part in parts):
        raise FormatError(f"{shown} is not an operation of PyTorch; give entry= to run the whole step")
    if parts[1] not in PURE and parts[1].removesuffix("_") not in PURE:
        raise FormatError(f"{shown} is not run from a bundle: only operations that compute from tensors are")
    packet = getattr(torch.ops.aten, parts[1], None)
    if packet is None or parts[2] not in packet.overloads():
        raise FormatError(f"this PyTorch ({torch.__version__}) has no operation {shown}")
    operation: Callable[..., Any] = getattr(packet, parts[2])
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(arguments)):
        raise FormatError(f"{shown} is not run from a bundle: it is given no tensor")
    _refuse_large(operation, arguments, shown)
    return operation


def _refuse_large(operation: Callable[..., Any], arguments: Any, shown: str) -> None:
    """Try the operation on tensors without memory first: their shapes show how large the result would be."""
    given = sum(size_in_bytes(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor))
    args, kwargs = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, arguments)
    try:
        with torch.no_grad():
            result = operation(*args, **kwargs)
    except Exception:  # no kernel for shapes alone, or arguments that do not fit: the call itself will raise the error
        if any(number > _LARGEST_NUMBER for number in _whole_numbers(arguments)):
            raise FormatError(f"{shown} is not run from a bundle: its result could be of any size") from None
        return
    size = sum(leaf.numel() * leaf.itemsize for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
    if size > MOST_BYTES and size > 16 * given:
        raise FormatError(f"{shown} is not run from a bundle: its result would hold {size:,} bytes")


def _whole_numbers(arguments: Any) -> Iterator[int]:
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, int):
            yield abs(leaf)
