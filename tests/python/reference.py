# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""References of the ops in a wider dtype than they compute in, and tolerances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from membound._ulps import ALLOWED, FORMATS, sum_slack

DTYPES = ("float16", "bfloat16", "float32", "float64")
NUMPY_DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
NUMPY_DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
# The dtypes that the quantised norms write.
QUANTISED = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2")}
QUANTISED["int8"] = np.dtype(np.int8)


def statistics_dtype(dtype: str) -> str:
    """The dtype of rstd."""
    return "float64" if dtype == "float64" else "float32"


def wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """The reference dtype: float64, in which narrower products are exact; wider for float64."""
    return values.astype(np.longdouble if dtype == "float64" else np.float64)


def round_once(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values rounded to the nearest number of dtype, ties to even.

    ml_dtypes converts float64 to bfloat16 through float32, which rounds twice; rounding to odd in
    float32 preserves the side of a tie that the value is on.
    """
    if dtype != "bfloat16":
        return values.astype(NUMPY_DTYPES[dtype])
    near = values.astype(np.float32)
    bits = near.view(np.int32)
    inexact = np.isfinite(near) & (near != values) & (bits & 1 == 0)
    outward = np.abs(near.astype(np.float64)) < np.abs(values)
    odd = np.where(inexact, bits + np.where(outward, 1, -1), bits).astype(np.int32)
    return odd.view(np.float32).astype(NUMPY_DTYPES[dtype])


@dataclass
class Expected:
    """Right results: each element must match one of the candidates within the tolerance."""

    candidates: list[np.ndarray]
    rstd: np.ndarray
    dtype: str
    allowed: dict[str, float] = field(default_factory=lambda: ALLOWED)


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    rounding: str = "once",
    slack: float = 2.0**-21,
) -> Expected:
    """x is an array of dtype, or a wider one; the sum is over its last axis."""
    with np.errstate(all="ignore"):
        values = wide(x, dtype)
        mean = np.mean(values * values, axis=-1)
        rstd = 1 / np.sqrt(mean + values.dtype.type(eps))
        normal = values * rstd[..., None]
        candidates = [normal]
        if rounding == "before_weight" and dtype in ("float16", "bfloat16"):
            candidates = roundings(normal, dtype, slack)
        if weight is not None:
            factor = wide(weight, dtype) + values.dtype.type(weight_offset)
            candidates = [candidate * factor for candidate in candidates]
    return Expected(candidates, rstd, dtype)


def roundings(values: np.ndarray, dtype: str, slack: float) -> list[np.ndarray]:
    """Rounded to dtype: the op's float32 value may lie on the other side of a boundary."""
    kind = NUMPY_DTYPES[dtype]
    return [(values * (1 + d)).astype(kind).astype(np.float64) for d in (-slack, slack)]


def add_rms_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray | None, dtype: str, **options: Any
) -> tuple[Expected, np.ndarray]:
    """The norm of the sum, and the sum itself, which is exact up to one rounding to each dtype.

    float64 holds the sum of two narrower numbers well enough that rounding it gives what adding in
    float32 gives.
    """
    with np.errstate(all="ignore"):
        total = x.astype(np.float64) + residual.astype(np.float64)
        total = total.astype(statistics_dtype(dtype))
        return rms_norm(total, weight, dtype, **options), total.astype(x.dtype)


@dataclass
class ExpectedSum:
    """The right values, the magnitude of the terms that they sum, and their dtype."""

    values: np.ndarray
    terms: np.ndarray
    dtype: str
    sums: str  # the dtype that determines the accumulator's
    allowed: dict[str, float] = field(default_factory=lambda: ALLOWED)


