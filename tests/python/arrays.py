# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The same data in every framework, device and layout."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from reference import DTYPES, NUMPY_DTYPES, QUANTISED

import membound

# One seed for all random values; the header of a run prints it, and the variable sets it.


class Framework:
    """One array library on one device; arrays are converted from and to NumPy."""

    dtypes = DTYPES
    quantised = tuple(QUANTISED)  # the device of new arrays
    strided = True
    negative_strides = False
    takes_out = True
    compiles = False  # compiles for each new shape
    options: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    def array(self, x: np.ndarray) -> Any:
        raise NotImplementedError

    def numpy(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape)

    def permute(self, x: Any, axes: list[int]) -> Any:
        return x.transpose(axes)


class NumPy(Framework):
    negative_strides = True

    def __init__(self, device: str | None = None):
        self.options = {"device": device} if device else {}

    def array(self, x):
        return x.copy()

    def numpy(self, x):
        assert type(x) is np.ndarray
        return x

    def broadcast_to(self, x, shape):
        return np.broadcast_to(x, shape)


class Torch(Framework):
    def __init__(self, device: str):
        self.torch = importlib.import_module("torch")
        self.device = device

    def array(self, x):
        bits = np.array(x)
        if x.dtype.isbuiltin != 1:  # one of ml_dtypes'
            bits = bits.view(f"i{x.itemsize}")
        return self.torch.from_numpy(bits).view(getattr(self.torch, x.dtype.name)).to(self.device)

    def numpy(self, x):
        assert type(x) is self.torch.Tensor
        assert str(x.device) == self.device
        x = x.detach().cpu().contiguous()
        name = str(x.dtype).removeprefix("torch.")
        foreign = NUMPY_DTYPES["bfloat16"] if name == "bfloat16" else QUANTISED.get(name)
        if foreign is None:
            return x.numpy()
        return x.view(getattr(self.torch, f"int{8 * foreign.itemsize}")).numpy().view(foreign)

    def permute(self, x, axes):
        return x.permute(axes)


class Jax(Framework):
    strided = False
    takes_out = False
    compiles = True

    def __init__(self, platform: str):
        # Otherwise jax reserves most of the GPU's memory, which the other frameworks need too.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        try:
            self.device = self.jax.devices(platform)[0]
        except RuntimeError as error:
            pytest.skip(f"jax has no {platform}: {error}")

    def array(self, x):
        return self.jax.device_put(x, self.device)

    def numpy(self, x):
        assert isinstance(x, self.jax.Array)
        assert x.devices() == {self.device}
        return np.asarray(x)


class CuPy(Framework):
    dtypes = ("float16", "float32", "float64")
    quantised = ("int8",)
    negative_strides = True

    def __init__(self):
        self.cupy = importlib.import_module("cupy")

    def array(self, x):
        return self.cupy.asarray(x)

    def numpy(self, x):
        assert type(x) is self.cupy.ndarray
        return x.get()

    def broadcast_to(self, x, shape):
        return self.cupy.broadcast_to(x, shape)


_MAKE: dict[str, tuple[str, Callable[[], Framework]]] = {
    "numpy": ("numpy", NumPy),
    "torch-cpu": ("torch", lambda: Torch("cpu")),
    "jax-cpu": ("jax", lambda: Jax("cpu")),
    "numpy-cuda": ("numpy", lambda: NumPy("cuda")),
    "torch-cuda": ("torch", lambda: Torch("cuda:0")),
    "jax-cuda": ("jax", lambda: Jax("gpu")),
    "cupy": ("cupy", CuPy),
}
ON_CPU = ("numpy", "torch-cpu", "jax-cpu")
ON_GPU = ("numpy-cuda", "torch-cuda", "jax-cuda", "cupy")
FRAMEWORKS = [*ON_CPU, *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU)]


