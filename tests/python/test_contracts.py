# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Compares "Returns" and "Raises" of docstrings with the behaviour of calls."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import membound
from membound import _elementwise

ROWS, TABLE, LABELS = (3, 4), (2, 2), np.array([1, 0, 3])


def draw(*shape: int) -> np.ndarray:
    return np.linspace(0.1, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)


# A valid call of each function, with required arguments and k, up or bias if it has them.
X, W, PACKED, STATISTIC = draw(*ROWS), draw(4), draw(3, 8), draw(3)
Q, COS, SIN = draw(1, 2, 1, 4), draw(*TABLE), draw(*TABLE)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "rms_norm": ((X, W), {}),
    "rms_norm_backward": ((X, X, W, STATISTIC), {}),
    "add_rms_norm": ((X, X, W), {}),
    "add_rms_norm_backward": ((X, X, X, W, STATISTIC), {}),
    "layer_norm": ((X, W, W), {}),
    "layer_norm_backward": ((X, X, W, STATISTIC, STATISTIC), {}),
    "add_layer_norm": ((X, X, W, W), {}),
    "add_layer_norm_backward": ((X, X, X, W, STATISTIC, STATISTIC), {}),
    "rms_norm_gated": ((X, X, W), {}),
    "rms_norm_gated_backward": ((X, X, X, W, STATISTIC), {}),
    "rms_norm_quant": ((X, W), {"dtype": "int8"}),
    "add_rms_norm_quant": ((X, X, W), {"dtype": "int8"}),
    "gemma_rms_norm": ((X, W), {}),
    "gated_activation": ((X, X), {}),
    "gated_activation_backward": ((X, X, X), {}),
    "gated_activation_quant": ((X, X), {"dtype": "int8"}),
    "silu_and_mul_quant": ((PACKED,), {"dtype": "int8"}),
    "relu2": ((X,), {}),
    "relu2_backward": ((X, X), {}),
    "rope": ((Q, Q, COS, SIN), {}),
    "rope_backward": ((Q, Q, COS, SIN), {}),
    "qk_norm_rope": ((Q, Q, W, W, COS, SIN), {}),
    "qk_norm_rope_backward": ((Q, Q, Q, Q, W, W, COS, SIN), {}),
    "embedding": ((LABELS, X), {}),
    "softmax": ((X,), {}),
    "softmax_backward": ((X, X), {}),
    "cross_entropy": ((X, LABELS), {}),
}
for kind in ("silu", "gelu", "gelu_tanh", "sigmoid"):
    CALLS[f"{kind}_and_mul"] = CALLS["gated_activation"]
    CALLS[f"{kind}_and_mul_backward"] = CALLS["gated_activation_backward"]
for op, of in _elementwise.OPS.items():
    numbers = {name: values[0] for name, values in of.samples.items()}
    CALLS[op] = ((X,) * len(of.inputs), numbers)
WITHOUT_RECORDING = {name for name in CALLS if name.endswith(("_backward", "_quant"))}


def section(op: str, title: str) -> str:
    """A section of the docstring, with that of the function that it refers to."""
    found = re.search(
        rf"^{title}:\n(.*?)(?=^\w+:|\Z)", getattr(membound, op).__doc__, re.MULTILINE | re.DOTALL
    )
    text = found[1] if found else ""
    referred = re.search(r"What :func:`(\w+)` (?:raises|returns)", text)
    text = " ".join(text.split())
    return text.replace(referred[0], section(referred[1], title), 1) if referred else text


def in_torch(values: Any) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for v in values]


def as_results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("op", CALLS)
def test_returns(op):
    """The number of results, their layout, and their dtypes if they equal the first array's."""
    arguments, options = CALLS[op]
    found = as_results(getattr(membound, op)(*arguments, **options))
    text = section(op, "Returns")
    named = re.search(
        r"(?:^|with ``(?:k|up)`` the pair |both a tuple: )``\(([^`]*)\)``", text, re.IGNORECASE
    )
    assert len(found) == (len(named[1].split(",")) if named else 1), text
    for result in found:
        assert result.flags.c_contiguous
    if "dtype" in text and "dtype" not in options:
        assert found[0].dtype == arguments[0].dtype


@pytest.mark.parametrize("op", CALLS)
def test_runtime_errors_of_tensors_that_require_grad(op):
    """Each floating argument is recorded, or the docstring says that it is not."""
    torch = pytest.importorskip("torch")
    arguments, options = CALLS[op]
    text = section(op, "Raises")
    assert "RuntimeError" in text, text
    tables = re.search(r"if it is ([^;:]*?), or with", text)
    refused = set(re.findall(r"\w+", tables[1])) if tables else set()
    names = list(inspect.signature(getattr(membound, op)).parameters)
    for at, value in enumerate(arguments):
        if value.dtype != np.float32:
            continue
        given = in_torch(arguments)
        given[at].requires_grad_()
        if op in WITHOUT_RECORDING or names[at] in refused:
            with pytest.raises(RuntimeError, match=f"^{op}: argument '{names[at]}' requires grad"):
                getattr(membound, op)(*given, **options)
        else:
            found = as_results(getattr(membound, op)(*given, **options))
            assert any(isinstance(r, torch.Tensor) and r.requires_grad for r in found)
    never = ("never can", "does not do", "has no gradient", "It has none")
    assert (op in WITHOUT_RECORDING) == any(words in text for words in never), text


