# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Class weights, reductions, and the further results of cross_entropy."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from bad_calls import f32
from cross_entropies import KINDS, assert_gradient, assert_sums, definition, label_weights, zeros
from reference import DTYPES
from softmaxes import draw

import membound
from membound.oracle import statistics_dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_class_weights_and_reductions(name, dtype, kind, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    options = KINDS[kind]
    sums = statistics_dtype(dtype)
    for cols in (1, 5, 96, 2100):
        logits = draw(rng, (6, cols), dtype, 2.0)
        labels = rng.integers(0, cols, 6).astype(rng.choice((np.int32, np.int64)))
        labels[2] = -100
        weight = draw(rng, (cols,), str(rng.choice(DTYPES if dtype == "float64" else ("float32",))))
        weight = np.abs(weight) + weight.dtype.type(0.1)
        for given in (None, weight):
            rows, lse, gradient = definition(logits, labels, weight=given, **options)
            z_rows = label_weights(labels, cols, given) * options.get("z_loss", 0.0) * lse**2
            total = label_weights(labels, cols, given).sum()
            arrays_given = one.array(logits), one.array(labels)
            there = None if given is None else one.array(given)
            for reduction, divisor in (("none", None), ("sum", 1.0), ("mean", total)):
                wanted = {"reduction": reduction, **options}
                loss, known, z, predicted = membound.cross_entropy(
                    *arrays_given, there, return_lse=True, return_z_loss=True,
                    return_predictions=True, **wanted,
                )  # fmt: skip
                right = rows if divisor is None else rows.sum() / divisor
                right_z = z_rows if divisor is None else z_rows.sum() / divisor
                assert_sums(one.numpy(loss), right, dtype, 64.0)
                assert_sums(one.numpy(z), right_z, dtype, 64.0)
                first = np.where(labels == -100, -1, logits.astype(np.float64).argmax(-1))
                np.testing.assert_array_equal(one.numpy(predicted), first)
                assert one.numpy(predicted).dtype.itemsize == one.numpy(arrays_given[1]).itemsize
                dloss = 0.75 / (divisor or 1.0)
                found = membound.cross_entropy_backward(0.75, *arrays_given, known, there, **wanted)
                assert_gradient(one.numpy(found), dloss * gradient, dtype, dloss, 64.0)
                if not one.takes_out:
                    continue
                written = zeros(one, (6, cols), dtype)
                shape = 6 if divisor is None else ()
                out = zeros(one, shape, sums)
                more = {} if divisor is None else {"row_losses": zeros(one, 6, sums)}
                membound.cross_entropy(
                    *arrays_given, there, out=out, dlogits=written, dloss=0.75, **more, **wanted
                )
                assert one.numpy(written).tobytes() == one.numpy(found).tobytes()
                assert one.numpy(out).tobytes() == one.numpy(loss).tobytes()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_class_weights_as_torch_has_them(reduction, smoothing, seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    logits = torch.randn(40, 300, dtype=torch.float64, requires_grad=True)
    labels, weight = torch.randint(300, (40,)), torch.rand(300, dtype=torch.float64)
    labels[::5] = -100
    options = {"reduction": reduction, "label_smoothing": smoothing}
    right = torch.nn.functional.cross_entropy(logits, labels, weight, **options)
    wanted = torch.autograd.grad(right.sum(), logits)[0]
    gradient = torch.empty_like(wanted)
    found = membound.cross_entropy(logits.detach(), labels, weight, dlogits=gradient, **options)
    torch.testing.assert_close(found, right.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-14)
    recorded = membound.cross_entropy(logits, labels, weight, **options)
    torch.testing.assert_close(recorded, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(recorded.sum(), logits)[0], wanted)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_means_of_nothing_and_labels_out_of_range(name):
    one = framework(name)
    logits = one.array(f32(3, 4))
    for labels, total, mean in (([-100] * 3, 0.0, np.nan), ([0, 4, 1], np.nan, np.nan)):
        given = logits, one.array(np.array(labels))
        found = [membound.cross_entropy(*given, reduction=kind) for kind in ("sum", "mean")]
        np.testing.assert_array_equal([one.numpy(a) for a in found], [total, mean])
        loss, lse, predicted = membound.cross_entropy(
            *given, return_lse=True, return_predictions=True
        )
        columns = [-1 if label in (-100, 4) else 0 for label in labels]
        assert one.numpy(predicted).tolist() == columns
        bad = [label == 4 for label in labels]
        gradient = membound.cross_entropy_backward(1.0, *given, lse)
        assert np.isnan(one.numpy(loss)).tolist() == bad
        assert np.isnan(one.numpy(gradient)).all(-1).tolist() == bad
        assert np.isnan(one.numpy(gradient)).any(-1).tolist() == bad
    nothing = one.array(f32(0, 4)), one.array(np.zeros(0, np.int64))
    assert one.numpy(membound.cross_entropy(*nothing, reduction="sum")) == 0
    assert np.isnan(one.numpy(membound.cross_entropy(*nothing, reduction="mean")))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_predictions_are_those_of_argmax(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    for cols in (1, 3, 130, 5000):
        logits = rng.integers(-2, 3, (9, cols)).astype(np.float32)  # many are equal
        logits[3, cols // 2] = np.nan
        logits[4] = -np.inf
        logits[5, cols - 1] = np.inf
        found = membound.cross_entropy(
            one.array(logits), one.array(np.zeros(9, np.int32)), return_predictions=True
        )[1]
        np.testing.assert_array_equal(one.numpy(found), logits.argmax(-1))


@pytest.mark.gpu
def test_a_mean_in_a_cuda_graph(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    for cols, weighted in ((1000, False), (1000, True), (50257, True)):
        logits, labels = (
            torch.zeros(3000, cols, device="cuda"),
            torch.zeros(3000, device="cuda").long(),
        )
        weight = torch.rand(cols, device="cuda") if weighted else None
        gradient, loss = torch.empty_like(logits), torch.empty((), device="cuda")
        call = {"reduction": "mean", "label_smoothing": 0.1, "out": loss, "dlogits": gradient}
        call["row_losses"] = torch.empty(3000, device="cuda")
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        membound.cross_entropy(logits, labels, weight, **call)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            membound.cross_entropy(logits, labels, weight, **call)
        logits.normal_()
        labels.random_(cols)[::3] = -100
        graph.replay()
        leaf = logits.double().requires_grad_()
        right = torch.nn.functional.cross_entropy(
            leaf, labels, None if weight is None else weight.double(), label_smoothing=0.1
        )
        right.backward()
        torch.testing.assert_close(loss.double(), right.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient.double(), leaf.grad, rtol=1e-4, atol=1e-9)
        bits = loss.clone(), gradient.clone()
        graph.replay()
        assert torch.equal(loss, bits[0])
        assert torch.equal(gradient, bits[1])
