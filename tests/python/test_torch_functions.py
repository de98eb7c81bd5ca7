# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound's functions on torch tensors that require grad, under every mode of torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
functions = pytest.importorskip("membound.torch._functions")

# torch's own, in its tracing of what it will trace no more.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS, COLS = 5, 12


class Call(NamedTuple):
    """A differentiable call: shapes of the tensors that require grad, and the other arguments."""

    op: str
    shapes: dict[str, tuple[int, ...]]
    options: Mapping[str, Any] = MappingProxyType({})
    tables: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # tensors without gradient

    def tensors(self, generator: Any, dtype: Any, device: str) -> list[Any]:
        return [self._draw(n, s, generator, dtype, device) for n, s in self.shapes.items()]

    def function(self, generator: Any, dtype: Any, device: str, home: Any = mt) -> Callable:
        given = {n: self._draw(n, s, generator, dtype, device) for n, s in self.tables.items()}
        names, function = list(self.shapes), getattr(home, self.op)
        options = {**self.options, **given}
        return lambda *tensors: function(**dict(zip(names, tensors, strict=True)), **options)

    @staticmethod
    def _draw(name: str, shape: Any, generator: Any, dtype: Any, device: str) -> Any:
        if name.endswith(("ids", "labels")):
            return torch.randint(0, 5, shape, generator=generator).to(device)
        wide = torch.randn(shape, dtype=torch.float64, generator=generator)
        if name in ("freqs", "row_scale") and dtype == torch.bfloat16:
            dtype = torch.float32  # these are never of 16 bits
        return wide.to(device=device, dtype=dtype)


X, W = (ROWS, COLS), (COLS,)
Q, K = (2, 3, 4, COLS), (2, 3, 2, COLS)
CALLS = {
    "rms_norm": Call("rms_norm", {"x": X, "weight": W}, {"eps": 1e-3}),
    "rms_norm of x": Call("rms_norm", {"x": X}),
    "rms_norm of rank 1": Call("rms_norm", {"x": W, "weight": W}),
    "rms_norm of heads": Call(
        "rms_norm", {"x": (2, 3, 4), "weight": (3, 4)}, {"normalized_shape": 4}
    ),
    "gemma_rms_norm": Call("gemma_rms_norm", {"x": X, "weight": W}),
    "add_rms_norm": Call("add_rms_norm", {"x": X, "residual": X, "weight": W}),
    "rms_norm_gated": Call("rms_norm_gated", {"x": X, "z": X, "weight": W}),
    "gated first": Call("rms_norm_gated", {"x": X, "z": X}, {"norm_before_gate": False}),
    "layer_norm": Call("layer_norm", {"x": X, "weight": W, "bias": W}),
    "layer_norm with a bias": Call("layer_norm", {"x": X, "bias": W}),
    "add_layer_norm": Call("add_layer_norm", {"x": X, "residual": X, "weight": W, "bias": W}),
    "silu_and_mul": Call("silu_and_mul", {"gate": X, "up": X}),
    "silu_and_mul packed": Call("silu_and_mul", {"gate": X}),
    "gelu_and_mul": Call("gelu_and_mul", {"gate": X, "up": X}, {"limit": 1.5}),
    "gelu_tanh_and_mul": Call("gelu_tanh_and_mul", {"gate": X}, {"packing": "interleaved"}),
    "sigmoid_and_mul": Call("sigmoid_and_mul", {"gate": X, "up": X}, {}, {"row_scale": (ROWS,)}),
    "relu2": Call("relu2", {"gate": X}),
    "gated_activation": Call("gated_activation", {"gate": X, "up": X}, {"alpha": 1.5}),
    "qk_norm_rope": Call(
        "qk_norm_rope",
        {"q": Q, "k": K, "q_weight": (COLS,), "k_weight": (2, COLS)},
        {"weight_offset": 1.0},
        {"cos": (3, 6), "sin": (3, 6)},
    ),
    "qk_norm_rope of q": Call(
        "qk_norm_rope", {"q": Q, "q_weight": (COLS,)}, {}, {"cos": (3, 6), "sin": (3, 6)}
    ),
    "softmax": Call("softmax", {"x": X, "mask": W}, {"scale": 0.5}),
    "softmax, causal": Call("softmax", {"x": (2, 3, 3)}, {"causal_offset": 0}),
    "cross_entropy": Call(
        "cross_entropy",
        {"logits": X},
        {"label_smoothing": 0.1, "z_loss": 0.01},
        {"labels": (ROWS,)},
    ),
    "embedding": Call("embedding", {"weight": (5, COLS)}, {"scale": 3.0}, {"ids": (4, 3)}),
    "embedding with positions": Call(
        "embedding",
        {"weight": (3, COLS), "position_weight": (5, COLS)},
        {"vocab_start": 1},
        {"ids": (4, 3)},
    ),
    "rope": Call("rope", {"q": Q, "k": K}, {}, {"cos": (3, 6), "sin": (3, 6)}),
    "rope of q": Call("rope", {"q": Q}, {"seqlen_offsets": 2}, {"freqs": (6,)}),
    "rope, learned": Call("rope", {"q": Q, "k": K, "freqs": (6,)}),
    "rope of q, learned": Call("rope", {"q": Q, "freqs": (6,)}, {"interleaved": True}),
}


