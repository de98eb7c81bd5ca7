# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A gated activation and the projection after it, against two calls that save its result."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

# What Dynamo makes of a Function, and torch of its own parts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FORMS = {
    "pair": {"kind": "silu"},
    "packed": {"kind": "gelu_tanh", "packing": "interleaved"},
    "limits": {"kind": "silu", "alpha": 1.702, "limit": 1.0, "up_offset": 1.0},
    "gate alone": {"kind": "relu2", "packing": "gate"},
}


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


def two_calls(gate, up, weight, bias=None, **options):
    hidden = mt.gated_activation(gate, up, **options)
    return torch.nn.functional.linear(hidden, weight, bias)


def drawn(form, generator, device="cpu", dtype=torch.float64, with_bias=True):
    draw = lambda *s: torch.randn(s, generator=generator).to(device, dtype).requires_grad_()  # noqa: E731
    gate = draw(2, 3, 16 if form == "packed" else 8)
    up = draw(2, 3, 8) if form in ("pair", "limits") else None
    return gate, up, draw(5, 8), draw(5) if with_bias else None


def leaves_of(arguments):
    return [t for t in arguments if t is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_as_two_calls(form, with_bias, dtype, device, generator):
    """The same bits, forward and backward."""
    given = drawn(form, generator, device, getattr(torch, dtype), with_bias)
    found, wanted = mt.gated_linear(*given, **FORMS[form]), two_calls(*given, **FORMS[form])
    assert torch.equal(found, wanted)
    dy = torch.randn(found.shape, generator=generator).to(found)
    leaves = leaves_of(given)
    gradients = torch.autograd.grad(found, leaves, dy)
    for got, right in zip(gradients, torch.autograd.grad(wanted, leaves, dy), strict=True):
        assert got.dtype == right.dtype
        assert torch.equal(got, right)
    with torch.no_grad():
        assert torch.equal(mt.gated_linear(*given, **FORMS[form]), wanted)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form, generator):
    gate, up, weight, bias = drawn(form, generator)
    function = functools.partial(mt.gated_linear, **FORMS[form])
    assert torch.autograd.gradcheck(function, (gate, up, weight, bias))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 2)])
def test_some_gradients(wanted, generator):
    given = drawn("pair", generator)
    given = [t.detach().requires_grad_(at in wanted) for at, t in enumerate(given)]
    leaves = [given[at] for at in wanted]
    found = torch.autograd.grad(mt.gated_linear(*given).sum(), leaves)
    right = torch.autograd.grad(two_calls(*given).sum(), leaves)
    torch.testing.assert_close(found, right, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_keeps_what_it_was_given(form, generator):
    """No activation is saved: autograd holds neither its memory nor its shape."""
    given, held = drawn(form, generator), []
    keep = lambda t: held.append(t) or t  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        mt.gated_linear(*given, **FORMS[form])
    pointers = {t.data_ptr() for t in leaves_of(given)}
    assert held
    assert {t.data_ptr() for t in held} <= pointers


def test_changed_after_the_call_raises(generator):
    gate, up, weight, _ = drawn("pair", generator)
    gate = gate * 1
    found = mt.gated_linear(gate, up, weight)
    gate.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_second_derivatives_are_those_of_two_calls(generator):
    """Refused if they go through the activation, right otherwise."""
    gate, up, weight, _ = drawn("pair", generator)
    first = torch.autograd.grad(
        mt.gated_linear(gate, up, weight).pow(2).sum(), (gate, weight), create_graph=True
    )
    right = torch.autograd.grad(
        two_calls(gate, up, weight).pow(2).sum(), (gate, weight), create_graph=True
    )
    torch.testing.assert_close(first, right, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="has first derivatives only"):
        first[0].sum().backward()
    still = gate.detach(), up.detach(), weight
    (first,) = torch.autograd.grad(mt.gated_linear(*still).pow(2).sum(), weight, create_graph=True)
    (right,) = torch.autograd.grad(two_calls(*still).pow(2).sum(), weight, create_graph=True)
    found = torch.autograd.grad(first.pow(2).sum(), weight)
    torch.testing.assert_close(found, torch.autograd.grad(right.pow(2).sum(), weight))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_autocast(device, dtype, generator):
    given = drawn("pair", generator, device, getattr(torch, dtype))
    results = []
    for function in (mt.gated_linear, two_calls):
        with torch.autocast(device, torch.bfloat16):
            found = function(*given)
        results.append((found, *torch.autograd.grad(found.float().sum(), leaves_of(given))))
    for got, right in zip(*results, strict=True):
        assert got.dtype == right.dtype
        torch.testing.assert_close(got, right, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant, generator):
    given = drawn("pair", generator)
    found = torch.utils.checkpoint.checkpoint(mt.gated_linear, *given, use_reentrant=reentrant)
    right = torch.autograd.grad(two_calls(*given).sum(), leaves_of(given))
    found.sum().backward()
    torch.testing.assert_close([t.grad for t in leaves_of(given)], list(right), rtol=0, atol=0)


def test_functional_transforms(generator):
    gate, up, weight, bias = (t.detach() for t in drawn("pair", generator))
    total = lambda f: lambda *args: f(*args, bias).sum()  # noqa: E731
    for transform in (torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f), (0, 0, None))):
        found = transform(total(mt.gated_linear))(gate, up, weight)
        torch.testing.assert_close(found, transform(total(two_calls))(gate, up, weight))


def test_compiled(generator):
    given = drawn("pair", generator)
    found = torch.compile(mt.gated_linear, fullgraph=True, backend="aot_eager")(*given)
    right = two_calls(*given)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), leaves_of(given)),
        torch.autograd.grad(right.sum(), leaves_of(given)),
    )


@pytest.mark.parametrize("form", FORMS)
def test_compiled_autograd(form, generator):
    """The backward of an eager call, traced as one graph."""
    given = drawn(form, generator)
    right = torch.autograd.grad(two_calls(*given, **FORMS[form]).sum(), leaves_of(given))
    traced = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(traced):
        mt.gated_linear(*given, **FORMS[form]).sum().backward()
    torch.testing.assert_close([t.grad for t in leaves_of(given)], list(right))


def test_errors_name_the_argument(generator):
    gate, up, weight, _ = drawn("pair", generator)
    with pytest.raises(ValueError, match="argument 'up'"):
        mt.gated_linear(gate, up[..., :4], weight)
    with pytest.raises(ValueError, match=r"argument 'weight' must have shape \(out_features, 8\)"):
        mt.gated_linear(gate, up, weight[:, :4])
    for bias in (torch.ones(6), torch.ones(1), torch.ones(3, 5)):
        with pytest.raises(
            ValueError, match=r"^gated_linear: argument 'bias' must have shape \(5,"
        ):
            mt.gated_linear(gate, up, weight, bias)
    with pytest.raises(TypeError, match=r"^gated_linear: argument 'bias' must be a torch.Tensor"):
        mt.gated_linear(gate, up, weight, [1.0] * 5)