def package(name: str) -> Any:
    """An installed package, imported with its warnings ignored; skips the test without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def torch_with_cuda() -> Any:
    """torch with a visible GPU; skips the test without one."""
    torch = package("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch


def framework(name: str) -> Framework:
    """The framework of that name; skips the test with the reason if it is missing."""
    needed, make = _MAKE[name]
    package(needed)
    if name == "torch-cuda":
        torch_with_cuda()
    return make()


@dataclass(frozen=True)
class Spot:
    """The arguments of a layout: the size of the matrix, and the buffer that contains it."""

    rows: int  # even
    cols: int
    buffer: Any = None
    framework: Framework | None = None

    def broadcast(self) -> Any:
        return self.framework.broadcast_to(self.buffer, (self.rows, self.cols))


@dataclass(frozen=True)
class Layout:
    """A rows x cols matrix, or more axes over the same rows, inside a larger buffer."""

    buffer_shape: Callable[[Spot], tuple[int, ...]]
    matrix: Callable[[Spot], Any] = lambda at: at.buffer
    strided: bool = True
    negative: bool = False
    writable: bool = True  # no two elements share an address

    def fits(self, one: Framework) -> bool:
        return (one.strided or not self.strided) and (one.negative_strides or not self.negative)


LAYOUTS = {
    "contiguous": Layout(lambda at: (at.rows, at.cols), strided=False),
    "one row": Layout(lambda at: (1, at.cols), strided=False),
    "1-D": Layout(lambda at: (at.cols,), strided=False),
    "empty": Layout(lambda at: (0, at.cols), strided=False),
    "empty 3-D": Layout(lambda at: (at.rows, 0, at.cols), strided=False),
    "3-D": Layout(lambda at: (2, at.rows // 2, at.cols), strided=False),
    "every other row": Layout(lambda at: (2 * at.rows, at.cols), lambda at: at.buffer[::2]),
    "columns": Layout(lambda at: (at.rows, at.cols + 8), lambda at: at.buffer[:, 8:]),
    "columns, off by one": Layout(
        lambda at: (at.rows, at.cols + 3), lambda at: at.buffer[:, 1 : at.cols + 1]
    ),
    "every other column": Layout(lambda at: (at.rows, 2 * at.cols), lambda at: at.buffer[:, ::2]),
    "transposed": Layout(lambda at: (at.cols, at.rows), lambda at: at.buffer.swapaxes(0, 1)),
    "off by one": Layout(
        lambda at: (at.rows * at.cols + 1,),
        lambda at: at.buffer[1:].reshape((at.rows, at.cols)),
    ),
    "3-D swapped": Layout(
        lambda at: (at.rows // 2, 2, at.cols), lambda at: at.buffer.swapaxes(0, 1)
    ),
    "4-D, nothing merges": Layout(
        lambda at: (2, at.rows, 4, at.cols + 1),
        lambda at: at.buffer[:, :, ::2, : at.cols].swapaxes(0, 2),
    ),
    "same row again and again": Layout(
        lambda at: (1, at.cols), lambda at: at.broadcast(), writable=False
    ),
    "one value in every row": Layout(
        lambda at: (at.rows, 1), lambda at: at.broadcast(), writable=False
    ),
    "backwards": Layout(
        lambda at: (at.rows, at.cols), lambda at: at.buffer[::-1, ::-1], negative=True
    ),
}


@dataclass
class Placed:
    """An array in a framework, the buffer that contains it, and the same values in NumPy."""

    array: Any
    buffer: Any
    values: np.ndarray


def place(
    one: Framework, layout: Layout, fill: Callable, dtype: str, rows: int, cols: int
) -> Placed:
    """Make an array from fill(shape), float64 values; the layout's gaps are filled with NaN."""
    buffer = np.full(layout.buffer_shape(Spot(rows, cols)), np.nan, NUMPY_DTYPES[dtype])
    matrix = layout.matrix(Spot(rows, cols, buffer, NumPy()))
    filled = matrix if layout.writable else buffer
    filled[...] = fill(filled.shape).astype(buffer.dtype)
    there = one.array(buffer)
    return Placed(layout.matrix(Spot(rows, cols, there, one)), there, matrix)


def gaps_are_untouched(one: Framework, layout: Layout, out: Placed, rows: int, cols: int) -> bool:
    """Whether the layout's gaps still hold NaN."""
    buffer = one.numpy(out.buffer)
    gap = np.ones(buffer.shape, bool)
    layout.matrix(Spot(rows, cols, gap, NumPy()))[...] = False
    return bool(np.isnan(buffer[gap]).all())


def framework_without_device(name: str, dtype: str = "float32") -> Framework:
    """The framework for an op without device=; skips the test where it lacks the dtype."""
    one = framework(name)
    if one.options:
        pytest.skip("it takes no device")
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    return one


def call(one: Framework, x: Any, weight: Any = None, **options: Any) -> Any:
    return membound.rms_norm(x, weight, **one.options, **options)


def call_layer_norm(
    one: Framework, x: Any, weight: Any = None, bias: Any = None, **options: Any
) -> Any:
    return membound.layer_norm(x, weight, bias, **one.options, **options)
