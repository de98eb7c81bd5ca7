# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The added norm and gradients on arrays of any rank, sliced and transposed at random."""

from __future__ import annotations

import arrays
import gradients
import hypothesis
import numpy as np
import pytest
import reference
from arrays import SEED
from cases import needs
from hypothesis import strategies as st
from reference import DTYPES, NUMPY_DTYPES
from test_layouts import views

import membound


@st.composite
def problems(draw, negative):
    """Five matrices of one shape and a weight, each lying as it likes; which are given."""
    x = draw(views(negative=negative))
    shape, cols = list(x.shape), [x.shape[-1]]
    return {
        "x": x,
        **{name: draw(views(shape, negative)) for name in ("second", "third", "out", "out2")},
        "weight": draw(st.one_of(st.none(), views(cols, negative))),
        "dweight": draw(views(cols, negative)),
        "rstd": draw(views(shape[:-1], negative)) if shape[:-1] else None,
        "rounding": draw(st.sampled_from(("once", "before_weight"))),
        "given": draw(st.booleans()),
        "accumulate": draw(st.booleans()),
        "numbers": draw(st.integers(0, 2**32 - 1)),
    }


class Scene:
    """The arrays of a problem in a framework, and the same in NumPy."""

    def __init__(self, one, dtype, problem):
        self.one, self.dtype, self.problem = one, dtype, problem
        self.rng = np.random.default_rng(problem["numbers"])
        self.kept = []

    def array(self, name, values=None, dtype=None):
        """A view of a buffer of random numbers, that holds the values if there are any."""
        view = self.problem[name]
        buffer = self.rng.standard_normal(view.buffer_size).astype(
            NUMPY_DTYPES[dtype or self.dtype]
        )
        inside = view.of(arrays.NumPy(), buffer)
        if values is not None:
            inside[...] = values
        there = self.one.array(buffer)
        self.kept.append((view, there, buffer))
        return view.of(self.one, there), inside

    def check_gaps(self):
        """Everything in the buffers that the views leave out is as it was."""
        for view, there, before in self.kept:
            after = np.array(self.one.numpy(there))
            view.of(arrays.NumPy(), after)[...] = view.of(arrays.NumPy(), before)
            np.testing.assert_array_equal(after.view(np.uint8), before.view(np.uint8))


def check_forward(scene):
    one, problem = scene.one, scene.problem
    (x, x_values), (residual, residual_values) = scene.array("x"), scene.array("second")
    weight, weight_values = scene.array("weight") if problem["weight"] else (None, None)
    options = {"rounding": problem["rounding"]}
    wanted, total = reference.add_rms_norm(
        x_values, residual_values, weight_values, scene.dtype, **options
    )
    if problem["given"]:
        options |= {"out": scene.array("out")[0], "residual_out": scene.array("out2")[0]}
    y, summed, rstd = membound.add_rms_norm(
        x, residual, weight, return_rstd=True, **one.options, **options
    )
    reference.assert_right(one.numpy(y), wanted, one.numpy(rstd), problem)
    np.testing.assert_array_equal(one.numpy(summed), total)
    scene.check_gaps()


def check_backward(scene):
    one, problem, dtype = scene.one, scene.problem, scene.dtype
    (dy, dy_values), (x, x_values) = scene.array("second"), scene.array("x")
    dsum, dsum_values = scene.array("third")
    weight, weight_values = scene.array("weight") if problem["weight"] else (None, None)
    root = gradients.statistics_of(x_values, dtype)
    rstd = one.array(root)
    if problem["rstd"] is not None:
        rstd = scene.array("rstd", root, reference.statistics_dtype(dtype))[0]
    options = {"rounding": problem["rounding"]}
    wanted_dx, wanted_dweight = reference.rms_norm_backward(
        dy_values, x_values, weight_values, root, dtype, dresidual_out=dsum_values, **options
    )
    if problem["given"]:
        options["dx"] = scene.array("out")[0]
        if weight is not None:
            options["dweight"], before = scene.array("dweight")
            options["accumulate"] = problem["accumulate"]
            if problem["accumulate"]:
                wanted_dweight.values = wanted_dweight.values + before
                wanted_dweight.terms = wanted_dweight.terms + np.abs(before.astype(np.float64))
    dx, dweight = membound.add_rms_norm_backward(dy, dsum, x, weight, rstd, **options)
    reference.assert_gradient_right(one.numpy(dx), wanted_dx, problem)
    if weight is None:
        assert dweight is None
    else:
        reference.assert_gradient_right(one.numpy(dweight), wanted_dweight, problem)
    scene.check_gaps()


@pytest.mark.parametrize("check", [check_forward, check_backward])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_any_view(name, dtype, check):
    one = arrays.framework(name)
    needs(one, dtype)
    if not one.strided:
        pytest.skip("it has no views")

    @hypothesis.seed(SEED)
    @hypothesis.settings(max_examples=80)
    @hypothesis.given(problems(one.negative_strides))
    def every(problem):
        check(Scene(one, dtype, problem))

    every()
