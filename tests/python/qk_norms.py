# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of qk_norm_rope and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import arrays
import numpy as np
import pytest
import reference
import rotary
from reference import NUMPY_DTYPES
from rotary import draw, to_layout

from membound.oracle.rotary import NormAndRotation, Rotation

# head_dim, rotary_dim, rotary_offset: vectors that pair up across a GPU's lanes, and others
PARTS = ((128, 128, 0), (64, 64, 0), (256, 256, 0), (80, 80, 0), (96, 64, 32), (64, 32, 8))
PARTS += ((10, 6, 3), (2, 2, 0), (7, 6, 1), (1024, 1024, 0))
# one vector per lane, and more than a warp has
PARTS += ((72, 72, 0), (100, 100, 0), (90, 90, 0), (96, 24, 0), (80, 20, 4), (264, 260, 2))
POSITIONS = 32


def framework(name: str) -> Any:
    one = arrays.framework(name)
    if one.options:
        pytest.skip("it takes no device")
    return one


@dataclass
class Case:
    """A call: its arrays in a framework, and the reference by definition."""

    q: NormAndRotation
    k: NormAndRotation
    call: dict[str, Any]  # all but q and k
    layout: str

    def arrays(self, one: Any) -> list[Any]:
        heads = (np.ascontiguousarray(to_layout(n.x, self.layout)) for n in (self.q, self.k))
        return [one.array(x) for x in heads]

    def options(self, one: Any) -> dict[str, Any]:
        return {
            name: one.array(value) if isinstance(value, np.ndarray) else value
            for name, value in self.call.items()
        }


def case(
    rng: np.random.Generator, dtype: str, layout: str = "bshd", part: Any = None,
    form: str = "halves", interleaved: bool = False, wide: str | None = None, offset: float = 0.0,
) -> Case:  # fmt: skip
    """Random arrays; q with a weight that heads share, k with one of each."""
    head_dim, rotary_dim, rotary_offset = part or PARTS[rng.integers(len(PARTS))]
    batch, seq = (1 if layout == "thd" else 2), 7
    q, k = (draw(rng, (batch, seq, heads, head_dim), dtype) for heads in (3, 2))
    kind = NUMPY_DTYPES[wide or dtype]
    q_weight = (rng.standard_normal(head_dim) + 1).astype(kind)
    k_weight = (rng.standard_normal((2, head_dim)) + 1).astype(kind)
    given = rotary.table(
        form, rotary.frequencies(rotary_dim), POSITIONS,
        "float64" if dtype == "float64" else "float32", interleaved,
    )  # fmt: skip
    positions = rng.integers(0, POSITIONS, (batch, seq))
    cos, sin = rotary.angles_of(given, positions, rotary_dim // 2)
    rotation = Rotation(cos, sin, interleaved, rotary_offset, pairs=rotary_dim // 2)
    norms = [
        NormAndRotation(x, w, rotation, offset=offset)
        for x, w in ((q, q_weight), (k, k_weight))
    ]  # fmt: skip
    call = {
        **given, "q_weight": q_weight, "k_weight": k_weight, "position_ids": positions,
        "layout": layout, "interleaved": interleaved, "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset, "weight_offset": offset,
    }  # fmt: skip
    return Case(*norms, call, layout)


def check(found: np.ndarray, norm: NormAndRotation) -> None:
    """Check that found is norm's result, rounded once."""
    right = norm.expected(found.dtype.name)
    right.slack *= 2
    right.allowed = {**right.allowed, "float32": 0.0, "float64": 0.0}  # the slack has it all
    reference.assert_within(found, right)
