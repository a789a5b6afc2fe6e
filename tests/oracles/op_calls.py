"""A simple call of each op that has a dtype rule, of its promoting operands."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

INDEX = torch.tensor([0, 1])
INDICES = torch.zeros(4, 4, dtype=torch.int64)
MASK = torch.ones(4, 4, dtype=torch.bool)

Call = Callable[..., Any]


def square(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return ``x``, of 16 elements or of 4, in another shape."""
    return x.reshape(shape)


UNARY_WITH: dict[str, tuple[Any, ...]] = {
    "adaptive_avg_pool1d": (2,),
    "adaptive_avg_pool2d": ((2, 2),),
    "as_strided": ((2,), (1,)),
    "broadcast_to": ((4, 4),),
    "chunk": (2,),
    "constant_pad_nd": ((1, 1),),
    "cummax": (0,),
    "cummin": (0,),
    "cumprod": (0,),
    "cumsum": (0,),
    "expand": (4, 4),
    "expand_as": (torch.ones(4, 4),),
    "flip": ((0,),),
    "frobenius_norm": ((0, 1),),
    "full_like": (1,),
    "gather": (0, INDICES),
    "index_select": (0, INDEX),
    "kthvalue": (1,),
    "logcumsumexp": (0,),
    "logsumexp": (0,),
    "masked_select": (MASK,),
    "moveaxis": (0, 1),
    "movedim": (0, 1),
    "mvlgamma": (1,),
    "narrow": (0, 0, 1),
    "permute": ((1, 0),),
    "quantile": (0.5,),
    "nanquantile": (0.5,),
    "renorm": (2, 0, 1),
    "repeat": (2, 2),
    "repeat_interleave": (2,),
    "reshape": ((16,),),
    "roll": (1,),
    "select": (0, 0),
    "softmax": (0,),
    "log_softmax": (0,),
    "split": (2,),
    "swapaxes": (0, 1),
    "take": (INDEX,),
    "take_along_dim": (INDICES, 0),
    "threshold": (0.5, 0),
    "tile": ((2, 2),),
    "topk": (1,),
    "transpose": (0, 1),
    "unflatten": (0, (2, 2)),
    "unsqueeze": (0,),
    "_unsafe_view": ([16],),
    "feature_alpha_dropout": (0.5, True),
    "feature_dropout": (0.5, True),
    "hsplit": (2,),
    "linalg_matrix_power": (2,),
    "matrix_power": (2,),
    "multinomial": (1,),
    "new_empty": ((2,),),
    "new_full": ((2,), 1),
    "new_ones": ((2,),),
    "new_zeros": ((2,),),
    "reshape_as": (torch.ones(16),),
    "swapdims": (0, 1),
    "tensor_split": (2,),
    "unsafe_chunk": (2,),
    "unsafe_split": (2,),
    "unsafe_split_with_sizes": ([2, 2],),
    "view_as": (torch.ones(16),),
    "vsplit": (2,),
    "view": (16,),
}
"""Ops of one tensor that want more than it, by name."""

ONCE = (False, 1, 0.0, False, False, False)
"""Of a recurrent layer: no biases, one layer, no dropout, not training, one way."""

