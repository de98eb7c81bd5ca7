# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A last layer's loss and log-probabilities in compiled, exported and checkpointed models."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import last_layers

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = ["mean", "none", "log-probabilities"]


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


class Model(torch.nn.Module):
    """An activation, and the loss of a last layer: all losses or log-probabilities added up."""

    def __init__(self, kind, weight, bias):
        super().__init__()
        self.kind = kind
        self.weight, self.bias = (torch.nn.Parameter(one.detach()) for one in (weight, bias))

    def forward(self, x, labels):
        given, x = (self.weight, labels, self.bias), torch.nn.functional.silu(x)
        if self.kind != "log-probabilities":
            return mt.linear_cross_entropy(x, *given, reduction=self.kind, chunk_rows=4).sum()
        options = {"temperature": 0.8, "entropy": True, "chunk_rows": 4}
        return sum(one.sum() for one in mt.linear_log_probs(x, *given, **options))


@pytest.fixture(params=DEVICES)
def drawn(request, generator):
    """x, weight, bias and labels of float32, on each device."""
    return last_layers.drawn(generator, torch.float32, request.param)


def with_gradients(model, run, x, labels):
    leaves = x, *model.parameters()
    found = run(x, labels)
    return found, torch.autograd.grad(found, leaves)


def fullgraph(model, **options):
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_by_inductor(kind, drawn):
    x, weight, bias, labels = drawn
    model = Model(kind, weight, bias)
    right = with_gradients(model, model, x, labels)
    found = with_gradients(model, fullgraph(model), x, labels)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_tokens_compile_twice_at_most(kind, drawn):
    """The second number makes rows dynamic, without being told; with gradients."""
    x, weight, bias, labels = drawn
    model, counted = (
        Model(kind, weight, bias),
        torch._dynamo.testing.CompileCounterWithBackend("aot_eager"),
    )
    run = fullgraph(model, backend=counted)
    for rows in (14, 8, 13, 5):
        given = x.detach().view(14, 6)[:rows].requires_grad_(), labels.view(14)[:rows]
        right = with_gradients(model, model, *given)
        torch.testing.assert_close(with_gradients(model, run, *given), right)
    assert counted.frame_count == 2


@pytest.mark.parametrize("mode", ["eager", "reentrant", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpointed(kind, mode, drawn):
    """The last layer inside a checkpoint has the gradients that it has outside."""
    x, weight, bias, labels = drawn
    model = Model(kind, weight, bias)

    def run(x, labels):
        options = {"use_reentrant": mode == "reentrant"}
        return torch.utils.checkpoint.checkpoint(model, x, labels, **options)

    right = with_gradients(model, model, x, labels)
    run = fullgraph(run, backend="aot_eager") if mode == "compiled" else run
    total = run(x, labels)
    total.backward()  # reentrant checkpoints refuse autograd.grad
    mine = total, (x.grad, *(one.grad for one in model.parameters()))
    torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_under_autocast(kind, drawn):
    """Products in 16 bits, sums and gradients in 32."""
    x, weight, bias, labels = drawn
    model = Model(kind, weight, bias)

    def step(x, labels):
        with torch.autocast(x.device.type, torch.bfloat16):
            return model(x, labels)

    right = with_gradients(model, step, x, labels)
    assert right[0].dtype == torch.float32
    found = with_gradients(model, fullgraph(step, backend="aot_eager"), x, labels)
    torch.testing.assert_close(found, right, rtol=2**-7, atol=2**-10)  # gradients in bfloat16
    exact = with_gradients(model, model, x, labels)
    torch.testing.assert_close(found, exact, rtol=2**-5, atol=2**-4)
    assert not torch.equal(found[0], exact[0])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_exported(kind, strict, drawn):
    """With any number of rows, as one operator."""
    x, weight, bias, labels = drawn
    model, x = Model(kind, weight, bias).requires_grad_(False), x.detach()
    rows = torch.export.Dim("rows", min=2, max=64)
    dynamic = {"x": {0: rows}, "labels": {0: rows}}
    given = x.view(14, 6), labels.view(14)
    program = torch.export.export(model, given, dynamic_shapes=dynamic, strict=strict)
    assert "membound.linear" in str(program.graph)
    given = x.view(14, 6)[:9], labels.view(14)[:9]
    torch.testing.assert_close(program.module()(*given), model(*given))
