# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The norms and their gradients.

RMSNorm: Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4. LayerNorm: Ba and others 2016
(arXiv:1607.06450), equation 4. The gated form: Dao and Gu 2024 (arXiv:2405.21060), section 7. The
gradients follow by the chain rule: h = (x - mean) rstd has dx = rstd (g - mean(g) - h mean(g h)).

Rows are the last axis; a weight of (heads, cols) has one row for each index of the axis before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from membound._ulps import GATED_ALLOWED, sum_slack
from membound.oracle import Expected, np, of_sum, round_to, statistics_dtype, wide

# Error bound of the float32 value that is rounded before it is multiplied by the weight.
SLACK, GATED_SLACK = 2.0**-21, 2.0**-20


@dataclass
class Norm:
    """The right results of a forward."""

    out: Expected
    rstd: Expected
    mean: Expected


def narrowed(dtype: str, rounding: str) -> bool:
    """Whether x * rstd is rounded before it is multiplied by the weight."""
    return rounding == "before_weight" and dtype in ("float16", "bfloat16")


def roundings(values: np.ndarray, dtype: str, slack: float) -> list[np.ndarray]:
    """Rounded to dtype: the op's float32 value may lie on the other side of a boundary."""
    return [round_to(values * (1 + d), dtype) for d in (-slack, slack)]


def factor(weight: np.ndarray | None, dtype: str, offset: float = 0.0) -> Any:
    return 1.0 if weight is None else wide(weight, dtype) + offset


def total(x: np.ndarray, residual: np.ndarray, dtype: str) -> np.ndarray:
    """x + residual as it is normalised: float64 holds the exact sum of narrower numbers closely."""
    with np.errstate(over="ignore"):
        exact = np.asarray(x).astype(np.float64) + np.asarray(residual).astype(np.float64)
    return round_to(exact, statistics_dtype(dtype))


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    rounding: str = "once",
    slack: float = SLACK,
) -> Norm:
    """x holds values of dtype, or sums of such in the dtype of sums."""
    with np.errstate(all="ignore"):
        values = wide(x, dtype)
        rstd = 1 / np.sqrt(np.mean(values * values, -1, keepdims=True) + eps)
        normal = values * rstd
        narrow = narrowed(dtype, rounding)
        candidates = roundings(normal, dtype, slack) if narrow else [normal]
        candidates = [one * factor(weight, dtype, weight_offset) for one in candidates]
    kind = statistics_dtype(dtype)
    mean = Expected([np.zeros_like(rstd[..., 0])], kind)
    return Norm(Expected(candidates, dtype), Expected([rstd[..., 0]], kind), mean)


def deviations(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's mean and its deviations from it, to twice the precision of the values."""
    mean = values.mean(-1, keepdims=True)
    apart = values - mean
    rest = apart.mean(-1, keepdims=True)
    apart = apart - rest
    mean = np.where(np.isfinite(rest), mean + rest, mean)  # the mean of one infinity
    constant = (values == values[..., :1]).all(-1, keepdims=True)  # the mean need not be rounded
    return np.where(constant, values[..., :1], mean), np.where(constant, values * 0, apart)


def layer_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    dtype: str,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> Norm:
    """x holds values of dtype, or sums of such in the dtype of sums."""
    kind = statistics_dtype(dtype)
    with np.errstate(all="ignore"):
        values = wide(x, dtype)
        mean, apart = deviations(values)
        rstd = 1 / np.sqrt(np.mean(apart * apart, -1, keepdims=True) + eps)
        # What float32 sums leave in the mean; of 16 bits the mean itself is rounded to float32.
        # Below the normal range the digits are fewer.
        around = np.maximum(np.abs(apart).mean(-1, keepdims=True), np.finfo(kind).smallest_normal)
        if dtype in ("float16", "bfloat16"):
            around = around + np.abs(mean)
        scale = rstd * factor(weight, dtype, weight_offset)
        more = 0 if bias is None else wide(bias, dtype)
        terms = (np.abs(apart) + around) * np.abs(scale) + np.abs(more)
        out = of_sum(apart * scale + more, terms, dtype, dtype)
    mean_of_row = of_sum(mean[..., 0], around[..., 0], kind, dtype)
    return Norm(out, Expected([rstd[..., 0]], kind), mean_of_row)


def add_rms_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray | None, dtype: str, **options: Any
) -> tuple[Norm, np.ndarray]:
    """The norm of the sum, and the sum itself, which is exact up to one rounding to each dtype."""
    row = total(x, residual, dtype)
    return rms_norm(row, weight, dtype, **options), round_to(row, dtype).astype(x.dtype)


