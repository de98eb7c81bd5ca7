# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm in every framework, dtype, layout, width and option, against wider arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, LAYOUTS, ON_GPU, Framework
from cases import (
    LONG,
    ROUNDINGS,
    WEIGHTS,
    WIDTHS,
    drawn_for,
    layouts_like,
    make_weight,
    needs,
    rows_for,
)
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

# The outputs of (out, residual_out).
FORMS = {
    "returned": (None, None),
    "given": ("new", "new"),
    "in place": ("x", "residual"),
    "crossed": ("residual", "x"),
    "sum in place": (None, "residual"),
    "norm over the residual": ("residual", "new"),
}


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    layout: str = "contiguous"
    others: tuple[str, str, str] = ("", "", "")  # layouts of residual, out, residual_out
    weight: str = "same"
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    form: str = "returned"
    return_rstd: bool = True
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout} {self.others}, weight "
            f"{self.weight}, {self.rounding}, offset {self.weight_offset}, {self.form}"
        )

    def place(self, layout: str, fill: Any) -> arrays.Placed:
        return arrays.place(self.one, LAYOUTS[layout], fill, self.dtype, self.rows, self.cols)


def call(one: Framework, *inputs: Any, **options: Any) -> Any:
    return membound.add_rms_norm(*inputs, **one.options, **options)


def check(case: Case) -> None:
    """Run one case; check values, shapes, dtypes, aliasing, gaps, and that inputs are unchanged."""
    one = case.one
    layouts = [case.layout, *(name or case.layout for name in case.others)]
    x, residual = (case.place(name, case.rng.standard_normal) for name in layouts[:2])
    weight, weight_values = make_weight(case)
    offset = case.weight_offset if weight is not None else 0.0
    options = {"eps": case.eps, "rounding": case.rounding, "weight_offset": offset}
    wanted, total = norms.add_rms_norm(
        x.values, residual.values, weight_values, case.dtype, **options
    )
    given: dict[str, tuple[arrays.Placed, str]] = {}
    for at, (name, where) in enumerate(
        zip(("out", "residual_out"), FORMS[case.form], strict=True), 2
    ):
        if where == "new":
            nothing = lambda shape: np.full(shape, np.nan)  # noqa: E731
            given[name] = (case.place(layouts[at], nothing), layouts[at])
        elif where is not None:
            given[name] = (x, layouts[0]) if where == "x" else (residual, layouts[1])
    outputs = {name: placed.array for name, (placed, _) in given.items()}
    y, summed, *rstd = call(one, x.array, residual.array, weight, return_rstd=case.return_rstd,
                            **options, **outputs)  # fmt: skip
    for got, name in ((y, "out"), (summed, "residual_out")):
        if name in given:
            placed, layout = given[name]
            assert got is placed.array, case
            assert arrays.gaps_are_untouched(one, LAYOUTS[layout], placed, case.rows, case.cols)
    reference.assert_right(one.numpy(y), wanted, one.numpy(rstd[0]) if rstd else None, case)
    assert len(rstd) == case.return_rstd
    got = one.numpy(summed)
    assert got.dtype == total.dtype, case
    np.testing.assert_array_equal(got, total, err_msg=str(case))
    written = [placed for placed, _ in given.values()]
    for placed in (x, residual):
        if not any(placed is one_written for one_written in written):
            np.testing.assert_array_equal(one.numpy(placed.array), placed.values, str(case))


