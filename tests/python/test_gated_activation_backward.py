# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import itertools

import arrays
import bad_calls
import numpy as np
import pytest
from arrays import LAYOUTS
from bad_calls import f32
from cases import needs
from gated_activations import GPT_OSS, PACKINGS, WIDTHS, Case, check_backward, vary
from gradients import FRAMEWORKS, ON_GPU
from reference import DTYPES

import membound
from membound.oracle.activations import KINDS

TARGETS = ("returned", "given", "over dy", "over gate", "over up")


def draw_forms(case: Case) -> None:
    """Draw the output of each gradient, and whether it is wanted."""
    if not case.one.takes_out:
        return
    able = [p for p in TARGETS if p[:5] != "over " or case.layout_of(p[5:]).writable]
    if case.packing == "apart":
        targets = [*able, "none"]
        chosen = case.rng.choice(len(targets), 2, replace=False)
        case.forms = {name: targets[at] for name, at in zip(("dgate", "dup"), chosen, strict=True)}
    elif case.packed:
        fits = [p for p in able if p in ("returned", "given", "over gate")]
        case.forms = {"dgate": str(case.rng.choice(fits))}
    else:
        case.forms = {"dgate": str(case.rng.choice([p for p in able if p != "over up"]))}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_some_widths(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in map(int, rng.choice(WIDTHS, 3, replace=False)):
        case = Case(one, dtype, cols, 4, str(rng.choice(KINDS)), layout=layout, rng=rng)
        case.packing = str(rng.choice(PACKINGS))
        vary(case)
        draw_forms(case)
        check_backward(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_kind_and_packing(name, dtype, kind, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for packing in PACKINGS:
        case = Case(one, dtype, int(rng.choice(WIDTHS)), 3, kind, packing, rng=rng)
        vary(case)
        draw_forms(case)
        check_backward(case)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [16384, 65537, 131072])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for packing, kind in itertools.product(("apart", "halves"), ("silu", "gelu")):
        check_backward(Case(one, dtype, cols, 3, kind, packing, rng=rng))


@pytest.mark.parametrize("options", [{}, GPT_OSS], ids=["plain", "gpt-oss"])
@pytest.mark.parametrize("kind", KINDS)
def test_finite_differences(kind, options, seed):
    rng = np.random.default_rng(seed)
    options = dict(options)
    if kind not in ("silu", "sigmoid", "situ"):
        options.pop("alpha", None)
    options["row_scale"] = rng.uniform(0.5, 2.0, 5)
    packed, dy = rng.standard_normal((5, 2 * 7)) * 4, rng.standard_normal((5, 7))
    packed = packed[np.arange(5)]
    # Away from the corners of the limits and of relu2.
    packed[np.abs(np.abs(packed) - 7.0) < 1e-3] += 0.01
    packed[np.abs(packed) < 1e-3] += 0.01
    found = membound.gated_activation_backward(dy, packed, kind=kind, **options)
    for at in np.ndindex(packed.shape):
        step = np.zeros_like(packed)
        step[at] = 1e-5
        high, low = (
            membound.gated_activation(packed + sign * step, kind=kind, **options)
            for sign in (1, -1)
        )
        slope = float(((high - low) * dy).sum() / 2e-5)
        assert found[at] == pytest.approx(slope, rel=1e-6, abs=1e-7), at


def check_situ(generator):
    import torch

    gate, up, dy = (
        torch.randn(6, 50, dtype=torch.float64, generator=generator) * 9 for _ in range(3)
    )
    leaves = gate.requires_grad_(), up.requires_grad_()
    for said, (cap, limit) in (({}, (4.0, 25.0)), ({"alpha": 1.5, "limit": 8.0}, (1.5, 8.0))):
        out = cap * torch.tanh(gate / cap) * torch.sigmoid(gate) * limit * torch.tanh(up / limit)
        wanted = torch.autograd.grad(out, leaves, dy)
        given = gate.detach(), up.detach()
        found = membound.gated_activation(*given, kind="situ", **said)
        torch.testing.assert_close(found, out.detach(), rtol=1e-13, atol=1e-14)
        got = membound.gated_activation_backward(dy, *given, kind="situ", **said)
        for one, right in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_autograd_in_float64(kind, seed):
    torch = arrays.package("torch")
    generator = torch.Generator().manual_seed(seed % 2**31)
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda g: torch.nn.functional.gelu(g, approximate="tanh"),
        "sigmoid": torch.sigmoid,
        "relu2": lambda g: torch.relu(g) ** 2,
        "relu": torch.relu,
    }
    if kind == "situ":
        check_situ(generator)
        return
    gate, up, dy = (
        torch.randn(6, 50, dtype=torch.float64, generator=generator) * 3 for _ in range(3)
    )
    # Beyond the limits, not at them: there torch.clamp's gradient is 1 up to torch 2.14, 0 later.
    gate[0, :2] = torch.tensor([0.0, 8.0])
    up[1, :2] = torch.tensor([7.5, -7.5])
    leaves = gate.clone().requires_grad_(), up.clone().requires_grad_()
    out = functions[kind](leaves[0].clamp(max=7.0)) * (leaves[1].clamp(-7.0, 7.0) + 1.0)
    wanted = torch.autograd.grad(out, leaves, dy)
    got = membound.gated_activation_backward(dy, gate, up, kind=kind, limit=7.0, up_offset=1.0)
    for found, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-13)
    # Overwrites the packed input.
    packed = torch.cat([gate, up], -1)
    same = membound.gated_activation_backward(
        dy, packed, kind=kind, limit=7.0, up_offset=1.0, dgate=packed
    )
    assert same is packed
    assert torch.equal(packed, torch.cat(got, -1))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_limit_itself_is_within(name):
    """At the limit itself the gradient passes, as inside the limits."""
    one = arrays.framework(name)
    edge = np.array([[7.0, 6.0, 6.0, 8.0, 6.0, 6.0]], np.float32)
    sides = np.array([[6.0, 7.0, -7.0, 6.0, 7.5, -7.5]], np.float32)
    dy = np.ones_like(edge)
    dgate, dup = membound.gated_activation_backward(
        *(one.array(a) for a in (dy, edge, sides)), kind="relu2", limit=7.0
    )
    np.testing.assert_array_equal(one.numpy(dgate) != 0, [[True, True, True, False, True, True]])
    np.testing.assert_array_equal(one.numpy(dup) != 0, [[True, True, True, True, False, False]])