CALLS: dict[str, Call] = {
    # contractions
    "addbmm": lambda s, a, b: torch.addbmm(s, a[None], b[None]),
    "addmv": lambda s, a, b: torch.addmv(s[0], a, b[0]),
    "addr": lambda s, a, b: torch.addr(s, a[0], b[0]),
    "baddbmm": lambda s, a, b: torch.baddbmm(s[None], a[None], b[None]),
    "bilinear": lambda a, b, w: F.bilinear(a, b, w[None]),
    "chain_matmul": lambda a, b: torch.ops.aten.chain_matmul([a, b]),
    "conv": lambda x, w, b: F.conv1d(x[None], w[..., None], b[0]),
    "conv_tbc": lambda x, w: torch.conv_tbc(x[None], w[None], x[0]),  # any bias
    "conv_transpose": lambda x, w: F.conv_transpose1d(x[None], w[..., None]),  # too
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "einsum_product": lambda a, b: torch.einsum("ij,ij->ij", a, b),
    "einsum_sum": lambda a, b: torch.einsum("ij,ik->ik", a, b),
    "linalg_cross": lambda a, b: torch.linalg.cross(a[:, :3], b[:, :3]),
    "cross": lambda a, b: torch.cross(a[:, :3], b[:, :3], dim=1),
    "linalg_multi_dot": lambda a, b: torch.linalg.multi_dot([a, b]),
    "linear": lambda x, w, b: F.linear(x, w, b[0]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "scaled_dot_product_attention": lambda q, k, v: F.scaled_dot_product_attention(
        q[None, None], k[None, None], v[None, None]
    ),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "vdot": lambda a, b: torch.vdot(a[0], b[0]),
    "gru_cell": lambda x, h, w: torch.gru_cell(
        x, h, w.repeat(3, 1), w.repeat(3, 1), None, None
    ),
    "lstm_cell": lambda x, h, w: torch.lstm_cell(
        x, (h, h), w.repeat(4, 1), w.repeat(4, 1), None, None
    )[0],
    "gru": lambda x, h, w: torch.gru(x[None], h[None], [w.repeat(3, 1)] * 2, *ONCE)[0],
    "lstm": lambda x, h, w: torch.lstm(
        x[None], (h[None], h[None]), [w.repeat(4, 1)] * 2, *ONCE
    )[0],
    "rnn_relu": lambda x, h, w: torch.rnn_relu(x[None], h[None], [w, w], *ONCE)[0],
    "rnn_tanh": lambda x, h, w: torch.rnn_tanh(x[None], h[None], [w, w], *ONCE)[0],
    "rnn_tanh_cell": lambda x, h, w: torch.rnn_tanh_cell(x, h, w, w),
    "rnn_relu_cell": lambda x, h, w: torch.rnn_relu_cell(x, h, w, w),
    # several operands
    "cartesian_prod": lambda a, b: torch.cartesian_prod(a[0], b[0]),
    "cat": lambda a, b: torch.cat([a, b]),
    "column_stack": lambda a, b: torch.column_stack([a, b]),
    "dstack": lambda a, b: torch.dstack([a, b]),
    "hstack": lambda a, b: torch.hstack([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "vstack": lambda a, b: torch.vstack([a, b]),
    "ger": lambda a, b: torch.ger(a[0], b[0]),
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "grid_sampler": lambda x, g: F.grid_sample(
        square(x, 1, 1, 4, 4), square(g, 1, 4, 2, 2), align_corners=False
    ),
    "prelu": lambda x, w: F.prelu(x, w[0]),
    "where": lambda a, b: torch.where(MASK, a, b),
    "bucketize": lambda x, b: torch.bucketize(x, b[0]),
    "searchsorted": lambda b, x: torch.searchsorted(b[0], x),
    # writing into the first
    "copy": lambda x, v: x.clone().copy_(v),
    "fill": lambda x, v: x.clone().fill_(v[0, 0]),
    "fill_diagonal": lambda x: x.clone().fill_diagonal_(1),
    "index_add": lambda x, v: x.index_add(0, INDEX, v[:2]),
    "index_copy": lambda x, v: x.index_copy(0, INDEX, v[:2]),
    "index_fill": lambda x, v: x.index_fill(0, INDEX, v[0, 0]),
    "index_put": lambda x, v: x.index_put((INDEX,), v[:2]),
    "_unsafe_index_put": lambda x, v: torch.ops.aten._unsafe_index_put(
        x, [INDEX], v[:2]
    ),
    "index_reduce": lambda x, v: x.index_reduce(0, INDEX, v[:2], "prod"),
    "masked_fill": lambda x, v: x.masked_fill(MASK, v[0, 0]),
    "masked_scatter": lambda x, v: x.masked_scatter(MASK, v),
    "put": lambda x, v: x.put(INDICES, v),
    "scatter": lambda x, v: x.scatter(0, INDICES, v),
    "scatter_add": lambda x, v: x.scatter_add(0, INDICES, v),
    "scatter_reduce": lambda x, v: x.scatter_reduce(0, INDICES, v, "sum"),
    "diagonal_scatter": lambda x, v: torch.diagonal_scatter(x, v[0]),
    "select_scatter": lambda x, v: torch.select_scatter(x, v[0], 0, 0),
    # normalisations
    "batch_norm": lambda x, w, b: torch.batch_norm(
        x, w[0], b[0], None, None, True, 0.1, 1e-5, False
    ),
    "batch_norm_inference": lambda x, w, v: torch.batch_norm(
        x, w[0], w[0], v[0], v[0], False, 0.1, 1e-5, False
    ),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w[0], b[0]),
    "instance_norm": lambda x, w, b: torch.instance_norm(
        x[None], w[0], b[0], None, None, True, 0.1, 1e-5, False
    ),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (4,), w[0], b[0]),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "local_response_norm": lambda x: F.local_response_norm(x[None], 2),
    # one operand
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], (2, 2)),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], (2, 2)),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None], (1, 2, 2)),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "max_pool3d": lambda x: F.max_pool3d(x[None, None], (1, 2, 2)),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "embedding": lambda w: F.embedding(INDEX, w),
    "getitem": lambda x: x[0],
    "index": lambda x: x[INDEX],
    "max_dim": lambda x: torch.max(x, 0),
    "min_dim": lambda x: torch.min(x, 0),
    "numpy_T": lambda x: x.T,
    "pad": lambda x: F.pad(x, (1, 1)),
    "linalg_det": lambda x: torch.linalg.det(x + torch.eye(4).to(x.dtype)),
    "linalg_inv": lambda x: torch.linalg.inv(x + torch.eye(4).to(x.dtype)),
    "cholesky": lambda x: torch.cholesky(x + torch.eye(4).to(x.dtype)),
    "pixel_shuffle": lambda x: F.pixel_shuffle(square(x, 4, 2, 2), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[None], 2),
    "polygamma": lambda x: torch.polygamma(1, x),
    "reflection_pad1d": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "reflection_pad2d": lambda x: F.pad(x[None], (1, 1, 1, 1), mode="reflect"),
    "replication_pad1d": lambda x: F.pad(x, (1, 1), mode="replicate"),
    "replication_pad2d": lambda x: F.pad(x[None], (1, 1, 1, 1), mode="replicate"),
    "slice": lambda x: x[1:],
    "softmin": lambda x: F.softmin(x, 0),
    "to": lambda x: x.to("cpu"),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x[None, None], 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[None, None], 1),
    "affine_grid_generator": lambda x: F.affine_grid(
        x[None, :2, :3], [1, 1, 2, 2], align_corners=False
    ),
    "bincount": lambda x: torch.bincount(x[0]),
    "channel_shuffle": lambda x: torch.channel_shuffle(x[None], 2),
    "native_channel_shuffle": lambda x: torch.native_channel_shuffle(x[None], 2),
    "col2im": lambda x: F.fold(x[None], (4, 4), (2, 2), stride=2),
    "im2col": lambda x: F.unfold(x[None, None], (2, 2)),
    "combinations": lambda x: torch.combinations(x[0]),
    "cross_entropy_loss": lambda x: F.cross_entropy(x[:2], INDEX),
    "nll_loss": lambda x: F.nll_loss(x[:2], INDEX),
    "nll_loss_nd": lambda x: F.nll_loss(x[:2], INDEX),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[:2], INDEX),
    "embedding_bag": lambda w: F.embedding_bag(INDEX[None], w),
    "histc": lambda x: torch.histc(x, 2),
    "lu_solve": lambda b, a: torch.linalg.lu_solve(
        a.tril(), torch.arange(1, 5, dtype=torch.int32), b
    ),
    "linalg_solve": lambda a, b: torch.linalg.solve(a + torch.eye(4).to(a.dtype), b),
    "linalg_householder_product": lambda a, t: torch.linalg.householder_product(
        a, t[0]
    ),
    "linalg_cholesky": lambda x: torch.linalg.cholesky(x + torch.eye(4).to(x.dtype)),
    "inverse": lambda x: torch.inverse(x + torch.eye(4).to(x.dtype)),
    "mH": lambda x: x.mH,
    "mT": lambda x: x.mT,
    "meshgrid": lambda a, b: torch.meshgrid(a[0], b[0], indexing="ij"),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, train=True),
    "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x, x]),
    "reflection_pad3d": lambda x: F.pad(x[None, None], (1,) * 4 + (0, 0), "reflect"),
    "replication_pad3d": lambda x: F.pad(x[None, None], (1,) * 6, "replicate"),
    "upsample_bicubic2d": lambda x: F.interpolate(
        x[None, None], (8, 8), mode="bicubic"
    ),
    "upsample_linear1d": lambda x: F.interpolate(x[None], 8, mode="linear"),
    "upsample_trilinear3d": lambda x: F.interpolate(
        x[None, None, None], (2, 8, 8), mode="trilinear"
    ),
    "upsample_nearest1d": lambda x: F.interpolate(x[None], 8),
    "upsample_nearest3d": lambda x: F.interpolate(x[None, None, None], (2, 8, 8)),
    "vander": lambda x: torch.vander(x[0]),
    "split_with_sizes": lambda x: x.split([2, 2]),
    "_unsafe_index": lambda x: torch.ops.aten._unsafe_index(x, [INDEX]),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "upsample_bilinear2d": lambda x: F.interpolate(
        x[None, None], scale_factor=2, mode="bilinear"
    ),
    "upsample_nearest2d": lambda x: F.interpolate(x[None, None], scale_factor=2),
}
"""What the general rule of :func:`call_of` does not find."""

