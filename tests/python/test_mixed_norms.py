# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms over mixed dtypes: each result is rounded once, to its dtype."""

from __future__ import annotations

from typing import Any

import arrays
import mixed_norms
import numpy as np
import pytest
from arrays import FRAMEWORKS, LAYOUTS
from mixed_norms import KINDS, Mixed, assert_near
from reference import DTYPES, NUMPY_DTYPES

import membound as mb

# Around a quad, a warp, the registers of a block, and rows that are read twice.
WIDTHS = (1, 3, 4, 31, 128, 513, 1000, 4096, 8200)


def run(one: Any, call: Mixed, **more: Any) -> dict[str, np.ndarray]:
    """A forward and its gradients with all results, in NumPy."""
    by_name = {name: one.array(value) for name, value in call.values.items()}
    inputs = [by_name[name] for name in call.inputs]
    parameters = [by_name.get(name) for name in ("weight", "bias")[: 1 + call.centred]]
    statistics = "return_stats" if call.centred else "return_rstd"
    function = getattr(mb, call.kind)
    found = function(
        *inputs, *parameters, eps=call.eps, **call.options, **{statistics: True},
        **one.options, **more,
    )  # fmt: skip
    names = ["out", *(["residual_out"] * call.added), *(["mean"] * call.centred), "rstd"]
    results = dict(zip(names, found, strict=True))
    return {name: one.numpy(value) for name, value in results.items()}


def run_backward(one: Any, call: Mixed, stats: dict[str, np.ndarray], **more: Any) -> dict:
    by_name = {name: one.array(value) for name, value in (call.values | stats).items()}
    inputs = [by_name["dy"]]
    if call.added:
        inputs += [by_name["dresidual_out"], by_name["residual_out"]]
    else:
        inputs += [by_name["x"], *([by_name["z"]] if call.gated else [])]
    inputs += [by_name.get("weight"), *([by_name["mean"]] if call.centred else []), by_name["rstd"]]
    options = call.options | more
    if call.added:
        options["need_dresidual"] = True
    found = getattr(mb, f"{call.kind}_backward")(*inputs, **options)
    names = ["dx", *(["dresidual"] * call.added), *(["dz"] * call.gated), "dweight"]
    names += ["dbias"] * call.centred
    results = dict(zip(names, found, strict=True))
    return {name: None if value is None else one.numpy(value) for name, value in results.items()}


def check(one: Any, call: Mixed) -> None:
    wanted = mixed_norms.forward(call)
    out_dtype = call.dtypes.get("out", call.dtypes["x"])
    more = {"dtype": out_dtype} if "out" in call.dtypes else {}
    got = run(one, call, **more)
    kinds = {"out": out_dtype, "residual_out": call.dtypes.get("residual")}
    for name, value in got.items():
        kind = kinds.get(name, call.sums)
        terms = wanted.get(f"scale of {name}")
        assert_near(value, wanted[name], kind, call.sums, (name, call), terms)
    if call.added:  # the sum is rounded once, so its bits are known
        right = mixed_norms.round_to(wanted["residual_out"], call.dtypes["residual"])
        np.testing.assert_array_equal(mixed_norms.wide(got["residual_out"]), right)
        call.values["residual_out"] = got["residual_out"]
    if one.options:  # staged through a GPU: forwards alone
        return
    call.dtypes.setdefault("dy", out_dtype)
    call.values["dy"] = call.values["dy"].astype(NUMPY_DTYPES[call.dtypes["dy"]])
    stats = {name: got[name] for name in ("mean", "rstd") if name in got}
    right = mixed_norms.backward(call, stats["rstd"], stats.get("mean"))
    found = run_backward(one, call, stats)
    sums = mixed_norms.sums_dtype(call.sums, call.dtypes["dy"])
    kinds = {
        "dx": call.dtypes["dy"] if call.added else call.dtypes["x"],
        "dresidual": call.dtypes.get("residual"),
        "dz": call.dtypes.get("z"),
        "dweight": call.dtypes.get("weight", "float32"),
        "dbias": call.dtypes.get("weight", call.dtypes.get("residual", call.dtypes["x"])),
    }
    right["dresidual"] = right["dx"]
    for name, value in found.items():
        if value is None:
            assert name == "dweight"
            assert not call.weighted
            continue
        terms = right[f"scale of {'dx' if name == 'dresidual' else name}"]
        # Sums over rows are rounded to float32, then to 16 bits.
        near = "float32" if name in ("dweight", "dbias") else sums
        assert_near(value, right[name], kinds[name], near, (name, call), terms)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cols", WIDTHS)
