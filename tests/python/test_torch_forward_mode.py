# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Forward-mode differentiation, which no op has: a tangent raises and is never dropped."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
forward_ad = torch.autograd.forward_ad

# torch's own, of an old interface that forward mode imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

X = torch.linspace(-1, 1, 12).reshape(3, 4)
HEADS, TABLE, LABELS = (1, 3, 1, 4), torch.ones(3, 2), torch.arange(3)
CALLS = {  # calls in the namespace `home`, on the tensor with the tangent
    "rms_norm": lambda home, x: home.rms_norm(x),
    "add_rms_norm": lambda home, x: home.add_rms_norm(X, x),
    "fused_add_rms_norm": lambda home, x: home.fused_add_rms_norm(X * 1, X * 2, x[0]),
    "rms_norm_quant": lambda home, x: home.rms_norm_quant(x),
    "layer_norm": lambda home, x: home.layer_norm(X, None, x[0]),
    "silu_and_mul": lambda home, x: home.silu_and_mul(x),
    "gated_activation_quant": lambda home, x: home.gated_activation_quant(X, x),
    "rope": lambda home, x: home.rope(x.view(HEADS), None, TABLE, TABLE),
    "qk_norm_rope": lambda home, x: home.qk_norm_rope(
        X.view(HEADS), None, x[0], None, TABLE, TABLE
    ),
    "embedding": lambda home, x: home.embedding(LABELS, x),
    "softmax": lambda home, x: home.softmax(x),
    "cross_entropy": lambda home, x: home.cross_entropy(x, LABELS),
    "out=": lambda home, x: home.rms_norm(X, out=x),
}  # fmt: skip
REFUSED = r"argument '\w+' has a tangent"


@pytest.mark.parametrize("home", [membound, mt])
@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_eager_calls(call, recording, home):
    primal = X.clone().requires_grad_(recording)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(primal, torch.ones_like(X))
        with pytest.raises(RuntimeError, match=REFUSED):
            CALLS[call](home, dual)
        with torch.no_grad():  # others are taken
            CALLS[call](home, dual.detach() if call != "out=" else torch.empty(3, 4))
            assert forward_ad.unpack_dual(mt.rms_norm(X)).tangent is None


OPERATORS = {  # of torch's registry, on the tensor that has the tangent
    "rms_norm": lambda x: (x, None, 1e-6, 0.0, "once"),
    "layer_norm": lambda x: (X, x[0], None, 1e-6, 0.0),
    "softmax": lambda x: (x, None, 1.0, None),
    "rms_norm_quant": lambda x: (x, None, None, "int8", None, None, 1e-6, 0.0, "once"),
}


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, recording):
    operator = getattr(torch.ops.membound, name)
    primal = X.clone().requires_grad_(recording)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(primal, torch.ones_like(X))
        with pytest.raises(RuntimeError, match=REFUSED):
            operator(*OPERATORS[name](dual))
        operator(*OPERATORS[name](dual.detach()))


@pytest.mark.parametrize("call", [call for call in CALLS if call != "out="])
def test_compiled_calls(call):
    """Tensors without tangents share one graph; if there may be tangents, calls are eager."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x: CALLS[call](mt, x), backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), CALLS[call](mt, X), rtol=0, atol=0)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X, torch.ones_like(X))
            with pytest.raises(RuntimeError, match=REFUSED):
                compiled(dual)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore")  # what torch says of what it does not compile
def test_torch_func(compiled):
    torch.compiler.reset()
    jvp = lambda x: torch.func.jvp(mt.rms_norm, (x,), (torch.ones_like(x),))  # noqa: E731
    with pytest.raises(RuntimeError, match=REFUSED):
        (torch.compile(jvp, backend="aot_eager") if compiled else jvp)(X)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.func.jacfwd(mt.silu_and_mul)(X)
