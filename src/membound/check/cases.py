# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of the checks: which shapes, layouts, options and values; the arrays of a case."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from membound._frameworks import Framework
from membound._ulps import FORMATS
from membound.oracle import Expected, np, round_to


def available_forms(framework: Framework, forms: Sequence[str]) -> Sequence[str]:
    """The forms of a call that a framework has; the first returns new arrays."""
    if framework.name == "memoryview":
        return forms[1:]
    return forms if framework.takes_out else forms[:1]


def transposed_or_not(framework: Framework) -> tuple[bool, ...]:
    return (False, True) if framework.strided else (False,)


@dataclass(frozen=True)
class Product:
    """An op whose cases are a product of axes; without thorough every step-th of them."""

    name: str
    run: Callable[[Any, Framework], tuple[float, float]]
    case: type
    # The values of the case's fields after dtype, of a framework and thorough.
    axes: Callable[[Framework, bool], Sequence[Sequence[Any]]]
    step: int = 1

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Any]:
        if framework.call_options:  # it takes no device
            return
        for at, fields in enumerate(itertools.product(*self.axes(framework, thorough))):
            if thorough or at % self.step == 0:
                yield self.case(dtype, *fields)


@dataclass(frozen=True)
class Layout:
    """Where a rows x cols matrix lies in a larger buffer; all other elements are NaN."""

    order: tuple[int, ...] = (0, 1)  # the buffer's axes, outermost first; three split the rows
    step: int = 1  # the matrix has every step-th row of the buffer
    before: int = 0  # elements of each buffer row before and after the matrix
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

    def view(self, framework: Framework, storage: Any, cols: int) -> Any:
        """The matrix inside an array of the storage's shape."""
        if self.contiguous:
            return storage
        ordered = framework.transpose(storage, tuple(map(self.order.index, range(len(self.order)))))
        return ordered[..., :: self.step, self.before : self.before + cols]

    def array(self, framework: Framework, values: Any, rows: int, cols: int, dtype: str) -> Any:
        """An array of the framework that holds the values of a matrix."""
        buffer = np.full(self.storage(rows, cols), np.nan)
        view = self.view(Framework(), buffer, cols)
        view[...] = np.reshape(values, view.shape)
        storage = framework.array(buffer.ravel().tolist(), buffer.shape, dtype)
        return self.view(framework, storage, cols)


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
# One for each GPU tile for long rows.
GPU_WIDTHS = (16384, 65536, 131072)
ROUNDINGS = ("rounding", ("once", "before_weight"))
BIASES = ("bias", ("none", "float32"))  # which every framework has
SPECIAL = ("zeros", "largest", "smallest", "every magnitude")
# What formulas in float64 are not good enough for if the op has float64 too: where there is no long
# double, the squares of these values leave the range, and erfc is steep where its argument rounds.
NEED_LONG_DOUBLE = (*SPECIAL[1:], "gelu")
if float(np.finfo(np.longdouble).max) > FORMATS["float64"][2]:
    NEED_LONG_DOUBLE = ()


@dataclass(frozen=True)
class Case:
    dtype: str
    rows: int
    cols: int
    layout: str = "contiguous"
    weight: str = "same"
    bias: str = "none"
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    values: str = "normal"
    form: str = "returned"
    norm_before_gate: bool = True

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout}, weight {self.weight}, "
            f"bias {self.bias}, {self.rounding}, offset {self.weight_offset:g}, "
            f"eps {self.eps:g}, {self.values} values, {self.form}"
            + ("" if self.norm_before_gate else ", gate first")
        )

    @property
    def by_head(self) -> bool:
        return self.weight == "by head"

    @property
    def heads(self) -> int:
        """How many rows the weight has."""
        return LAYOUTS[self.layout].shape(self.rows, self.cols)[-2] if self.by_head else 1


def all_cases(
    framework: Framework,
    dtype: str,
    thorough: bool,
    forms: Sequence[str],
    varied: tuple[str, Sequence[str]] = ROUNDINGS,
    special: Sequence[str] = SPECIAL,
) -> Iterator[Case]:
    """Cross layouts with weights and the varied options, and cycle or draw the rest.

    thorough: the whole product. Weights of several heads follow, and two rows of each special kind
    of values.
    """
    layouts = [name for name, layout in LAYOUTS.items() if framework.strided or layout.contiguous]
    weights = [name for name in WEIGHTS if name in ("none", "same") or name in framework.dtypes]
    main = itertools.product(layouts, weights, varied[1])
    rest = list(itertools.product(WIDTHS, (0.0, 1.0), forms))
    source = random.Random(20251121)
    widths = itertools.cycle(WIDTHS)
    for layout, weight, choice in main:
        drawn = (next(widths), source.choice((0.0, 1.0)), source.choice(forms))
        for cols, offset, form in rest if thorough else [drawn]:
            more: dict[str, Any] = {varied[0]: choice, "form": form}
            more["weight_offset"] = 0.0 if weight == "none" else offset
            yield Case(dtype, 4 if cols <= 512 else 2, cols, layout, weight, **more)
    for layout, cols in (("3-D", 64), ("3-D", 257), ("3-D permuted", 33)):
        if layout in layouts:
            last: dict[str, Any] = {varied[0]: varied[1][-1], "form": forms[0]}
            yield Case(dtype, 6, cols, layout, "by head", **last)
    for values in special:
        if dtype == "float64" and values in NEED_LONG_DOUBLE:
            continue
        eps = 0.0 if values != "zeros" else 1e-6
        yield Case(dtype, 2, 515, eps=eps, values=values, form=forms[0])
    if framework.device != "cpu":
        for cols in GPU_WIDTHS:
            yield Case(dtype, 2, cols, form=forms[0])