def both_over_one():
    one = f32()
    return {"dgate": one, "dup": one}


APART = {"dy": f32(), "gate": f32(), "up": f32()}
BAD = [
    ("dy of another shape", lambda: {"dy": f32(3, 5)}, ValueError, "dy"),
    ("dy of another dtype", lambda: {"dy": np.ones((3, 4))}, TypeError, "dy"),
    ("up of another dtype", lambda: {"up": np.ones((3, 4))}, TypeError, "up"),
    ("no such kind", lambda: {"kind": "tanh"}, ValueError, "kind"),
    ("both in one array", both_over_one, ValueError, "dgate"),
    ("dgate of another shape", lambda: {"dgate": f32(3, 3)}, ValueError, "dgate"),
    ("dgate read-only", lambda: {"dgate": bad_calls.read_only()}, ValueError, "dgate"),
    ("dup not wanted", lambda: {"dup": f32(), "need_dup": False}, ValueError, "dup"),
    ("dgate not wanted", lambda: {"dgate": f32(), "need_dgate": False}, ValueError, "dgate"),
    ("a flag that is none", lambda: {"need_dup": 1}, TypeError, "need_dup"),
    (
        "dup of a packed one",
        lambda: {"gate": f32(3, 8), "up": None, "dup": f32()},
        ValueError,
        "dup",
    ),
    (
        "half of a packed one",
        lambda: {"gate": f32(3, 8), "up": None, "need_dup": False},
        ValueError,
        "need_dup",
    ),
    ("an odd width", lambda: {"gate": f32(3, 7), "up": None}, ValueError, "gate"),
    (
        "a packed gradient of another width",
        lambda: {"gate": f32(3, 8), "up": None, "dgate": f32(3, 7)},
        ValueError,
        "dgate",
    ),
]


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_calls_say_what_is_wrong(call, expected, argument):
    bad_calls.check(membound.gated_activation_backward, call(), APART, expected, argument)


def test_no_rows():
    empty = np.ones((0, 6), np.float32)
    assert membound.silu_and_mul_backward(np.ones((0, 3), np.float32), empty).shape == (0, 6)
