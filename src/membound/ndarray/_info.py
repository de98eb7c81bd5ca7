# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the array-API standard lets code ask of a namespace."""

from __future__ import annotations

from typing import Any

import membound
from membound import _core
from membound._core import Device, DType
from membound.ndarray._arguments import FLOAT64, INT64
from membound.ndarray._types import parts_of_kind


class Info:
    """Devices, dtypes and capabilities of ``membound.ndarray``."""

    def capabilities(self) -> dict[str, Any]:
        """Which optional parts there are, and the most axes of an array."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _core.ARRAY_MAX_RANK,
        }

    def default_device(self) -> Device:
        """Return the device of arrays that are made without naming one: the CPU."""
        return Device("cpu")

    def devices(self) -> tuple[Device, ...]:
        """Return the CPU and the GPUs of this machine."""
        gpus = membound.cuda_status().device_count
        return (Device("cpu"), *(Device(f"cuda:{at}") for at in range(gpus)))

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, DType]:  # noqa: ARG002
        """Return the dtypes of Python's numbers and of indices, the same on every device."""
        return {"real floating": FLOAT64, "integral": INT64, "indexing": INT64}

    def dtypes(
        self,
        *,
        device: Device | str | None = None,  # noqa: ARG002
        kind: str | tuple[str, ...] | None = None,
    ) -> dict[str, DType]:
        """Return the standard's dtypes of some kinds, or all of them; complex ones are absent."""
        kinds = (
            ("bool", "numeric") if kind is None else kind if isinstance(kind, tuple) else (kind,)
        )
        parts = [part for one in kinds for part in parts_of_kind("dtypes", one)]
        return {
            name: dtype
            for name, dtype in _core.ARRAY_DTYPES.items()
            if dtype.kind in parts and name not in ("bfloat16", "float16")
        }


def __array_namespace_info__() -> Info:  # noqa: N807
    """Return what the standard lets code ask of this namespace.

    >>> nd.__array_namespace_info__().default_dtypes()["integral"]
    int64
    """
    return Info()
