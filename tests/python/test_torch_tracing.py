# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""torch.jit.trace and make_fx see operators, or an error is raised."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx

pytestmark = [  # torch's own, of an old interface
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:Converting a tensor to a Python"),
]
WEIGHT = torch.linspace(0.5, 2, 8)
CALLS = {
    "rms_norm": lambda home, x: home.rms_norm(x, WEIGHT),
    "out=": lambda home, x: home.rms_norm(x, WEIGHT, out=torch.zeros_like(x)),
    "in place": lambda home, x: home.softmax(x, out=x * 2),
    "add_rms_norm": lambda home, x: home.add_rms_norm(x, x * 2)[1],
    "silu_and_mul": lambda home, x: home.silu_and_mul(x),
    "rope": lambda home, x: home.rope(x.view(1, 4, 1, 8), freqs=WEIGHT[:4]),
    "rms_norm_quant": lambda home, x: home.rms_norm_quant(x, dtype="int8")[0],
    "codes": lambda home, x: home.rms_norm_quant(x, out=torch.zeros(4, 8, dtype=torch.int8))[0],
    "fused_add_rms_norm": lambda home, x: in_place(home, x * 1, x * 2),
}


def in_place(home, x, residual):
    home.fused_add_rms_norm(x, residual, WEIGHT)
    return x


@pytest.mark.parametrize("trace", ["jit", "make_fx"])
@pytest.mark.parametrize("home", [membound, mt])
@pytest.mark.parametrize("call", CALLS)
def test_a_graph_computes(call, home, trace):
    """A traced graph computes right results for other values."""
    function = lambda x: CALLS[call](home, x)  # noqa: E731
    x, other = torch.linspace(-1, 1, 32).view(4, 8), torch.linspace(2, -3, 32).view(4, 8)
    graph = torch.jit.trace(function, x) if trace == "jit" else make_fx(function)(x)
    assert "membound" in str(graph.graph)
    torch.testing.assert_close(graph(other.clone()), function(other.clone()), rtol=0, atol=0)


@pytest.mark.parametrize("frozen", [True, False])
def test_modules_in_torchscript(frozen):
    norm = mt.RMSNorm(8).requires_grad_(not frozen)
    x, other = torch.randn(2, 8), torch.randn(2, 8)
    torch.testing.assert_close(torch.jit.trace(norm, x)(other), norm(other), rtol=0, atol=0)


def test_gated_linear_in_torchscript():
    """Traced as two calls, although its weight requires grad."""

    class Projection(torch.nn.Linear):
        def forward(self, packed):
            return mt.gated_linear(packed, None, self.weight, self.bias)

    last, x, other = Projection(8, 4), torch.randn(2, 16), torch.randn(3, 16)
    traced = torch.jit.trace(last, x)
    assert "membound::gated_activation" in str(traced.graph)
    torch.testing.assert_close(traced(other), last(other), rtol=0, atol=0)


