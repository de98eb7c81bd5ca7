# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The norms with weights of (heads, cols), and the arrays of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gated_norms
import gradients
import numpy as np
from reference import NUMPY_DTYPES

import membound
from membound.oracle import norms


def each_head(rows: Any, *parameters: Any) -> dict[str, int]:
    """The option that tells parameters of heads from parameters of two axes."""
    by_head = any(one is not None and one.ndim == 2 for one in parameters)
    return {"normalized_shape": rows.shape[-1]} if by_head else {}


@dataclass(frozen=True)
class Op:
    """A norm, what it takes, and its formula."""

    name: str
    formula: Callable[..., Any]
    backward: Callable[..., Any]
    second: str = ""  # the second array with the shape of x
    centred: bool = False

    @property
    def statistics(self) -> int:
        return 1 + self.centred

    def forward_of(self, one: Any, rows: list[Any], parameters: list[Any], **options: Any) -> Any:
        """(out, residual_out if there is one, the statistics), as a list."""
        options |= {"return_stats" if self.centred else "return_rstd": True}
        options |= each_head(rows[0], *parameters)
        found = getattr(membound, self.name)(*rows, *parameters, **one.options, **options)
        return list(found)

    def backward_of(self, dy: Any, rows: list[Any], *rest: Any, **options: Any) -> Any:
        """rows: as the forward's; of the added forms x is the sum, residual the second gradient."""
        inputs = rows[::-1] if self.second == "residual" else rows
        options |= each_head(dy, rest[0])
        return list(getattr(membound, f"{self.name}_backward")(dy, *inputs, *rest, **options))

    def expected_gradients(self, dy: Any, rows: list[Any], *rest: Any, **options: Any) -> Any:
        if self.second == "residual":
            return self.backward(dy, rows[0], *rest, dresidual_out=rows[1], **options)
        return self.backward(dy, *rows, *rest, **options)


_RMS = (norms.rms_norm, norms.rms_norm_backward)
_LAYER = (norms.layer_norm, norms.layer_norm_backward)
_GATED = (norms.rms_norm_gated, norms.rms_norm_gated_backward)
OPS = {
    op.name: op
    for op in (
        Op("rms_norm", *_RMS),
        Op("add_rms_norm", norms.add_rms_norm, _RMS[1], "residual"),
        Op("layer_norm", *_LAYER, centred=True),
        Op("add_layer_norm", norms.add_layer_norm, _LAYER[1], "residual", centred=True),
        Op("rms_norm_gated", *_GATED, "z"),
    )
}

# (..., heads, cols): a prime number of heads, many; one axis in front and several.
SHAPES = ((2, 5, 7, 33), (40, 3, 128), (2, 129, 16), (2, 3, 1000))


class Scene:
    """The arrays of one call in NumPy: rows of (..., heads, cols) and parameters of each head."""

    def __init__(self, op: Op, dtype: str, shape: tuple[int, ...], seed: int):
        self.rng, self.op, self.dtype, self.shape = np.random.default_rng(seed), op, dtype, shape
        self.rows = [self.draw(shape) for _ in range(2 if op.second else 1)]
        # Away from -1: there the offset would cancel.
        weight = self.rng.uniform(0.5, 2.0, shape[-2:]).astype(NUMPY_DTYPES[dtype])
        self.parameters = [weight] + [self.draw(shape[-2:])] * op.centred

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(NUMPY_DTYPES[self.dtype])

    def of_head(self, head: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        rows = [np.ascontiguousarray(a[..., head, :]) for a in self.rows]
        return rows, [np.ascontiguousarray(a[head]) for a in self.parameters]


def there(one: Any, every: list[Any]) -> list[Any]:
    return [None if a is None else one.array(a) for a in every]


def statistics_of(scene: Scene) -> list[np.ndarray]:
    if scene.op.name == "rms_norm_gated":
        return [gated_norms.statistics_of(*scene.rows, scene.dtype)]
    if scene.op.centred:
        return list(gradients.centred_statistics_of(scene.rows[0], scene.dtype))
    return [gradients.statistics_of(scene.rows[0], scene.dtype)]
