# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of a last layer, against torch's layer and loss."""

from __future__ import annotations

import weakref

import pytest

pytest.importorskip("torch")

import last_layers

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
    rtol, atol = (1.3e-6, 2**-9) if device == "cpu" else (2**-8, 2**-6)
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
        ({"reduction": "average"}, ValueError, "reduction"),
        ({"softcap": 0.0}, ValueError, "softcap"),
        ({"class_weight": torch.arange(5)}, TypeError, "class_weight"),
        ({"labels": torch.ones(3)}, TypeError, "labels"),
        ({"x": [1.0]}, TypeError, "x"),
        ({"labels": None}, TypeError, "labels"),
    ],
)
def test_bad_calls(change, error, argument):
    good = {"x": torch.ones(3, 4), "weight": torch.ones(5, 4), "labels": torch.arange(3)}
    with pytest.raises(error, match=f"^linear_cross_entropy: argument '{argument}' must"):
        mt.linear_cross_entropy(**{**good, **change})


MODES = ["eager", "compiled", "torch.func"]


def called(mode, function, leaves, slopes):
    """The results of a function, and the gradients of its leaves."""
    if mode == "torch.func":
        found, pull = torch.func.vjp(function, *(t.detach() for t in leaves))
        return found, pull(slopes)
    if mode == "compiled":
        torch.compiler.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = function(*leaves)
    return found, torch.autograd.grad(found, leaves, slopes)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", last_layers.LOSSES)
def test_every_option(kind, mode, device, reduction, generator):
    options = dict(last_layers.LOSSES[kind])
    if "class_weight" in options:
        options["class_weight"] = options["class_weight"].to(device)
    *leaves, labels = last_layers.drawn(generator, device=device)
    if "ignore_index" in options:
        labels = labels.clamp(min=0)
    right = last_layers.loss(*leaves, labels, reduction, **options)
    slopes = torch.randn(right.shape, dtype=torch.float64, generator=generator).to(device)

    def ours(x, weight, bias):
        more = {"reduction": reduction, "chunk_rows": 4}
        return mt.linear_cross_entropy(x, weight, labels, bias, **more, **options)

    found, gradients = called(mode, ours, leaves, slopes)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(gradients, torch.autograd.grad(right, leaves, slopes))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_that_are_not_wanted(reduction, generator):
    """Of a frozen weight or of x alone, the others are None; recorded or not the loss is one."""
    *given, labels = last_layers.drawn(generator)
    with torch.no_grad():
        plain = mt.linear_cross_entropy(*given[:2], labels, given[2], reduction=reduction)
    for only in range(3):
        leaves = [t.detach().requires_grad_(at == only) for at, t in enumerate(given)]
        for compile_it in (False, True):

            def step(x, weight, bias):
                found = mt.linear_cross_entropy(x, weight, labels, bias, reduction=reduction)
                return found.sum()

            torch.compiler.reset()
            run = torch.compile(step, fullgraph=True, backend="aot_eager") if compile_it else step
            for leaf in leaves:
                leaf.grad = None
            total = run(*leaves)
            total.backward()
            torch.testing.assert_close(total, plain.sum(), rtol=0, atol=0)
            assert [leaf.grad is not None for leaf in leaves] == [at == only for at in range(3)]


def test_dynamic_rows_compile_once(generator):
    *leaves, _ = last_layers.drawn(generator, torch.float32)
    _, weight, bias = leaves
    counted = torch._dynamo.testing.CompileCounter()
    step = torch.compile(
        lambda x, y: mt.linear_cross_entropy(x, weight, y, bias, chunk_rows=4),
        fullgraph=True, backend=counted, dynamic=True,
    )  # fmt: skip
    torch.compiler.reset()
    for rows in (5, 8, 13):
        x = torch.randn(rows, 6, generator=generator)
        labels = torch.arange(rows) % 11
        right = mt.linear_cross_entropy(x, weight, labels, bias, chunk_rows=4)
        torch.testing.assert_close(step(x, labels), right, rtol=0, atol=0)
    assert counted.frame_count == 1


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_operators_keep_torchs_rules(reduction, opcheck, generator):
    x, weight, bias, labels = last_layers.drawn(generator, torch.float32)
    options = -100, 0.1, 0.01, 3.0, False
    if reduction == "none":
        given = x, weight, bias, labels, None, 4, *options, 0.8, True
        opcheck(torch.ops.membound.linear_row_losses.default, given)
    else:
        given = x, weight, bias, labels, None, [True, False, True], 4, reduction, *options
        opcheck(torch.ops.membound.linear_cross_entropy.default, given)


def test_losses_of_rows_record_no_logits(generator):
    """Between forward and backward there are the inputs and a few numbers of each row."""
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    *leaves, labels = last_layers.drawn(generator)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = mt.linear_cross_entropy(*leaves[:2], labels, leaves[2], reduction="none")
    assert len(kept) > 5
    assert not any(t.shape[-1:] == (11,) and t.numel() > 66 for t in kept)
    losses.sum().backward()


def test_losses_of_rows_can_be_differentiated_twice_over(generator):
    """A graph that is retained gives the same gradients again."""
    *leaves, labels = last_layers.drawn(generator)
    losses = mt.linear_cross_entropy(*leaves[:2], labels, leaves[2], reduction="none")
    first = torch.autograd.grad(losses.sum(), leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(losses.sum(), leaves), first, rtol=0, atol=0)


def test_under_vmap(generator):
    x, weight, _, labels = last_layers.drawn(generator)
    for reduction in ("none", "sum"):
        one = lambda x, y, r=reduction: mt.linear_cross_entropy(x, weight, y, reduction=r)  # noqa: E731
        with torch.no_grad():
            found = torch.func.vmap(one)(x, labels)
            right = torch.stack([one(*both) for both in zip(x, labels, strict=True)])
        torch.testing.assert_close(found, right)
