# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels in C++ for operators of torch's registry.

torch's dispatcher calls them without Python, through the stable C interface of torch >= 2.10, whose
functions the extension finds in the torch that is loaded. MEMBOUND_TORCH_KERNELS=python leaves all
operators to Python functions, as older versions of torch do.
"""

from __future__ import annotations

import os

import torch

from membound import _core

_IN_PYTHON = os.environ.get("MEMBOUND_TORCH_KERNELS", "") == "python"

# Which operators have one, and for which back ends.
in_extension: dict[str, list[str]] = {}


def implement(name: str, signature: str, kernel: str) -> list[str]:
    """The back ends for which the operator got the kernel of that name."""
    if _IN_PYTHON:
        return []
    schema = torch._C.parse_schema(name + signature)
    types = ", ".join(str(argument.type) for argument in schema.arguments)
    try:
        found = _core.implement_torch_operator(name, kernel, f"{types} -> {len(schema.returns)}")
    except TypeError:  # a torch that words types in another way: the tests look for it
        return []
    if found:
        in_extension[name] = found
    return found