def test_every_width(name, kind, cols, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    for x, other, out in (
        ("bfloat16", "float32", None),
        ("float16", "float32", "bfloat16"),
        ("float32", "bfloat16", "float16"),
        ("bfloat16", "float64", "float32"),
    ):
        dtypes = {"x": x, "residual": other, "z": other, "weight": "bfloat16", "bias": "float32"}
        if out is not None:
            dtypes["out"] = out
        if set(dtypes.values()) - set(one.dtypes):
            continue
        rows = 5 if cols < 4000 else 3
        check(
            one, Mixed(kind, dtypes, (rows, cols), weight_offset=float(rng.integers(2))).draw(rng)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_for_each_array(kind, seed):
    rng = np.random.default_rng(seed)
    one = arrays.NumPy()
    for x in DTYPES:
        for other in DTYPES:
            for out in DTYPES:
                dtypes = {"x": x, "residual": other, "z": other, "out": out,
                          "dy": str(rng.choice(DTYPES)), "dresidual_out": str(rng.choice(DTYPES)),
                          "weight": str(rng.choice(DTYPES)), "bias": "float32"}  # fmt: skip
                check(one, Mixed(kind, dtypes, (40, 70)).draw(rng))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_float64_sum_is_rounded_to_bfloat16_once(name):
    """Rounding to float32 first would give a tie, which goes to the even value."""
    one = arrays.framework(name)
    if not {"float64", "bfloat16"} <= set(one.dtypes):
        pytest.skip("it has no float64, or no bfloat16")
    x = one.array(np.full((2, 64), 2.1328125 + 2.0**-30))
    residual = one.array(np.zeros((2, 64), NUMPY_DTYPES["bfloat16"]))
    total = mb.add_rms_norm(x, residual, **one.options)[1]
    assert (one.numpy(total).astype(np.float64) == 2.140625).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["rms_norm", "add_rms_norm", "rms_norm_gated"])
@pytest.mark.parametrize("norm_before_gate", [True, False])
def test_before_weight_rounds_to_x_and_then_to_out(name, kind, norm_before_gate):
    """Values at which float32 arithmetic is exact, so that roundings are known."""
    one = arrays.framework(name)
    if kind != "rms_norm_gated" and not norm_before_gate:
        pytest.skip("it has no gate")
    rng = np.random.default_rng(3)
    dtypes = {"x": "bfloat16", "residual": "float32", "z": "float32", "out": "float32",
              "weight": "float32"}  # fmt: skip
    call = Mixed(kind, dtypes, (6, 64), rounding="before_weight",
                 norm_before_gate=norm_before_gate).draw(rng)  # fmt: skip
    got = run(one, call, dtype="float32")["out"]
    wanted = mixed_norms.forward(call)["out"]
    # A value near a boundary of bfloat16 may be rounded to the other side.
    apart = np.abs(got - wanted) > 1e-6 * np.abs(wanted).max()
    assert apart.mean() < 0.02
    call.rounding = "once"
    unrounded = mixed_norms.forward(call)["out"]
    assert (np.abs(got - unrounded) > 1e-6 * np.abs(wanted).max()).mean() > 0.5


def test_dweight_takes_what_before_weight_rounded(seed):
    rng = np.random.default_rng(seed)
    for kind, first in (("rms_norm", True), ("add_rms_norm", True), ("rms_norm_gated", True),
                        ("rms_norm_gated", False)):  # fmt: skip
        dtypes = {"x": "bfloat16", "residual": "float32", "z": "float32", "dy": "float32",
                  "weight": "float32", "dresidual_out": "float32"}  # fmt: skip
        if kind == "add_rms_norm":
            dtypes["dy"] = "bfloat16"
        call = Mixed(kind, dtypes, (70, 24), rounding="before_weight", norm_before_gate=first)
        call.draw(rng)
        call.values["dy"] = call.values["dy"].astype(NUMPY_DTYPES[dtypes["dy"]])
        one = arrays.NumPy()
        got = run(one, call)
        call.values["residual_out"] = got.get("residual_out")
        if call.values["residual_out"] is None:
            del call.values["residual_out"]
        found = run_backward(one, call, {"rstd": got["rstd"]})
        right = mixed_norms.backward(call, got["rstd"], None)
        # Some rounded values may be on the other side of a boundary.
        for name in ("dweight", *(["dz"] if kind == "rms_norm_gated" else [])):
            off = np.abs(found[name].astype(np.float64) - right[name]).max()
            call.rounding = "once"
            plain = mixed_norms.backward(call, got["rstd"], None)[name]
            call.rounding = "before_weight"
            if name == "dz" and not first:
                assert off < 1e-5
                continue
            assert off < 0.5 * np.abs(plain - right[name]).max(), (kind, name)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "empty" not in name])
