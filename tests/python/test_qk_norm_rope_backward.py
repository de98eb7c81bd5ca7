# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope_backward against its definition and finite differences, and its determinism."""

from __future__ import annotations

import itertools

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from qk_norms import PARTS, case, framework
from reference import DTYPES
from rotary import draw, from_layout, to_layout

import membound
from membound.oracle import statistics_dtype

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-20, "float64": 2.0**-48}


def gradients_of(rng, of):
    return [rng.standard_normal(norm.x.shape).astype(norm.x.dtype) for norm in (of.q, of.k)]


FORMS = ("halves", "freqs", "elements", "angles of elements")


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_values(name, dtype, layout, seed):
    """With and without rstd, shared weights and weights per head, in every dtype."""
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    for form, interleaved in itertools.product(FORMS, (False, True)):
        of = case(rng, dtype, layout, form=form, interleaved=interleaved, offset=0.5)
        dys = gradients_of(rng, of)
        given, heads = of.options(one), of.arrays(one)
        if form == "freqs":
            *_, q_rstd, k_rstd = membound.qk_norm_rope(*heads, **given, return_rstd=True)
            given |= {"q_rstd": q_rstd, "k_rstd": k_rstd}
        there = [one.array(np.ascontiguousarray(to_layout(x, layout))) for x in dys]
        dq, dk, dq_weight, dk_weight = membound.qk_norm_rope_backward(*there, *heads, **given)
        of_heads = ((dq, dq_weight, of.q, 2), (dk, dk_weight, of.k, 0))
        for (dx, dweight, norm, axes), dy in zip(of_heads, dys, strict=True):
            right, columns = norm.gradients(dy, dtype)
            if axes:
                columns.values, columns.terms = columns.values.sum(0), columns.terms.sum(0)
            found = from_layout(one.numpy(dx), layout).astype(np.float64)
            scale = (norm.rstd[..., None] * np.abs(norm.factor)).max() * np.abs(dy).max()
            np.testing.assert_allclose(
                found, right.values, ROUNDING[dtype], 4 * ROUNDING[dtype] * scale
            )
            error = np.abs(one.numpy(dweight).astype(np.float64) - columns.values)
            assert (error <= 2 * ROUNDING[dtype] * columns.terms).all()


def test_finite_differences(seed):
    """In float64, of a random sum of the results, along random directions."""
    rng = np.random.default_rng(seed)
    for part, interleaved in itertools.product(PARTS[3:7], (False, True)):
        of = case(rng, "float64", part=part, interleaved=interleaved, offset=1.0)
        given, dys = dict(of.call), gradients_of(rng, of)
        point = [of.q.x, of.k.x, given.pop("q_weight"), given.pop("k_weight")]
        found = membound.qk_norm_rope_backward(*dys, *point, **given)
        along = [rng.standard_normal(x.shape) for x in point]

        def value(step, point=point, along=along, given=given, dys=dys):
            moved = [x + step * d for x, d in zip(point, along, strict=True)]
            results = membound.qk_norm_rope(*moved, **given)
            return sum((y * d).sum() for y, d in zip(results, dys, strict=True))

        slope = (value(1e-6) - value(-1e-6)) / 2e-6
        wanted = sum((g * d).sum() for g, d in zip(found, along, strict=True))
        assert slope == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_in_place_and_given_results(dtype, seed):
    """Over dq, over q, and to arrays with gaps; the bits are those of new arrays."""
    rng = np.random.default_rng(seed)
    for part in (PARTS[0], PARTS[4]):
        of = case(rng, dtype, part=part)
        dys, given = gradients_of(rng, of), of.call
        heads = [of.q.x, of.k.x]
        right = membound.qk_norm_rope_backward(*dys, *heads, **given)
        over_dq = [x.copy() for x in dys]
        membound.qk_norm_rope_backward(
            *over_dq, *heads, **given, dq_out=over_dq[0], dk_out=over_dq[1]
        )
        over_q = [x.copy() for x in heads]
        membound.qk_norm_rope_backward(*dys, *over_q, **given, dq_out=over_q[0], dk_out=over_q[1])
        apart = [np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2] for x in heads]
        dq_weight = np.zeros((2, *given["q_weight"].shape[::-1]), np.float64).T[..., 0]
        again = membound.qk_norm_rope_backward(
            *(np.asfortranarray(x) for x in dys), *(np.asfortranarray(x) for x in heads), **given,
            dq_out=apart[0], dk_out=apart[1], dq_weight=dq_weight,
        )  # fmt: skip
        assert again[2] is dq_weight
        for results in (over_dq, over_q, again[:2]):
            for found, wanted in zip(results, right, strict=False):
                np.testing.assert_array_equal(found, wanted)
        sums = dq_weight.astype(statistics_dtype(dtype))  # those of float16 round to float32 first
        np.testing.assert_array_equal(sums.astype(right[2].dtype), right[2])


def test_gradients_of_weights_are_added_and_left_out(seed):
    rng = np.random.default_rng(seed)
    of = case(rng, "float32", part=(64, 64, 0))
    dys, heads = gradients_of(rng, of), [of.q.x, of.k.x]
    right = membound.qk_norm_rope_backward(*dys, *heads, **of.call)
    sums = [np.full_like(x, 3.0) for x in right[2:]]
    membound.qk_norm_rope_backward(
        *dys, *heads, **of.call, accumulate=True, dq_weight=sums[0], dk_weight=sums[1]
    )
    for found, wanted in zip(sums, right[2:], strict=True):
        np.testing.assert_allclose(found, 3.0 + wanted, rtol=1e-6, atol=1e-6)
    dq, _, *none = membound.qk_norm_rope_backward(*dys, *heads, **of.call, need_dweight=False)
    np.testing.assert_array_equal(dq, right[0])
    assert none == [None, None]
    alone = membound.qk_norm_rope_backward(
        dys[0], None, heads[0], None, **{**of.call, "k_weight": None}
    )
    np.testing.assert_array_equal(alone[0], right[0])
    assert alone[1] is None
    assert alone[3] is None


def test_nothing_to_do_is_a_gradient_of_zero():
    empty = np.ones((2, 0, 3, 8), np.float32)
    weight, table = np.ones(8, np.float32), np.ones((4, 4), np.float32)
    given = (empty, None, empty, None, weight, None, table, table)
    assert not membound.qk_norm_rope_backward(*given)[2].any()
    sums = np.full(8, 2.0, np.float32)
    membound.qk_norm_rope_backward(*given, accumulate=True, dq_weight=sums)
    assert (sums == 2).all()


def test_sums_are_the_same_for_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    x, dy = (draw(rng, (3, 700, 4, 64), "bfloat16") for _ in range(2))
    given = {"freqs": rotary.frequencies(64), "q_weight": draw(rng, (64,), "float32")}
    results = []
    for threads in (1, 2, 5):
        membound.set_cpu_threads(threads)
        results.append(membound.qk_norm_rope_backward(dy, None, x, None, **given))
    membound.set_cpu_threads(0)
    for one in results[1:]:
        np.testing.assert_array_equal(one[0], results[0][0])
        np.testing.assert_array_equal(one[2], results[0][2])


@pytest.mark.gpu
def test_sums_are_the_same_on_every_run():
    torch = arrays.torch_with_cuda()
    x, dy = (torch.randn(2, 3000, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    given = {"freqs": torch.tensor(rotary.frequencies(128), device="cuda"), "q_weight": weight}
    first = membound.qk_norm_rope_backward(dy, None, x, None, **given)
    for _ in range(5):
        again = membound.qk_norm_rope_backward(dy, None, x, None, **given)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[2], again[2])
