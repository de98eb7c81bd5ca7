# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the ops must return, in a wider type than they compute in, and how close they must come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from membound._ulps import ALLOWED, FORMATS, gradient_slack

DTYPES = ("float16", "bfloat16", "float32", "float64")
NUMPY_DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
NUMPY_DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


def statistics_dtype(dtype: str) -> str:
    """The dtype of rstd."""
    return "float64" if dtype == "float64" else "float32"


def wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 holds products of the narrower dtypes exactly; float64 itself needs more bits."""
    return values.astype(np.longdouble if dtype == "float64" else np.float64)


@dataclass
class Expected:
    """Right results: each element may equal any of the candidates, within the tolerance."""

    candidates: list[np.ndarray]
    rstd: np.ndarray
    dtype: str


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Expected:
    """x is an array of dtype; the sum is over its last axis."""
    with np.errstate(all="ignore"):
        values = wide(x, dtype)
        mean = np.mean(values * values, axis=-1)
        rstd = 1 / np.sqrt(mean + values.dtype.type(eps))
        normal = values * rstd[..., None]
        candidates = [normal]
        if rounding == "before_weight" and dtype in ("float16", "bfloat16"):
            # The op's float32 value may lie on the other side of a rounding boundary.
            slack = np.abs(normal) * 2.0**-21
            kind = NUMPY_DTYPES[dtype]
            candidates = [(normal + d).astype(kind).astype(np.float64) for d in (-slack, slack)]
        if weight is not None:
            factor = wide(weight, dtype) + values.dtype.type(weight_offset)
            candidates = [candidate * factor for candidate in candidates]
    return Expected(candidates, rstd, dtype)


def add_rms_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray | None, dtype: str, **options: Any
) -> tuple[Expected, np.ndarray]:
    """The norm of the sum, and the sum itself, whose bits are known: one rounding to each dtype.

    float64 holds the sum of two narrower numbers well enough that rounding it gives what adding in
    float32 gives.
    """
    with np.errstate(all="ignore"):
        total = x.astype(np.float64) + residual.astype(np.float64)
        total = total.astype(statistics_dtype(dtype))
        return rms_norm(total, weight, dtype, **options), total.astype(x.dtype)


@dataclass
class ExpectedGradient:
    """The right values, the size of the terms that they are the sum of, and their dtype."""

    values: np.ndarray
    terms: np.ndarray
    dtype: str
    sums: str  # the dtype that decides what sums are made in


def rms_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    dresidual_out: np.ndarray | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> tuple[ExpectedGradient, ExpectedGradient | None]:
    """dx and dweight from the formula, with the rstd that the op is given."""
    with np.errstate(all="ignore"):
        wide_dy, root = wide(dy, dtype), wide(rstd, dtype)[..., None]
        h = wide(x, dtype) * root
        g = wide_dy
        if weight is not None:
            g = wide_dy * (wide(weight, dtype) + h.dtype.type(weight_offset))
        dx = root * (g - h * np.mean(g * h, -1, keepdims=True))
        terms = root * (np.abs(g) + np.abs(h) * np.mean(np.abs(g * h), -1, keepdims=True))
        if dresidual_out is not None:
            dx = dx + wide(dresidual_out, dtype)
            terms = terms + np.abs(wide(dresidual_out, dtype))
        gradient = ExpectedGradient(dx, terms, dtype, dtype)
        if weight is None:
            return gradient, None
        if rounding == "before_weight" and dtype in ("float16", "bfloat16"):
            product = x.astype(np.float32) * rstd[..., None]
            h = product.astype(x.dtype).astype(np.float64)
        products = (wide_dy * h).reshape(-1, x.shape[-1])
        dweight = ExpectedGradient(
            products.sum(0), np.abs(products).sum(0), weight.dtype.name, dtype
        )
    return gradient, dweight


def assert_gradient_right(got: np.ndarray, expected: ExpectedGradient, what: object = "") -> None:
    """Fails with the place and size of the worst error."""
    assert got.shape == expected.values.shape, what
    assert got.dtype == NUMPY_DTYPES[expected.dtype], what
    if not got.size:
        return
    slack = expected.terms * gradient_slack(expected.sums)
    wanted, values = expected.values, wide(got, expected.sums).astype(expected.values.dtype)
    near = np.abs(values - wanted) <= slack
    error = errors_in_ulps(got, wanted, expected.dtype)
    with np.errstate(all="ignore"):
        off = (np.abs(values - wanted) - slack) / ulps(wanted, expected.dtype)
    error = np.where(near, 0.0, np.where(np.isfinite(error), off, error)).astype(np.float64)
    _assert_within(error, got, wanted, expected.dtype, what)


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
        _assert_within(np.minimum.reduce(every), got, expected.candidates[0], expected.dtype, what)
    if rstd is not None:
        dtype = statistics_dtype(expected.dtype)
        assert rstd.shape == expected.rstd.shape, what
        assert rstd.dtype == NUMPY_DTYPES[dtype], what
        if rstd.size:
            error = errors_in_ulps(rstd, expected.rstd, dtype)
            _assert_within(error, rstd, expected.rstd, dtype, f"rstd of {what}")


def _assert_within(
    error: np.ndarray, got: np.ndarray, wanted: np.ndarray, dtype: str, what: object
) -> None:
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error[worst] <= ALLOWED[dtype], (
        f"{what}: at {tuple(map(int, worst))} got {got[worst]}, wanted {wanted[worst]}: off by "
        f"{error[worst]:.4g} ulp of {dtype}, allowed {ALLOWED[dtype]}"
    )
