# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and entropies of a last layer, against torch's log_softmax."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import last_layers
from test_torch_linear_cross_entropy import MODES, called

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OPTIONS = [
    {}, {"temperature": 0.7}, {"softcap": 2.5}, {"temperature": 1.3, "softcap": 2.0},
    {"ignore_index": 3},
]  # fmt: skip


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(options, mode, device, with_bias, generator):
    """In chunks that do not divide the rows."""
    x, weight, bias, labels = last_layers.drawn(generator, device=device)
    if "ignore_index" in options:
        labels = labels.clamp(min=0)
    leaves = [x, weight, bias][: 2 + with_bias]
    slopes = torch.randn((2, 2, 7), dtype=torch.float64, generator=generator).to(device).unbind()
    right = last_layers.log_probs(*leaves, *[None] * (3 - len(leaves)), labels, **options)
    wanted = torch.autograd.grad(right, leaves, slopes)

    def ours(x, weight, bias=None):
        more = {"entropy": True, "chunk_rows": 4}
        return mt.linear_log_probs(x, weight, labels, bias, **more, **options)

    found, gradients = called(mode, ours, leaves, slopes)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(gradients, wanted)
    alone = mt.linear_log_probs(x, weight, labels, *leaves[2:], chunk_rows=4, **options)
    assert torch.equal(alone, found[0])
    (of_alone,) = torch.autograd.grad(alone, x, slopes[0])
    (right_alone,) = torch.autograd.grad(
        last_layers.log_probs(*leaves, *[None] * (3 - len(leaves)), labels, **options)[0],
        x,
        slopes[0],
    )
    torch.testing.assert_close(of_alone, right_alone)


def test_by_finite_differences(generator):
    x, weight, bias, labels = last_layers.drawn(generator)
    options = {"temperature": 0.8, "softcap": 3.0, "entropy": True, "chunk_rows": 5}
    assert torch.autograd.gradcheck(
        lambda x, w, b: mt.linear_log_probs(x, w, labels, b, **options), (x, weight, bias)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_of_16_bits(device, temperature, generator):
    """Against float64 of the same logits: results are float32, gradients are rounded once."""
    x, weight, _, labels = last_layers.drawn(generator, torch.bfloat16, device)
    options = {"temperature": temperature}
    found = mt.linear_log_probs(x, weight, labels, entropy=True, **options)
    assert [one.dtype for one in found] == [torch.float32] * 2
    with torch.no_grad():
        logits = torch.nn.functional.linear(x.double(), weight.double()) / temperature
        # The product is rounded once, in its own order of sums.
        logits = logits.bfloat16().double()
    own = torch.eye(11, dtype=torch.float64, device=device)
    right = last_layers.log_probs(logits, own, None, labels)
    for one, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=2**-7, atol=2**-6)
    slopes = torch.randn((2, 2, 7), generator=generator).to(device)
    got = torch.autograd.grad(found, (x, weight), slopes.unbind())
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    wanted = torch.autograd.grad(
        last_layers.log_probs(*wide, None, labels, **options), wide, slopes.double().unbind()
    )
    for one, exact in zip(got, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), exact, rtol=2**-5, atol=2**-4)


def test_masked_vocabulary_and_padding(generator):
    """Logits of -inf have no part in an entropy; rows to ignore may hold anything."""
    x, weight, bias, labels = last_layers.drawn(generator)
    with torch.no_grad():
        bias[4:] = -torch.inf
        labels = labels.clamp(max=3)
        right = last_layers.log_probs(x, weight[:4], bias[:4], labels)
        x[0, 3] = torch.nan
    found = mt.linear_log_probs(x, weight, labels, bias, entropy=True)
    torch.testing.assert_close(found, right)
    dx, _ = torch.autograd.grad(sum(one.sum() for one in found), (x, bias))
    assert not dx.isnan().any()
    assert (dx[0, 3:5] == 0).all()


def test_labels_outside_of_the_vocabulary(generator):
    x, weight, _, labels = last_layers.drawn(generator)
    labels[1, 1] = 11
    for one in mt.linear_log_probs(x, weight, labels, entropy=True):
        assert one.isnan().nonzero().tolist() == [[1, 1]]
    with pytest.raises(ValueError, match="argument 'labels' must hold numbers from 0 to 10"):
        mt.linear_log_probs(x, weight, labels, validate=True)


def test_autocast(generator):
    x, weight, _, labels = last_layers.drawn(generator, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = mt.linear_log_probs(x, weight, labels)
        logits = torch.nn.functional.linear(x, weight)
    right = last_layers.log_probs(logits.double(), torch.eye(11).double(), None, labels)[0]
    torch.testing.assert_close(found, right.float())
    dx, dweight = torch.autograd.grad(found.sum(), (x, weight))
    assert dx.dtype == dweight.dtype == torch.float32


def test_no_rows():
    x, weight, labels = torch.ones(0, 4), torch.ones(5, 4), torch.ones(0, dtype=torch.int64)
    found = mt.linear_log_probs(x.requires_grad_(), weight, labels, entropy=True)
    assert [one.shape for one in found] == [(0,), (0,)]
    sum(one.sum() for one in found).backward()
    assert x.grad.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "error", "argument"),
    [
        ({"weight": torch.ones(5, 3)}, ValueError, "weight"),
        ({"bias": torch.ones(4)}, ValueError, "bias"),
        ({"labels": torch.arange(2)}, ValueError, "labels"),
        ({"labels": torch.ones(3)}, TypeError, "labels"),
        ({"temperature": 0.0}, ValueError, "temperature"),
        ({"temperature": float("nan")}, ValueError, "temperature"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"chunk_rows": 0}, ValueError, "chunk_rows"),
        ({"x": torch.ones(3, 4, dtype=torch.int64)}, TypeError, "x"),
    ],
)
def test_bad_calls(change, error, argument):
    good = {"x": torch.ones(3, 4), "weight": torch.ones(5, 4), "labels": torch.arange(3)}
    with pytest.raises(error, match=f"^linear_log_probs: argument '{argument}' must"):
        mt.linear_log_probs(**{**good, **change})
