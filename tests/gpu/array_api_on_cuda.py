# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.ndarray with the GPU as default device, for the array-API suite; see CONTRIBUTING.

ARRAY_API_TESTS_MODULE="exec('import array_api_on_cuda; xp = array_api_on_cuda.namespace')"
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import membound.ndarray

CREATION = ("arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")


def on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        is_placed = options.get("device") is not None
        if arguments and isinstance(arguments[0], membound.ndarray.NDArray):
            is_placed = True  # asarray of an array keeps the device
        return function(*arguments, **options if is_placed else {**options, "device": "cuda"})

    return call


namespace = ModuleType("membound.ndarray")
vars(namespace).update(vars(membound.ndarray))
vars(namespace).update((name, on_cuda(getattr(namespace, name))) for name in CREATION)
