# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What membound knows of each array framework; no other file of the package names them.

The extension calls it once per array type and caches the result, so nothing here runs in ordinary
calls. No framework is imported: an array of one can only exist if its module is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from membound._core import DTYPE_CODES, NDArray, new_buffer


class Framework(NamedTuple):
    """How the extension reads and makes arrays; see frameworks.hpp for each field's contract."""

    name: str
    exchange: Any = None
    to_dlpack: Callable[[Any], Any] | None = None
    empty_like: Callable[[Any], Any] | None = None
    empty_like_contiguous: Callable[[Any], Any] | None = None
    empty_rows: Callable[[Any], Any] | None = None
    empty_columns: Callable[[Any], Any] | None = None
    empty_as: Callable[[Any, tuple[int, ...], str], Any] | None = None
    empty_bytes: Callable[[Any, int], Any] | None = None
    current_stream: Callable[[int], int] | None = None
    is_grad_enabled: Callable[[], bool] | None = None
    increment_version: Callable[[tuple[Any, ...]], None] | None = None
    forward_ad: dict[str, Any] | None = None
    unpack_dual: Callable[[Any], tuple[Any, Any]] | None = None
    mode_key: int = 0
    tracer_key: int = 0
    vmap_key: int = 0
    transform_front_key: int = 0
    transform_back_key: int = 0
    makes_graph: Callable[[], bool] | None = None
    requires_grad: Any = None
    is_neg: Callable[[Any], bool] | None = None


def classify(array: object) -> Framework | str:
    """The framework that reads an array, or the end of an error message if there is none."""
    if type(array) is NDArray:
        return _ndarray()
    for name, framework_of in _FRAMEWORKS.items():
        module = sys.modules.get(name)
        if module is not None:
            found = framework_of(module, array)
            if found is not None:
                return found
    if type(array) in _buffer_types():
        return _buffer()
    if hasattr(type(array), "__dlpack__") and hasattr(type(array), "__dlpack_device__"):
        return _dlpack()
    return (
        "must be an array (torch, JAX, CuPy, NumPy or anything with __dlpack__), "
        f"got {type_name(array)}"
    )


def type_name(value: object) -> str:
    """The type as a person would write it: list, numpy.ndarray, torch.Tensor."""
    cls = type(value)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def dtype_code(dtype: Any) -> int | None:
    """The code of a NumPy dtype that kind and size do not identify: int8 and ml_dtypes' types."""
    return DTYPE_CODES.get(dtype.name)


def dtype_name(dtype: object) -> str | None:
    """The name of a dtype, given by name or as a framework's object; None if it is not a dtype."""
    if isinstance(dtype, str):
        return dtype
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    try:
        return None if numpy is None else numpy.dtype(dtype).name  # jax.numpy.int8 is not a type
    except TypeError:
        return None


def empty_numpy(shape: tuple[int, ...], dtype_name: str) -> Any:
    """A new NumPy array, or the end of an error message if there is none."""
    import numpy

    dtype = numpy_dtype(dtype_name)
    if dtype is None:
        return f"NumPy has {dtype_name} from ml_dtypes, which is not installed"
    return numpy.empty(shape, dtype)


def numpy_dtype(name: str) -> Any:
    """The dtype of that name; None if it belongs to ml_dtypes and that is not installed."""
    import numpy

    if not name.startswith(("bfloat", "float8")):
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    return numpy.dtype(getattr(ml_dtypes, name))


# --- torch ---


def _of_torch(torch: ModuleType, array: object) -> Framework | str | None:
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is None or not isinstance(array, tensor_type):
        return None
    # A subclass may have no memory (fake tensors, wrappers) or interpret it differently.
    if type(array) not in (tensor_type, torch.nn.Parameter):
        return (
            f"must be a plain torch.Tensor or Parameter, got the subclass {type_name(array)}; "
            "pass .as_subclass(torch.Tensor) if its memory holds the values"
        )
    return _torch()


@functools.cache
def _torch() -> Framework:
    import torch

    def key(name: str) -> int:
        return int(torch._C._dispatch_key_parse(name))

    wide, single = torch.float64, torch.float32
    # Pass sizes by keyword: parsing a positional torch.Size takes 1 us longer.
    return Framework(
        name="torch",
        exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),  # torch >= 2.10
        to_dlpack=torch.utils.dlpack.to_dlpack,
        empty_like=torch.empty_like,
        empty_like_contiguous=functools.partial(
            torch.empty_like, memory_format=torch.contiguous_format
        ),
        empty_rows=lambda x: x.new_empty(
            size=x.shape[:-1], dtype=wide if x.dtype is wide else single
        ),
        empty_columns=lambda x: x.new_empty(size=x.shape[-1:]),
        empty_as=lambda x, shape, dtype: x.new_empty(size=shape, dtype=getattr(torch, dtype)),
        empty_bytes=lambda x, count: x.new_empty(count, dtype=torch.uint8),
        current_stream=getattr(torch._C, "_cuda_getCurrentRawStream", None),
        is_grad_enabled=torch.is_grad_enabled,
        increment_version=_increment_version(torch),
        forward_ad=vars(torch.autograd.forward_ad),
        mode_key=key("Python"),
        tracer_key=key("Tracer"),
        vmap_key=key("VmapMode"),
        transform_front_key=key("FuncTorchDynamicLayerFrontMode"),
        transform_back_key=key("FuncTorchDynamicLayerBackMode"),
        makes_graph=makes_graph,
        unpack_dual=functools.partial(torch._VF._unpack_dual, level=0),
        requires_grad=torch.Tensor.requires_grad,
        is_neg=torch.Tensor.is_neg,
    )


