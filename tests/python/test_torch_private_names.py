# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The names of torch without documentation that membound uses: why each, and that torch has it.

`nox -s frameworks` runs this file, and the tests named here, on the oldest and the newest torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path

import pytest

import membound

torch = pytest.importorskip("torch")
PACKAGE = Path(membound.__file__).parent

# Name -> why there is no documented one, and the test that would fail without it.
PRIVATE = {
    "torch._disable_dynamo": (
        "torch.compiler.disable imports Dynamo",
        "test_torch_compile.py",
    ),
    "torch._ops.OpOverload": (
        "an operator's type has no public name",
        "test_torch_kernels.py",
    ),
    "torch._C._is_tracing": (
        "torch.jit.is_tracing calls it through Python, in each call of ours",
        "test_torch_tracing.py",
    ),
    "torch._C._len_torch_dispatch_stack": (
        "no public function tells that a TorchDispatchMode is active",
        "test_torch_functions.py",
    ),
    "torch._C._are_functorch_transforms_active": (
        "no public function tells that torch.func transforms the call",
        "test_torch_gated_linear.py",
    ),
    "torch._C._get_dispatch_mode": (
        "no public function tells that make_fx traces",
        "test_torch_tracing.py",
    ),
    "torch._C._TorchDispatchModeKey": ("the key of the same", "test_torch_tracing.py"),
    "torch._C._AutoDispatchBelowAutograd": (
        "an Autograd kernel in Python goes on to the next one, as C++ kernels do",
        "test_torch_kernels.py",
    ),
    "torch._C._after_autograd_keyset": ("the same", "test_torch_kernels.py"),
    "torch._C.parse_schema": (
        "compares an operator's schema with the parameters of its C++ kernel",
        "test_torch_kernels.py",
    ),
    "torch._C._dispatch_key_parse": (
        "the dispatch keys that tell a wrapped tensor from a plain one in C++",
        "test_torch_functions.py",
    ),
    "torch._C._cuda_getCurrentRawStream": (
        "torch.cuda.current_stream makes an object in each call",
        "test_exchange.py",
    ),
    "torch.distributed._functional_collectives": (
        "the all-reduce that torch.compile traces has no other name",
        "test_torch_distributed.py",
    ),
    "torch.nn._reduction": ("torch.nn.functional's own check of reduction=", "test_torch_names.py"),
    "torch.nn.modules.module._has_any_global_hook": (
        "no public function tells that a hook of all modules is registered",
        "test_torch_patch_modules.py",
    ),
    "torch._C._increment_version": (
        "half the cost of torch.autograd.graph.increment_version, which serves without it",
        "test_torch_versions.py",
    ),
    "torch._VF._unpack_dual": (
        "torch.autograd.forward_ad.unpack_dual makes a named tuple in each call",
        "test_torch_forward_mode.py",
    ),
    "torch.autograd.forward_ad._current_level": (
        "no public function tells that forward mode is active",
        "test_torch_forward_mode.py",
    ),
    "torch._functorch.utils.unwrap_dead_wrappers": (
        "tensors that escaped from torch.func have no memory of their own",
        "test_torch_functions.py",
    ),
    "torch._inductor.virtualized.V": (
        "a lowering finds the graph that Inductor builds",
        "test_torch_inductor.py",
    ),
    "torch._library.utils.get_layout_constraint_tag": (
        "our lowering keeps the strides that torch's own fallback would keep",
        "test_torch_inductor.py",
    ),
}
# Loaded by string, so that importing membound does not import Inductor.
BY_STRING = {"torch._inductor.lowering": "test_torch_inductor.py"}


def dotted(node: ast.expr) -> str:
    """Return a.b.c of an expression, or nothing."""
    if isinstance(node, ast.Name):
        return "torch.autograd.forward_ad" if node.id == "forward_ad" else node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return ""


def private_names(path: Path) -> set[str]:
    """Return the names below torch with a part that starts with an underscore."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(dotted(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and dotted(node.func) == "getattr":
            name = node.args[1]
            found.add(f"{dotted(node.args[0])}.{getattr(name, 'value', '')}")
    return {
        name
        for name in found
        if name.startswith("torch.")
        and any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    }


def used_names() -> set[str]:
    paths = [PACKAGE / "arrays.py", *(PACKAGE / "torch").rglob("*.py")]
    found = set().union(*map(private_names, paths))
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def test_every_private_name_has_a_reason():
    known = {*PRIVATE, "torch._C._TorchDispatchModeKey.PROXY"} - {"torch._C._TorchDispatchModeKey"}
    assert used_names() == known


@pytest.mark.parametrize("name", PRIVATE)
def test_torch_has_it(name):
    if name == "torch._C._cuda_getCurrentRawStream" and not torch.cuda.is_available():
        pytest.skip("a torch for CPUs has no streams")
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        functools.reduce(getattr, parts[at:], module)
        return
    pytest.fail(f"{name} is in no module")


def test_the_tests_that_need_them_are_there():
    tests = {test for _, test in PRIVATE.values()} | set(BY_STRING.values())
    assert {test for test in tests if not (Path(__file__).parent / test).is_file()} == set()
    for name in BY_STRING:
        importlib.import_module(name)
