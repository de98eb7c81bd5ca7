# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Text of arrays, letter by letter as NumPy prints them with its default options."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from membound._core import NDArray

PRECISION, THRESHOLD, EDGE, WIDTH = 8, 1000, 3, 75
_IMPLIED = ("bool", "int64", "float64")
# As many digits before the point, but no more, are written without an exponent.
_WHOLE_DIGITS = {"bfloat16": 2, "float16": 3, "float32": 6, "float64": 8}


def array_repr(x: NDArray) -> str:
    """Return ``array([1., 2.], dtype=float32)``."""
    body = _text(x, ", ", "array(", ")")
    extras = []
    if (x.size == 0 and x.shape != (0,)) or x.size > THRESHOLD:
        extras.append(f"shape={x.shape}")
    if x.dtype.name not in _IMPLIED or x.size == 0:
        extras.append(f"dtype={x.dtype.name}")
    if x.device.type != "cpu":
        extras.append(f"device='{x.device}'")
    text = "array(" + body
    if not extras:
        return text + ")"
    end = ", ".join(extras) + ")"
    last_line = len(text) + 1 - (text.rfind("\n") + 1)
    between = " " if last_line + len(end) + 1 <= WIDTH else "\n" + " " * len("array(")
    return f"{text},{between}{end}"


def array_str(x: NDArray) -> str:
    """Return ``[1. 2.]``, or the number of an array without axes."""
    if x.ndim:
        return _text(x, " ", "", "")
    value = x.item()
    is_short = isinstance(value, float) and math.isfinite(value)
    return str(float(_shortest(value, x.dtype.name)) if is_short else value)


def _text(x: NDArray, separator: str, prefix: str, suffix: str) -> str:
    if x.size == 0:
        return "[]"
    is_short = x.size <= THRESHOLD
    shown = x if is_short else _edges(x)
    nested = shown.tolist()
    word = _formatter(x, _flat(nested, x.ndim))
    # Where what is left out belongs, for each axis.
    gaps = [not is_short and length > 2 * EDGE for length in x.shape]
    return _lines(nested, gaps, word, separator, " " * (len(prefix) + 1), WIDTH - len(suffix))


def _edges(x: NDArray) -> NDArray:
    """Return the first and last elements along every axis that is long."""
    from membound.ndarray._manipulation import concat

    for axis, length in enumerate(x.shape):
        if length > 2 * EDGE:
            before = (slice(None),) * axis
            x = concat([x[(*before, slice(EDGE))], x[(*before, slice(-EDGE, None))]], axis=axis)
    return x


def _flat(nested: Any, rank: int) -> list[Any]:
    values = [nested]
    for _ in range(rank):
        values = [value for part in values for value in part]
    return values


def _lines(
    nested: Any,
    gaps: list[bool],
    word: Callable[[Any], str],
    separator: str,
    indent: str,
    width: int,
) -> str:
    """Return the text of one axis and those after it, in lines of a width."""
    if not gaps:
        return word(nested)
    if len(gaps) > 1:
        parts = [
            _lines(part, gaps[1:], word, separator, indent + " ", width - 1) for part in nested
        ]
        if gaps[0]:
            parts.insert(EDGE, "...")
        between = separator.rstrip() + "\n" * (len(gaps) - 1) + indent
        return "[" + between.join(parts) + "]"
    words = list(map(word, nested))
    if gaps[0]:
        words.insert(EDGE, "...")
    limit = width - max(len(separator.rstrip()), 1)
    text, line = "", indent
    for at, one in enumerate(words):
        if len(line) + len(one) > limit and len(line) > len(indent):
            text += line.rstrip() + "\n"
            line = indent
        line += one + (separator if at < len(words) - 1 else "")
    return "[" + (text + line)[len(indent) :] + "]"


def _formatter(x: NDArray, values: list[Any]) -> Callable[[Any], str]:
    """Return what turns an element into text of the width of the widest."""
    if x.dtype == "bool":
        return lambda value: str(value).rjust(5 if x.ndim else 0)
    if not x.dtype.name.startswith(("float", "bfloat")):
        width = max(len(str(value)) for value in values)
        return lambda value: str(value).rjust(width)
    return _float_formatter(x.dtype.name, values)


def _float_formatter(dtype: str, values: list[float]) -> Callable[[float], str]:
    finite = [value for value in values if math.isfinite(value)]
    sizes = [abs(value) for value in finite if value != 0]
    rounded = _ROUNDED.get(dtype, float)  # NumPy compares in the array's dtype
    is_scientific = bool(sizes) and (
        max(sizes) >= 10 ** _WHOLE_DIGITS[dtype]
        or min(sizes) < rounded(1e-4)
        or rounded(max(sizes) / min(sizes)) > 1000
    )
    parts = _scientific if is_scientific else _positional
    split = [parts(value, dtype, PRECISION) for value in finite]
    left = max((len(whole) for whole, _, _ in split), default=0)
    right = max((len(fraction) for _, fraction, _ in split), default=0)
    digits = max((len(exponent) for _, _, exponent in split), default=0)
    padding = right + digits
    if len(finite) < len(values):
        longest = max(len(str(value)) for value in values if not math.isfinite(value))
        left = max(left, longest - padding - 1)

    def word(value: float) -> str:
        if not math.isfinite(value):
            return str(value).rjust(left + padding + 1)
        if is_scientific:
            mantissa, _, exponent = f"{value:.{right}e}".partition("e")
            whole, _, fraction = mantissa.partition(".")
            power = exponent[0] + exponent[1:].zfill(digits - 2)
            return f"{whole.rjust(left)}.{fraction}e{power}"
        whole, fraction, _ = _positional(value, dtype, PRECISION)
        return f"{whole.rjust(left)}.{fraction.ljust(right)}"

    return word


def _positional(value: float, dtype: str, precision: int) -> tuple[str, str, str]:
    """Return the digits before and after the point of the shortest decimal that reads back."""
    exact = _shortest(value, dtype)
    decimals = -int(exact.as_tuple().exponent)
    text = f"{exact:f}" if decimals <= precision else f"{value:.{precision}f}"
    whole, _, fraction = text.partition(".")
    return whole, fraction.rstrip("0"), ""


def _scientific(value: float, dtype: str, precision: int) -> tuple[str, str, str]:
    exact = _shortest(value, dtype)
    decimals = len(exact.normalize().as_tuple().digits) - 1
    text = f"{exact:.{decimals}e}" if decimals <= precision else f"{value:.{precision}e}"
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    return whole, fraction.rstrip("0"), f"e{int(exponent) if value else 0:+03d}"


def _shortest(value: float, dtype: str) -> Decimal:
    """Return the shortest decimal that a dtype rounds to the value."""
    if dtype == "float64":
        return Decimal(repr(value))
    rounded = _ROUNDED[dtype]
    texts = (f"{value:.{digits}e}" for digits in range(10))
    return Decimal(next(text for text in texts if rounded(float(text)) == value))


def _packed(code: str) -> Callable[[float], float]:
    def rounded(value: float) -> float:
        try:
            return float(struct.unpack(code, struct.pack(code, value))[0])
        except OverflowError:
            return math.inf

    return rounded


def _to_bfloat16(value: float) -> float:
    """Round to the eight bits of a bfloat16's mantissa, half to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, 8)), exponent - 8)


_ROUNDED = {"float32": _packed("f"), "float16": _packed("e"), "bfloat16": _to_bfloat16}