BINARY = {
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss"),
    *("kl_div", "l1_loss", "mse_loss", "smooth_l1_loss"),
    *(
        "soft_margin_loss",
        "hinge_embedding_loss",
        "block_diag",
        "slice_scatter",
        "trapezoid",
    ),
    *("clamp_max", "clamp_min"),
    *("add", "allclose", "atan2", "cdist", "copysign", "cosine_similarity", "dist"),
    *("div", "eq", "equal", "float_power", "floor_divide", "fmax", "fmin", "fmod"),
    *("ge", "gt", "heaviside", "hypot", "igamma", "igammac", "inner", "isclose"),
    *("isin", "kron", "ldexp", "le", "linalg_vecdot", "logaddexp", "logaddexp2"),
    *("logical_and", "logical_or", "logical_xor", "lt", "matmul", "maximum"),
    *("minimum", "mul", "ne", "nextafter", "pairwise_distance", "pow", "remainder"),
    *("rsub", "special_chebyshev_polynomial_t", "special_hermite_polynomial_h"),
    *("special_legendre_polynomial_p", "special_xlog1py", "special_zeta", "sub"),
    *("xlog1py", "xlogy", "trapz", "cumulative_trapezoid", "triangular_solve"),
    *("cholesky_solve", "special_chebyshev_polynomial_u"),
    *("special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w"),
    *("special_hermite_polynomial_he", "special_laguerre_polynomial_l"),
    *(f"special_shifted_chebyshev_polynomial_{x}" for x in "tuvw"),
}
TERNARY = {"margin_ranking_loss", "clamp", "addcdiv", "addcmul", "addmm", "lerp"}


def call_of(name: str) -> Call:
    """Return the call of a canonical op, of its promoting operands only."""
    if name in CALLS:
        return CALLS[name]
    places = (
        (F, name),
        (F, name.replace("_", "")),
        (torch, name),
        (torch.Tensor, name),
        (torch.special, name.removeprefix("special_")),
        (torch.linalg, name.removeprefix("linalg_")),
        (torch.ops.aten, name),
    )
    found = next(getattr(place, key) for place, key in places if hasattr(place, key))
    more = UNARY_WITH.get(name, ())
    return lambda *tensors: found(*tensors, *more)


def count_of(name: str) -> int:
    """Return how many operands the call takes."""
    if name in CALLS:
        return len(signature(CALLS[name]).parameters)
    return 3 if name in TERNARY else 2 if name in BINARY else 1
