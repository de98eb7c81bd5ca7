# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The stubs and docstrings agree with the built module."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pickle
from pathlib import Path

import pytest

import membound
from membound import _core

PACKAGE = Path(membound.__file__).parent


def stub_names() -> dict[str, list[ast.stmt]]:
    """Top-level definitions of the stub by name; overloads give several."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node)
    return found


def test_the_stub_names_what_the_module_holds():
    held = {name for name in vars(_core) if not name.startswith("__")} | {"__version__"}
    assert set(stub_names()) == held


OPS = list(membound.__test__)
NO_DEFAULT = inspect.Parameter.empty
# The others, which nanobind binds.
FUNCTIONS = [name for name, value in vars(_core).items() if type(value).__name__ == "nb_func"]
CLASSES = [name for name, value in vars(_core).items() if isinstance(value, type)]
# Two overloads: what the statistics, the scales, k or lse add.
OVERLOADED = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "gemma_rms_norm")
OVERLOADED += ("rms_norm_gated", "rms_norm_quant", "add_rms_norm_quant", "rope")
OVERLOADED += ("gated_activation_quant", "silu_and_mul_quant")
OVERLOADED += ("embedding_backward",)
OVERLOADED += ("cross_entropy",)
OVERLOADED += ("add_rms_norm_backward", "add_layer_norm_backward")
# Or due to one or two gradient arrays.
OVERLOADED += ("gated_activation_backward", "silu_and_mul_backward", "gelu_and_mul_backward")
OVERLOADED += ("gelu_tanh_and_mul_backward", "sigmoid_and_mul_backward")


def parameters_of(function: ast.FunctionDef) -> list[tuple[str, bool, object]]:
    """Return name, whether it is keyword-only, and default of each parameter of a stub."""
    given = function.args
    absent = [None] * (len(given.args) - len(given.defaults))
    positional = zip(given.args, absent + given.defaults, strict=True)
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return [
        (own.arg, own in given.kwonlyargs, ast.literal_eval(value) if value else NO_DEFAULT)
        for own, value in (*positional, *named)
    ]


@pytest.mark.parametrize("op", OPS)
def test_the_stub_has_the_signature_of_the_builtin(op):
    function = getattr(membound, op)
    real = [
        (own.name, own.kind is own.KEYWORD_ONLY, own.default)
        for own in inspect.signature(function).parameters.values()
    ]
    overloads = stub_names()[op]
    assert len(overloads) == (2 if op in OVERLOADED else 1)
    narrowed = [parameters_of(overload) for overload in overloads]
    for one in narrowed:
        assert [own[:2] for own in one] == [own[:2] for own in real]
        assert all(mine[2] in (NO_DEFAULT, own[2]) for mine, own in zip(one, real, strict=True))
    assert all(own in (one[place] for one in narrowed) for place, own in enumerate(real))
    texts = [ast.get_docstring(overload) for overload in overloads]
    assert texts == [inspect.getdoc(function)] + [None] * (len(overloads) - 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stub_has_the_signature_that_nanobind_gives(name):
    (stub,) = stub_names()[name]
    signature, _, text = getattr(_core, name).__doc__.partition("\n\n")
    for module in ("membound._core.", "collections.abc."):  # the stub imports what it names
        signature = signature.replace(module, "")
    (real,) = ast.parse(f"def {signature}: ...").body
    assert isinstance(stub, ast.FunctionDef)
    assert ast.dump(stub.args) == ast.dump(real.args)
    assert ast.dump(stub.returns) == ast.dump(real.returns)
    assert ast.get_docstring(stub) == text


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_has_the_members_that_nanobind_gives(name):
    (stub,) = stub_names()[name]
    real = getattr(_core, name)
    assert isinstance(stub, ast.ClassDef)
    assert ast.get_docstring(stub) == real.__doc__
    properties = {
        key: own
        for key, own in vars(real).items()
        if isinstance(own, property) and not key.startswith("__")
    }
    getters = {
        own.name: ast.get_docstring(own)
        for own in stub.body
        if isinstance(own, ast.FunctionDef) and not own.name.startswith("__")
        if [ast.unparse(decorator) for decorator in own.decorator_list] == ["property"]
    }
    assert getters.keys() == properties.keys()
    for key, text in getters.items():
        assert properties[key].__doc__ == (text or properties[key].fget.__doc__)


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
        ("jax._linear_cross_entropy", 7),
        ("_rope_table", 5),
    ],
)
def test_docstring_examples_in_python(module, least):
    pytest.importorskip("jax" if module.startswith("jax") else "numpy")
    found = importlib.import_module(f"membound.{module}")
    runner = doctest.DocTestRunner()
    # doctest.testmod skips functions whose signature another module gives.
    own = (one for one in vars(found).values() if getattr(one, "__module__", "") == found.__name__)
    for one in filter(inspect.isfunction, own):
        for test in doctest.DocTestFinder().find(one, one.__name__, globs=dict(vars(found))):
            runner.run(test)
    results = runner.summarize()
    assert results.attempted >= least
    assert results.failed == 0


@pytest.mark.parametrize("op", OPS)
def test_the_builtin_reads_like_a_function(op):
    function = getattr(membound, op)
    assert function.__module__ == "membound"
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in function.__doc__, parameter
    assert pickle.loads(pickle.dumps(function)) is function