@dataclass
class ExpectedCentred:
    """The right results of layer_norm."""

    out: ExpectedSum
    mean: ExpectedSum
    rstd: np.ndarray


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
) -> ExpectedCentred:
    """x holds values of dtype, or sums of such in the dtype of sums."""
    with np.errstate(all="ignore"):
        values = wide(x, dtype)
        mean, apart = deviations(values)
        rstd = 1 / np.sqrt(np.mean(apart * apart, -1, keepdims=True) + values.dtype.type(eps))
        # What float32 sums leave in the mean; of 16 bits the mean itself is rounded to float32.
        # Below the normal range the digits are fewer.
        least = np.finfo(NUMPY_DTYPES[statistics_dtype(dtype)]).smallest_normal
        around = np.maximum(np.abs(apart).mean(-1, keepdims=True), least)
        if dtype in ("float16", "bfloat16"):
            around = around + np.abs(mean)
        scale = rstd
        if weight is not None:
            scale = rstd * (wide(weight, dtype) + values.dtype.type(weight_offset))
        more = 0 if bias is None else wide(bias, dtype)
        terms = (np.abs(apart) + around) * np.abs(scale) + np.abs(more)
        out = ExpectedSum(apart * scale + more, terms, dtype, dtype)
    kind = statistics_dtype(dtype)
    return ExpectedCentred(
        out, ExpectedSum(mean[..., 0], around[..., 0], kind, dtype), rstd[..., 0]
    )


def add_layer_norm(
    x: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    dtype: str,
    **options: Any,
) -> tuple[ExpectedCentred, np.ndarray]:
    """The norm of the sum, and the sum itself, as in add_rms_norm."""
    with np.errstate(all="ignore"):
        total = x.astype(np.float64) + residual.astype(np.float64)
        total = total.astype(statistics_dtype(dtype))
        return layer_norm(total, weight, bias, dtype, **options), total.astype(x.dtype)


def rms_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    rounding: str = "once",
    **options: Any,
) -> tuple[ExpectedSum, ExpectedSum | None]:
    """dx and dweight from the formula, with the rstd that the op is given."""
    with np.errstate(all="ignore"):
        h = wide(x, dtype) * wide(rstd, dtype)[..., None]
        dx = _gradient_of_x(dy, h, weight, rstd, dtype, centred=False, **options)
        if rounding == "before_weight" and dtype in ("float16", "bfloat16"):
            product = x.astype(np.float32) * rstd[..., None]
            h = product.astype(NUMPY_DTYPES[dtype]).astype(np.float64)
        dweight = None if weight is None else sum_of_rows(wide(dy, dtype) * h, weight, dtype)
        return dx, dweight


def layer_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    mean: np.ndarray,
    rstd: np.ndarray,
    dtype: str,
    **options: Any,
) -> tuple[ExpectedSum, ExpectedSum | None, ExpectedSum]:
    """dx, dweight and dbias from the formula, with the statistics that the op is given."""
    with np.errstate(all="ignore"):
        h = (wide(x, dtype) - wide(mean, dtype)[..., None]) * wide(rstd, dtype)[..., None]
        dx = _gradient_of_x(dy, h, weight, rstd, dtype, centred=True, **options)
        dweight = None if weight is None else sum_of_rows(wide(dy, dtype) * h, weight, dtype)
        like = np.empty(x.shape[-1:], x.dtype) if weight is None else weight
        return dx, dweight, sum_of_rows(wide(dy, dtype), like, dtype)


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
) -> ExpectedSum:
    g, root = wide(dy, dtype), wide(rstd, dtype)[..., None]
    if weight is not None:
        g = g * (wide(weight, dtype) + h.dtype.type(weight_offset))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.mean(values, -1, keepdims=True)

    dx = root * (g - (mean(g) if centred else 0) - h * mean(g * h))
    of_mean = mean(np.abs(g)) if centred else 0
    terms = root * (np.abs(g) + of_mean + np.abs(h) * mean(np.abs(g * h)))
    if dresidual_out is not None:
        dx = dx + wide(dresidual_out, dtype)
        terms = terms + np.abs(wide(dresidual_out, dtype))
    return ExpectedSum(dx, terms, dtype, dtype)


def sum_of_rows(values: np.ndarray, like: np.ndarray, dtype: str) -> ExpectedSum:
    """Sum over all axes but those of the weight, whose dtype the sum has."""
    rows = values.reshape(-1, *like.shape)
    return ExpectedSum(rows.sum(0), np.abs(rows).sum(0), like.dtype.name, dtype)


