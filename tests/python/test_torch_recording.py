# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The backward of eager calls: in C++ if only gradients are required, else by operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

python_dispatch = pytest.importorskip("torch.utils._python_dispatch")

CALLS = {
    "rms_norm": lambda x, w: mt.rms_norm(x, w),
    "without weight": lambda x, _: mt.rms_norm(x),
    "add_rms_norm": lambda x, w: mt.add_rms_norm(x, x, w),
    "layer_norm": lambda x, w: mt.layer_norm(x, w, w),
    "rms_norm_gated": lambda x, w: mt.rms_norm_gated(x, x, w),
    "silu_and_mul": lambda x, w: mt.silu_and_mul(x, w.expand(x.shape)),
    "softmax": lambda x, w: mt.softmax(x, w),
    "cross_entropy": lambda x, _: mt.cross_entropy(x, torch.tensor([1, 0])),
    "embedding": lambda x, w: mt.embedding(torch.tensor([[1, 0]]), x, position_weight=x * w),
    "rope": lambda x, w: mt.rope(x.view(1, 2, 2, 4), None, *w.detach().view(2, 2, 2)),
    "learned": lambda x, w: mt.rope(x[None, :, None], freqs=w[:4]),
}


class Watching(python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def leaves(generator):
    x, w = (torch.randn(shape, generator=generator) for shape in ((2, 8), (8,)))
    return x.requires_grad_(), w.requires_grad_()


def first(results):
    return results[0] if isinstance(results, tuple) else results


def gradients(y, inputs, dy, **keywords):
    return torch.autograd.grad(y, inputs, dy, allow_unused=True, retain_graph=True, **keywords)


def assert_same(found, expected):
    for one, right in zip(found, expected, strict=True):
        assert (one is None) == (right is None)
        if right is not None:
            assert torch.equal(one, right)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("call", CALLS)
def test_operators_have_the_same_backward(call, generator):
    """With a graph of the gradients, in a mode, in batches: the bits of the plain backward."""
    inputs = leaves(generator)
    y = first(CALLS[call](*inputs))
    dy = torch.randn(3, *y.shape, generator=generator)
    expected = gradients(y, inputs, dy[0])
    assert any(g is not None for g in expected)
    assert_same(gradients(y, inputs, dy[0], create_graph=True), expected)
    with Watching() as watching:
        assert_same(gradients(y, inputs, dy[0]), expected)
    assert any(name.startswith("membound.") for name in watching.seen)
    each = [gradients(y, inputs, one) for one in dy]
    stacked = [None if g[0] is None else torch.stack(g) for g in zip(*each, strict=True)]
    assert_same(gradients(y, inputs, dy, is_grads_batched=True), stacked)


@pytest.mark.parametrize("call", CALLS)
def test_one_gradient_alone(call, generator):
    inputs = leaves(generator)
    y = first(CALLS[call](*inputs))
    dy = torch.randn(y.shape, generator=generator)
    for at, expected in enumerate(gradients(y, inputs, dy)):
        alone = [t if i == at else t.detach() for i, t in enumerate(inputs)]
        if expected is not None:
            assert_same(gradients(first(CALLS[call](*alone)), [alone[at]], dy), [expected])


@pytest.mark.parametrize("call", CALLS)
def test_what_is_saved_passes_hooks_and_is_freed(call, generator):
    inputs = leaves(generator)
    packed, unpacked = [], []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (packed.append(t.shape), t)[1], lambda t: (unpacked.append(t.shape), t)[1]
    )
    with hooks:
        y = first(CALLS[call](*inputs))
    y.sum().backward()
    assert packed
    assert sorted(packed) == sorted(unpacked)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_what_is_saved_is_not_written(generator):
    x, w = leaves(generator)
    scaled = x * 2
    y = mt.rms_norm(scaled, w)
    scaled.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_keyword_is_recorded_too(generator):
    x, w = leaves(generator)
    y = mt.rms_norm(x=x.detach(), weight=w)
    assert y.grad_fn.name() == "rms_normBackward"
    assert torch.equal(y, mt.rms_norm(x, w))


def test_the_library_records_without_asking(generator, monkeypatch):
    """membound's own function goes to the recording one at once, without its table."""
    import membound
    from membound.torch import _functions

    x, w = leaves(generator)
    right = gradients(mt.rms_norm(x, w, eps=1e-5), (x, w), torch.ones(2, 8))
    monkeypatch.setitem(_functions.DISPATCH, "rms_norm", lambda *_, **__: pytest.fail("asked"))
    assert_same(gradients(membound.rms_norm(x, w, eps=1e-5), (x, w), torch.ones(2, 8)), right)
    with torch.no_grad():
        assert not membound.rms_norm(x, w, out=torch.empty_like(x)).requires_grad
