# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Compares docstrings of membound.torch and membound.jax on results and errors with calls.

Most refer to membound's own function, whose contract test_contracts.py checks on NumPy arrays.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest
from test_contracts import BAD, CALLS, LABELS, OPTIONS, STATISTIC, W, X, as_results

import membound

ALL_CALLS = CALLS | {
    "cross_entropy_backward": ((STATISTIC, X, LABELS, STATISTIC), {}),
    "embedding_backward": ((X, LABELS, 6), {}),
    "fused_add_rms_norm": ((X, X, W), {}),
    "gemma_fused_add_rms_norm": ((X, X, W), {}),
    "gated_linear": ((X, X, X), {}),
    "linear_cross_entropy": ((X, X, LABELS), {}),
    "linear_log_probs": ((X, X, LABELS), {}),
}
MODULES = {  # arguments, the call's, the shape of the result
    "Embedding": ((3, 4), (np.array([1, 0, 2]),), (3, 4)),
    "GatedActivation": (("silu",), (X, X), (3, 4)),
    "GatedRMSNorm": ((4,), (X, X), (3, 4)),
    "LayerNorm": ((4,), (X,), (3, 4)),
    "RMSNorm": ((4,), (X,), (3, 4)),
    "RotaryEmbedding": ((4,), CALLS["rope"][0][:1], (1, 2, 1, 4)),
}
OTHERS = ("patch", "unpatch", "vocab_parallel_cross_entropy")  # the last: inside shard_map alone
# Functions that membound itself has not, and the shape of their result.
OF_LAYERS = {"gated_linear": (3, 3), "linear_cross_entropy": (), "linear_log_probs": (3,)}
# Functions whose errors may name the function that they call, as their docstrings do.
CALLED = {
    "gemma_rms_norm": "rms_norm", "fused_add_rms_norm": "add_rms_norm",
    "gemma_fused_add_rms_norm": "add_rms_norm|fused_add_rms_norm",
    "gated_linear": "gated_activation", "silu_and_mul_quant": "gated_activation_quant",
}  # fmt: skip
for alias in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "sigmoid_and_mul", "relu2"):
    CALLED[alias], CALLED[f"{alias}_backward"] = "gated_activation", "gated_activation_backward"


def namespace(name: str) -> Any:
    pytest.importorskip(name)
    return importlib.import_module(f"membound.{name}")


def names(name: str) -> list[str]:
    try:
        return list(importlib.import_module(f"membound.{name}").__all__)
    except ImportError:
        return []


FUNCTIONS = [
    (where, op)
    for where in ("torch", "jax")
    for op in names(where)
    if op not in MODULES and op not in OTHERS
]


def converted(where: str, values: Any) -> list[Any]:
    array = importlib.import_module("jax.numpy" if where == "jax" else "torch").asarray
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    return [array(v) if isinstance(v, np.ndarray) else v for v in copies]


def text_of(function: Any) -> str:
    return " ".join(inspect.getdoc(function).split())


def test_every_name_is_here():
    torch, jax = namespace("torch"), namespace("jax")
    assert set(torch.__all__) - set(ALL_CALLS) == {*MODULES, "patch", "unpatch"}
    assert set(jax.__all__) - set(ALL_CALLS) <= set(OTHERS)


@pytest.mark.parametrize(("where", "op"), FUNCTIONS)
def test_results(where, op):
    """Results as those of membound on NumPy arrays, or as the docstring itself states."""
    function, (arguments, options) = getattr(namespace(where), op), ALL_CALLS[op]
    found = as_results(function(*converted(where, arguments), **options))
    if op in OF_LAYERS:
        assert found[0].shape == OF_LAYERS[op]
        return
    text, own = text_of(function), getattr(membound, op)
    assert function is own or re.search(rf"membound\.{op}`|:func:`\w+`", text), text
    copies = [np.copy(one) if isinstance(one, np.ndarray) else one for one in arguments]
    right = as_results(own(*copies, **options))
    module = importlib.import_module(where)
    kind = module.Array if where == "jax" else module.Tensor
    for mine, theirs in zip(found, right, strict=True):
        assert isinstance(mine, kind) == (theirs is not None)
        assert np.shape(mine) == np.shape(theirs)
        if theirs is not None:
            assert str(mine.dtype).removeprefix("torch.") == str(theirs.dtype)


