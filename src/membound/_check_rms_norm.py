# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm against 34-digit decimal arithmetic, with the standard library alone."""

from __future__ import annotations

import array
import decimal
import functools
import itertools
import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, FORMATS, ulp

_DECIMAL = decimal.Context(prec=34, Emin=-99999, Emax=99999)
_NAN = float("nan")


def round_to(values: list[float], dtype: str) -> list[float]:
    """Each value to the nearest one of dtype (bfloat16: towards zero, near enough for inputs)."""
    if dtype == "float64":
        return values
    if dtype == "float16":
        code = f"{len(values)}e"
        return list(struct.unpack(code, struct.pack(code, *values)))
    single = array.array("f", values)
    if dtype == "bfloat16":
        bits = memoryview(single).cast("B").cast("I")
        for at, word in enumerate(bits):
            bits[at] = word & 0xFFFF0000
    return single.tolist()


@dataclass(frozen=True)
class Layout:
    """How a rows x cols matrix lies in a larger buffer; what lies between its elements is NaN."""

    order: tuple[int, ...] = (0, 1)  # the buffer's axes, outermost first; three split the rows
    step: int = 1  # only every step-th row is ours
    before: int = 0  # elements of each row before and after ours
    after: int = 0

    @property
    def contiguous(self) -> bool:
        return self == Layout(tuple(sorted(self.order)))

    def shape(self, rows: int, cols: int) -> tuple[int, ...]:
        return (rows, cols) if len(self.order) == 2 else (2, rows // 2, cols)

    def storage(self, rows: int, cols: int) -> tuple[int, ...]:
        *leading, inner, last = self.shape(rows, cols)
        padded = (*leading, inner * self.step, self.before + last + self.after)
        return tuple(padded[axis] for axis in self.order)

    def fill(self, values: list[float], rows: int, cols: int) -> list[float]:
        """The buffer's elements; values are the matrix's, in C order."""
        storage = self.storage(rows, cols)
        strides = {axis: math.prod(storage[at + 1 :]) for at, axis in enumerate(self.order)}
        *leading, inner, last = (strides[axis] for axis in range(len(storage)))
        places = itertools.product(*map(range, self.shape(rows, cols)))
        flat = [_NAN] * math.prod(storage)
        for value, (*outer, row, column) in zip(values, places, strict=False):
            at = sum(index * stride for index, stride in zip(outer, leading, strict=True))
            flat[at + row * self.step * inner + (self.before + column) * last] = value
        return flat

    def view(self, framework: Framework, storage: Any, cols: int) -> Any:
        """The matrix inside an array of the storage's shape."""
        if self.contiguous:
            return storage
        inverse = tuple(self.order.index(axis) for axis in range(len(self.order)))
        ordered = framework.transpose(storage, inverse)
        return ordered[..., :: self.step, self.before : self.before + cols]


LAYOUTS = {
    "contiguous": Layout(),
    "3-D": Layout(order=(0, 1, 2)),
    "every other row": Layout(step=2),
    "columns, off by one": Layout(before=1, after=2),
    "transposed": Layout(order=(1, 0)),
    "3-D permuted": Layout(order=(1, 0, 2)),
}
WEIGHTS = ("none", "same", "float32", "float64", "float16", "bfloat16")
WIDTHS = (1, 2, 7, 33, 64, 128, 257, 1000, 1024, 4097, 8192)
# One for each way a GPU kernel may hold a long row.
GPU_WIDTHS = (16384, 65536, 131072)
FORMS = ("returned", "out", "in place")
SPECIAL = ("zeros", "largest", "smallest", "every magnitude")


@dataclass(frozen=True)
class Case:
    dtype: str
    rows: int
    cols: int
    layout: str = "contiguous"
    weight: str = "same"
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    values: str = "normal"
    form: str = "returned"

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout}, weight {self.weight}, "
            f"{self.rounding}, offset {self.weight_offset:g}, eps {self.eps:g}, {self.values} "
            f"values, {self.form}"
        )


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    """Layout x weight x rounding, with the rest in turn or drawn; thorough: the whole product."""
    layouts = [name for name, layout in LAYOUTS.items() if framework.strided or layout.contiguous]
    weights = [name for name in WEIGHTS if name in ("none", "same") or name in framework.dtypes]
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    main = itertools.product(layouts, weights, ("once", "before_weight"))
    rest = list(itertools.product(WIDTHS, (0.0, 1.0), forms))
    source = random.Random(20251121)
    widths = itertools.cycle(WIDTHS)
    for layout, weight, rounding in main:
        drawn = (next(widths), source.choice((0.0, 1.0)), source.choice(forms))
        for cols, offset, form in rest if thorough else [drawn]:
            offset = 0.0 if weight == "none" else offset
            rows = 4 if cols <= 512 else 2
            yield Case(dtype, rows, cols, layout, weight, rounding, offset, form=form)
    for values in SPECIAL:
        yield Case(
            dtype, 2, 515, eps=0.0 if values != "zeros" else 1e-6, values=values, form=forms[0]
        )
    if framework.device != "cpu":
        for cols in GPU_WIDTHS:
            yield Case(dtype, 2, cols, form=forms[0])


