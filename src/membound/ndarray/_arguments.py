# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What functions of this package check of their arguments, with one error text for each."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from membound._core import ARRAY_DTYPES, Device, DType, NDArray
from membound.arrays import type_name

DTypeLike = DType | str | type | None
DeviceLike = Device | str | None
BOOL, INT64, FLOAT64 = (ARRAY_DTYPES[name] for name in ("bool", "int64", "float64"))


class AxisError(ValueError, IndexError):
    """An axis that the array does not have."""


def array_of(function: str, name: str, x: Any) -> NDArray:
    """Return x if it is an array."""
    if not isinstance(x, NDArray):
        raise TypeError(f"{function}: argument '{name}' must be an NDArray, got {type_name(x)}")
    return x


def arrays_of(function: str, arrays: Iterable[Any]) -> tuple[NDArray, ...]:
    """Return a sequence of arrays as a tuple that is not empty."""
    found = tuple(array_of(function, "arrays", x) for x in arrays)
    if not found:
        raise ValueError(f"{function}: argument 'arrays' must have at least one array, got none")
    return found


def flag_of(function: str, name: str, value: Any) -> bool:
    """Return value if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{function}: argument '{name}' must be a bool, got {type_name(value)}")
    return value


def axis_of(function: str, axis: Any, rank: int, name: str = "axis") -> int:
    """Return an axis counted from the front."""
    try:
        at = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"{function}: argument '{name}' must be an integer, got {type_name(axis)}"
        ) from None
    if not -rank <= at < rank:
        raise AxisError(
            f"{function}: argument '{name}' must be an axis from {-rank} to {rank - 1}, got {at}"
        )
    return at % rank


def axes_of(function: str, axes: Any, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Return one axis or several distinct ones, counted from the front."""
    several = axes if isinstance(axes, Sequence) else (axes,)
    found = tuple(axis_of(function, axis, rank, name) for axis in several)
    if len(set(found)) < len(found):
        raise ValueError(f"{function}: argument '{name}' must have distinct axes, got {axes}")
    return found


def shape_of(function: str, shape: Any, name: str = "shape") -> tuple[int, ...]:
    """Return the lengths of a shape given as an integer or a sequence of integers."""
    several = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    try:
        return tuple(map(operator.index, several))
    except TypeError:
        raise TypeError(
            f"{function}: argument '{name}' must be an integer or a tuple of integers, got "
            f"{type_name(shape)}"
        ) from None