def add_layer_norm(
    x: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    dtype: str,
    **options: Any,
) -> tuple[Norm, np.ndarray]:
    """The norm of the sum, and the sum itself, as in add_rms_norm."""
    row = total(x, residual, dtype)
    return layer_norm(row, weight, bias, dtype, **options), round_to(row, dtype).astype(x.dtype)


def gates(z: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """silu(z), its derivative, and the magnitude of the derivative's terms."""
    values = wide(z, dtype)
    with np.errstate(all="ignore"):
        s = 1 / (1 + np.exp(-values))
        return values * s, s * (1 + values * (1 - s)), s * (1 + np.abs(values) * (1 - s))


def rms_norm_gated(
    x: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    *,
    norm_before_gate: bool = True,
    rounding: str = "once",
    **options: Any,
) -> Norm:
    """norm(x) * silu(z), or norm(x * silu(z))."""
    gate = gates(z, dtype)[0]
    row = x if norm_before_gate else wide(x, dtype) * gate
    found = rms_norm(row, weight, dtype, rounding=rounding, slack=GATED_SLACK, **options)
    found.out.allowed = GATED_ALLOWED
    if norm_before_gate:
        products = found.out.candidates
        if narrowed(dtype, rounding):
            every = (roundings(one, dtype, GATED_SLACK) for one in products)
            products = [rounded for pair in every for rounded in pair]
        with np.errstate(all="ignore"):
            found.out.candidates = [one * gate for one in products]
    return found


def statistics(found: Norm) -> tuple[np.ndarray, np.ndarray]:
    """The mean and rstd that a forward returns, in their dtype."""
    kind = found.rstd.dtype
    return found.mean.values.astype(kind), found.rstd.values.astype(kind)


def rms_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    rounding: str = "once",
    **options: Any,
) -> tuple[Expected, Expected | None]:
    """dx and dweight, with the rstd that the op is given."""
    with np.errstate(all="ignore"):
        h = wide(x, dtype) * wide(rstd, dtype)[..., None]
        dx = _gradient_of_x(dy, h, weight, rstd, dtype, centred=False, **options)
        if narrowed(dtype, rounding):
            h = _rounded_as_forward(x, rstd, dtype)
        return dx, _gradient_of_weight(dy, h, weight, dtype)


def layer_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    mean: np.ndarray,
    rstd: np.ndarray,
    dtype: str,
    **options: Any,
) -> tuple[Expected, Expected | None, Expected]:
    """dx, dweight and dbias, with the statistics that the op is given."""
    with np.errstate(all="ignore"):
        h = (wide(x, dtype) - wide(mean, dtype)[..., None]) * wide(rstd, dtype)[..., None]
        dx = _gradient_of_x(dy, h, weight, rstd, dtype, centred=True, **options)
        like = np.empty(x.shape[-1:], x.dtype) if weight is None else weight
        dbias = sum_of_rows(wide(dy, dtype), like, dtype)
        return dx, _gradient_of_weight(dy, h, weight, dtype), dbias


def _rounded_as_forward(x: np.ndarray, rstd: np.ndarray, dtype: str) -> np.ndarray:
    product = np.asarray(x, np.float32) * np.asarray(rstd, np.float32)[..., None]
    return round_to(product.astype(np.float64), dtype)


