# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the checks of all norms share: cases, layouts, random values and exact arithmetic.

34-digit decimal arithmetic for float64, Python's floats for the rest, and no other package.
"""

from __future__ import annotations

import array
import dataclasses
import decimal
import itertools
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import FORMATS, RANGE, sum_slack, ulp

_DECIMAL = decimal.Context(prec=34, Emin=-99999, Emax=99999)
_NAN = float("nan")

# A product of two float32 values is exact in a Python float, and math.fsum adds exactly: enough for
# every dtype but float64, which gets 34 decimal digits.
Number = float | Decimal


def number_type(dtype: str) -> Callable[[float], Number]:
    return Decimal if dtype == "float64" else float


def exactly() -> Any:
    """The context that Decimal needs."""
    return decimal.localcontext(_DECIMAL)


def total(values: Sequence[Number] | Iterator[Number], dtype: str) -> Number:
    return sum(values, Decimal(0)) if dtype == "float64" else math.fsum(values)


def statistics_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def round_to(values: Sequence[float], dtype: str) -> list[float]:
    """Each value to the nearest one of dtype."""
    if dtype == "float64":
        return list(values)
    if dtype == "float16":
        code = f"{len(values)}e"
        return list(struct.unpack(code, struct.pack(code, *values)))
    single = array.array("f", values)
    if dtype == "bfloat16":
        bits = memoryview(single).cast("B").cast("I")
        for at, word in enumerate(bits):
            bits[at] = word + 0x7FFF + (word >> 16 & 1) & 0xFFFF0000
    return single.tolist()


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

    def fill(self, values: Sequence[float], rows: int, cols: int) -> list[float]:
        """The buffer's elements; values are the matrix's, in C order."""
        storage = self.storage(rows, cols)
        strides = {axis: math.prod(storage[at + 1 :]) for at, axis in enumerate(self.order)}
        *leading, inner, last = (strides[axis] for axis in range(len(storage)))
        steps = (*leading, inner * self.step)
        flat = [_NAN] * math.prod(storage)
        for at, to_array in enumerate(itertools.product(*map(range, self.shape(rows, cols)[:-1]))):
            first = sum(index * step for index, step in zip(to_array, steps, strict=True))
            row = values[at * cols : (at + 1) * cols]
            start = first + self.before * last
            flat[start : start + len(row) * last : last] = row
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
# One for each GPU tile for long rows.
GPU_WIDTHS = (16384, 65536, 131072)
ROUNDINGS = ("rounding", ("once", "before_weight"))
BIASES = ("bias", ("none", "float32"))  # which every framework has
SPECIAL = ("zeros", "largest", "smallest", "every magnitude")


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

    def of_row(self, columns: Sequence[Any], row: int) -> Sequence[Any]:
        """The slice that belongs to a row's head."""
        at = row % self.heads * self.cols
        return columns[at : at + self.cols]


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


def draw(case: Case, name: str = "x", values: str = "") -> list[float]:
    """Draw a matrix of the case's values, or of the given kind; name seeds it apart from others."""
    source = random.Random(f"{case.rows} {case.cols} {case.dtype} {case.values} {name}")
    values = values or case.values
    count = case.rows * case.cols
    _, smallest, largest = FORMATS[case.dtype]
    normal = normals(source, count)
    x = normal
    if values == "zeros":
        x = [0.0] * count
    elif values == "largest":
        x = [math.copysign(largest * (0.5 + 0.5 * source.random()), v) for v in normal]
    elif values == "smallest":
        x = [math.ldexp(v, smallest + 2) for v in normal]
    elif values == "every magnitude":
        span = range(smallest + 2, -smallest)
        x = [math.ldexp(math.copysign(1.0, v), source.choice(span)) for v in normal]
    elif values == "far mean":
        x = [1000.0 + v for v in normal]
    return round_to(x, case.dtype)


def draw_residual(case: Case) -> list[float]:
    """Draw the residual: of the size of x where that varies, and far smaller than huge values."""
    other = "every magnitude" if case.values == "every magnitude" else "normal"
    return draw(case, "residual", other)


