# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of a last layer, against torch's layer and loss."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_cross_entropy(device, with_bias, generator):
    """With chunks that do not divide the rows, against fully materialised logits."""
    draw = lambda *s: torch.randn(s, dtype=torch.float64, generator=generator).to(device)  # noqa: E731
    x, weight = draw(2, 7, 6).requires_grad_(), draw(11, 6).requires_grad_()
    bias = draw(11).requires_grad_() if with_bias else None
    labels = torch.randint(0, 11, (2, 7), generator=generator).to(device)
    labels[0, 3] = -100
    leaves = [t for t in (x, weight, bias) if t is not None]
    logits = torch.nn.functional.linear(x, weight, bias)
    right = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) * 3
    found = mt.linear_cross_entropy(x, weight, labels, bias, chunk_rows=4) * 3
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, retain_graph=True), torch.autograd.grad(right, leaves)
    )
    with pytest.raises(RuntimeError, match="a second backward"):
        torch.autograd.grad(found, leaves)
    with torch.no_grad():
        torch.testing.assert_close(mt.linear_cross_entropy(x, weight, labels, bias) * 3, right)
    with pytest.raises(ValueError, match="'labels' must have shape"):
        mt.linear_cross_entropy(x, weight, labels[0])
    with pytest.raises(ValueError, match="'chunk_rows' must be at least 1"):
        mt.linear_cross_entropy(x, weight, labels, chunk_rows=0)


def test_one_chunk_of_logits_at_a_time(generator, monkeypatch):
    made, theirs = [], torch.nn.functional.linear

    def linear(*args):
        assert all(reference() is None for reference in made)
        logits = theirs(*args)
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    x, weight = torch.randn(9, 4, generator=generator), torch.randn(5, 4, generator=generator)
    labels = torch.zeros(9, dtype=torch.int64)
    mt.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), labels, chunk_rows=3)
    assert len(made) == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_autocast(device, dtype, with_bias, generator):
    """Products in autocast's dtype, the loss in float32, gradients in the dtypes of the inputs."""
    kind = getattr(torch, dtype)
    draw = lambda *s: torch.randn(s, generator=generator).to(device).requires_grad_()  # noqa: E731
    x, weight, bias = draw(14, 32), draw(11, 32), draw(11) if with_bias else None
    labels = torch.randint(0, 11, (14,), generator=generator).to(device)
    leaves = [t for t in (x, weight, bias) if t is not None]
    with torch.autocast(device, torch.bfloat16):
        given = x.to(kind)
        logits = torch.nn.functional.linear(given, weight, bias)
        right = torch.nn.functional.cross_entropy(logits, labels)
        found = mt.linear_cross_entropy(given, weight, labels, bias, chunk_rows=5)
        double = mt.linear_cross_entropy(x.double(), weight.double(), labels)
    assert found.dtype == right.dtype == torch.float32
    assert double.dtype == torch.float64  # which autocast leaves alone
    # A GPU sums products of five rows in another order than all rows, and rounds to 16 bits.
    rtol, atol = (1.3e-6, 2**-10) if device == "cpu" else (2**-8, 2**-6)
    torch.testing.assert_close(found, right, rtol=rtol, atol=1e-5)
    mine, theirs = (torch.autograd.grad(loss, leaves) for loss in (found, right))
    torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=atol)


def test_labels_that_are_none_of_the_vocabulary():
    x, weight, labels = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([1, 9, -100])
    assert mt.linear_cross_entropy(x, weight, labels).isnan()
    assert mt.linear_cross_entropy(x[2:], weight, labels[2:]).isnan()  # a mean of nothing
    assert mt.linear_cross_entropy(x[2:], weight, labels[2:], reduction="sum") == 0
    with pytest.raises(ValueError, match=r"argument 'labels' must hold numbers from 0 to 4"):
        mt.linear_cross_entropy(x, weight, labels, validate=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_class_weights(device, reduction, generator):
    draw = lambda *s: torch.randn(s, dtype=torch.float64, generator=generator).to(device)  # noqa: E731
    x, weight = draw(14, 6).requires_grad_(), draw(11, 6).requires_grad_()
    classes, labels = draw(11).abs(), torch.arange(14, device=device) % 11
    labels[3] = -100
    options = {"label_smoothing": 0.1, "reduction": reduction}
    right = torch.nn.functional.cross_entropy(x @ weight.T, labels, classes, **options)
    found = mt.linear_cross_entropy(
        x, weight, labels, class_weight=classes, chunk_rows=4, **options
    )
    torch.testing.assert_close(found, right)
    mine, theirs = (torch.autograd.grad(loss, (x, weight)) for loss in (found, right))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("change", "error", "argument"),
    [
        ({"weight": torch.ones(5, 3)}, ValueError, "weight"),
        ({"weight": torch.ones(5)}, ValueError, "weight"),
        ({"bias": torch.ones(4)}, ValueError, "bias"),
        ({"class_weight": torch.ones(4)}, ValueError, "class_weight"),
        ({"reduction": "none"}, ValueError, "reduction"),
        ({"x": [1.0]}, TypeError, "x"),
        ({"labels": None}, TypeError, "labels"),
    ],
)
def test_bad_calls(change, error, argument):
    good = {"x": torch.ones(3, 4), "weight": torch.ones(5, 4), "labels": torch.arange(3)}
    with pytest.raises(error, match=f"^linear_cross_entropy: argument '{argument}' must"):
        mt.linear_cross_entropy(**{**good, **change})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
def test_compiled_code_ends_its_graph():
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    labels = torch.arange(3)
    step = lambda x: mt.linear_cross_entropy(x * 2, weight, labels) + 1  # noqa: E731
    torch.compiler.reset()
    losses = step(x), torch.compile(step, backend="aot_eager")(x)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x) for loss in losses))