def test_every_layout_gives_the_same_bits(name, layout, seed):
    one = arrays.framework(name)
    if not LAYOUTS[layout].fits(one) or not one.takes_out:
        pytest.skip("it has no such view")
    rng = np.random.default_rng(seed)
    for dtype, other in (("bfloat16", "float32"), ("float32", "float16")):
        if {dtype, other} - set(one.dtypes):
            continue
        by_name = [arrays.place(one, LAYOUTS[layout], rng.standard_normal, d, 4, 129)
                 for d in (dtype, other)]  # fmt: skip
        plain = [one.array(np.ascontiguousarray(p.values)) for p in by_name]
        weight = one.array(rng.normal(size=129).astype(np.float32))
        got = mb.add_rms_norm(by_name[0].array, by_name[1].array, weight, **one.options)
        wanted = mb.add_rms_norm(*plain, weight, **one.options)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(a), one.numpy(b))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_written_arrays_of_any_dtype_and_stride(name, seed):
    one = arrays.framework(name)
    if not one.takes_out or not one.strided:
        pytest.skip("nothing can be written")
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 50)).astype(NUMPY_DTYPES["bfloat16"])
    for dtype in one.dtypes:
        buffer = one.array(np.zeros((6, 100), NUMPY_DTYPES[dtype]))
        out = buffer[:, ::2]
        assert mb.rms_norm(one.array(x), out=out, **one.options) is out
        wanted = mb.rms_norm(one.array(x), dtype=dtype, **one.options)
        np.testing.assert_array_equal(one.numpy(out), one.numpy(wanted))
        assert not one.numpy(buffer)[:, 1::2].any()


def test_in_place_over_a_residual_of_another_dtype(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 33)).astype(NUMPY_DTYPES["bfloat16"])
    residual = rng.normal(size=(9, 33)).astype(np.float32)
    out, total = mb.add_rms_norm(x, residual)
    mb.add_rms_norm(x, residual, out=x, residual_out=residual)
    np.testing.assert_array_equal(x, out)
    np.testing.assert_array_equal(residual, total)


def test_one_rounding_from_float64_to_16_bits():
    """Two roundings, through float32, would give the next lower value."""
    x = np.full((1, 2), 1 + 2.0**-11 + 2.0**-40)  # just above the middle of two float16
    one = np.ones(2, np.float64) * x[0, 0]
    out = mb.rms_norm(np.ones((1, 2)), one, eps=0.0, dtype="float16")
    assert (out == np.float16(1 + 2.0**-10)).all()


