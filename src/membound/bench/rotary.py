# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rope and qk_norm_rope: rows are tokens, columns heads of 128."""

from __future__ import annotations

from functools import partial
from typing import Any

import membound
from membound._rope_table import rope_table
from membound.bench.contestants import Call, Op

HEAD_DIM = 128


def as_heads(x: Any) -> Any:
    rows, cols = x.shape
    return x.reshape((1, rows, -1, cols if cols % HEAD_DIM else HEAD_DIM))


def tables(heads: Any, like: Any) -> tuple[Any, Any]:
    return rope_table(None, heads.shape[-1], heads.shape[1], like=like)[:2]


def tables_in_torch(torch: Any, x: Any, heads: Any) -> tuple[Any, ...]:
    """cos and sin of both halves, in the dtype of x, as models have them."""
    return tuple(
        torch.cat([table, table], 1)[:, None].to(x.dtype) for table in tables(heads, like=x)
    )


def _ours(a: Any) -> Call:
    heads = as_heads(a.x)
    return partial(membound.rope, heads, None, *tables(heads, a.x), out=as_heads(a.out))


def _ours_backward(a: Any) -> Call:
    heads, out = as_heads(a.x), as_heads(a.out)
    return partial(membound.rope_backward, heads, None, *tables(heads, a.x), dq_out=out)


def _torch_call(torch: Any, a: Any) -> Call:
    """The formula that models use, in the dtype of x; the gradient has the same terms."""
    x = as_heads(a.x)
    cos, sin = tables_in_torch(torch, a.x, x)
    half = x.shape[-1] // 2

    def call() -> Any:
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return call


def _formula(np: Any, a: Any, wide: Any, sign: int = 1) -> Any:
    return rotated(np, a.x, wide, sign)


def rotated(np: Any, matrix: Any, wide: Any, sign: int) -> Any:
    x = as_heads(matrix)
    seq, _, head_dim = x.shape[1:]
    half = head_dim // 2
    angles = np.arange(seq)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = (part(angles)[:, None].astype(wide) for part in (np.cos, np.sin))
    first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
    sin = sign * sin
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


def _ours_with_norm(a: Any) -> Call:
    heads, out = as_heads(a.x), as_heads(a.out)
    arrays = (heads, None, a.weight[: heads.shape[-1]], None, *tables(heads, a.x))
    return partial(membound.qk_norm_rope, *arrays, out=out)


def _ours_with_norm_backward(a: Any) -> Call:
    heads, gradient, out = as_heads(a.x), as_heads(a.dy), as_heads(a.out)
    weight = a.weight[: heads.shape[-1]]
    arrays = (gradient, None, heads, None, weight, None, *tables(heads, a.x))
    return partial(membound.qk_norm_rope_backward, *arrays, dq_out=out)


def _torch_with_norm(torch: Any, a: Any) -> Call:
    """The formula that models use, in the dtype of x."""
    return partial(norm_and_rotation(torch, a), as_heads(a.x))


def norm_and_rotation(torch: Any, a: Any) -> Any:
    """Return the norm and rotation as a function of heads."""
    like = as_heads(a.x)
    half = like.shape[-1] // 2
    cos, sin = tables_in_torch(torch, a.x, like)
    weight = a.weight[: like.shape[-1]]

    def call(x: Any) -> Any:
        wide = x.float() if x.element_size() < 4 else x
        y = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + a.eps)).to(x.dtype)
        return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin

    return call


def _torch_with_norm_backward(torch: Any, a: Any) -> Call | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.x.is_cuda:
        return None
    x = as_heads(a.x).detach().requires_grad_()
    out = norm_and_rotation(torch, a)(x)
    return partial(torch.autograd.grad, out, x, as_heads(a.dy), retain_graph=True)


def normalised(np: Any, a: Any, wide: Any) -> tuple[Any, Any]:
    """The heads in a wide dtype, divided by their root mean square, and rstd."""
    x = as_heads(a.x).astype(wide)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + a.eps)
    return x * rstd, rstd


def _formula_with_norm(np: Any, a: Any, wide: Any) -> Any:
    normed, _ = normalised(np, a, wide)
    return rotated(np, normed.reshape(a.x.shape), wide, 1).astype(a.x.dtype)


def _formula_with_norm_backward(np: Any, a: Any, wide: Any) -> Any:
    h, rstd = normalised(np, a, wide)
    g = rotated(np, a.dy.astype(wide), wide, -1)
    return (rstd * (g - h * (g * h).mean(-1, keepdims=True))).astype(a.x.dtype)


_sequences = partial(Op, sequences=True)
OPS = (
    _sequences("rope", ("x",), ("out",), _ours, _torch_call, _formula),
    # x is the gradient of rope's result.
    _sequences(
        "rope_backward", ("x",), ("out",), _ours_backward, _torch_call, partial(_formula, sign=-1)
    ),
    _sequences(
        "qk_norm_rope", ("x",), ("out",), _ours_with_norm, _torch_with_norm, _formula_with_norm
    ),
    _sequences(
        "qk_norm_rope_backward",
        ("x", "dy"),
        ("out",),
        _ours_with_norm_backward,
        _torch_with_norm_backward,
        _formula_with_norm_backward,
    ),
)
