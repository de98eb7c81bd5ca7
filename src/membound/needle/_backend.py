# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of a back end over flat float32 arrays, written to `out` as the course has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from membound import ndarray as nd
from membound._core import Device

TILE = 8


class Array:
    """Elements in one block of memory, a handle that views share."""

    device = Device("cpu")

    def __init__(self, size: int) -> None:
        self.data = nd.empty(size, dtype=nd.float32, device=self.device)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.data.size

    def ptr(self) -> int:
        """The address of the first element."""
        return self.data.data_ptr

    @property
    def array(self) -> Any:
        """The elements as a NumPy array on the same memory."""
        import numpy

        return numpy.asarray(self.data)

    def view(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> nd.NDArray:
        """Return the elements from an offset on, in a shape with strides counted in elements."""
        return self.data.as_strided(tuple(shape), tuple(strides), offset)


def to_numpy(a: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Return a copy as a NumPy array with these strides."""
    import numpy

    x = a.view(shape, strides, offset)
    if 0 in strides:  # NumPy's own copies expand what is repeated
        flat = numpy.asarray(a.data.to_device("cpu"))
        in_bytes = tuple(stride * flat.itemsize for stride in strides)
        return numpy.lib.stride_tricks.as_strided(flat.copy()[offset:], tuple(shape), in_bytes)
    return numpy.array(x.to_device("cpu"), order="K")


def from_numpy(a: Any, out: Array) -> None:
    """Copy a NumPy array of as many elements, in C order, to a handle."""
    import numpy

    flat = numpy.ascontiguousarray(a, dtype=numpy.float32).reshape(-1)
    out.data[...] = nd.asarray(flat).to_device(out.device)


def fill(out: Array, val: float) -> None:
    """Write one number everywhere."""
    out.data.fill(float(val))


def compact(
    a: Array, out: Array, shape: Sequence[int], strides: Sequence[int], offset: int
) -> None:
    """Copy a view in C order."""
    out.data.reshape_view(tuple(shape))[...] = a.view(shape, strides, offset)


def ewise_setitem(
    a: Array, out: Array, shape: Sequence[int], strides: Sequence[int], offset: int
) -> None:
    """Write a compact array to a view of out."""
    out.view(shape, strides, offset)[...] = a.data.reshape_view(tuple(shape))


def scalar_setitem(
    size: int,  # noqa: ARG001 - the course passes the number of elements of the shape
    val: float,
    out: Array,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> None:
    """Write one number to a view of out."""
    out.view(shape, strides, offset)[...] = float(val)


def matmul(a: Array, b: Array, out: Array, m: int, n: int, p: int) -> None:
    """Multiply compact matrices (m, n) and (n, p)."""
    out.data.reshape_view((m, p))[...] = a.data.reshape_view((m, n)) @ b.data.reshape_view((n, p))


def matmul_tiled(a: Array, b: Array, out: Array, m: int, n: int, p: int) -> None:
    """Multiply matrices stored as tiles: (m / TILE, n / TILE, TILE, TILE) and so on."""

    def matrix(x: Array, rows: int, columns: int) -> nd.NDArray:
        tiles = x.data.reshape_view((rows // TILE, columns // TILE, TILE, TILE))
        return tiles.permute_dims((0, 2, 1, 3))

    product = matrix(a, m, n).reshape((m, n)) @ matrix(b, n, p).reshape((n, p))
    matrix(out, m, p)[...] = product.reshape_view((m // TILE, TILE, p // TILE, TILE))


def reduce_max(a: Array, out: Array, reduce_size: int) -> None:
    """Write the greatest of each reduce_size consecutive elements."""
    out.data[...] = nd.max(a.data.reshape_view((out.size, reduce_size)), axis=1)


def reduce_sum(a: Array, out: Array, reduce_size: int) -> None:
    """Write the sum of each reduce_size consecutive elements."""
    out.data[...] = nd.sum(a.data.reshape_view((out.size, reduce_size)), axis=1)


def _number(x: nd.NDArray) -> nd.NDArray:
    return nd.astype(x, nd.float32, copy=False)


def _unary(function: Callable[[Any], nd.NDArray]) -> Callable[..., None]:
    def write(a: Array, out: Array) -> None:
        out.data[...] = function(a.data)

    return write


def _pair(function: Callable[[Any, Any], nd.NDArray]) -> Callable[..., None]:
    def write(a: Array, b: Array, out: Array) -> None:
        out.data[...] = _number(function(a.data, b.data))

    return write


def _with_number(function: Callable[[Any, Any], nd.NDArray]) -> Callable[..., None]:
    def write(a: Array, val: float, out: Array) -> None:
        out.data[...] = _number(function(a.data, float(val)))

    return write


_BINARY = {
    "add": nd.add,
    "mul": nd.multiply,
    "div": nd.divide,
    "maximum": nd.maximum,
    "eq": nd.equal,
    "ge": nd.greater_equal,
}


def functions(name: str, device: str) -> dict[str, Any]:
    """Return what the module of a back end defines."""
    own = type("Array", (Array,), {"device": Device(device), "__doc__": Array.__doc__})
    plain = [to_numpy, from_numpy, fill, compact, ewise_setitem, scalar_setitem]
    plain += [matmul, reduce_max, reduce_sum]
    return {
        "__device_name__": name,
        "Array": own,
        **{function.__name__: function for function in plain},
        **{f"ewise_{key}": _pair(function) for key, function in _BINARY.items()},
        **{f"scalar_{key}": _with_number(function) for key, function in _BINARY.items()},
        "scalar_power": _with_number(nd.pow),
        **{f"ewise_{key}": _unary(getattr(nd, key)) for key in ("log", "exp", "tanh")},
    }