@pytest.mark.parametrize("trace", ["jit", "make_fx"])
def test_what_a_graph_cannot_hold_is_refused(trace):
    run = torch.jit.trace if trace == "jit" else lambda function, x: make_fx(function)(x)
    x = torch.randn(4, 8)
    for op, call in {
        "rms_norm": lambda x: membound.rms_norm(x, return_rstd=True),
        "rms_norm_backward": lambda x: membound.rms_norm_backward(x, x, None, x[:, 0]),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{op}: torch makes a graph of calls"):
            run(call, x)


def test_modes_that_only_watch_change_nothing():
    """If no graph is traced, calls that are not operators run as usual."""
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(4, 8)
    with FlopCounterMode(display=False):
        out, rstd = membound.rms_norm(x, return_rstd=True)
        membound.rms_norm_backward(x, x, None, rstd)
    torch.testing.assert_close(out, membound.rms_norm(x), rtol=0, atol=0)


def test_symbolic_trace_sees_one_call():
    """Also of a function with two results; from both namespaces."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = mt.RMSNorm(8)

        def forward(self, x, residual):
            first, total = membound.add_rms_norm(x, residual, self.norm.weight)
            second, total = mt.add_rms_norm(first, total, self.norm.weight, eps=1e-5)
            return self.norm(second) + total

    block, x = Block(), torch.randn(4, 8)
    traced = torch.fx.symbolic_trace(block)
    called = [n.target for n in traced.graph.nodes if str(n.target).find("norm") >= 0]
    assert [t for t in called if callable(t)] == [mt.add_rms_norm, mt.add_rms_norm, mt.rms_norm]
    torch.testing.assert_close(traced(x, 2 * x), block(x, 2 * x), rtol=0, atol=0)


def test_symbolic_trace_sees_functions_of_several_ops():
    labels, gate, x = torch.tensor([1, 0]), torch.randn(2, 8), torch.randn(2, 4)
    weight, head = torch.randn(4, 8), torch.randn(3, 4)
    for traced_function, function, given in (
        (lambda g, b: mt.gated_linear(g, g, weight, bias=b), mt.gated_linear, (gate, x[0])),
        (
            lambda x, labels: mt.linear_cross_entropy(x, head, labels),
            mt.linear_cross_entropy,
            (x, labels),
        ),
    ):
        traced = torch.fx.symbolic_trace(traced_function)
        assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [function]
        assert torch.equal(traced(*given), traced_function(*given))


def test_symbolic_trace_of_modules():
    x, ids = torch.randn(2, 8), torch.tensor([1, 2])
    embedding = mt.Embedding(9, 4)
    traced = torch.fx.symbolic_trace(embedding)
    assert torch.equal(traced(ids), embedding(ids))
    with pytest.raises(ValueError, match="'ids' must hold numbers from 0 to 8"):
        traced(ids + 9)
    with pytest.raises(TypeError, match=r"^embedding: argument 'ids' must be a torch\.Tensor"):
        embedding([1])
    for norm in (mt.RMSNorm(8), mt.LayerNorm(8)):
        traced = torch.fx.symbolic_trace(norm, concrete_args={"residual": None})
        assert torch.equal(traced(x), norm(x))


@pytest.mark.parametrize("home", [membound, mt])
def test_lazily_negated_views_are_resolved_or_refused(home):
    """In every layout: of unit stride and one column too, as an input and as a result."""
    drawn = torch.view_as_complex(torch.randn(4, 8, 2)).conj().imag
    for x in (drawn, drawn.mT, drawn[:, :1], drawn[:, 0].unsqueeze(-1),
              torch._neg_view(torch.randn(4, 8)), torch._neg_view(torch.randn(4, 1))):  # fmt: skip
        assert x.is_neg()
        with pytest.raises(TypeError, match="'x' is a lazily negated"):
            home.rms_norm(x)
        with pytest.raises(TypeError, match="'out' is a lazily negated"):
            home.rms_norm(x.resolve_neg(), out=x)
        recorded = home.rms_norm(x.detach().requires_grad_())
        torch.testing.assert_close(recorded.detach(), membound.rms_norm(x.resolve_neg()))


def test_arrays_of_numpy_are_refused():
    x = torch.randn(4, 8, requires_grad=True)
    for call in (mt.rms_norm, mt.softmax, mt.silu_and_mul, mt.add_rms_norm, mt.rms_norm_quant):
        with pytest.raises(TypeError, match=f"^{call.__name__}: argument '.*' must be a torch.Ten"):
            call(x.detach().numpy())
    numpy, heads, table = x.detach().numpy(), torch.ones(1, 4, 1, 8), torch.ones(4, 4)
    for op, argument, given in (
        ("embedding", "weight", (torch.tensor([0]), numpy)),
        ("qk_norm_rope", "q", (heads.numpy(), None, None, None, table, table)),
        ("qk_norm_rope", "q", (heads.numpy(), None, x[0], None, table, table)),
        ("rope", "q", (heads.numpy(), heads, table, table)),
    ):
        with pytest.raises(TypeError, match=f"^{op}: argument '{argument}' must be a torch.Tensor"):
            getattr(mt, op)(*given)
    with pytest.raises(RuntimeError, match=r"^rms_norm: argument 'x' requires grad"):
        mt.rms_norm(x, out=torch.empty(4, 8))
    with pytest.raises(TypeError, match=r"^rms_norm: unexpected keyword argument 'epsilon'; did"):
        mt.rms_norm(x, epsilon=1e-6)