def _gradient_of_weight(
    dy: np.ndarray, h: np.ndarray, weight: np.ndarray | None, dtype: str
) -> Expected | None:
    return None if weight is None else sum_of_rows(wide(dy, dtype) * h, weight, dtype)


def _gradient_of_x(
    dy: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    centred: bool,
    dresidual_out: np.ndarray | None = None,
    weight_offset: float = 0.0,
) -> Expected:
    root = wide(rstd, dtype)[..., None]
    g = wide(dy, dtype) * factor(weight, dtype, weight_offset)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.mean(values, -1, keepdims=True)

    dx = root * (g - (mean(g) if centred else 0) - h * mean(g * h))
    of_mean = mean(np.abs(g)) if centred else 0
    terms = root * (np.abs(g) + of_mean + np.abs(h) * mean(np.abs(g * h)))
    found = of_sum(dx, terms, dtype, dtype)
    if dresidual_out is not None:
        found.add(dresidual_out)
    return found


def sum_of_rows(values: np.ndarray, like: np.ndarray, dtype: str) -> Expected:
    """Sum over all axes but those of the weight, whose dtype the sum has."""
    rows = values.reshape(-1, *like.shape)
    return of_sum(rows.sum(0), np.abs(rows).sum(0), like.dtype.name, dtype)


def rms_norm_gated_backward(
    dy: np.ndarray,
    x: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    norm_before_gate: bool = True,
    **options: Any,
) -> tuple[Expected, Expected, Expected | None]:
    """dx, dz and dweight, with the rstd that the op is given."""
    formula = _gate_after if norm_before_gate else _gate_before
    with np.errstate(all="ignore"):
        found = formula(dy, x, z, weight, rstd, dtype, **options)
    for one in found:
        if one is not None:
            one.allowed = GATED_ALLOWED
    return found


def _gate_after(
    dy: Any, x: Any, z: Any, weight: Any, rstd: Any, dtype: str, **numbers: Any
) -> tuple[Expected, Expected, Expected | None]:
    silu, slope, size = gates(z, dtype)
    dx, dweight = rms_norm_backward(wide(dy, dtype) * silu, x, weight, rstd, dtype, **numbers)
    offset = numbers.get("weight_offset", 0.0)
    if narrowed(dtype, numbers.get("rounding", "once")):  # in float32, as the forward did
        out = _rounded_as_forward(x, rstd, dtype)
        if weight is not None:
            by = np.asarray(weight, np.float32) + np.float32(offset)
            out = round_to((out.astype(np.float32) * by).astype(np.float64), dtype)
    else:
        out = wide(x, dtype) * wide(rstd, dtype)[..., None] * factor(weight, dtype, offset)
    product = wide(dy, dtype) * out
    return dx, of_sum(product * slope, np.abs(product) * size, dtype, dtype), dweight


def _gate_before(
    dy: Any, x: Any, z: Any, weight: Any, rstd: Any, dtype: str, **numbers: Any
) -> tuple[Expected, Expected, Expected | None]:
    silu, slope, size = gates(z, dtype)
    row = wide(x, dtype) * silu
    du, dweight = rms_norm_backward(dy, row, weight, rstd, dtype, **numbers)
    if dweight is not None and narrowed(dtype, numbers.get("rounding", "once")):
        # The last bits of the float32 row are unknown, so some elements may round the other way.
        low, high = roundings(row * wide(rstd, dtype)[..., None], dtype, GATED_SLACK)
        apart = sum_of_rows(wide(dy, dtype) * (high - low), weight, dtype)
        dweight.terms += apart.terms / sum_slack(dtype)
    dx = of_sum(du.values * silu, du.terms * np.abs(silu), dtype, dtype)
    dz = wide(x, dtype) * slope * du.values, np.abs(wide(x, dtype)) * size * du.terms
    return dx, of_sum(*dz, dtype, dtype), dweight
