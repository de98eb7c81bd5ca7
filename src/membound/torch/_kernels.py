# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels in C++ for operators of torch's registry.

torch's dispatcher calls them without Python, through the stable C interface of torch >= 2.10. The
extension looks its functions up in the loaded torch. With MEMBOUND_TORCH_KERNELS=python, and with
older versions of torch, all operators are Python functions.
"""

from __future__ import annotations

import os

import torch

from membound import _core

_IN_PYTHON = os.environ.get("MEMBOUND_TORCH_KERNELS", "") == "python"

# The back ends for which each operator has a C++ kernel.
in_extension: dict[str, list[str]] = {}


def implement(name: str, signature: str, kernel: str) -> list[str]:
    """Register the C++ kernel of that name; return the back ends that have it."""
    if _IN_PYTHON:
        return []
    schema = torch._C.parse_schema(name + signature)
    types = ", ".join(str(argument.type) for argument in schema.arguments)
    try:
        found = _core.implement_torch_operator(name, kernel, f"{types} -> {len(schema.returns)}")
    except TypeError:  # torch spells types differently: a test detects this
        return []
    if found:
        in_extension[name] = found
    return found