@pytest.mark.parametrize(("where", "op"), FUNCTIONS)
def test_results_that_are_asked_for(where, op):
    """Each "Returns ``(...)``, or with ``flag=True`` ``(...)``" of a docstring."""
    function, (arguments, options) = getattr(namespace(where), op), ALL_CALLS[op]
    plain = len(as_results(function(*converted(where, arguments), **options)))
    twice = "return_stats", "qk_norm_rope"
    for flag in ("return_rstd", "return_stats", "need_dresidual"):
        if flag not in inspect.signature(function).parameters:
            continue
        more = as_results(function(*converted(where, arguments), **options, **{flag: True}))
        assert len(more) == plain + (2 if {flag, op}.intersection(twice) else 1)
        said = re.search(rf"``{flag}=True`` ``\((.*?)\)``", text_of(function))
        assert said is None or op in twice or len(said[1].split(",")) == len(more), said


@pytest.mark.parametrize(("where", "op"), FUNCTIONS)
def test_bad_calls(where, op):
    """TypeError or ValueError, which names the op, and the wrong argument if there is one."""
    function, (arguments, options) = getattr(namespace(where), op), ALL_CALLS[op]
    own = rf"^(membound[\w.]+)?({op}|{CALLED.get(op, op)})(: |\(\))"
    parameters = inspect.signature(function).parameters
    first = "x|input" if "input" in parameters else next(iter(parameters))
    for name, make in BAD.items():
        if name == "no axes" and op in ("embedding", "cross_entropy_backward"):
            continue  # one id, a number
        with pytest.raises((TypeError, ValueError), match=own) as error:
            function(*converted(where, make(arguments)), **options)
        if name not in ("another shape", "too many", "none at all"):
            assert re.search(rf"argument '({first})'", str(error.value)), name
    for more in OPTIONS:
        with pytest.raises((TypeError, ValueError), match=own) as error:
            function(*converted(where, arguments), **{**options, **more})
        assert re.search(rf"'?{next(iter(more))}'?", str(error.value)), more


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    torch = namespace("torch")
    made, given, shape = MODULES[name]
    module = getattr(torch, name)(*made)
    found = as_results(module(*converted("torch", given)))
    assert found[0].shape == shape
    assert str(found[0].dtype) == "torch.float32"
    with pytest.raises(TypeError, match=r"^\w+: argument '\w+' must be .* got list"):
        module(*([1.0] for _ in given))
    with pytest.raises(TypeError, match="bogus"):
        getattr(torch, name)(*made, bogus=1)(*converted("torch", given))


def test_ids_outside_of_a_table():
    """ "Ids outside of the table raise on the CPU"."""
    torch = namespace("torch")
    module, ids = torch.Embedding(3, 4), converted("torch", [np.array([1, 3])])
    with pytest.raises(ValueError, match=r"^embedding: argument 'ids'"):
        module(*ids)


def test_patch_and_unpatch():
    torch = namespace("torch")
    nn = importlib.import_module("torch").nn
    with pytest.raises(TypeError, match=r"^patch: argument 'model' must be"):
        torch.patch([1.0])
    model = nn.Sequential(nn.LayerNorm(4))
    assert torch.patch(model)
    ours = model[0].forward
    model[0].forward = lambda x: ours(x)
    with pytest.raises(RuntimeError):
        torch.unpatch(model)


def test_derivatives_that_raise():
    """ "Forward mode and second derivatives raise" in JAX, second ones in torch."""
    jax, mbj = pytest.importorskip("jax"), namespace("jax")
    names = [op for op in mbj.__all__ if "second derivatives raise" in text_of(getattr(mbj, op))]
    assert len(names) >= 5
    for op in names:
        call, (first, *rest) = getattr(mbj, op), converted("jax", ALL_CALLS[op][0])
        run = functools.partial(call, **ALL_CALLS[op][1])

        def total(x, run=run, rest=rest):
            return jax.tree.leaves(run(x, *rest))[0].sum()

        with pytest.raises((TypeError, ValueError), match=r"forward-mode|FFI call"):
            jax.jvp(total, (first,), (first,))
        with pytest.raises((TypeError, ValueError), match=r"custom_vjp|FFI call|differentiated"):
            jax.grad(lambda x, total=total: jax.grad(total)(x).sum())(first)


def test_second_derivatives_in_torch():
    torch, mbt = pytest.importorskip("torch"), namespace("torch")
    for op in OF_LAYERS:
        x, *rest = converted("torch", ALL_CALLS[op][0])
        x.requires_grad_()
        loss = getattr(mbt, op)(x, *rest).sum()

        def second(loss=loss, x=x):
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            return torch.autograd.grad(slope.sum(), x)

        with pytest.raises(RuntimeError):
            second()