def test_same_dtypes_give_the_bits_of_today(seed):
    """A mixed call whose arrays happen to have one dtype is the plain one."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(7, 100)).astype(np.float32)
    np.testing.assert_array_equal(mb.rms_norm(x, dtype="float32"), mb.rms_norm(x))


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_rows_are_redone_scaled(kind):
    x = np.array([[3e20, 4e20], [3e-25, 4e-25], [0.0, 0.0], [np.inf, 1.0]], np.float32)
    for exponent in range(4):
        call = Mixed(kind, {"x": "float32", "residual": "bfloat16", "z": "bfloat16",
                            "out": "float64"}, (4, 2), weighted=False, eps=0.0)  # fmt: skip
        call.values = {"x": x[exponent : exponent + 1],
                       "residual": np.zeros((1, 2), NUMPY_DTYPES["bfloat16"]),
                       "z": np.full((1, 2), 20, NUMPY_DTYPES["bfloat16"])}  # fmt: skip
        with np.errstate(all="ignore"):
            wanted = mixed_norms.forward(call)["out"].astype(np.float64)
        got = run(arrays.NumPy(), call, dtype="float64")["out"]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_and_statistics_with_a_kept_axis(kind, seed):
    rng = np.random.default_rng(seed)
    dtypes = {"x": "bfloat16", "residual": "float32", "z": "float32", "weight": "float32",
              "bias": "float32"}  # fmt: skip
    call = Mixed(kind, dtypes, (3, 4, 5, 24), heads=True).draw(rng)
    one = arrays.NumPy()
    check(one, call)
    got = run(one, call)
    stats = {name: got[name] for name in ("mean", "rstd") if name in got}
    plain = run_backward(one, call, stats)
    kept = run_backward(one, call, {name: value[..., None] for name, value in stats.items()})
    for name, value in plain.items():
        np.testing.assert_array_equal(value, kept[name])


def test_an_offset_without_a_weight_is_the_offset(seed):
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        for dtype in DTYPES:
            dtypes = dict.fromkeys(("x", "residual", "z", "dy", "dresidual_out"), dtype)
            check(arrays.NumPy(), Mixed(kind, dtypes, (40, 48), weighted=False,
                                        weight_offset=1.5).draw(rng))  # fmt: skip


def test_no_gradient_of_the_sum(seed):
    rng = np.random.default_rng(seed)
    dy, total = rng.normal(size=(2, 5, 16))
    rstd, mean = np.ones((2, 5))
    weight = rng.normal(size=16)
    zeros = np.zeros_like(dy)
    for function, rest in (
        (mb.add_rms_norm_backward, (total, weight, rstd)),
        (mb.add_layer_norm_backward, (total, weight, mean, rstd)),
    ):
        for a, b in zip(function(dy, None, *rest), function(dy, zeros, *rest), strict=True):
            np.testing.assert_array_equal(a, b)


def test_eps_none_is_torchs_default():
    x = np.array([[1e-4, 2e-4]], np.float32)
    for dtype in ("float32", "float64"):
        values = x.astype(dtype)
        eps = float(np.finfo(dtype).eps)
        np.testing.assert_array_equal(mb.rms_norm(values, eps=None), mb.rms_norm(values, eps=eps))
        np.testing.assert_array_equal(mb.layer_norm(values, eps=None),
                                      mb.layer_norm(values, eps=1e-5))  # fmt: skip
    half, eps = x.astype(np.float16), float(np.finfo(np.float32).eps)  # of its sums
    np.testing.assert_array_equal(mb.rms_norm(half, eps=None), mb.rms_norm(half, eps=eps))


def test_what_is_refused():
    x, wide = np.ones((2, 4), np.float16), np.ones((2, 4))
    with pytest.raises(TypeError, match="argument 'out' must be float32 as 'dtype', got float64"):
        mb.rms_norm(x, dtype="float32", out=wide)
    with pytest.raises(TypeError, match="argument 'residual' must be float16"):
        mb.add_rms_norm(x, np.ones((2, 4), np.int32))
    with pytest.raises(TypeError, match="argument 'dtype' must be"):
        mb.rms_norm(x, dtype="int8")
    with pytest.raises(ValueError, match="argument 'residual' must have shape"):
        mb.add_rms_norm(x, np.ones((2, 5)))
    with pytest.raises(ValueError, match="argument 'rstd' must have shape"):
        mb.rms_norm_backward(wide, wide, None, np.ones((2, 2)))


# --- several axes ---


def test_over_several_axes_is_over_their_product(seed):
    rng = np.random.default_rng(seed)
    for one in (arrays.framework("numpy"), arrays.framework("torch-cpu")):
        x, residual, weight = (
            rng.normal(size=shape).astype(np.float32) for shape in ((3, 5, 4), (3, 5, 4), (5, 4))
        )
        for kind in KINDS:
            rows = [x] if kind in ("rms_norm", "layer_norm") else [x, residual]
            function = getattr(mb, kind)
            got = function(*map(one.array, (*rows, weight)), normalized_shape=(5, 4))
            flat = [a.reshape(3, 20) for a in rows]
            wanted = function(*map(one.array, (*flat, weight.reshape(20))))
            for a, b in zip(*map(_tuple, (got, wanted)), strict=True):
                np.testing.assert_array_equal(one.numpy(a), one.numpy(b).reshape(3, 5, 4))


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_gradients_over_several_axes(seed):
    rng = np.random.default_rng(seed)
    dy, x = rng.normal(size=(2, 3, 5, 4))
    weight = rng.normal(size=(5, 4))
    _, mean, rstd = mb.layer_norm(x, weight, normalized_shape=(5, 4), return_stats=True)
    assert mean.shape == rstd.shape == (3,)
    got = mb.layer_norm_backward(dy, x, weight, mean, rstd, normalized_shape=(5, 4))
    flat = (dy.reshape(3, 20), x.reshape(3, 20), weight.reshape(20))
    wanted = mb.layer_norm_backward(*flat, mean, rstd)
    for a, b, shape in zip(got, wanted, ((3, 5, 4), (5, 4), (5, 4)), strict=True):
        np.testing.assert_array_equal(a, b.reshape(shape))
    kept = (mean.reshape(3, 1, 1), rstd.reshape(3, 1, 1))
    again = mb.layer_norm_backward(dy, x, weight, *kept, normalized_shape=(5, 4))
    for a, b in zip(again, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_weight_of_two_axes_says_what_it_means():
    x, weight = np.ones((2, 3, 4)), np.ones((3, 4))
    for kind in ("rms_norm", "layer_norm"):
        with pytest.raises(
            ValueError, match="needs normalized_shape, got None: normalized_shape=4"
        ):
            getattr(mb, kind)(x, weight)
    with pytest.raises(ValueError, match="must be the last axes of 'x', of shape"):
        mb.layer_norm(x, weight, normalized_shape=(2, 4))
    with pytest.raises(ValueError, match="that one stride joins"):
        mb.layer_norm(np.ones((2, 4, 3)).swapaxes(1, 2), weight, normalized_shape=(3, 4))
    with pytest.raises(TypeError, match="must be an integer or a tuple of integers"):
        mb.rms_norm(x, normalized_shape="4")
