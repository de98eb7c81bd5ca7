# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Layers and optimisers of membound.autograd beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
from gradients_of_tensors import close, numbers
from ndarrays import DEVICES, strided, to_numpy
from seeds import SEED

import membound.autograd as ag
import membound.ndarray as nd

torch = pytest.importorskip("torch")

on_devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture
def rng(request):
    return np.random.default_rng([SEED, len(request.node.name)])


class Model(ag.Module):
    def __init__(self, generator):
        self.first = ag.Linear(4, 5, generator=generator)
        self.blocks = [ag.Linear(5, 5, bias=False, generator=generator)]
        self.named = {"last": ag.Linear(5, 3, generator=generator), "again": self.first}
        self.constant = ag.Tensor([1.0])
        self.itself = self

    def __call__(self, x):
        return self.named["last"](self.blocks[0](ag.tanh(self.first(x))))


def test_parameters_are_found_once():
    model = Model(nd.Generator(SEED))
    shapes = [x.shape for x in model.parameters()]
    assert shapes == [(4, 5), (5,), (5, 5), (5, 3), (3,)]
    assert ag.Sequential(model, ag.relu, ag.Sequential(model)).parameters() is not None
    both = ag.Sequential(model, model.first)
    assert list(map(id, both.parameters())) == list(map(id, model.parameters()))


def test_layers(rng):
    x = rng.standard_normal((2, 6, 4))
    layer = ag.Linear(4, 3, generator=nd.Generator(SEED), dtype="float64")
    other = torch.nn.Linear(4, 3, dtype=torch.float64)
    with torch.no_grad():
        other.weight.copy_(torch.tensor(to_numpy(layer.weight.data)).T)
        other.bias.copy_(torch.tensor(to_numpy(layer.bias.data)))
    found, right = ag.relu(layer(nd.asarray(x))), torch.relu(other(torch.tensor(x)))
    close(found.data, right)
    close(ag.Sequential(layer, ag.relu)(ag.Tensor(x)).data, right)
    ag.sum(found * found).backward()
    right.square().sum().backward()
    close(layer.weight.grad, other.weight.grad.T)
    close(layer.bias.grad, other.bias.grad)
    weight = ag.Linear(100, 50, generator=nd.Generator(SEED)).weight.data
    assert nd.max(nd.abs(weight)).item() <= 0.1
    assert nd.std(weight).item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert weight.dtype == "float32"


OPTIMIZERS = {
    "SGD": (ag.SGD, torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (ag.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "SGD, nesterov": (ag.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "AdamW": (ag.AdamW, torch.optim.AdamW, {}),
    "AdamW, options": (
        ag.AdamW,
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2},
    ),
}


@on_devices
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(rng, device, name, dtype):
    """Ten steps; the second parameter has a gradient in every other step, the third never."""
    ours, theirs, options = OPTIMIZERS[name]
    values = [numbers(rng, shape).astype(dtype) for shape in [(3, 4), (5,), (2,)]]
    xs = [ag.Tensor(strided(one, device), requires_grad=True) for one in values]
    others = [torch.tensor(one.copy(), requires_grad=True) for one in values]
    optimizer, right = ours(xs, **options), theirs(others, **options)
    pointers = [x.data.data_ptr for x in xs]
    for step in range(10):
        for at in range(1 + step % 2):
            dx = rng.standard_normal(values[at].shape).astype(dtype)
            xs[at].grad, others[at].grad = nd.asarray(dx, device=device), torch.tensor(dx)
        optimizer.step()
        right.step()
        optimizer.zero_grad()
        right.zero_grad()
        if step == 5:
            optimizer.lr = 0.05
            right.param_groups[0]["lr"] = 0.05
    assert [x.grad for x in xs] == [None] * 3
    assert [x.data.data_ptr for x in xs] == pointers
    for x, other in zip(xs, others, strict=True):
        close(x.data, other, 1e-5 if dtype == "float32" else 1e-12)


def test_momentum_shares_no_memory_with_gradients():
    x = ag.Tensor([1.0], requires_grad=True)
    optimizer = ag.SGD([x], lr=1.0, momentum=0.5)
    x.grad = nd.ones(1)
    optimizer.step()
    x.grad *= 0.0
    optimizer.step()
    assert x.tolist() == [-0.5]


def test_adamw_updates_all_parameters_in_one_call(monkeypatch):
    xs = [ag.Tensor(nd.ones(size), requires_grad=True) for size in (2, 3, 4)]
    optimizer, calls = ag.AdamW(xs), []
    monkeypatch.setattr(nd, "adamw", lambda params, *_, step, **_how: calls.append((params, step)))
    for first in (0, 0, 1):
        for x in xs[first:]:
            x.grad = nd.ones_like(x.data)
        optimizer.step()
        optimizer.zero_grad()
    assert [(len(params), step) for params, step in calls] == [(3, 1), (3, 2), (2, 3)]
    assert all(array is x.data for array, x in zip(calls[0][0], xs, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_compute_16_bit_parameters_in_float32(name):
    ours, _, options = OPTIMIZERS[name]
    start = nd.Generator(SEED).normal((64,), dtype="bfloat16")
    narrow = ag.Tensor(start.copy(), requires_grad=True)
    wide = ag.Tensor(nd.astype(start, "float32"), requires_grad=True)
    for x in (narrow, wide):
        x.grad = nd.astype(start, x.dtype) * 0.5
        ours([x], **options).step()
    assert nd.all(narrow.data == nd.astype(wide.data, "bfloat16"))


def test_a_small_model_learns():
    """Two moons, as in every course: 3 layers, 200 steps."""
    generator = nd.Generator(1)
    model = ag.Sequential(
        ag.Linear(2, 32, generator=generator), ag.tanh, ag.Linear(32, 2, generator=generator)
    )
    angle = generator.uniform((256,), high=nd.pi)
    upper = generator.integers(0, 2, (256,))
    side = nd.astype(upper * 2 - 1, nd.float64)
    x = nd.stack(
        [side * nd.cos(angle) * 1.0 + upper - 0.5, side * nd.sin(angle) + 0.2 * side], axis=1
    )
    x = nd.astype(x + generator.normal(x.shape, std=0.05), nd.float32)
    optimizer = ag.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = ag.cross_entropy(model(x), upper, reduction="mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