def _forms(one: Framework, layouts: tuple[str, str]) -> list[str]:
    """The forms whose outputs are writable."""
    if not one.takes_out:
        return ["returned"]
    x, residual = (LAYOUTS[name].writable for name in layouts)
    able = {"x": x, "residual": residual}
    return [name for name, places in FORMS.items() if all(able.get(p, True) for p in places)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_every_width(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        case = Case(one, dtype, cols, rows_for(cols), layout, rng=rng)
        case.others = tuple(
            str(rng.choice(layouts_like(layout, one, writable=writable)))
            for writable in (False, True, True)
        )
        case.weight = rng.choice(WEIGHTS)
        case.rounding = rng.choice(ROUNDINGS)
        case.weight_offset = rng.choice((0.0, 1.0))
        case.form = rng.choice(_forms(one, (layout, case.others[0])))
        case.return_rstd = bool(rng.integers(2))
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = _forms(one, ("contiguous", "contiguous"))
    for rounding, offset, form in itertools.product(ROUNDINGS, (0.0, 1.0, -0.25), forms):
        cols = int(rng.choice((1, 33, 520, 4096)))
        check(
            Case(one, dtype, cols, 2, weight=weight, rounding=rounding, weight_offset=offset,
                 form=form, return_rstd=bool(rng.integers(2)), rng=rng)
        )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for layout in ("contiguous", "off by one", "columns, off by one"):
        if LAYOUTS[layout].fits(one):
            check(Case(one, dtype, cols, 2, layout, rounding=rng.choice(ROUNDINGS), rng=rng))


@pytest.mark.parametrize("cols", [65536, 131073])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", arrays.ON_CPU)
def test_long_rows_on_the_cpu(name, dtype, cols, seed):
    check(Case(arrays.framework(name), dtype, cols, 2, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("shape", [(3000, 64), (700, 1000), (129, 4096), (1, 1 << 19)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows(name, dtype, shape, seed):
    """Enough rows for several blocks of a GPU and several threads of a CPU."""
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_bits_are_those_of_rms_norm_of_the_sum(name, dtype, seed):
    """If the sum needs no second rounding, two steps give the bits of the fused op."""
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    for cols in (1, 7, 64, 1000, 4097, 16384):
        x, residual = (rng.standard_normal((5, cols)).astype(dtype) for _ in range(2))
        weight = one.array(rng.standard_normal(cols).astype(dtype))
        y, _, rstd = call(one, one.array(x), one.array(residual), weight, return_rstd=True)
        want, want_rstd = arrays.call(one, one.array(x + residual), weight, return_rstd=True)
        assert one.numpy(y).tobytes() == one.numpy(want).tobytes(), cols
        assert one.numpy(rstd).tobytes() == one.numpy(want_rstd).tobytes(), cols


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_norm_is_of_the_sum_before_it_is_rounded(name, dtype, seed):
    """Magnitudes differ, so that rounding the sum first would change the result."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((64, 256)).astype(NUMPY_DTYPES[dtype])
    residual = (8 * rng.standard_normal((64, 256))).astype(NUMPY_DTYPES[dtype])
    y, total, rstd = call(one, one.array(x), one.array(residual), return_rstd=True)
    unrounded = x.astype(np.float32) + residual.astype(np.float32)
    root = one.numpy(rstd)[:, None]
    got = one.numpy(y)
    np.testing.assert_array_equal(got, (unrounded * root).astype(got.dtype))
    assert (got != (one.numpy(total).astype(np.float32) * root).astype(got.dtype)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_hard_sums(name, dtype):
    """Sums that cancel, overflow when squared, vanish when squared, are zero, infinite or NaN."""
    one = arrays.framework(name)
    big, small = (1e30, 1e-30) if dtype == "float32" else (1e200, 1e-200)
    base = np.linspace(-1.0, 1.0, 260)
    rows = [(base, -base), (base * big, base * big), (base * small, base * small)]
    rows += [(base * 0, base * 0), (base + 1e-3, -base), (base * np.inf, base), (base, base * big)]
    rows += [(base * np.nan, base)]
    with np.errstate(all="ignore"):
        x, residual = (np.array(part).astype(dtype) for part in zip(*rows, strict=True))
    for eps in (0.0, 1e-6):
        wanted, total = norms.add_rms_norm(x, residual, None, dtype, eps=eps)
        y, got, rstd = call(one, one.array(x), one.array(residual), eps=eps, return_rstd=True)
        np.testing.assert_array_equal(one.numpy(got), total)
        reference.assert_right(one.numpy(y), wanted, one.numpy(rstd), eps)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_results_are_of_the_callers_kind(name):
    one = arrays.framework(name)
    x, residual = (one.array(np.ones((2, 3, 8), np.float32)) for _ in range(2))
    y, total, rstd = call(one, x, residual, return_rstd=True)
    assert [one.numpy(a).shape for a in (y, total, rstd)] == [(2, 3, 8), (2, 3, 8), (2, 3)]
    assert one.numpy(y).flags.c_contiguous
    assert isinstance(call(one, x, residual), tuple)


# --- fused_add_rms_norm: in place, as vLLM and flashinfer spell it ---

IN_PLACE = [name for name in arrays.ON_CPU if not name.startswith("jax")]
IN_PLACE += [pytest.param(name, marks=pytest.mark.gpu) for name in ("torch-cuda", "cupy")]


@pytest.mark.parametrize("layout", ["contiguous", "columns, off by one", "3-D", "empty"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_fused_add_rms_norm_writes_both(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols, epsilon in ((64, 1e-5), (1000, 1e-6), (4096, 0.0)):
        case = Case(one, dtype, cols, layout=layout, rng=rng)
        x, residual = (case.place(layout, rng.standard_normal) for _ in range(2))
        weight, weight_values = make_weight(case)
        wanted, total = norms.add_rms_norm(
            x.values, residual.values, weight_values, dtype, eps=epsilon
        )
        assert membound.fused_add_rms_norm(x.array, residual.array, weight, epsilon) is None
        reference.assert_right(one.numpy(x.array), wanted, what=case)
        np.testing.assert_array_equal(one.numpy(residual.array), total)
        for placed in (x, residual):
            assert arrays.gaps_are_untouched(one, LAYOUTS[layout], placed, case.rows, cols)


def test_fused_add_rms_norm_means_what_vllm_means(seed):
    """vLLM's own function in torch: forward_native of its RMSNorm with a residual."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(9, 512, generator=generator).bfloat16() for _ in range(2))
    weight = torch.randn(512, generator=generator).bfloat16()
    total = x.float() + residual.float()
    rstd = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    wanted = (total * rstd).to(x.dtype) * weight
    membound.fused_add_rms_norm(input=x, residual=residual, weight=weight, epsilon=1e-6)
    assert torch.equal(residual, total.to(torch.bfloat16))
    torch.testing.assert_close(x, wanted, rtol=2**-7, atol=0.0)


def test_fused_add_rms_norm_tells_autograd(seed):
    torch = pytest.importorskip("torch")
    x, residual = torch.ones(2, 8), torch.ones(2, 8)
    versions = x._version, residual._version
    membound.fused_add_rms_norm(x, residual, None)
    assert x._version > versions[0]
    assert residual._version > versions[1]


def test_autograd_notices_that_both_outputs_were_overwritten():
    torch = pytest.importorskip("torch")
    x, residual, out, total = (torch.ones(2, 8) for _ in range(4))
    versions = out._version, total._version
    membound.add_rms_norm(x, residual, out=out, residual_out=total)
    assert out._version > versions[0]
    assert total._version > versions[1]
    assert x._version == residual._version == 0
