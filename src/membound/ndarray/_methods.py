# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Methods of NDArray that need no speed, attached to the extension's class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from membound import _core
from membound._core import Device, DType, NDArray
from membound.ndarray._indexing import get
from membound.ndarray._indexing import set as set_
from membound.ndarray._repr import array_repr, array_str

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


def _namespace(_: NDArray, /, *, api_version: str | None = None) -> ModuleType:
    if api_version not in (None, *VERSIONS):
        raise ValueError(
            f"__array_namespace__: argument 'api_version' must be one of {VERSIONS}, got "
            f"{api_version!r}"
        )
    return sys.modules["membound.ndarray"]


def _iterator(self: NDArray) -> Iterator[NDArray]:
    return (self[at] for at in range(len(self)))


def _formatted(self: NDArray, spec: str) -> str:
    return format(self.item(), spec) if self.ndim == 0 else format(array_str(self), spec)


def _dtype_named(name: str) -> DType:
    return _core.ARRAY_DTYPES[name]


def _restored(data: bytes, dtype: DType, shape: tuple[int, ...], device: str) -> NDArray:
    return _moved(_core.array_from_bytes(data, shape, dtype), device)


def _reduced(self: NDArray) -> tuple[Any, ...]:
    """Pickle the elements in C order; they come back on the device that they were on."""
    return _restored, (_core.array_to_bytes(self), self.dtype, self.shape, str(self.device))


def _moved(self: NDArray, device: Device | str, /, *, stream: Any = None) -> NDArray:
    """Return the array on a device: itself if it is there. Work is ordered without a stream."""
    if stream is not None:
        raise ValueError(
            "to_device: argument 'stream' must be None: copies are ordered without one"
        )
    return _core.array_astype(self, self.dtype, False, device)


_export = NDArray.__dlpack__


def _dlpack(
    self: NDArray,
    /,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a DLPack capsule of the array; a builtin would have no signature to look at."""
    return _export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def attach() -> None:
    """Give the class its methods."""
    for name, method in {
        "__array_namespace__": _namespace,
        "_advanced_getitem": get,
        "_advanced_setitem": set_,
        "to_device": _moved,
        "__dlpack__": _dlpack,
        "__complex__": lambda self: complex(float(self)),
        "__iter__": _iterator,
        "__repr__": array_repr,
        "__str__": array_str,
        "__format__": _formatted,
        "__copy__": lambda self: self.copy(),
        "__deepcopy__": lambda self, _: self.copy(),
        "__reduce__": _reduced,
    }.items():
        setattr(NDArray, name, method)
    DType.__reduce__ = lambda self: (_dtype_named, (self.name,))  # type: ignore[method-assign]
