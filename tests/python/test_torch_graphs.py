# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Ops without a gradient, and ops in place, in torch's graphs."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

# torch's own, in its tracing of what it then leaves to eager calls.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


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


def unrecorded_calls(generator):
    """Calls of ops without a gradient, on the first tensor."""
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    residual, weight, keys, slots = draw(4, 8), draw(8), draw(4, 2, 4), torch.arange(4)
    heads, table = draw(1, 4, 2, 4), draw(4, 2)
    cached = {"key_cache": keys, "slot_mapping": slots}
    return {
        "fused_add_rms_norm": lambda x: mt.fused_add_rms_norm(x, residual * 1, weight),
        "gemma_fused_add_rms_norm": lambda x: mt.gemma_fused_add_rms_norm(x, residual * 1, weight),
        "rms_norm_quant": lambda x: mt.rms_norm_quant(x, weight),
        "add_rms_norm_quant": lambda x: mt.add_rms_norm_quant(residual, x),
        "gated_activation_quant": lambda x: mt.gated_activation_quant(x),
        "silu_and_mul_quant": lambda x: mt.silu_and_mul_quant(residual, up=x),
        "qk_norm_rope": lambda x: mt.qk_norm_rope(
            heads, x.view(heads.shape), None, None, table, table, **cached
        ),
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["none", "eager", "aot_eager"])
@pytest.mark.parametrize("op", unrecorded_calls(torch.Generator()))
def test_ops_without_a_gradient_refuse_to_record(op, backend, generator):
    """They accept the same tensors while nothing is recorded."""
    call = unrecorded_calls(generator)[op]

    def layer(a):
        written = a * 1.0
        call(written)
        return written

    a = torch.randn(4, 8, generator=generator, requires_grad=True)
    torch.compiler.reset()
    run = layer if backend == "none" else torch.compile(layer, backend=backend)
    with pytest.raises(
        RuntimeError, match=rf"^{op}: argument '\w+' requires grad, which this call"
    ):
        run(a)
    with torch.no_grad():
        torch.testing.assert_close(run(a), layer(a), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["none", "eager", "aot_eager"])
def test_operators_without_a_gradient_refuse_to_record(backend, generator):
    """Also torch's registry; a write increments the version, to protect saved tensors."""
    operators, weight = torch.ops.membound, torch.randn(8, generator=generator)

    def layer(a):
        operators.fused_add_rms_norm(a, a * 2, weight, 1e-6)
        return operators.rms_norm_quant(a, weight, None, "int8", None, None, 1e-6, 0.0, "once")

    x = torch.randn(4, 8, generator=generator, requires_grad=True)
    torch.compiler.reset()
    run = layer if backend == "none" else torch.compile(layer, backend=backend)
    with pytest.raises(RuntimeError, match=r"fused_add_rms_norm: argument 'input' requires grad"):
        run(x * 1)
    weight.requires_grad_()
    with pytest.raises(RuntimeError, match=r"^rms_norm_quant: argument 'weight' requires grad"):
        operators.rms_norm_quant(x.data, weight, None, "int8", None, None, 1e-6, 0.0, "once")
    squared = (saved := x * 1) * saved
    with torch.no_grad():
        run(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


IDS = torch.tensor([1, 2, 4])
WRITTEN = {  # on x of (4, 8), where to write
    "rms_norm_quant": (lambda x, **out: mt.rms_norm_quant(x, **out), [(4, 8), torch.int8]),
    "add_rms_norm_quant": (
        lambda x, **out: mt.add_rms_norm_quant(x, x * 2, **out), [(4, 8), torch.float8_e5m2],
    ),
    "gated_activation_quant": (
        lambda x, **out: mt.gated_activation_quant(x, **out), [(4, 4), torch.int8],
    ),
    "silu_and_mul_quant": (
        lambda x, **out: mt.silu_and_mul_quant(x, x + 1, **out), [(4, 8), torch.int8],
    ),
    "embedding": (
        lambda x, **out: mt.embedding(IDS % 4, x.bfloat16(), scale=1.1, **out),
        [(3, 8), torch.float32],
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", WRITTEN)
def test_results_take_the_dtype_of_where_they_are_written(op, generator):
    call, (shape, dtype) = WRITTEN[op]
    x = torch.randn(4, 8, generator=generator)
    mine, right = (torch.zeros(shape).to(dtype) for _ in range(2))
    torch.compiler.reset()
    run = torch.compile(lambda x, out: call(x, out=out), fullgraph=True, backend="aot_eager")
    found, wanted = run(x, mine), call(x, out=right)
    assert torch.equal(mine.view(torch.uint8), right.view(torch.uint8))
    if isinstance(wanted, tuple):
        torch.testing.assert_close(found[1:], wanted[1:], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "out", "error", "message"),
    [
        ("out", torch.empty(2, 4, 8), ValueError, r"must have shape \(4, 8\), got \(2, 4, 8\)"),
        ("out", torch.empty(4, 8).int(), TypeError, "must be .*float32.*, got int32"),
        ("residual_out", torch.empty(4, 1), ValueError, r"must have shape \(4, 8\), got \(4, 1\)"),
    ],
)
def test_where_results_are_written_is_checked_in_graphs(name, out, error, message):
    """Outputs are not cast or broadcast, with the errors of eager calls; modes act as graphs."""
    x = torch.ones(4, 8)
    call = lambda x, out: mt.add_rms_norm(x, x, **{name: out})  # noqa: E731
    torch.compiler.reset()
    traced = torch.fx.experimental.proxy_tensor.make_fx(call)
    for run in (call, torch.compile(call, backend="aot_eager"), traced):
        with pytest.raises(error, match=f"^add_rms_norm: argument '{name}' {message}"):
            run(x, out)
    with pytest.raises(ValueError, match=r"^rope: argument 'k_out' must be None"):
        torch.fx.experimental.proxy_tensor.make_fx(
            lambda q: mt.rope(q, freqs=torch.ones(4), k_out=q)
        )(torch.ones(1, 2, 1, 8))