BAD = {
    "a list": lambda a: ([[1.0, 2.0]], *a[1:]),
    "None": lambda a: (None, *a[1:]),
    "booleans": lambda a: (a[0] > 0, *a[1:]),
    "complex numbers": lambda a: (a[0].astype(np.complex64), *a[1:]),
    "no axes": lambda a: (np.float32(1).reshape(()), *a[1:]),
    "another shape": lambda a: (draw(5, 7), *a[1:-1], draw(3, 2, 9)),
    "too many": lambda a: (*a, *a, *a),
    "none at all": lambda _: (),
}
OPTIONS: list[dict[str, Any]] = [
    {"bogus": 1}, {"out": 5}, {"stream": "nonsense"}, {"eps": "small"}, {"eps": float("nan")},
    {"kind": 7}, {"layout": "xyz"}, {"dtype": "float1"}, {"weight_offset": None},
]  # fmt: skip


@pytest.mark.parametrize("op", CALLS)
def test_bad_calls_raise_what_is_documented(op):
    """Only TypeError or ValueError is raised, and the error names the op."""
    arguments, options = CALLS[op]
    text, call = section(op, "Raises"), getattr(membound, op)
    own = rf"^{op.removeprefix('gemma_')}: |^{op}: "  # an alias's kernel names its own op
    assert "TypeError" in text
    assert "ValueError" in text
    for make in BAD.values():
        if op == "embedding" and make is BAD["no axes"]:
            continue
        with pytest.raises((TypeError, ValueError), match=own):
            call(*make(arguments), **options)
    for more in OPTIONS:
        with pytest.raises((TypeError, ValueError), match=own):
            call(*arguments, **{**options, **more})


# --- names ---


def test_an_unknown_keyword_says_what_was_meant():
    for op, keyword, meant in [
        ("rms_norm", "epsilon", "eps"), ("layer_norm", "gamma", "weight"),
        ("fused_add_rms_norm", "eps", "epsilon"), ("rope", "positions", "position_ids"),
        ("cross_entropy", "targets", "labels"), ("embedding", "input_ids", "ids"),
    ]:  # fmt: skip
        with pytest.raises(TypeError) as error:
            getattr(membound, op)(**{keyword: 1})
        assert str(error.value) == (
            f"{op}: unexpected keyword argument '{keyword}'; did you mean '{meant}'?"
        )
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        membound.rms_norm(X, zzz=1)


def test_modules_of_torch_say_where_they_are():
    torch = pytest.importorskip("membound.torch")
    own = [n for n in torch.__all__ if not hasattr(membound, n)]
    assert own
    for name in own:
        text = f"it is in membound.torch, from membound.torch import {name}"
        with pytest.raises(AttributeError, match=text):
            getattr(membound, name)
    with pytest.raises(AttributeError, match=r"did you mean 'rms_norm'\?"):
        _ = membound.rmsnorm
    for name, meant in (("rmsnorm", "rms_norm"), ("RMSnorm", "RMSNorm"), ("patched", "patch")):
        text = f"^module 'membound.torch' has no attribute '{name}'; did you mean '{meant}'"
        with pytest.raises(AttributeError, match=text):
            getattr(torch, name)
    code = "import membound; membound.torch"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "it is a module of its own, import membound.torch" in found.stderr


def test_names_that_jax_lacks_say_what_was_meant():
    jax = pytest.importorskip("membound.jax")
    for name in ("RMSNorm", "rmsnorm"):
        text = f"^module 'membound.jax' has no attribute '{name}'; did you mean 'rms_norm'"
        with pytest.raises(AttributeError, match=text):
            getattr(jax, name)


def test_what_a_star_imports():
    """Only functions and modules, no private tables."""
    torch = pytest.importorskip("membound.torch")
    assert all(callable(getattr(torch, name)) for name in torch.__all__)
    tables = tomllib.loads(Path(__file__).with_name("peer_names.toml").read_text())
    names = {peer: set(tables[peer]["names"]) for peer in tables}
    names["huggingface"] = {"LAYERS", "apply_rotary_pos_emb", "kernel_mapping"}
    modules = {path.stem for path in Path(torch.__file__).parent.glob("[a-z]*.py")}
    assert names.keys() == modules
    for module, public in names.items():
        assert set(importlib.import_module(f"membound.torch.{module}").__all__) == public, module


def test_help_begins_with_an_overview():
    for name in CALLS:
        if not name.endswith("_backward"):
            assert re.search(rf"\b{name}\b", membound.__doc__), name
    public = [n for n in membound.__all__ if not n.startswith("_") and n[0].islower()]
    assert all(re.search(rf"\b{n.removesuffix('_backward')}\b", membound.__doc__) for n in public)
    torch = pytest.importorskip("membound.torch")
    assert all(re.search(rf"\b{n}\b", torch.__doc__) for n in torch.__all__)
