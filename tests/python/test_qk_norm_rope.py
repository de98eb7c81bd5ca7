# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope in every framework, dtype, layout and form of the angles, against float64."""

from __future__ import annotations

import itertools

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from qk_norms import PARTS, case, check, framework
from reference import DTYPES, NUMPY_DTYPES
from rotary import draw, from_layout

import membound
from membound.oracle.rotary import NormAndRotation, Rotation

LAYOUTS = ("bshd", "sbhd", "bhsd", "thd")
FORMS = ("halves", "twice", "elements", "cache", "freqs", "angles of elements")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_values(name, dtype, layout, seed):
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    for form, interleaved in itertools.product(FORMS, (False, True)):
        wide = str(rng.choice((dtype, "float32")))
        of = case(rng, dtype, layout, form=form, interleaved=interleaved, wide=wide, offset=0.5)
        results = membound.qk_norm_rope(*of.arrays(one), **of.options(one), return_rstd=True)
        out, k_out, *rstds = map(one.numpy, results)
        for found, rstd, norm in zip((out, k_out), rstds, (of.q, of.k), strict=True):
            check(from_layout(found, layout), norm)
            right = rotary.to_layout(norm.rstd[..., None], layout)[..., 0]
            np.testing.assert_allclose(rstd, right, rtol=1e-6 if dtype != "float64" else 1e-14)


