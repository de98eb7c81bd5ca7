# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Which last axes of an array are normalised, with the error texts of the extension.

The extension decides for itself (bindings/normalized_shape.cpp); this is for calls that JAX traces
or torch records.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from membound.arrays import type_name


def normalized_axes(
    op: str, normalized_shape: Any, x: Sequence[int], parameters: dict[str, Any], x_name: str = "x"
) -> int:
    """How many of the last axes of an x of that shape; parameters: weight and bias, or None."""
    wanted = None if normalized_shape is None else _shape_of(op, normalized_shape)
    if wanted is not None and tuple(x[max(len(x) - len(wanted), 0) :]) != wanted:
        raise ValueError(
            f"{op}: argument 'normalized_shape' must be the last axes of '{x_name}', of shape "
            f"{tuple(x)}, got {wanted}"
        )
    for name, parameter in parameters.items():
        if parameter is not None and len(parameter.shape) > 1:
            _check_parameter(op, name, tuple(parameter.shape), wanted)
    return 1 if wanted is None else len(wanted)


def _shape_of(op: str, given: Any) -> tuple[int, ...]:
    # torch.compile does not support hasattr on its symbolic integers.
    if isinstance(given, int) or hasattr(given, "__index__"):
        return (operator.index(given),)
    if isinstance(given, str) or not hasattr(given, "__len__"):
        raise TypeError(
            f"{op}: argument 'normalized_shape' must be an integer or a tuple of integers, got "
            f"{type_name(given)}"
        )
    if not 1 <= len(given) <= 64:
        raise ValueError(
            f"{op}: argument 'normalized_shape' must have 1 to 64 axes, got {len(given)}"
        )
    return tuple(map(operator.index, given))


def _check_parameter(op: str, name: str, shape: tuple[int, ...], wanted: Any) -> None:
    if wanted is None:
        raise ValueError(
            f"{op}: argument '{name}' of shape {shape} needs normalized_shape, got None: "
            f"normalized_shape={shape[-1]} for a norm over the last axis with a weight for each "
            f"head, or normalized_shape={shape} for a norm over all of these axes"
        )
    if len(wanted) > 1 and shape != wanted:
        raise ValueError(
            f"{op}: argument '{name}' must have shape {wanted}, that of normalized_shape, got "
            f"{shape}"
        )