def assert_sum_right(got: np.ndarray, expected: ExpectedSum, what: object = "") -> None:
    """Fails with the place and size of the worst error."""
    assert got.shape == expected.values.shape, what
    assert got.dtype == NUMPY_DTYPES[expected.dtype], what
    if not got.size:
        return
    wanted, values = expected.values, wide(got, expected.sums).astype(expected.values.dtype)
    with np.errstate(all="ignore"):
        slack = expected.terms * sum_slack(expected.sums)
        near = np.abs(values - wanted) <= slack
    error = errors_in_ulps(got, wanted, expected.dtype)
    with np.errstate(all="ignore"):
        off = (np.abs(values - wanted) - slack) / ulps(wanted, expected.dtype)
    right = near | (error == 0)  # NaN must match NaN
    error = np.where(right, 0.0, np.where(np.isfinite(error), off, error)).astype(np.float64)
    _assert_within(error, got, wanted, expected.dtype, what, expected.allowed)


def ulps(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance to the next value of dtype."""
    bits, smallest, _ = FORMATS[dtype]
    exponents = np.frexp(values)[1] - 1
    exponents = np.where(values == 0, smallest, np.maximum(exponents, smallest))
    return np.ldexp(np.ones_like(values), exponents - bits + 1)


def errors_in_ulps(got: np.ndarray, wanted: np.ndarray, dtype: str) -> np.ndarray:
    """0 where both are NaN, or the same infinity (also by overflow); inf where only one is."""
    largest = FORMATS[dtype][2]
    with np.errstate(all="ignore"):
        top = wanted.dtype.type(largest) + ulps(np.array(largest, wanted.dtype), dtype) / 2
        wanted = np.where(np.abs(wanted) >= top, np.copysign(np.inf, wanted), wanted)
        error = np.abs(wide(got, dtype) - wanted) / ulps(wanted, dtype)
        same = (np.isnan(got) & np.isnan(wanted)) | (wide(got, dtype) == wanted)
        return np.where(same, 0, np.where(np.isfinite(error), error, np.inf)).astype(np.float64)


def assert_right(
    got: np.ndarray, expected: Expected, rstd: np.ndarray | None = None, what: object = ""
) -> None:
    """Fails with the place and size of the worst error."""
    assert got.shape == expected.candidates[0].shape, what
    assert got.dtype == NUMPY_DTYPES[expected.dtype], what
    if got.size:
        every = [errors_in_ulps(got, one, expected.dtype) for one in expected.candidates]
        right, dtype = expected.candidates[0], expected.dtype
        _assert_within(np.minimum.reduce(every), got, right, dtype, what, expected.allowed)
    if rstd is not None:
        _assert_rstd_right(rstd, expected.rstd, expected.dtype, what)


def assert_centred_right(
    got: np.ndarray,
    expected: ExpectedCentred,
    statistics: tuple[np.ndarray, np.ndarray] | None = None,
    what: object = "",
    rstd_allowed: dict[str, float] = ALLOWED,
) -> None:
    """The same for layer_norm; statistics: mean and rstd."""
    assert_sum_right(got, expected.out, what)
    if statistics is not None:
        assert_sum_right(statistics[0], expected.mean, f"mean of {what}")
        _assert_rstd_right(statistics[1], expected.rstd, expected.out.dtype, what, rstd_allowed)


def _assert_rstd_right(
    got: np.ndarray,
    wanted: np.ndarray,
    x_dtype: str,
    what: object,
    allowed: dict[str, float] = ALLOWED,
) -> None:
    dtype = statistics_dtype(x_dtype)
    assert got.shape == wanted.shape, what
    assert got.dtype == NUMPY_DTYPES[dtype], what
    if got.size:
        error = errors_in_ulps(got, wanted, dtype)
        _assert_within(error, got, wanted, dtype, f"rstd of {what}", allowed)


def _assert_within(
    error: np.ndarray,
    got: np.ndarray,
    wanted: np.ndarray,
    dtype: str,
    what: object,
    allowed: dict[str, float] = ALLOWED,
) -> None:
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error[worst] <= allowed[dtype], (
        f"{what}: at {tuple(map(int, worst))} got {got[worst]}, wanted {wanted[worst]}: off by "
        f"{error[worst]:.4g} ulp of {dtype}, allowed {allowed[dtype]}"
    )
