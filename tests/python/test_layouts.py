# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of any rank, sliced and transposed at random, against wider arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import arrays
import hypothesis
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, Framework
from hypothesis import strategies as st
from reference import DTYPES, NUMPY_DTYPES
from seeds import SEED

from membound.oracle import norms


@dataclass
class View:
    """A shape and its layout in a flat buffer: (first, step) per axis, and the order of axes."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]
    offset: int

    @property
    def extents(self) -> list[int]:
        """The extents of the axes before they are sliced."""
        cuts = zip(self.shape, self.cuts, strict=True)
        return [first + count * abs(step) for count, (first, step) in cuts]

    @property
    def buffer_size(self) -> int:
        return self.offset + math.prod(self.extents)

    def of(self, one: Framework, buffer: Any) -> Any:
        """The view of a flat buffer."""
        extents = self.extents
        x = buffer[self.offset : self.buffer_size].reshape([extents[a] for a in self.order])
        x = one.permute(x, [self.order.index(axis) for axis in range(len(extents))])
        return x[tuple(map(self._cut, self.shape, self.cuts))]

    @staticmethod
    def _cut(count: int, cut: tuple[int, int]) -> slice:
        first, step = cut
        if count == 0:
            return slice(0, 0)
        last = first + (count - 1) * abs(step)
        if step > 0:
            return slice(first, last + 1, step)
        return slice(last, first - 1 if first else None, step)


@st.composite
def views(draw, shape=None, negative=True):
    if shape is None:
        rank = draw(st.integers(1, 5))
        shape = [draw(st.integers(0, 4)) for _ in range(rank - 1)]
        shape.append(draw(st.sampled_from((1, 2, 5, 8, 31, 64, 129, 300))))
    steps = st.sampled_from((1, 1, 1, 2, 3, -1, -2) if negative else (1, 1, 1, 2, 3))
    cuts = tuple((draw(st.integers(0, 2)), draw(steps)) for _ in shape)
    order = tuple(draw(st.permutations(range(len(shape)))))
    return View(tuple(shape), order, cuts, draw(st.integers(0, 9)))


@st.composite
def problems(draw, negative):
    x = draw(views(negative=negative))
    return {
        "x": x,
        "out": draw(st.one_of(st.none(), views(list(x.shape), negative))),
        "weight": draw(st.one_of(st.none(), views([x.shape[-1]], negative))),
        "rounding": draw(st.sampled_from(("once", "before_weight"))),
        "eps": draw(st.sampled_from((0.0, 1e-6, 1e-2))),
        "numbers": draw(st.integers(0, 2**32 - 1)),
    }


def _check(one, dtype, problem):
    rng = np.random.default_rng(problem["numbers"])
    in_numpy = arrays.NumPy()

    def array(view):
        values = rng.standard_normal(view.buffer_size).astype(NUMPY_DTYPES[dtype])
        return view.of(one, one.array(values)), view.of(in_numpy, values)

    x, x_values = array(problem["x"])
    assert x_values.shape == problem["x"].shape
    weight, weight_values = array(problem["weight"]) if problem["weight"] else (None, None)
    options = {"rounding": problem["rounding"], "eps": problem["eps"]}
    expected = norms.rms_norm(x_values, weight_values, dtype, **options)
    if problem["out"] is None:
        y, rstd = arrays.call(one, x, weight, return_rstd=True, **options)
        reference.assert_right(one.numpy(y), expected, one.numpy(rstd), problem)
        return
    view = problem["out"]
    before = rng.standard_normal(view.buffer_size).astype(NUMPY_DTYPES[dtype])
    buffer = one.array(before)
    out = view.of(one, buffer)
    arrays.call(one, x, weight, out=out, **options)
    reference.assert_right(one.numpy(out), expected, what=problem)
    # The rest of the buffer is unchanged.
    after = np.array(one.numpy(buffer))
    view.of(in_numpy, after)[...] = view.of(in_numpy, before)
    np.testing.assert_array_equal(after.view(np.uint8), before.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_view(name, dtype):
    one = arrays.framework(name)
    if dtype not in one.dtypes or not one.strided:
        pytest.skip(f"{name} has no {dtype} or no views")

    @hypothesis.seed(SEED)
    @hypothesis.settings(max_examples=120)
    @hypothesis.given(problems(one.negative_strides))
    def every(problem):
        _check(one, dtype, problem)

    every()
