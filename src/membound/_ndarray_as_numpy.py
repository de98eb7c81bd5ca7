# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the formulas of `membound.oracle` and `check` take of NumPy, made of `membound.ndarray`.

It stands in where NumPy is not installed. It is for them alone: arrays on the CPU, with NumPy's
names and methods. A long double is a float64 here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from membound import ndarray as nd

inf, nan = math.inf, math.nan


class DType:
    """A dtype, which makes a number of an argument."""

    def __init__(self, name: str):
        self.name, self.type = name, self

    def __call__(self, value: Any) -> Array:
        return asarray(value, self)

    def __eq__(self, other: object) -> bool:
        return self.name == _name(other)

    def __hash__(self) -> int:
        return hash(self.name)


float32, float64, int64 = map(DType, ("float32", "float64", "int64"))
longdouble = float64


def _name(dtype: Any) -> str:
    """The name of a dtype; integers of any size have 64 bits."""
    if isinstance(dtype, str):
        return dtype
    return {bool: "bool", object: "int64"}.get(dtype) or dtype.name


class Array:
    """An NDArray with NumPy's methods."""

    def __init__(self, own: nd.NDArray):
        self.own = own

    shape = property(lambda self: self.own.shape)
    ndim = property(lambda self: self.own.ndim)
    size = property(lambda self: self.own.size)
    dtype = property(lambda self: DType(self.own.dtype.name))
    T = property(lambda self: Array(self.own.T))
    flat = property(lambda self: Array(self.own.reshape_view((-1,))))

    def __getitem__(self, key: Any) -> Array:
        return Array(self.own[_bare(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.own[_bare(key)] = _bare(value)

    def __len__(self) -> int:
        return len(self.own)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist() if self.ndim == 1 else map(Array, self.own))

    def __bool__(self) -> bool:
        return bool(self.own)

    def __float__(self) -> float:
        return float(self.own)

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.own.tolist()

    def copy(self) -> Array:
        return Array(self.own.copy())

    def astype(self, dtype: Any) -> Array:
        return Array(nd.astype(self.own, _name(dtype)))

    def ravel(self) -> Array:
        return self.reshape(-1)

    def reshape(self, *shape: Any) -> Array:
        return Array(self.own.reshape(shape[0] if isinstance(shape[0], tuple) else shape))

    def transpose(self, *axes: Any) -> Array:
        return Array(self.own.permute_dims(axes[0] if isinstance(axes[0], tuple) else axes))

    def max(self, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Array:
        found = Array(nd.max(self.own, axis=axis, keepdims=keepdims))
        return found if initial is None else maximum(found, initial)


def _bare(value: Any) -> Any:
    """What NDArray takes in place of a value: in keys and lists, too."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_bare, value))
    return value.own if isinstance(value, Array) else value


def _as_here(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of NDArrays as one of arrays."""

    def call(*arguments: Any, **options: Any) -> Array:
        return Array(function(*map(_bare, arguments), **options))

    return call


def _reduction(name: str) -> Callable[..., Array]:
    function = getattr(nd, name)

    def reduced(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        return Array(function(x.own, axis=axis, keepdims=keepdims))

    return reduced


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(nd.NDArray, name)

    def applied(*operands: Any) -> Any:
        found = function(*map(_bare, operands))
        return found if found is NotImplemented else Array(found)

    return applied


for _one in ("all", "mean", "sum"):
    setattr(Array, _one, _reduction(_one))
for _one in ("add", "sub", "mul", "truediv", "mod", "pow", "and", "or"):
    setattr(Array, f"__{_one}__", _operator(f"__{_one}__"))
    setattr(Array, f"__r{_one}__", _operator(f"__r{_one}__"))
for _one in ("neg", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_one}__", _operator(f"__{_one}__"))

# NumPy's names of the standard's functions.
_NAMES = {"arctan": "atan", "rint": "round"}


def __getattr__(name: str) -> Callable[..., Array]:
    return _as_here(getattr(nd, _NAMES.get(name, name)))


mean, abs = Array.mean, operator.abs  # noqa: A001 - as NumPy names it
minimum = _as_here(nd.minimum)
minimum.reduce = functools.partial(functools.reduce, minimum)
maximum = _as_here(nd.maximum)


def errstate(**_: str) -> Any:
    """No operation here warns."""
    return contextlib.nullcontext()


def asarray(values: Any, dtype: Any = None) -> Array:
    if isinstance(values, list) and any(isinstance(one, Array) for one in values):
        return stack(values, 0)
    found = Array(nd.asarray(_bare(values)))
    return found if dtype is None else found.astype(dtype)


array = asarray


def full(shape: Any, value: Any, dtype: Any = float64) -> Array:
    return Array(nd.full(shape, value, dtype=_name(dtype)))


def zeros(shape: Any, dtype: Any = float64) -> Array:
    return full(shape, 0, dtype)


empty = zeros


def ones(shape: Any, dtype: Any = float64) -> Array:
    return full(shape, 1, dtype)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    return Array(nd.stack(_bare(arrays), axis=axis))


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    return Array(nd.concat(_bare(arrays), axis=axis))


def take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    return Array(nd.take_along_axis(x.own, indices.own, axis=axis))


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Array:
    return Array(asarray(x).own.broadcast_to(shape))


def reshape(x: Any, shape: tuple[int, ...]) -> Array:
    return asarray(x).reshape(shape)


def ravel(x: Any) -> Array:
    return asarray(x).ravel()


def shape(x: Any) -> tuple[int, ...]:
    return asarray(x).shape


def max(x: Any) -> Array:  # noqa: A001 - as NumPy names it
    return asarray(x).max()


def flatnonzero(x: Array) -> Array:
    return Array(nd.nonzero(x.own.reshape((-1,)))[0])


def array_equal(x: Array, y: Array) -> bool:
    return x.shape == y.shape and bool((x == y).all())


def nan_to_num(x: Array, nan: float = 0.0) -> Array:
    return Array(nd.where(nd.isnan(x.own), nan, x.own))


def finfo(dtype: Any) -> Any:
    return nd.finfo(_name(dtype))


def vectorize(function: Callable[..., Any], **_: Any) -> Callable[..., Array]:
    """A function of numbers as one of arrays, or of an array and a number."""

    def each(*given: Any) -> Array:
        arrays = [Array(one) for one in nd.broadcast_arrays(*(asarray(one).own for one in given))]
        numbers = map(function, *(one.ravel().tolist() for one in arrays))
        return asarray(list(numbers)).reshape(arrays[0].shape)

    return each


ldexp = vectorize(math.ldexp)


def frexp(x: Array) -> tuple[None, Array]:
    return None, vectorize(lambda number: math.frexp(number)[1])(x)


class _Random:
    """NumPy's methods on the generator of another library."""

    def __init__(self, seed: int):
        self.own = nd.Generator(seed)
        self.standard_normal = _as_here(self.own.normal)
        self.random = _as_here(self.own.uniform)
        self.integers = _as_here(self.own.integers)

    def uniform(self, low: float, high: float, shape: Any) -> Array:
        return Array(self.own.uniform(shape, low=low, high=high))


random = types.SimpleNamespace(default_rng=_Random)