def _draw(case: Case) -> tuple[list[float], list[float] | None]:
    source = random.Random(f"{case.rows} {case.cols} {case.dtype} {case.values}")
    count = case.rows * case.cols
    _, smallest, largest = FORMATS[case.dtype]
    normal = [source.gauss(0.0, 1.0) for _ in range(count)]
    if case.values == "zeros":
        x = [0.0] * count
    elif case.values == "largest":
        x = [math.copysign(largest * (0.5 + 0.5 * source.random()), v) for v in normal]
    elif case.values == "smallest":
        x = [math.ldexp(v, smallest + 2) for v in normal]
    elif case.values == "every magnitude":
        span = range(smallest + 2, -smallest)
        x = [math.ldexp(math.copysign(1.0, v), source.choice(span)) for v in normal]
    else:
        x = normal
    weight = None
    if case.weight != "none":
        # Above 0: near -weight_offset the float32 value of a float64 weight would cancel.
        drawn = [source.uniform(0.5, 2.0) for _ in range(case.cols)]
        weight = round_to(drawn, case.dtype if case.weight == "same" else case.weight)
    return round_to(x, case.dtype), weight


def _rounded(value: float, dtype: str) -> set[float]:
    """The value rounded to dtype; two values when float32 arithmetic may land on either."""
    step, slack = ulp(value, dtype), abs(value) * 2**-21
    return {round(v / step) * step for v in (value - slack, value + slack)}


# A product of two float32 values is exact in a Python float, and math.fsum adds exactly: enough for
# every dtype but float64, which gets 34 decimal digits.
Number = float | Decimal


@functools.cache
def expected(
    case: Case,
) -> tuple[list[float], list[float] | None, list[set[Number]], list[Number]]:
    """Return x, weight, for each element the results that are right, and each row's rstd."""
    x, weight = _draw(case)
    wide = case.dtype == "float64"
    number: Callable[[float], Number] = Decimal if wide else float
    narrow = case.rounding == "before_weight" and case.dtype in ("float16", "bfloat16")
    wanted: list[set[Number]] = []
    rstds: list[Number] = []
    with decimal.localcontext(_DECIMAL):
        offset = number(case.weight_offset)
        factors = None if weight is None else [number(w) + offset for w in weight]
        for first in range(0, len(x), case.cols):
            row = [number(v) for v in x[first : first + case.cols]]
            squares = (v * v for v in row)
            mean = (sum(squares) if wide else math.fsum(squares)) / case.cols + number(case.eps)
            rstd = 1 / (mean.sqrt() if wide else math.sqrt(mean))
            rstds.append(rstd)
            results = [_rounded(v * rstd, case.dtype) if narrow else {v * rstd} for v in row]
            if factors is not None:
                pairs = zip(results, factors, strict=True)
                results = [{v * factor for v in both} for both, factor in pairs]
            wanted += results
    return x, weight, wanted, rstds


def error_in_ulps(got: float, wanted: set[Number], dtype: str) -> float:
    """How far got is from the nearest right result, in units in the last place of dtype."""
    largest = FORMATS[dtype][2]
    worst = math.inf
    for value in wanted:
        near = float(value)
        if got == value:
            return 0.0
        if abs(near) > largest + ulp(largest, dtype) / 2:
            error = 0.0 if got == math.copysign(math.inf, near) else math.inf
        elif not math.isfinite(got):
            error = math.inf
        else:
            difference = got - near if isinstance(value, float) else float(Decimal(got) - value)
            error = abs(difference) / ulp(near, dtype)
        worst = min(worst, error)
    return worst


def _place(case: Case, framework: Framework, values: list[float]) -> Any:
    """An array of the case's layout that holds the values, or NaN where there are none."""
    layout = LAYOUTS[case.layout]
    flat = layout.fill(values, case.rows, case.cols)
    storage = framework.array(flat, layout.storage(case.rows, case.cols), case.dtype)
    return layout.view(framework, storage, case.cols)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Runs one case: the worst error in ulps, and what is allowed."""
    x_values, weight_values, wanted, rstds = expected(case)
    x = _place(case, framework, x_values)
    weight = None
    if weight_values is not None:
        weight_dtype = case.dtype if case.weight == "same" else case.weight
        weight = framework.array(weight_values, (case.cols,), weight_dtype)
    options: dict[str, Any] = {"eps": case.eps, "rounding": case.rounding}
    options |= {"weight_offset": case.weight_offset, **framework.call_options}
    if case.form == "out":
        options["out"] = _place(case, framework, [])
    elif case.form == "in place":
        options["out"] = x
    shape = tuple(x.shape)
    with_rstd = case.form == "returned"
    result = membound.rms_norm(x, weight, return_rstd=with_rstd, **options)
    y, rstd = result if with_rstd else (result, None)
    if tuple(y.shape) != shape:
        raise AssertionError(f"the result has shape {tuple(y.shape)}, x has {shape}")
    got = framework.values(y)
    worst = max(error_in_ulps(g, w, case.dtype) for g, w in zip(got, wanted, strict=True))
    if rstd is not None:
        kind = "float64" if case.dtype == "float64" else "float32"
        got_rstd = zip(framework.values(rstd), rstds, strict=True)
        if max(error_in_ulps(g, {w}, kind) for g, w in got_rstd) > ALLOWED[kind]:
            worst = math.inf
    return worst, ALLOWED[case.dtype]
