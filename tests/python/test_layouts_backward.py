# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The added and gated norms and all gradients on arrays of any rank, sliced and transposed."""

from __future__ import annotations

import functools

import arrays
import gated_norms
import gradients
import hypothesis
import numpy as np
import pytest
import reference
from cases import needs
from hypothesis import strategies as st
from reference import DTYPES, NUMPY_DTYPES
from seeds import SEED
from test_layouts import views

import membound
from membound import oracle
from membound.oracle import norms


@st.composite
def problems(draw, negative):
    """Five matrices of one shape and a weight, each with a random layout; which are given."""
    x = draw(views(negative=negative))
    shape, cols = list(x.shape), [x.shape[-1]]
    return {
        "x": x,
        **{name: draw(views(shape, negative)) for name in ("second", "third", "out", "out2")},
        **{name: draw(st.one_of(st.none(), views(cols, negative))) for name in ("weight", "bias")},
        "dweight": draw(views(cols, negative)),
        "dbias": draw(views(cols, negative)),
        **{name: draw(views(shape[:-1], negative)) for name in ("mean", "rstd") if shape[:-1]},
        "rounding": draw(st.sampled_from(("once", "before_weight"))),
        "norm_before_gate": draw(st.booleans()),
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
        """Check that the rest of the buffers is unchanged."""
        for view, there, before in self.kept:
            after = np.array(self.one.numpy(there))
            view.of(arrays.NumPy(), after)[...] = view.of(arrays.NumPy(), before)
            np.testing.assert_array_equal(after.view(np.uint8), before.view(np.uint8))

    def parameter(self, name):
        """A weight or a bias, or none."""
        return self.array(name) if self.problem[name] else (None, None)


def check_forward(scene, centred):
    one, problem = scene.one, scene.problem
    (x, x_values), (residual, residual_values) = scene.array("x"), scene.array("second")
    parameters = [scene.parameter(name) for name in ("weight", "bias")[: 1 + centred]]
    options = {} if centred else {"rounding": problem["rounding"]}
    formula = norms.add_layer_norm if centred else norms.add_rms_norm
    in_numpy = [x_values, residual_values, *(values for _, values in parameters)]
    wanted, total = formula(*in_numpy, scene.dtype, **options)
    options["return_stats" if centred else "return_rstd"] = True
    if problem["given"]:
        options |= {"out": scene.array("out")[0], "residual_out": scene.array("out2")[0]}
    function = membound.add_layer_norm if centred else membound.add_rms_norm
    inputs = (x, residual, *(array for array, _ in parameters))
    y, summed, *statistics = map(one.numpy, function(*inputs, **one.options, **options))
    if centred:
        reference.assert_centred_right(y, wanted, tuple(statistics), problem)
    else:
        reference.assert_right(y, wanted, *statistics, problem)
    np.testing.assert_array_equal(summed, total)
    scene.check_gaps()


def check_backward(scene, centred):
    one, problem, dtype = scene.one, scene.problem, scene.dtype
    (dy, dy_values), (x, x_values) = scene.array("second"), scene.array("x")
    dsum, dsum_values = scene.array("third")
    weight, weight_values = scene.parameter("weight")
    kind = oracle.statistics_dtype(dtype)
    if centred:
        values = gradients.centred_statistics_of(x_values, dtype)
        options, formula = {}, norms.layer_norm_backward
    else:
        values = (gradients.statistics_of(x_values, dtype),)
        options, formula = {"rounding": problem["rounding"]}, norms.rms_norm_backward
    statistics = [one.array(a) for a in values]
    if "rstd" in problem:
        names = ("mean", "rstd") if centred else ("rstd",)
        pairs = zip(names, values, strict=True)
        statistics = [scene.array(name, right, kind)[0] for name, right in pairs]
    in_numpy = (dy_values, x_values, weight_values, *values)
    wanted = formula(*in_numpy, dtype, dresidual_out=dsum_values, **options)
    wanted = dict(zip(("dx", "dweight", "dbias"), wanted, strict=False))
    if problem["given"]:
        options["dx"] = scene.array("out")[0]
        give_sums(scene, {n: w for n, w in wanted.items() if n != "dx" and w is not None}, options)
    function = membound.add_layer_norm_backward if centred else membound.add_rms_norm_backward
    found = function(dy, dsum, x, weight, *statistics, **options)
    for got, right in zip(found, wanted.values(), strict=True):
        if right is None:
            assert got is None
        else:
            reference.assert_within(one.numpy(got), right, problem)
    scene.check_gaps()


def check_gated_forward(scene):
    one, problem = scene.one, scene.problem
    (x, x_values), (z, z_values) = scene.array("x"), scene.array("second")
    weight, weight_values = scene.parameter("weight")
    options = {"rounding": problem["rounding"], "norm_before_gate": problem["norm_before_gate"]}
    inputs = (x_values, z_values, weight_values)
    wanted = norms.rms_norm_gated(*inputs, scene.dtype, **options)
    if problem["given"]:
        options["out"] = scene.array("out")[0]
    found = gated_norms.call(one, x, z, weight, return_rstd=True, **options)
    reference.assert_right(*map(one.numpy, found[:1]), wanted, one.numpy(found[1]), problem)
    scene.check_gaps()


def check_gated_backward(scene):
    one, problem, dtype = scene.one, scene.problem, scene.dtype
    (dy, dy_values), (x, x_values) = scene.array("second"), scene.array("x")
    z, z_values = scene.array("third")
    weight, weight_values = scene.parameter("weight")
    options = {"norm_before_gate": problem["norm_before_gate"]}
    rstd = gated_norms.statistics_of(x_values, z_values, dtype, **options)
    options["rounding"] = problem["rounding"]
    in_numpy = (dy_values, x_values, z_values, weight_values, rstd)
    wanted = norms.rms_norm_gated_backward(*in_numpy, dtype, **options)
    wanted = dict(zip(("dx", "dz", "dweight"), wanted, strict=True))
    statistic = one.array(rstd)
    if "rstd" in problem:
        statistic = scene.array("rstd", rstd, oracle.statistics_dtype(dtype))[0]
    if problem["given"]:
        options |= {"dx": scene.array("out")[0], "dz": scene.array("out2")[0]}
        if wanted["dweight"] is not None:
            give_sums(scene, {"dweight": wanted["dweight"]}, options)
    found = membound.rms_norm_gated_backward(dy, x, z, weight, statistic, **options)
    for got, right in zip(found, wanted.values(), strict=True):
        if right is None:
            assert got is None
        else:
            reference.assert_within(one.numpy(got), right, problem)
    scene.check_gaps()


def give_sums(scene, wanted, options):
    """Arrays for dweight and dbias, which may be added to."""
    for name, right in wanted.items():
        options[name], before = scene.array(name)
        right.dtype = scene.dtype
        options["accumulate"] = scene.problem["accumulate"]
        if options["accumulate"]:
            right.add(before)


CHECKS = {
    "rms": functools.partial(check_forward, centred=False),
    "layer": functools.partial(check_forward, centred=True),
    "gated": check_gated_forward,
    "rms_backward": functools.partial(check_backward, centred=False),
    "layer_backward": functools.partial(check_backward, centred=True),
    "gated_backward": check_gated_backward,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_any_view(name, dtype, check):
    one = arrays.framework(name)
    needs(one, dtype)
    if not one.strided:
        pytest.skip("it has no views")

    @hypothesis.seed(SEED)
    @hypothesis.settings(max_examples=60)
    @hypothesis.given(problems(one.negative_strides))
    def every(problem):
        check(Scene(one, dtype, problem))

    every()