def makes_graph() -> bool:
    """Whether torch.jit.trace or make_fx sees the calls of this thread."""
    import torch

    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return torch.jit.is_tracing() or proxies is not None


def _increment_version(torch: ModuleType) -> Callable[[tuple[Any, ...]], None]:
    """The builtin version counter, at half the cost of the public function, if it takes a tuple."""
    builtin = getattr(torch._C, "_increment_version", None)
    try:
        builtin((torch.empty(0),))
    except (TypeError, RuntimeError):
        public = torch.autograd.graph.increment_version
        return lambda arrays: [public(array) for array in arrays]
    return builtin


# --- NumPy ---


def _of_numpy(numpy: ModuleType, array: object) -> Framework | str | None:
    array_type = getattr(numpy, "ndarray", None)
    if array_type is None or not isinstance(array, array_type):
        return None
    # Subclasses interpret the memory differently (masks, units, matrix products); memmap does not.
    if type(array) not in (array_type, numpy.memmap):
        return (
            f"must be a plain numpy.ndarray, got the subclass {type_name(array)}; pass "
            "numpy.asarray(...) if its bare values are meant"
        )
    return _numpy()


@functools.cache
def _numpy() -> Framework:
    import numpy

    return Framework(
        name="numpy",
        empty_like=functools.partial(numpy.empty_like, subok=False),
        empty_like_contiguous=functools.partial(numpy.empty_like, order="C", subok=False),
        empty_rows=lambda x: numpy.empty(x.shape[:-1], _statistics_dtype(x)),
        empty_columns=lambda x: numpy.empty(x.shape[-1:], x.dtype),
        empty_as=lambda _, shape, dtype: empty_numpy(shape, dtype),
    )


def _statistics_dtype(x: Any) -> str:
    return "float64" if x.dtype == "float64" else "float32"


# --- CuPy ---


def _of_cupy(cupy: ModuleType, array: object) -> Framework | str | None:
    array_type = getattr(cupy, "ndarray", None)
    if array_type is None or not isinstance(array, array_type):
        return None
    if type(array) is not array_type:
        return f"must be a plain cupy.ndarray, got the subclass {type_name(array)}"
    return _cupy()


@functools.cache
def _cupy() -> Framework:
    import cupy

    def empty_like(x: Any) -> Any:
        with x.device:  # CuPy allocates on the current device, not on the array's
            return cupy.empty_like(x, order="C")

    def empty_rows(x: Any) -> Any:
        with x.device:
            return cupy.empty(x.shape[:-1], _statistics_dtype(x))

    def empty_columns(x: Any) -> Any:
        with x.device:
            return cupy.empty(x.shape[-1:], x.dtype)

    def empty_as(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(cupy, dtype, None)  # CuPy 14 has no float8 dtype
        if kind is None:
            return f"CuPy has no {dtype}"
        with x.device:
            return cupy.empty(shape, kind)

    def empty_bytes(x: Any, count: int) -> Any:
        with x.device:
            return cupy.empty(count, "uint8")

    return Framework(
        name="cupy",
        empty_like=empty_like,
        empty_like_contiguous=empty_like,
        empty_rows=empty_rows,
        empty_columns=empty_columns,
        empty_as=empty_as,
        empty_bytes=empty_bytes,
        current_stream=lambda device: cupy.cuda.get_current_stream(device).ptr,
    )


# --- JAX, our own arrays, and what has no framework ---


def _of_jax(jax: ModuleType, array: object) -> Framework | None:
    array_type = getattr(jax, "Array", None)  # tracers are instances of jax.Array too
    return _jax() if array_type is not None and isinstance(array, array_type) else None


@functools.cache
def _jax() -> Framework:
    return Framework(name="jax")


@functools.cache
def _ndarray() -> Framework:
    return Framework(name="membound")


@functools.cache
def _dlpack() -> Framework:
    return Framework(name="dlpack")


def _buffer_types() -> tuple[type, ...]:
    array = sys.modules.get("array")
    return (memoryview,) if array is None else (memoryview, array.array)


@functools.cache
def _buffer() -> Framework:
    return Framework(
        name="buffer", empty_like=_empty_buffer, empty_like_contiguous=_empty_buffer,
        empty_rows=_empty_buffer_rows, empty_columns=_empty_buffer_columns,
        empty_as=_empty_buffer_as,
    )  # fmt: skip


_BUFFER_FORMATS = {"int8": ("b", 1), "float16": ("e", 2), "float32": ("f", 4), "float64": ("d", 8)}


def _empty_buffer(x: Any) -> memoryview:
    view = memoryview(x)
    return new_buffer(view.format, view.itemsize, view.shape)


def _empty_buffer_rows(x: Any) -> memoryview:
    view = memoryview(x)
    wide = "float64" if view.format == "d" else "float32"
    return new_buffer(*_BUFFER_FORMATS[wide], view.shape[:-1])


def _empty_buffer_columns(x: Any) -> memoryview:
    view = memoryview(x)
    return new_buffer(view.format, view.itemsize, view.shape[-1:])


def _empty_buffer_as(_: Any, shape: tuple[int, ...], dtype: str) -> memoryview | str:
    known = _BUFFER_FORMATS.get(dtype)
    return f"buffers have no {dtype}" if known is None else new_buffer(*known, shape)


_FRAMEWORKS: dict[str, Callable[[ModuleType, object], Framework | str | None]] = {
    "torch": _of_torch,
    "numpy": _of_numpy,
    "cupy": _of_cupy,
    "jax": _of_jax,
}
