# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of the course: shape, strides and offset over a handle of a back end, all float32."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from membound.needle import ndarray_backend_cpu, ndarray_backend_numpy

Axis = int | Sequence[int] | None


class BackendDevice:
    """A device by the name that it prints, and the module of its back end."""

    def __init__(self, name: str, mod: ModuleType | None) -> None:
        self.name, self.mod = name, mod

    def __eq__(self, other: object) -> bool:
        """Whether the back end is the same, by whichever name."""
        return isinstance(other, BackendDevice) and (self.name == other.name or self._is(other))

    def _is(self, other: BackendDevice) -> bool:
        return self.mod is not None and self.mod is other.mod

    def __hash__(self) -> int:
        return hash(id(self.mod) if self.mod else self.name)

    def __repr__(self) -> str:
        return f"{self.name}()"

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "mod"):  # not there before __init__, as in a copy
            raise AttributeError(name)
        return getattr(self.mod, name)

    def enabled(self) -> bool:
        """Whether this machine has the device."""
        return self.mod is not None

    def randn(self, *shape: int, dtype: str = "float32") -> NDArray:
        """Return normal random numbers of numpy.random's global generator."""
        import numpy

        return array(numpy.random.randn(*shape), dtype, self)  # noqa: NPY002 - as the course

    def rand(self, *shape: int, dtype: str = "float32") -> NDArray:
        """Return uniform random numbers of numpy.random's global generator."""
        import numpy

        return array(numpy.random.rand(*shape), dtype, self)  # noqa: NPY002 - as the course

    def one_hot(self, n: int, i: Any, dtype: str = "float32") -> NDArray:
        """Return rows i of the identity of size n."""
        import numpy

        return array(numpy.eye(n, dtype=dtype)[i], dtype, self)

    def empty(self, shape: Sequence[int], dtype: str | None = "float32") -> NDArray:
        """Return an array that is not set."""
        _check_dtype("empty", dtype)
        return NDArray.make(shape, device=self)

    def full(self, shape: Sequence[int], fill_value: float, dtype: str | None = None) -> NDArray:
        """Return an array of one number."""
        result = self.empty(shape, dtype)
        result.fill(fill_value)
        return result


def cpu() -> BackendDevice:
    """Return the CPU."""
    return BackendDevice("cpu", ndarray_backend_cpu)


def cuda() -> BackendDevice:
    """Return the GPU; ``enabled()`` says whether there is one."""
    try:
        from membound.needle import ndarray_backend_cuda
    except ImportError:
        return BackendDevice("cuda", None)
    return BackendDevice("cuda", ndarray_backend_cuda)


def cpu_numpy() -> BackendDevice:
    """Return the device of the NumPy back end, by the homework's name."""
    return BackendDevice("cpu_numpy", ndarray_backend_numpy)


def numpy_device() -> BackendDevice:
    """Return the device of the NumPy back end, by the lecture's name."""
    return BackendDevice("numpy_device", ndarray_backend_numpy)


def default_device() -> BackendDevice:
    """Return the device of arrays that name none."""
    return cpu_numpy()


def all_devices() -> list[BackendDevice]:
    """Return the devices that may be there."""
    return [cpu(), cuda(), cpu_numpy()]


def _check_dtype(function: str, dtype: str | None) -> None:
    if dtype not in (None, "float32"):
        raise AssertionError(f"{function}: argument 'dtype' must be 'float32', got {dtype!r}")


def _check(condition: bool, text: str) -> None:
    """Raise what the course's assertions raise, with -O too."""
    if not condition:
        raise AssertionError(text)


