# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of an unknown framework: __dlpack__ around a NumPy array, with selectable faults."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import numpy as np

CPU, CUDA, METAL = 1, 2, 8

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class DlpackObject:
    """Offers `array` by DLPack 1.x, or 0.x when `versioned` is false."""

    def __init__(self, array: np.ndarray, *, versioned: bool = True, device: int = CPU):
        self.array = array
        self.versioned = versioned
        self.device = device
        self.requests: deque[dict[str, Any]] = deque(maxlen=8)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **request: Any) -> Any:
        self.requests.append(request)
        if not self.versioned:
            if "max_version" in request:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            return self.array.__dlpack__()
        capsule = self.array.__dlpack__(max_version=(1, 0))
        if self.device != CPU:
            self._relabel(capsule)
        return capsule

    def _relabel(self, capsule: Any) -> None:
        """Claim another device, in the tensor that follows version, owner, deleter and flags."""
        header = 8 + 8 + 8 + 8
        device_type = header + ctypes.sizeof(ctypes.c_void_p)
        address = _pointer_of(capsule, b"dltensor_versioned") + device_type
        ctypes.c_int32.from_address(address).value = self.device


class BrokenDlpackObject(DlpackObject):
    def __init__(self, array: Any, reason: str = "this array cannot be lent") -> None:
        super().__init__(array)
        self.reason = reason

    def __dlpack__(self, **request: Any) -> Any:
        raise BufferError(self.reason)


class LooseDlpackObject(DlpackObject):
    """Returns the given values, even if they violate the protocol."""

    def __init__(self, array: np.ndarray, *, device: Any = (CPU, 0), capsule: Any = None) -> None:
        super().__init__(array)
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **request: Any) -> Any:
        return self.capsule
