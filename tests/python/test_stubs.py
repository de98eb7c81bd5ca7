# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The stubs and docstrings agree with the built module."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import membound
from membound import _core

PACKAGE = Path(membound.__file__).parent
CHECKOUT = Path(__file__).parents[2]
PATTERN = CHECKOUT / "src/bindings/stubs.pattern"


def stub_names() -> dict[str, list[ast.stmt]]:
    """Top-level definitions of the stub by name; overloads give several."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.parse((PACKAGE / "_core.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node)
    return found


def test_the_stub_names_what_the_module_holds():
    held = {name for name in vars(_core) if not name.startswith("__")} | {"__version__"}
    assert set(stub_names()) == held


OPS = list(membound.__test__)
# Ops with two overloads, due to statistics, scales, k or lse.
OVERLOADED = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "gemma_rms_norm")
OVERLOADED += ("rms_norm_gated", "rms_norm_quant", "add_rms_norm_quant", "rope")
OVERLOADED += ("gated_activation_quant", "silu_and_mul_quant")
OVERLOADED += ("embedding_backward",)
OVERLOADED += ("cross_entropy",)
OVERLOADED += ("add_rms_norm_backward", "add_layer_norm_backward")
# Or due to one or two gradient arrays.
OVERLOADED += ("gated_activation_backward", "silu_and_mul_backward", "gelu_and_mul_backward")
OVERLOADED += ("gelu_tanh_and_mul_backward", "sigmoid_and_mul_backward")


@pytest.mark.parametrize("op", OPS)
def test_the_stub_has_the_signature_of_the_builtin(op):
    real = list(inspect.signature(getattr(membound, op)).parameters)
    overloads = stub_names()[op]
    assert len(overloads) == (2 if op in OVERLOADED else 1)
    for overload in overloads:
        assert isinstance(overload, ast.FunctionDef)
        named = [argument.arg for argument in (*overload.args.args, *overload.args.kwonlyargs)]
        assert named == real


def test_the_committed_stub_is_what_the_generator_writes(tmp_path):
    pytest.importorskip("nanobind")
    if not PATTERN.is_file():
        pytest.skip("no checkout around the tests")
    fresh = tmp_path / "_core.pyi"
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "membound._core"]
    subprocess.run([*stubgen, "-p", str(PATTERN), "-o", str(fresh)], check=True)
    assert fresh.read_text() == (CHECKOUT / "src/membound/_core.pyi").read_text()


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_every_export_is_there_and_documented():
    for name in membound.__all__:
        value = getattr(membound, name)
        assert name == "__version__" or inspect.getdoc(value), name


@pytest.mark.parametrize("op", OPS)
def test_docstring_examples(op):
    """Builtins have no Python source, so doctest's collector skips them."""
    pytest.importorskip("numpy")
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(getattr(membound, op), op, globs={}):
        runner.run(test)
    results = runner.summarize()
    assert results.attempted >= 5
    assert results.failed == 0


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("jax._rms_norm", 12),
        ("jax._layer_norm", 12),
        ("jax._rms_norm_gated", 8),
        ("jax._rms_norm_quant", 7),
        ("jax._gated_activation_quant", 6),
        ("jax._rope", 8),
        ("jax._qk_norm_rope", 8),
        ("jax._embedding", 3),
        ("jax._embedding_backward", 3),
        ("jax._softmax", 4),
        ("jax._cross_entropy", 6),
        ("_rope_table", 5),
    ],
)
def test_docstring_examples_in_python(module, least):
    pytest.importorskip("jax" if module.startswith("jax") else "numpy")
    results = doctest.testmod(importlib.import_module(f"membound.{module}"))
    assert results.attempted >= least
    assert results.failed == 0


@pytest.mark.parametrize("op", OPS)
def test_the_builtin_reads_like_a_function(op):
    function = getattr(membound, op)
    assert function.__module__ == "membound"
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in function.__doc__, parameter
    assert pickle.loads(pickle.dumps(function)) is function