@pytest.mark.parametrize("rounding", ["before_weight", "before_rotation"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" not in str(name)])
def test_rounding_has_the_bits_of_two_calls(name, dtype, rounding, seed):
    """rms_norm, then rope, for every part; in wider dtypes "once" has the same bits."""
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    for part, interleaved in itertools.product(PARTS, (False, True)):
        of = case(rng, dtype, part=part, interleaved=interleaved, offset=0.25)
        given, heads = of.options(one), of.arrays(one)
        weights = given.pop("q_weight"), given.pop("k_weight")
        given.pop("weight_offset")
        norm_rounding = "before_weight" if rounding == "before_weight" else "once"
        normed = [
            membound.rms_norm(
                x, w, weight_offset=0.25, rounding=norm_rounding, normalized_shape=x.shape[-1]
            )
            for x, w in zip(heads, weights, strict=True)
        ]
        wanted = membound.rope(*normed, **given)
        roundings = (rounding, "once") if dtype in ("float32", "float64") else (rounding,)
        for mode in roundings:
            found = membound.qk_norm_rope(
                *heads, *weights, weight_offset=0.25, rounding=mode, **given
            )
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one.numpy(a), one.numpy(b))


def test_modules_of_transformers_round_their_norms_so(seed):
    """Qwen 3 rounds before the weight, Gemma 3 once after adding one; both before the rotation."""
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3").Qwen3RMSNorm(64)
    gemma = pytest.importorskip("transformers.models.gemma3.modeling_gemma3").Gemma3RMSNorm(64)
    torch.manual_seed(seed % 2**63)
    q = torch.randn(2, 5, 3, 64, dtype=torch.bfloat16)
    cos, sin = torch.ones(5, 32), torch.zeros(5, 32)  # no rotation: the result is the norm
    for module, options in (
        (qwen, {"rounding": "before_weight"}),
        (gemma, {"rounding": "before_rotation", "weight_offset": 1.0}),
    ):
        with torch.no_grad():
            module = module.to(torch.bfloat16)
            module.weight.normal_()
            wanted = module(q)
            weight = module.weight.detach()
            found = membound.qk_norm_rope(q, None, weight, None, cos, sin, **options)
        differ = (found != wanted).float().mean().item()
        assert differ <= 1e-3  # a mean of squares rounded the other way


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_have_the_bits_of_contiguous_heads(dtype, seed):
    rng = np.random.default_rng(seed)
    for part, interleaved in itertools.product(PARTS[:7], (False, True)):
        of = case(rng, dtype, part=part, interleaved=interleaved)
        given = {**of.call, "k_weight": None}
        x = of.q.x
        right = membound.qk_norm_rope(x, None, **given)
        apart = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
        apart[..., ::2] = x
        back = x[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1]
        for source in (apart[..., ::2], back, np.asfortranarray(x)):
            np.testing.assert_array_equal(membound.qk_norm_rope(source, None, **given), right)
        membound.qk_norm_rope(apart[..., ::2], None, **given, out=apart[..., ::2])
        np.testing.assert_array_equal(apart[..., ::2], right)
        assert np.isnan(apart[..., 1::2].astype(np.float32)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" not in str(name)])
def test_slices_of_one_qkv_in_place(name, layout, seed):
    """Nothing is copied, and nothing else is written."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    of = case(rng, "float32", layout, part=(64, 64, 0))
    batch, seq = of.q.x.shape[:2]
    qkv = draw(rng, (batch, seq, 3 + 2 + 2, 64), "float32")
    qkv[:, :, :3], qkv[:, :, 3:5] = of.q.x, of.k.x
    there = one.array(qkv)
    parts = [there[:, :, :3], there[:, :, 3:5]]
    if layout == "thd":
        parts = [part[0] for part in parts]
    else:
        parts = [one.permute(part, list(rotary.AXES[layout])) for part in parts]
    given = of.options(one)
    out = membound.qk_norm_rope(*parts, **given)
    membound.qk_norm_rope(*parts, **given, out=parts[0], k_out=parts[1])
    now = one.numpy(there)
    for at, found, norm in zip((slice(3), slice(3, 5)), out, (of.q, of.k), strict=True):
        found = from_layout(one.numpy(found), layout)
        check(found, norm)
        np.testing.assert_array_equal(now[:, :, at], found)
    np.testing.assert_array_equal(now[:, :, 5:], qkv[:, :, 5:])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_sequences_one_behind_the_other(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    ends = np.array([0, 3, 3, 10, 18], np.int32)
    x, weight = draw(rng, (20, 2, 32), "float32"), draw(rng, (32,), "float32")
    freqs = rotary.frequencies(32)
    angles = rotary.table("halves", freqs, 16, "float32", False)
    positions = np.concatenate([np.arange(b - a) for a, b in itertools.pairwise(ends)])
    positions = np.concatenate([positions, [0, 0]])  # in no sequence: not rotated
    y = membound.qk_norm_rope(
        one.array(x), None, one.array(weight), layout="thd", cu_seqlens=one.array(ends),
        **rotary.given_to(one, angles),
    )  # fmt: skip
    cos, sin = rotary.angles_of(angles, positions[None], 16)
    check(one.numpy(y)[None], NormAndRotation(x[None], weight, Rotation(cos, sin)))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e20), ("float32", 1e-25),
                                             ("bfloat16", 1e30), ("float64", 1e200)])  # fmt: skip
def test_sums_of_squares_that_leave_the_range(dtype, size, seed):
    rng = np.random.default_rng(seed)
    for part in ((128, 128, 0), (10, 6, 3)):
        of = case(rng, "float64" if dtype == "float64" else "float32", part=part)
        x = (of.q.x * size).astype(NUMPY_DTYPES[dtype])
        given = {**of.call, "k_weight": None}
        y, rstd = membound.qk_norm_rope(x, None, **given, eps=0.0, return_rstd=True)
        norm = NormAndRotation(x, of.q.weight, of.q.rotation, 0.0)
        check(y, norm)
        np.testing.assert_allclose(rstd, norm.rstd, rtol=1e-6)


def test_positions_without_a_row_give_nan():
    x = np.ones((1, 3, 1, 8), np.float32)
    cos = np.ones((2, 4), np.float32)
    ids = np.array([0, 5, -1])
    y = membound.qk_norm_rope(x, None, None, None, cos, cos, position_ids=ids)
    assert np.isfinite(y[0, 0]).all()
    assert np.isnan(y[0, 1:]).all()
    with pytest.raises(ValueError, match="'position_ids'"):
        membound.qk_norm_rope(x, None, None, None, cos, cos, position_ids=ids, validate=True)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nothing_to_do(name):
    one = framework(name)
    tables = [one.array(np.ones((4, 2), np.float32)) for _ in range(2)]
    for shape in ((0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4)):
        x = one.array(np.ones(shape, np.float32))
        assert tuple(membound.qk_norm_rope(x, None, None, None, *tables).shape) == shape


def test_results_are_the_same_for_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    x = draw(rng, (3, 700, 8, 64), "float32")
    given = {"freqs": rotary.frequencies(64)}
    results = []
    for threads in (1, 2, 5):
        membound.set_cpu_threads(threads)
        results.append(membound.qk_norm_rope(x, **given))
    membound.set_cpu_threads(0)
    one_token = membound.qk_norm_rope(x[1:2, 300:301], **given, seqlen_offsets=300)
    assert all((one == results[0]).all() for one in results)
    np.testing.assert_array_equal(results[0][1:2, 300:301], one_token)


@pytest.mark.gpu
def test_graph_capture():
    torch = arrays.torch_with_cuda()
    q, k = (torch.randn(4, 8, heads, 128, device="cuda") for heads in (8, 2))
    weight = torch.randn(128, device="cuda")
    angles = {"freqs": torch.tensor(rotary.frequencies(128), device="cuda")}
    out, k_out = torch.empty_like(q), torch.empty_like(k)

    def step():
        membound.qk_norm_rope(q, k, weight, weight, **angles, out=out, k_out=k_out)
        return membound.qk_norm_rope_backward(out, k_out, q, k, weight, weight, **angles)

    wanted = [one.clone() for one in (*step(), out, k_out)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, (*found, out, k_out), wanted))


def test_numbers_of_arrays_that_mix():
    q, cos = np.ones((1, 2, 1, 4), np.float32), np.ones((2, 2), np.float32)
    given = {"cos": cos, "sin": cos, "return_rstd": True}
    right = membound.qk_norm_rope(q, q, **given)
    for k in (memoryview(q), q):
        found = membound.qk_norm_rope(q, k, **given)
        assert [type(one) for one in found[1::2]] == [type(k)] * 2
        for one, wanted in zip(found, right, strict=True):
            np.testing.assert_array_equal(np.asarray(one), wanted)
