# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""torch: gradients and graphs of norms over several dtypes and several axes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import membound as mb  # noqa: E402
import membound.torch as mt  # noqa: E402

BF16 = torch.bfloat16


def added(x, residual, weight, bias=None):
    if bias is None:
        return mt.add_rms_norm(x, residual, weight)
    return mt.add_layer_norm(x, residual, weight, bias)


def arrays(device="cpu"):
    torch.manual_seed(3)
    x = torch.randn(6, 40, dtype=BF16, device=device, requires_grad=True)
    residual = torch.randn(6, 40, device=device, requires_grad=True)
    weight, bias = (torch.randn(40, device=device, requires_grad=True) for _ in range(2))
    return x, residual, weight, bias


def formula(x, residual, weight, bias):
    total = x.double() + residual.double()
    if bias is None:
        out = torch.nn.functional.rms_norm(total, (40,), weight.double(), 1e-6)
    else:
        out = torch.nn.functional.layer_norm(total, (40,), weight.double(), bias.double(), 1e-6)
    return out, total


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_residual_stream_in_float32(device, centred, compiled):
    """Each gradient in the dtype of its array, against float64."""
    x, residual, weight, bias = arrays(device)
    given = (x, residual, weight, bias if centred else None)
    function = torch.compile(added, fullgraph=True, backend="aot_eager") if compiled else added
    out, total = function(*given)
    assert (out.dtype, total.dtype) == (BF16, torch.float32)
    dy, dtotal = torch.randn_like(out), torch.randn_like(total)
    leaves = [one for one in given if one is not None]
    got = torch.autograd.grad((out, total), leaves, (dy, dtotal))
    right = formula(*given)
    wanted = torch.autograd.grad(right, leaves, (dy.double(), dtotal.double()))
    for leaf, a, b in zip(leaves, got, wanted, strict=True):
        assert a.dtype == leaf.dtype
        near = 2.0**-8 if a.dtype == BF16 else 1e-5
        torch.testing.assert_close(a, b.to(a.dtype), rtol=near, atol=near)
    torch.testing.assert_close(out, right[0].to(BF16), rtol=2.0**-8, atol=1e-6)


def test_gradients_of_one_array_alone():
    x, residual, weight, _ = arrays()
    for wanted in ((x,), (residual,), (weight,)):
        out, total = mt.add_rms_norm(
            *(a if any(a is w for w in wanted) else a.detach() for a in (x, residual, weight))
        )
        (gradient,) = torch.autograd.grad(out.float().sum() + total.sum(), wanted)
        assert gradient.dtype == wanted[0].dtype


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm", "rms_norm_gated"])
def test_a_result_of_another_dtype(kind):
    x, z, weight, _ = arrays()
    rows = (x, z) if kind == "rms_norm_gated" else (x,)
    for function in (getattr(mt, kind), getattr(mb, kind)):
        y = function(*rows, weight, dtype=torch.float32)
        assert y.dtype == torch.float32
        gradients = torch.autograd.grad(y.square().sum(), (*rows, weight))
        assert [g.dtype for g in gradients] == [a.dtype for a in (*rows, weight)]
    y = getattr(mt, kind)(*rows, weight, dtype="float64")
    near = getattr(mt, kind)(*(r.double() for r in rows), weight.double())
    torch.testing.assert_close(y, near, rtol=1e-5, atol=1e-5)


def test_operators_keep_torchs_rules(opcheck):
    x, residual, weight, bias = arrays()
    options = ("bfloat16", "bfloat16", 1e-6, 0.0)
    opcheck(torch.ops.membound.add_rms_norm_mixed, (x, residual, weight, *options, "once"))
    opcheck(torch.ops.membound.add_layer_norm_mixed, (x, residual, weight, bias, *options))


def test_modules_over_several_axes():
    x = torch.randn(3, 32, 16, requires_grad=True)
    for ours, theirs in (
        (mt.LayerNorm((32, 16)), torch.nn.LayerNorm((32, 16))),
        (mt.RMSNorm((32, 16), eps=None), torch.nn.RMSNorm((32, 16))),
    ):
        weight = torch.randn(32, 16)
        for module in (ours, theirs):
            module.weight.data.copy_(weight)
        torch.testing.assert_close(ours(x), theirs(x))
        got, wanted = (
            torch.autograd.grad(m(x).square().sum(), (x, m.weight)) for m in (ours, theirs)
        )
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_axes_that_do_not_join_are_refused():
    x = torch.randn(3, 16, 32, requires_grad=True).transpose(1, 2)
    with pytest.raises(ValueError, match="that one stride joins"):
        mt.layer_norm(x, torch.ones(32, 16), normalized_shape=(32, 16))
    with pytest.raises(ValueError, match="needs normalized_shape"):
        mt.layer_norm(x, torch.ones(32, 16))