def weight_dtype(case: Case) -> str:
    return case.dtype if case.weight in ("same", "by head") else case.weight


def draw_weight(case: Case) -> list[float] | None:
    if case.weight == "none":
        return None
    source = random.Random(f"{case.cols} {case.dtype} weight")
    # Positive: near -weight_offset the float32 value of a float64 weight would cancel.
    values = [source.uniform(0.5, 2.0) for _ in range(case.heads * case.cols)]
    return round_to(values, weight_dtype(case))


def draw_bias(case: Case) -> list[float] | None:
    if case.bias == "none":
        return None
    source = random.Random(f"{case.cols} {case.dtype} bias")
    return round_to(normals(source, case.heads * case.cols), case.bias)


def factors(case: Case, weight: Sequence[float] | None) -> list[Number]:
    """The weight and its offset, exactly; 1 without a weight."""
    number = number_type(case.dtype)
    if weight is None:
        return [number(1)] * case.cols
    return [number(w) + number(case.weight_offset) for w in weight]


def sigmoid(z: Number) -> Number:
    return 1 / (1 + (-z).exp()) if isinstance(z, Decimal) else 1 / (1 + math.exp(-z))


def error_in_ulps(got: float, wanted: set[Number], dtype: str) -> float:
    """Distance of got from the nearest right result, in units in the last place of dtype."""
    worst, beyond = math.inf, RANGE[dtype]
    for value in wanted:
        if got == value:
            return 0.0
        near = float(value)
        if abs(near) > beyond:
            error = 0.0 if got == math.copysign(math.inf, near) else math.inf
        elif not math.isfinite(got):
            error = math.inf
        else:
            difference = got - near if isinstance(value, float) else float(Decimal(got) - value)
            error = abs(difference) / ulp(near, dtype)
        worst = min(worst, error)
    return worst


def sum_error(got: float, wanted: Number, slack: float, dtype: str) -> float:
    """Like error_in_ulps, less slack: the rounding of terms that cancel."""
    difference = abs(got - float(wanted)) if math.isfinite(got) else math.inf
    if difference <= slack:
        return 0.0
    return max(0.0, error_in_ulps(got, {wanted}, dtype) - slack / ulp(float(wanted), dtype))


@dataclass
class Sums:
    """Right values, and for each the magnitude of the terms that it sums."""

    values: list[Number]
    terms: list[Number]

    def error(self, got: Sequence[float], dtype: str, sums: str = "") -> float:
        """The largest error in ulps of dtype; sums: the dtype that determines the accumulator's."""
        relative = sum_slack(sums or dtype)
        return max(
            sum_error(value, wanted, relative * float(size), dtype)
            for value, wanted, size in zip(got, self.values, self.terms, strict=True)
        )


@dataclass
class Candidates:
    """For each element all results that count as right."""

    values: list[set[Number]]

    def error(self, got: Sequence[float], dtype: str) -> float:
        pairs = zip(got, self.values, strict=True)
        return max(error_in_ulps(value, right, dtype) for value, right in pairs)


def to_array(case: Case, framework: Framework, values: Sequence[float] = ()) -> Any:
    """Make an array in the case's layout that holds the values, or NaN without values."""
    layout = LAYOUTS[case.layout]
    flat = layout.fill(values, case.rows, case.cols)
    storage = framework.array(flat, layout.storage(case.rows, case.cols), case.dtype)
    return layout.view(framework, storage, case.cols)


def parameter_array(
    case: Case, framework: Framework, values: Sequence[float] | None, dtype: str
) -> Any:
    """Make an array for a weight, a bias, or a gradient of one."""
    if values is None:
        return None
    shape = (case.heads, case.cols) if case.by_head else (case.cols,)
    return framework.array(values, shape, dtype)


def require_shape(result: Any, shape: Sequence[int]) -> None:
    if tuple(result.shape) != tuple(shape):
        raise AssertionError(f"the result has shape {tuple(result.shape)}, not {tuple(shape)}")