class NDArray:
    """A view of a handle: ``_handle``, ``_shape``, ``_strides``, ``_offset`` and ``_device``."""

    _shape: tuple[int, ...]
    _strides: tuple[int, ...]
    _offset: int
    _device: BackendDevice
    _handle: Any
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, other: Any, device: BackendDevice | None = None) -> None:
        """Copy an NDArray, a NumPy array or what numpy.array takes."""
        if isinstance(other, NDArray):
            found = other.to(device if device is not None else other.device)
            self._init(found + 0.0 if found._handle is other._handle else found)
            return
        import numpy

        values = numpy.ascontiguousarray(other, dtype=numpy.float32)
        made = self.make(numpy.shape(other), device=device)
        made.device.from_numpy(values, made._handle)
        self._init(made)

    def _init(self, other: NDArray) -> None:
        self._shape, self._strides, self._offset = other._shape, other._strides, other._offset
        self._device, self._handle = other._device, other._handle

    @staticmethod
    def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of an array in C order."""
        return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    @staticmethod
    def make(
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        device: BackendDevice | None = None,
        handle: Any = None,
        offset: int = 0,
    ) -> NDArray:
        """Return a view of a handle, or of a new one that is not set."""
        result = NDArray.__new__(NDArray)
        result._shape = tuple(shape)
        result._strides = NDArray.compact_strides(shape) if strides is None else tuple(strides)
        result._offset = offset
        result._device = default_device() if device is None else device
        if handle is None:
            handle = result._device.Array(math.prod(shape))
        result._handle = handle
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance of neighbours along each axis, in elements."""
        return self._strides

    @property
    def device(self) -> BackendDevice:
        """The device of the handle."""
        return self._device

    @property
    def dtype(self) -> str:
        """Always "float32"."""
        return "float32"

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def flat(self) -> NDArray:
        """The elements as a vector."""
        return self.reshape((self.size,))

    def __repr__(self) -> str:
        return f"NDArray({self}, device={self.device})"

    def __str__(self) -> str:
        return str(self.numpy())

    def fill(self, value: float) -> None:
        """Write one number to all of the handle."""
        self._device.fill(self._handle, value)

    def to(self, device: BackendDevice) -> NDArray:
        """Return a copy on another device, or self."""
        return self if device == self.device else NDArray(self.numpy(), device=device)

    def numpy(self) -> Any:
        """Return a NumPy array."""
        return self.device.to_numpy(self._handle, self.shape, self.strides, self._offset)

    def is_compact(self) -> bool:
        """Whether the elements are all of the handle, in C order."""
        return self._strides == self.compact_strides(self._shape) and self.size == self._handle.size

    def compact(self) -> NDArray:
        """Return a copy in C order, or self if it is that already."""
        if self.is_compact():
            return self
        result = NDArray.make(self.shape, device=self.device)
        arguments = (self.shape, self.strides, self._offset)
        self.device.compact(self._handle, result._handle, *arguments)
        return result

    def as_strided(self, shape: Sequence[int], strides: Sequence[int]) -> NDArray:
        """Return a view with other strides."""
        _check(len(shape) == len(strides), f"as_strided: {shape} and {strides} differ in length")
        return self._view(shape, strides, self._offset)

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> NDArray:
        return NDArray.make(shape, strides, self.device, self._handle, offset)

    def reshape(self, new_shape: Sequence[int]) -> NDArray:
        """Return a view in another shape; ValueError unless compact and of as many elements."""
        if math.prod(new_shape) != self.size or not self.is_compact():
            raise ValueError(
                f"reshape: expected a compact array and a shape of {self.size} elements, got shape "
                f"{self.shape}, strides {self.strides} and new_shape {new_shape}"
            )
        return self._view(new_shape, self.compact_strides(new_shape), self._offset)

    def permute(self, new_axes: Sequence[int]) -> NDArray:
        """Return a view with the axes in another order."""
        _check(sorted(new_axes) == [*range(self.ndim)], f"permute: got axes {new_axes}")
        shape, strides = ([own[axis] for axis in new_axes] for own in (self.shape, self.strides))
        return self._view(shape, strides, self._offset)

    def broadcast_to(self, new_shape: Sequence[int]) -> NDArray:
        """Return a view that repeats axes of length one."""
        fits = len(new_shape) == self.ndim and all(
            own in (1, wanted) for own, wanted in zip(self.shape, new_shape, strict=True)
        )
        _check(fits, f"broadcast_to: {self.shape} does not broadcast to {new_shape}")
        both = zip(self.shape, self.strides, new_shape, strict=True)
        strides = [0 if own != wanted else stride for own, stride, wanted in both]
        return self._view(new_shape, strides, self._offset)

    def process_slice(self, sl: slice, dim: int) -> slice:
        """Return a slice with start, stop and step, of one axis."""
        start, stop, step = sl.indices(self.shape[dim])
        _check(stop > start, "Start must be less than stop")
        _check(step > 0, "No support for negative increments")
        return slice(start, stop, step)

    def __getitem__(self, idxs: Any) -> NDArray:
        """Return a view by a slice or an integer for each axis; an integer keeps its axis."""
        key = idxs if isinstance(idxs, tuple) else (idxs,)
        _check(len(key) == self.ndim, "Need indexes equal to number of dimensions")
        slices = [
            self.process_slice(one if isinstance(one, slice) else self._one(one, axis), axis)
            for axis, one in enumerate(key)
        ]
        shape = [len(range(one.start, one.stop, one.step)) for one in slices]
        both = [*zip(self.strides, slices, strict=True)]
        offset = self._offset + builtins.sum(stride * one.start for stride, one in both)
        return self._view(shape, [stride * one.step for stride, one in both], offset)

    def _one(self, index: int, axis: int) -> slice:
        if not -self.shape[axis] <= index < self.shape[axis]:
            raise IndexError(f"index {index} is out of range for axis {axis} of {self.shape}")
        return slice(index % self.shape[axis], index % self.shape[axis] + 1, 1)

    def __setitem__(self, idxs: Any, other: Any) -> None:
        """Write an array of as many elements, or a number, to a view."""
        view = self[idxs]
        place = (view._handle, view.shape, view.strides, view._offset)
        if isinstance(other, NDArray):
            _check(view.size == other.size, f"cannot write {other.shape} to {view.shape}")
            self.device.ewise_setitem(other.compact()._handle, *place)
        else:
            self.device.scalar_setitem(view.size, other, *place)

    def ewise_or_scalar(
        self, other: Any, ewise_func: Callable[..., None], scalar_func: Callable[..., None]
    ) -> NDArray:
        """Return a function of this and an array of one shape, or a number."""
        result = NDArray.make(self.shape, device=self.device)
        if isinstance(other, NDArray):
            _check(self.shape == other.shape, "operation needs two equal-sized arrays")
            ewise_func(self.compact()._handle, other.compact()._handle, result._handle)
        else:
            scalar_func(self.compact()._handle, other, result._handle)
        return result

    def _binary(self, name: str, other: Any) -> NDArray:
        ewise, scalar = (getattr(self.device, f"{kind}_{name}") for kind in ("ewise", "scalar"))
        return self.ewise_or_scalar(other, ewise, scalar)

    def _unary(self, name: str) -> NDArray:
        result = NDArray.make(self.shape, device=self.device)
        getattr(self.device, name)(self.compact()._handle, result._handle)
        return result

    def __add__(self, other: Any) -> NDArray:
        return self._binary("add", other)

    def __sub__(self, other: Any) -> NDArray:
        return self + (-other)

    def __rsub__(self, other: Any) -> NDArray:
        return other + (-self)

    def __mul__(self, other: Any) -> NDArray:
        return self._binary("mul", other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> NDArray:
        return self._binary("div", other)

    def __neg__(self) -> NDArray:
        return self * (-1)

    def __pow__(self, other: float) -> NDArray:
        result = NDArray.make(self.shape, device=self.device)
        self.device.scalar_power(self.compact()._handle, other, result._handle)
        return result

    __power__ = __pow__  # the lecture's name

    def maximum(self, other: Any) -> NDArray:
        """Return the greater one of each element and another array's, or a number."""
        return self._binary("maximum", other)

    def __eq__(self, other: object) -> NDArray:  # type: ignore[override]
        """Return 1.0 where elements are equal, else 0.0, as all comparisons do."""
        return self._binary("eq", other)

    def __ge__(self, other: Any) -> NDArray:
        return self._binary("ge", other)

    def __ne__(self, other: object) -> NDArray:  # type: ignore[override]
        return 1 - (self == other)

    def __gt__(self, other: Any) -> NDArray:
        return (self >= other) * (self != other)

    def __lt__(self, other: Any) -> NDArray:
        return 1 - (self >= other)

    def __le__(self, other: Any) -> NDArray:
        return 1 - (self > other)

    def log(self) -> NDArray:
        """Return natural logarithms."""
        return self._unary("ewise_log")

    def exp(self) -> NDArray:
        """Return exponentials."""
        return self._unary("ewise_exp")

    def tanh(self) -> NDArray:
        """Return hyperbolic tangents."""
        return self._unary("ewise_tanh")

    def __matmul__(self, other: NDArray) -> NDArray:
        """Return the product of two matrices."""
        _check(self.ndim == 2 and other.ndim == 2, "matmul takes matrices")
        _check(self.shape[1] == other.shape[0], f"matmul of {self.shape} and {other.shape}")
        m, n, p = *self.shape, other.shape[1]
        result = NDArray.make((m, p), device=self.device)
        operands = (self.compact()._handle, other.compact()._handle, result._handle)
        self.device.matmul(*operands, m, n, p)
        return result

    def reduce_view_out(self, axis: Axis, keepdims: bool = False) -> tuple[NDArray, NDArray]:
        """Return a view whose last axis is reduced, and the array for the results."""
        if axis is None:
            shape = (1,) * self.ndim if keepdims else (1,)
            view = self.compact().reshape((1,) * (self.ndim - 1) + (self.size,))
            return view, NDArray.make(shape, device=self.device)
        axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        if not axes:
            raise ValueError("Empty axis in reduce")
        _check(len(axes) == 1, "Only support reduction over a single axis")
        (at,) = (one % self.ndim for one in axes)
        rest = [one for one in range(self.ndim) if one != at]
        kept = [1 if one == at else length for one, length in enumerate(self.shape)]
        shape = tuple(kept if keepdims else (self.shape[one] for one in rest))
        return self.permute((*rest, at)), NDArray.make(shape, device=self.device)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> NDArray:
        """Return the sum over one axis, or over all."""
        return self._reduced("reduce_sum", axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> NDArray:
        """Return the greatest element over one axis, or of all."""
        return self._reduced("reduce_max", axis, keepdims)

    def _reduced(self, name: str, axis: Axis, keepdims: bool) -> NDArray:
        view, result = self.reduce_view_out(axis, keepdims)
        getattr(self.device, name)(view.compact()._handle, result._handle, view.shape[-1])
        return result


def array(a: Any, dtype: str | None = "float32", device: BackendDevice | None = None) -> NDArray:
    """Return a copy of an array or of what numpy.array takes."""
    _check_dtype("array", dtype)
    return NDArray(a, device=device)


def empty(
    shape: Sequence[int], dtype: str | None = "float32", device: BackendDevice | None = None
) -> NDArray:
    """Return an array that is not set."""
    return (device or default_device()).empty(shape, dtype)


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: str | None = "float32",
    device: BackendDevice | None = None,
) -> NDArray:
    """Return an array of one number."""
    return (device or default_device()).full(shape, fill_value, dtype)


def broadcast_to(array: NDArray, new_shape: Sequence[int]) -> NDArray:
    """Return array.broadcast_to(new_shape)."""
    return array.broadcast_to(new_shape)


def reshape(array: NDArray, new_shape: Sequence[int]) -> NDArray:
    """Return array.reshape(new_shape)."""
    return array.reshape(new_shape)


def maximum(a: NDArray, b: Any) -> NDArray:
    """Return a.maximum(b)."""
    return a.maximum(b)


def log(a: NDArray) -> NDArray:
    """Return a.log()."""
    return a.log()


def exp(a: NDArray) -> NDArray:
    """Return a.exp()."""
    return a.exp()


def tanh(a: NDArray) -> NDArray:
    """Return a.tanh()."""
    return a.tanh()


def sum(a: NDArray, axis: Axis = None, keepdims: bool = False) -> NDArray:
    """Return a.sum(axis, keepdims)."""
    return a.sum(axis=axis, keepdims=keepdims)
