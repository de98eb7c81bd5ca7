# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm in every framework, dtype, layout, width and option, against wider arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import arrays
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, LAYOUTS, ON_GPU, Framework, Layout
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
from reference import DTYPES

from membound import oracle
from membound.oracle import norms

FORMS = ("returned", "out", "in place")


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    layout: str = "contiguous"
    out_layout: str = ""
    weight: str = "same"
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    form: str = "returned"
    return_rstd: bool = True
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout}, weight {self.weight}, "
            f"{self.rounding}, offset {self.weight_offset}, {self.form} {self.out_layout}"
        )


def check(case: Case) -> None:
    """Run one case; check values, shapes, dtypes, aliasing, gaps and the unchanged input."""
    one, layout = case.one, LAYOUTS[case.layout]
    out_layout = LAYOUTS[case.out_layout or case.layout]
    x = arrays.place(one, layout, case.rng.standard_normal, case.dtype, case.rows, case.cols)
    weight, weight_values = make_weight(case)
    offset = case.weight_offset if weight is not None else 0.0
    same = {"eps": case.eps, "rounding": case.rounding, "weight_offset": offset}
    wanted = norms.rms_norm(x.values, weight_values, case.dtype, **same)
    written = None
    if case.form == "out":
        nothing = lambda shape: np.full(shape, np.nan)  # noqa: E731
        written = arrays.place(one, out_layout, nothing, case.dtype, case.rows, case.cols)
    elif case.form == "in place":
        written = x
    out = {} if written is None else {"out": written.array}
    result = arrays.call(one, x.array, weight, return_rstd=case.return_rstd, **same, **out)
    y, rstd = result if case.return_rstd else (result, None)
    if written is not None:
        assert y is written.array, case
        used = layout if written is x else out_layout
        assert arrays.gaps_are_untouched(one, used, written, case.rows, case.cols), case
    rstd = None if rstd is None else one.numpy(rstd)
    reference.assert_right(one.numpy(y), wanted, rstd, case)
    if written is not x:
        np.testing.assert_array_equal(one.numpy(x.array), x.values, err_msg=str(case))


def _forms(one: Framework, layout: Layout) -> tuple[str, ...]:
    if not one.takes_out:
        return FORMS[:1]
    return FORMS if layout.writable else FORMS[:2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_every_width(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        case = Case(one, dtype, cols, rows_for(cols), layout, rng=rng)
        case.weight = rng.choice(WEIGHTS)
        case.rounding = rng.choice(ROUNDINGS)
        case.weight_offset = rng.choice((0.0, 1.0))
        case.form = rng.choice(_forms(one, LAYOUTS[layout]))
        case.return_rstd = bool(rng.integers(2))
        if case.form == "out":
            case.out_layout = rng.choice(layouts_like(layout, one, writable=True))
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = FORMS if one.takes_out else FORMS[:1]
    options = itertools.product(ROUNDINGS, (0.0, 1.0, -0.25), forms, (1, 33, 520, 4096))
    for rounding, offset, form, cols in options:
        check(
            Case(one, dtype, cols, 2, weight=weight, rounding=rounding, weight_offset=offset,
                 form=form, return_rstd=cols != 520, rng=rng)
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
def test_almost_every_element_is_within_four_ulps(name, dtype, seed):
    """The table allows five ulps, for the few elements whose roundings all have one sign."""
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    beyond = count = 0
    for cols in (100, 1000, 4097):
        x = rng.standard_normal((400_000 // cols, cols)).astype(dtype)
        weight = rng.standard_normal(cols).astype(dtype)
        wanted = norms.rms_norm(x, weight, dtype).out.values
        got = one.numpy(arrays.call(one, one.array(x), one.array(weight)))
        beyond += int((oracle.errors_in_ulps(got, wanted, dtype) > 4.0).sum())
        count += x.size
    assert beyond <= count / 100_000


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_result_is_of_the_callers_kind(name):
    one = arrays.framework(name)
    x = one.array(np.ones((2, 3, 8), np.float32))
    y, rstd = arrays.call(one, x, return_rstd=True)
    assert one.numpy(y).shape == (2, 3, 8)
    assert one.numpy(rstd).shape == (2, 3)
    assert one.numpy(y).flags.c_contiguous


def test_the_default_eps_is_a_millionth():
    one = arrays.framework("numpy")
    x = np.full((1, 4), 1e-3, np.float32)
    np.testing.assert_array_equal(arrays.call(one, x), arrays.call(one, x, eps=1e-6))
    assert abs(float(arrays.call(one, x)[0, 0]) - 2**-0.5) < 1e-6
