# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The norms over mixed dtypes: the formula in a wider dtype, and tolerances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import NUMPY_DTYPES

from membound.oracle import round_to as oracle_round_to
from membound.oracle import ulps

KINDS = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "rms_norm_gated")


def wide(values: Any) -> np.ndarray:
    return np.asarray(values).astype(np.longdouble)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """One rounding of float64; a longdouble would be rounded twice."""
    return wide(oracle_round_to(np.asarray(values, np.float64), dtype))


def sums_dtype(*dtypes: str) -> str:
    return "float64" if "float64" in dtypes else "float32"


@dataclass
class Mixed:
    """A call: dtypes by the name of the array, and its options."""

    kind: str
    dtypes: dict[str, str]
    shape: tuple[int, ...]
    weighted: bool = True
    heads: bool = False
    weight_offset: float = 0.0
    rounding: str = "once"
    norm_before_gate: bool = True
    eps: float = 1e-5
    values: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def added(self) -> bool:
        return self.kind.startswith("add_")

    @property
    def centred(self) -> bool:
        return self.kind.endswith("layer_norm")

    @property
    def gated(self) -> bool:
        return self.kind.endswith("gated")

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x", *(["residual"] * self.added), *(["z"] * self.gated))

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weight", *(["bias"] * self.centred)) if self.weighted else ()

    @property
    def sums(self) -> str:
        return sums_dtype(*(self.dtypes[name] for name in self.inputs))

    @property
    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {"weight_offset": self.weight_offset}
        if not self.centred:
            found["rounding"] = self.rounding
        if self.gated:
            found["norm_before_gate"] = self.norm_before_gate
        if self.heads:
            found["normalized_shape"] = self.shape[-1]
        return found

    def draw(self, rng: np.random.Generator) -> Mixed:
        columns = self.shape[-2:] if self.heads else self.shape[-1:]
        for name in (*self.inputs, "dy", "dresidual_out", *self.parameters):
            shape = columns if name in ("weight", "bias") else self.shape
            drawn = rng.uniform(0.5, 1.5, shape) if name == "weight" else rng.normal(size=shape)
            self.values[name] = drawn.astype(NUMPY_DTYPES[self.dtypes.get(name, "float32")])
        return self

    def factor(self) -> np.ndarray | None:
        """The weight plus its offset; without a weight the offset alone."""
        if self.weighted:
            return wide(self.values["weight"]) + self.weight_offset
        return wide(self.weight_offset) if self.weight_offset else None

    def rounded(self, values: np.ndarray, dtype: str) -> np.ndarray:
        return round_to(values, dtype) if self.rounding == "before_weight" else values


def silu(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = 1 / (1 + np.exp(-z))
    return z * s, s * (1 + z * (1 - s))


def forward(call: Mixed) -> dict[str, np.ndarray]:
    """out, residual_out, mean and rstd, before they are rounded to their dtypes.

    scale of mean: the magnitude of the terms, which may cancel.
    """
    values = {name: wide(array) for name, array in call.values.items()}
    row = values["x"]
    if call.added:
        row = round_to(row + values["residual"], call.sums)
    if call.gated and not call.norm_before_gate:
        row = row * silu(values["z"])[0]
    mean = row.mean(-1, keepdims=True) if call.centred else wide(0.0)
    rstd = 1 / np.sqrt(((row - mean) ** 2).mean(-1, keepdims=True) + call.eps)
    kind = call.dtypes["x"]
    out = call.rounded((row - mean) * rstd, kind)
    factor = call.factor()
    if factor is not None:
        out = out * factor
    if call.gated and call.norm_before_gate:
        out = call.rounded(out, kind) * silu(values["z"])[0]
    if "bias" in call.parameters:
        out = out + values["bias"]
    found = {"out": out, "residual_out": row, "rstd": rstd[..., 0]}
    if call.centred:
        found |= {"mean": mean[..., 0], "scale of mean": np.abs(row).mean(-1)}
    return found


def backward(call: Mixed, rstd: np.ndarray, mean: np.ndarray | None) -> dict[str, np.ndarray]:
    """dx (and dresidual), dz, dweight and dbias from the statistics that the op is given."""
    values = {name: wide(array) for name, array in call.values.items()}
    x = values["residual_out"] if call.added else values["x"]
    dy = values["dy"]
    gate, slope = silu(values["z"]) if call.gated else (wide(1.0), wide(0.0))
    first = call.gated and not call.norm_before_gate
    normal = ((x * gate if first else x) - (0 if mean is None else wide(mean)[..., None])) * wide(
        rstd
    )[..., None]
    through = dy * gate if call.gated and not first else dy
    factor = call.factor()
    g = through if factor is None else through * factor
    centre = g.mean(-1, keepdims=True) if call.centred else 0
    du = wide(rstd)[..., None] * (g - centre - normal * (g * normal).mean(-1, keepdims=True))
    rounded_to = call.dtypes["dy"] if call.added else call.dtypes["x"]
    rounded = call.rounded(normal, rounded_to)
    axes = tuple(range(x.ndim - (2 if call.heads else 1)))
    found = {"dweight": (through * rounded).sum(axes), "dbias": through.sum(axes), "dx": du}
    terms = wide(rstd)[..., None] * (
        np.abs(g) + np.abs(normal) * np.abs(g * normal).mean(-1, keepdims=True)
    )
    found["scale of dweight"] = np.abs(through * rounded).sum(axes)
    found["scale of dbias"] = np.abs(through).sum(axes)
    found["scale of dx"] = terms * (np.abs(gate) + 1)
    found["scale of dz"] = (terms * np.abs(x) + np.abs(dy * normal)) * (np.abs(slope) + 1)
    if first:
        found |= {"dx": du * gate, "dz": du * x * slope}
    elif call.gated:
        product = rounded if factor is None else rounded * factor
        found["dz"] = dy * call.rounded(product, rounded_to) * slope
    if call.added:
        found["dx"] = du + values["dresidual_out"]
    return found


def assert_near(
    got: np.ndarray, wanted: np.ndarray, dtype: str, sums: str, what: object,
    terms: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Check within half a unit of its dtype, one rounding, plus the error of sums in `sums`.

    terms: the magnitude of the terms that the result sums.
    """
    assert got.dtype == NUMPY_DTYPES[dtype], what
    assert got.shape == wanted.shape, what
    if not got.size:
        return
    scale = max(float(np.abs(wanted if terms is None else terms).max()), 1e-30)
    slack = 64 * np.finfo(sums).eps * scale
    error = np.abs(wide(got) - wanted)
    allowed = 0.5 * ulps(wanted, dtype) + slack
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert error[worst] <= allowed[worst], (
        f"{what}: at {tuple(map(int, worst))} got {got[worst]}, wanted {wanted[worst]}"
    )
