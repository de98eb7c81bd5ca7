# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What has no gradient, or works in place, in torch's graphs."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


QUANTISED = {
    "rows": {},
    "groups": {"group_size": 64, "scale_upper_bound": 0.5, "dtype": "int8"},
    "static": {"scale": torch.tensor(0.01), "dtype": torch.float8_e5m2},
}


@pytest.mark.parametrize("options", QUANTISED.values(), ids=QUANTISED)
def test_quantised_norms_in_graphs(opcheck, options, generator):
    x, residual = (torch.randn(4, 100, generator=generator) for _ in range(2))
    weight = torch.randn(100, generator=generator)
    torch.compiler.reset()
    for op, arrays in (
        ("rms_norm_quant", (x, weight)),
        ("add_rms_norm_quant", (x, residual, weight)),
    ):
        function = getattr(mt, op)
        right = getattr(membound, op)(*arrays, **options)
        call = lambda *a, f=function: f(*a, **options)  # noqa: E731
        found = torch.compile(call, fullgraph=True, backend="aot_eager")(*arrays)
        for mine, theirs in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, right)),
                                strict=True):  # fmt: skip
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
        given = (
            *arrays,
            options.get("scale"),
            "int8",
            options.get("group_size"),
            None,
            1e-6,
            0.0,
            "once",
        )
        opcheck(getattr(torch.ops.membound, op).default, given)


@pytest.mark.parametrize("options", QUANTISED.values(), ids=QUANTISED)
@pytest.mark.parametrize("packing", ["apart", "halves", "gate"])
def test_quantised_activations_in_graphs(opcheck, options, packing, generator):
    gate, up = (torch.randn(4, 100, generator=generator) for _ in range(2))
    arrays = (gate, up) if packing == "apart" else (gate,)
    options = {**options, "row_scale": torch.rand(4, generator=generator)}
    named = {} if packing == "apart" else {"packing": packing}
    torch.compiler.reset()
    for op in ("gated_activation_quant", "silu_and_mul_quant"):
        function = getattr(mt, op)
        call = lambda *a, f=function: f(*a, **options, **named)  # noqa: E731
        right = getattr(membound, op)(*arrays, **options, **named)
        found = torch.compile(call, fullgraph=True, backend="aot_eager")(*arrays)
        for mine, theirs in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, right)),
                                strict=True):  # fmt: skip
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    given = (
        gate,
        up if packing == "apart" else None,
        options["row_scale"],
        options.get("scale"),
        "gelu",
        named.get("packing", "halves"),
        "int8",
        options.get("group_size"),
        None,
        1.0,
        2.0,
        0.0,
    )
    opcheck(torch.ops.membound.gated_activation_quant.default, given)


@pytest.mark.parametrize("op", ["fused_add_rms_norm", "gemma_fused_add_rms_norm"])
def test_norms_in_place_in_graphs(opcheck, op, generator):
    x, residual = (torch.randn(4, 8, generator=generator) for _ in range(2))
    weight = torch.randn(8, generator=generator)
    operator = getattr(torch.ops.membound, op).default
    opcheck(operator, (x.clone(), residual.clone(), weight, 1e-6))
    written = x.clone(), residual.clone()
    getattr(membound, op)(*written, weight)

    def layer(x, residual):
        x, residual = x * 1, residual * 1
        getattr(mt, op)(x, residual, weight)
        return x, residual

    torch.compiler.reset()
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, residual)
    assert all(map(torch.equal, found, written))