def both_orders(cases: Iterator[Case]) -> Iterator[Case]:
    """Draw whether the norm precedes the gate; it always does where x times the gate overflows."""
    source = random.Random(20251121)
    for case in cases:
        first = source.random() < 0.5 or case.values not in ("normal", "zeros")
        yield dataclasses.replace(case, norm_before_gate=first)


def generator(*what: Any) -> np.random.Generator:
    """Random numbers that depend on what they are for alone."""
    return np.random.default_rng(zlib.crc32(" ".join(map(str, what)).encode()))


def draw(case: Case, name: str = "x", values: str = "") -> np.ndarray:
    """Draw an array of the case's values, or of the given kind; name seeds it apart from others."""
    rng = generator(case.rows, case.cols, case.dtype, case.values, name)
    shape = LAYOUTS[case.layout].shape(case.rows, case.cols)
    _, smallest, largest = FORMATS[case.dtype]
    x = rng.standard_normal(shape)
    values = values or case.values
    if values == "zeros":
        x = np.zeros(shape)
    elif values == "largest":
        x = np.copysign(largest * rng.uniform(0.5, 1.0, shape), x)
    elif values == "smallest":
        x = np.ldexp(x, smallest + 2)
    elif values == "every magnitude":
        x = np.ldexp(np.copysign(1.0, x), rng.integers(smallest + 2, -smallest, shape))
    elif values == "far mean":
        x = 1000.0 + x
    return round_to(x, case.dtype)


def draw_residual(case: Case) -> np.ndarray:
    """Draw the residual: of the size of x where that varies, and far smaller than huge values."""
    other = "every magnitude" if case.values == "every magnitude" else "normal"
    return draw(case, "residual", other)


def weight_dtype(case: Case) -> str:
    return case.dtype if case.weight in ("same", "by head", "none") else case.weight


def _columns(case: Case) -> tuple[int, ...]:
    return (case.heads, case.cols) if case.by_head else (case.cols,)


def draw_weight(case: Case) -> np.ndarray | None:
    if case.weight == "none":
        return None
    # Positive: near -weight_offset the float32 value of a float64 weight would cancel.
    values = generator(case.cols, case.dtype, "weight").uniform(0.5, 2.0, _columns(case))
    return round_to(values, weight_dtype(case))


def draw_bias(case: Case) -> np.ndarray | None:
    if case.bias == "none":
        return None
    values = generator(case.cols, case.dtype, "bias").standard_normal(_columns(case))
    return round_to(values, case.bias)


def to_array(case: Case, framework: Framework, values: Any = np.nan) -> Any:
    """Make an array in the case's layout that holds the values."""
    layout = LAYOUTS[case.layout]
    values = np.broadcast_to(values, layout.shape(case.rows, case.cols))
    return layout.array(framework, values, case.rows, case.cols, case.dtype)


def plain(framework: Framework, values: Any, dtype: str) -> Any:
    """A contiguous array that holds the values, if there are any."""
    if values is None:
        return None
    return framework.array(np.ravel(values).tolist(), np.shape(values), dtype)


def matrix(framework: Framework, values: np.ndarray, dtype: str, transposed: bool) -> Any:
    """An array of two axes that holds the values."""
    layout = LAYOUTS["transposed" if transposed else "contiguous"]
    return layout.array(framework, values, *values.shape, dtype)


def target(case: Any, framework: Framework, name: str, given: Any) -> dict[str, Any]:
    """The argument of a call that writes to a new array, or in place to the given one."""
    if case.form == "returned":
        return {}
    if case.form == "in place":
        return {name: given}
    return {name: plain(framework, np.zeros(tuple(given.shape)), case.dtype)}


def held(framework: Framework, x: Any) -> np.ndarray:
    """The values of an array."""
    return np.array(framework.values(x)).reshape(tuple(x.shape))


def compare(
    framework: Framework, dtype: str, results: Sequence[tuple[Any, Expected]]
) -> tuple[float, float]:
    """The largest error in ulps, and the limit; infinite if a result of another dtype is wrong."""
    errors = [0.0]
    for got, right in results:
        found = held(framework, got)
        if found.shape != right.values.shape:
            raise AssertionError(f"the result has shape {found.shape}, not {right.values.shape}")
        error = float(right.errors(found).max(initial=0.0))
        if right.dtype != dtype:  # the table's figures are in ulps of the case's dtype
            error = 0.0 if error <= right.allowed[right.dtype] else math.inf
        errors.append(error)
    limit = results[0][1].allowed[dtype] if results else 0.0
    return float(np.max(errors)), limit