def total(results: Any) -> Any:
    """A scalar with a different gradient for every result."""
    results = results if isinstance(results, tuple) else (results,)
    return sum((at + 1) * (r * r).sum() for at, r in enumerate(results))


@pytest.fixture(params=CALLS)
def call(request) -> Call:
    return CALLS[request.param]


@pytest.fixture
def generator(seed) -> Any:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_by_differences(call, device, generator):
    leaves = [t.requires_grad_() for t in call.tensors(generator, torch.float64, device)]
    state = generator.get_state()
    for home in (mt, membound):
        generator.set_state(state)
        assert torch.autograd.gradcheck(
            call.function(generator, torch.float64, device, home), leaves, check_batched_grad=True
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recording_changes_no_bit(call, dtype, device, generator):
    """Of the result; each gradient is also independent of which others are required."""
    kind = getattr(torch, dtype)
    leaves = call.tensors(generator, kind, device)
    function = call.function(generator, kind, device)
    with torch.no_grad():
        plain = function(*leaves)
    wanted = [t.requires_grad_() for t in leaves]
    recorded = function(*wanted)
    torch.testing.assert_close(recorded, plain, rtol=0, atol=0)
    whole = torch.autograd.grad(total(recorded), wanted)
    for leaf, gradient in zip(wanted, whole, strict=True):
        for other in wanted:
            other.requires_grad_(other is leaf)
        (alone,) = torch.autograd.grad(total(function(*wanted)), [leaf])
        assert torch.equal(alone, gradient)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_without_a_break(call, device, generator):
    leaves = [t.requires_grad_() for t in call.tensors(generator, torch.float32, device)]
    function = call.function(generator, torch.float32, device)
    torch.compiler.reset()
    compiled = torch.compile(lambda *t: function(*t), fullgraph=True, backend="aot_eager")
    got, wanted = compiled(*leaves), function(*leaves)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    found, right = (torch.autograd.grad(total(r), leaves) for r in (got, wanted))
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), wanted, rtol=0, atol=0)
    plain = [t.detach() for t in leaves]
    torch.testing.assert_close(compiled(*plain), function(*plain), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_operators_keep_torchs_rules(opcheck, call, device, generator):
    leaves = call.tensors(generator, torch.float32, device)
    function = call.function(generator, torch.float32, device)
    seen: list[tuple[Any, Any]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if operator.namespace == "membound":
                seen.append((operator, args))
            return operator(*args, **(kwargs or {}))

    with Watch():
        function(*leaves)
    ((forward, arguments),) = seen
    opcheck(forward, arguments)
    name = forward._opname.removesuffix("_forward")
    if hasattr(torch.ops.membound, f"{name}_inference"):
        opcheck(getattr(torch.ops.membound, f"{name}_inference").default, arguments)
    public = getattr(torch.ops.membound, name).default
    learned = [
        a.clone().requires_grad_() if any(a is leaf for leaf in leaves) else a for a in arguments
    ]
    opcheck(public, tuple(learned))


@pytest.mark.parametrize("device", DEVICES)
def test_transforms_of_torch_func(call, device, generator):
    leaves = call.tensors(generator, torch.float64, device)
    function = call.function(generator, torch.float64, device)
    wanted = torch.autograd.grad(total(function(*(t.requires_grad_() for t in leaves))), leaves)
    plain = [t.detach() for t in leaves]
    scalar = lambda *t: total(function(*t))  # noqa: E731
    argnums = tuple(range(len(plain)))
    torch.testing.assert_close(torch.func.grad(scalar, argnums)(*plain), tuple(wanted))
    # Per-example gradients: the batch axis in front of all, and of the first alone.
    batched = [torch.stack([t, 2 * t, t - 1]) for t in plain]
    alone = [torch.func.grad(scalar, argnums)(*one) for one in zip(*batched, strict=True)]
    both = torch.vmap(torch.func.grad(scalar, argnums))(*batched)
    for at, one in enumerate(alone):
        torch.testing.assert_close(tuple(g[at] for g in both), one)
    first = (0,) + (None,) * (len(plain) - 1)
    results = torch.vmap(function, first)(batched[0], *plain[1:])
    for at in range(3):
        right = function(batched[0][at], *plain[1:])
        pick = tuple(r[at] for r in results) if isinstance(results, tuple) else results[at]
        torch.testing.assert_close(pick, right)


@pytest.mark.parametrize("wanting", [False, True])
def test_tensors_that_escaped_from_a_transform(wanting):
    """torch.func leaves a wrapper without memory, which torch's own ops unwrap."""
    escaped = []
    torch.func.grad(lambda x: escaped.append(x) or x.sum())(torch.arange(12.0).reshape(2, 6))
    whole, weight = escaped[0].clone(), torch.ones(6).requires_grad_(wanting)
    got, right = mt.rms_norm(escaped[0], weight), mt.rms_norm(whole, weight)
    assert torch.equal(got, right)
    if wanting:
        slopes = [torch.autograd.grad(y.sum(), weight)[0] for y in (got, right)]
        assert torch.equal(*slopes)


def test_checkpointing_second_derivatives_and_modes(call, generator):
    leaves = [t.requires_grad_() for t in call.tensors(generator, torch.float64, "cpu")]
    function = call.function(generator, torch.float64, "cpu")
    wanted = torch.autograd.grad(total(function(*leaves)), leaves)
    checkpoint = torch.utils.checkpoint.checkpoint
    again = total(checkpoint(function, *leaves, use_reentrant=False))
    torch.testing.assert_close(torch.autograd.grad(again, leaves), wanted, rtol=0, atol=0)
    if call.op != "rope":  # which is linear: its gradient does not see q and k
        (slope, *_) = torch.autograd.grad(total(function(*leaves)), leaves, create_graph=True)
        with pytest.raises(RuntimeError, match="has first derivatives only"):
            slope.sum().backward()


def test_shapes_without_values(call, generator):
    """Fake tensors, the meta device, and an exported program with a batch of any size."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    leaves = call.tensors(generator, torch.float32, "cpu")
    function = call.function(generator, torch.float32, "cpu")
    right = function(*leaves)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = function(*(mode.from_tensor(t) for t in leaves))
    same = lambda a, b: (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())  # noqa: E731
    pairs = zip(fake, right, strict=True) if isinstance(right, tuple) else [(fake, right)]
    assert all(itertools.starmap(same, pairs))


def test_dynamic_shapes_compile_once():
    compiled = torch.compile(
        lambda x, w: mt.rms_norm(x, w), fullgraph=True, backend="aot_eager", dynamic=True
    )
    weight = torch.ones(8, requires_grad=True)
    with torch.compiler.set_stance("default"):
        compiled(torch.ones(3, 8), weight)
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (5, 17):
            assert compiled(torch.ones(rows, 8), weight).shape == (rows, 8)
    torch.compiler.reset()


def test_inductor_and_results_written_in_place():
    def layer(x, weight, out):
        mt.rms_norm(x, weight, out=out)
        return out * 2, mt.silu_and_mul(x)

    x, weight = torch.randn(4, 8), torch.randn(8)
    with torch.no_grad():
        got = torch.compile(layer, fullgraph=True)(x, weight, torch.empty(4, 8))
        torch.testing.assert_close(got, layer(x, weight, torch.empty(4, 8)))
    torch.compiler.reset()


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, x, weight):
            return mt.rms_norm(x, weight) + 1

    for strict in (True, False):
        program = torch.export.export(Layer(), (torch.randn(4, 8), torch.randn(8)), strict=strict)
        called = [
            str(node.target) for node in program.graph.nodes if "membound" in str(node.target)
        ]
        # Dynamo knows that nothing asks for a gradient.
        direction = "inference" if strict else "forward"
        assert called == [f"membound.rms_norm_{direction}.default"]


@pytest.mark.parametrize(
    ("op", "bytes_a_row"), [("rms_norm", 4), ("layer_norm", 8), ("add_rms_norm", 4)]
)
def test_what_is_kept_for_the_gradient(op, bytes_a_row):
    """The input (or the sum, which is a result anyway), the weight, and the statistics of rows."""
    rows, cols = 64, 128
    call = CALLS[op]
    shapes = [(rows, cols) if shape == X else (cols,) for shape in call.shapes.values()]
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.data_ptr(), t.nbytes) and t, lambda t: t
    ):
        results = getattr(mt, op)(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    theirs = {t.data_ptr() for t in (*leaves, *results)}
    assert sum(size for at, size in kept.items() if at not in theirs) == rows * bytes_a_row


def test_what_a_call_that_records_refuses():
    x = torch.ones(2, 4, requires_grad=True)
    for given in ({"out": torch.empty(2, 4)}, {"return_rstd": True}):
        with pytest.raises(RuntimeError, match=r"^rms_norm: argument 'x' requires grad"):
            mt.rms_norm(x, **given)
    with pytest.raises(
        RuntimeError, match=r"^gated_activation: argument 'row_scale' requires grad"
    ):
        mt.silu_and_mul(x, row_scale=torch.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match=r"^rms_norm: argument 'weight'"):
        mt.rms_norm(x, torch.ones(3))
    with pytest.raises(TypeError, match=r"^rms_norm: argument 'weight' must be an array"):
        mt.rms_norm(x, [1.0])


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("op", ["gelu_and_mul", "gelu_tanh_and_mul"])
def test_gelu_has_no_alpha(op, recording):
    with pytest.raises(TypeError, match="unexpected keyword argument 'alpha'"):
        getattr(mt, op)(torch.ones(2, 4, requires_grad=recording), alpha=1.0)


def test_autocast_keeps_the_dtype_of_x():
    """As torch's own norms on the CPU do."""
    x = torch.randn(2, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = mt.rms_norm(x, weight)
        assert y.dtype == torch.nn.functional.layer_norm(x, (8,), weight).dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32


def test_every_op_with_a_gradient_is_recorded():
    """No op of membound with a backward function is left behind."""
    backward = [n for n in dir(membound) if n.endswith("_backward") and not n.startswith("_")]
    names = {name.removesuffix("_backward") for name in backward}
    assert names <= functions.RECORDED
    assert set(mt.__all__) >= functions.RECORDED
