# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Inductor's Python code calls builtins, which fall back to torch's operators."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")
kernels = pytest.importorskip("membound.torch._kernels")
inductor = pytest.importorskip("membound.torch._inductor")

pytestmark = [  # torch's own, which would fail what Dynamo traces
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
]
HAS_INTERFACE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
needs_interface = pytest.mark.skipif(not HAS_INTERFACE, reason="needs torch 2.10")
NORM = (1e-6, 0.0, "once")
X, Y, W = torch.randn(4, 16), torch.randn(4, 16), torch.randn(16)
Q, K, HEAD = torch.randn(1, 3, 2, 16), torch.randn(1, 3, 1, 16), torch.ones(16)
ANGLES = torch.randn(3, 8)
IDS = torch.tensor([1, 3])


@pytest.fixture(autouse=True)
def _anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def builtin(name):
    return getattr(torch.ops.membound.builtins, name)


def operator(name):
    return getattr(torch.ops.membound, name).default


def codes_of(function, *arguments):
    """The code of the graphs that a call of the function compiles, and its results."""
    from torch._inductor.utils import run_and_get_code

    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        return run_and_get_code(function, *arguments)


def called(codes):
    """The names of our operators that are called as builtins, and those of the others."""
    calls = re.findall(r"torch\.ops\.membound\.([\w.]+)\(", "\n".join(codes))
    short = [name.removeprefix("builtins.") for name in calls if name.startswith("builtins.")]
    return sorted(short), [name for name in calls if not name.startswith("builtins.")]


def assert_same(mine, theirs):
    mine, theirs = (r if isinstance(r, tuple) else (r,) for r in (mine, theirs))
    for one, other in zip(mine, theirs, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one.float(), other.float())


def in_place(x, residual, weight):
    x, residual = x.clone(), residual.clone()
    mt.fused_add_rms_norm(x, residual, weight)
    return x, residual


GRAPHS = {
    "rms_norm_inference": (mt.rms_norm, X, W),
    "add_rms_norm_inference": (mt.add_rms_norm, X, Y, W),
    "rms_norm_gated_inference": (mt.rms_norm_gated, X, Y, W),
    "layer_norm_inference": (mt.layer_norm, X, W, W),
    "add_layer_norm_inference": (mt.add_layer_norm, X, Y, W),
    "rms_norm_quant_inference": (lambda x, w: mt.rms_norm_quant(x, w, dtype="int8"), X, W),
    "gated_activation_forward": (mt.gated_activation, X, Y),
    "gated_activation_packed_forward": (mt.silu_and_mul, X),
    "rope_forward": (mt.rope, Q, K, ANGLES, ANGLES),
    "qk_norm_rope_inference": (mt.qk_norm_rope, Q, K, HEAD, HEAD, ANGLES, ANGLES),
    "softmax_forward": (mt.softmax, X),
    "embedding_forward": (mt.embedding, IDS, X),
    "fused_add_rms_norm_inference": (in_place, X, Y, W),
}


@needs_interface
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_call_builtins(name):
    function, *arguments = GRAPHS[name]
    with torch.no_grad():
        found, codes = codes_of(torch.compile(function, fullgraph=True), *arguments)
        assert called(codes) == ([name], [])
        assert_same(found, function(*arguments))


@needs_interface
def test_graphs_with_gradients_call_builtins():
    def step(x, w):
        y = torch.compile(lambda x, w: mt.rms_norm(x, w).sin(), fullgraph=True)(x, w)
        y.sum().backward()
        return x.grad, w.grad

    leaves = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    found, codes = codes_of(step, *leaves)
    assert called(codes) == (["rms_norm", "rms_norm_backward"], [])
    again = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    mt.rms_norm(*again).sin().sum().backward()
    for mine, theirs in zip(found, again, strict=True):
        torch.testing.assert_close(mine, theirs.grad)


LAYOUTS = {
    "rows": lambda rows: torch.randn(rows, 16),
    "transposed": lambda rows: torch.randn(16, rows).mT,
    "every other column": lambda rows: torch.randn(rows, 33)[:, 1::2],
    "one row for all": lambda rows: torch.randn(16).expand(rows, 16),
}


@needs_interface
@pytest.mark.parametrize("draw", LAYOUTS.values(), ids=LAYOUTS)
def test_strides_and_sizes_that_change(draw):
    """The generated code asserts the declared sizes and strides of results."""

    def block(x, w):
        return mt.rms_norm(x, w), *mt.add_rms_norm(x, x.mT.contiguous().mT, w)

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (4, 7, 1):
        x = draw(rows)
        with torch.no_grad():
            for mine, theirs in zip(compiled(x, W), block(x, W), strict=True):
                assert mine.is_contiguous()
                assert torch.equal(mine, theirs)


@needs_interface
def test_errors_out_of_compiled_code():
    compiled = torch.compile(lambda x, w: mt.rms_norm(x, w) * 2, fullgraph=True)
    with torch.no_grad(), pytest.raises(ValueError, match="rms_norm: argument 'weight'"):
        compiled(X, torch.ones(7))


@needs_interface
def test_every_operator_has_a_name():
    """It names the builtin if there is a kernel and no mutable argument, else the operator."""
    names = {name for name in kernels.in_extension if hasattr(torch.ops.membound, name)}
    for name, function in vars(torch.ops.membound.builtins).items():
        marks = operator(name)._schema.is_mutable and not name.endswith("_inference")
        if name in names and not marks:
            assert function.__self__ is operator(name)
        else:
            assert function is operator(name)
    assert names <= set(vars(torch.ops.membound.builtins))


def observed(call):
    """The operators that a dispatch mode sees."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watches(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen = []
    with Watches():
        call()
    return seen


@needs_interface
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_modes_and_profiles_see_calls():
    call = lambda: builtin("rms_norm_inference")(X, W, *NORM)  # noqa: E731
    call()  # lookups at the first use create tensors
    assert observed(call) == ["membound.rms_norm_inference.default"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    assert "membound::rms_norm_inference" in {event.key for event in profile.key_averages()}


@needs_interface
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_eager_calls_that_record_run_builtins():
    """A profile shows them as operators; it would not show the extension's own functions."""
    x = X.clone().requires_grad_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mt.rms_norm(x, W).sum().backward()
    seen = {event.key for event in profile.key_averages()}
    assert {"membound::rms_norm_forward", "membound::rms_norm_backward"} <= seen


@needs_interface
def test_what_is_left_to_the_operator():
    norm, right = builtin("rms_norm_inference"), membound.rms_norm(X, W)
    assert torch.equal(norm(X, weight=W, eps=1e-6, weight_offset=0.0, rounding="once"), right)
    assert torch.equal(norm(X, W, 1e-6, 0, "once"), right)  # no float
    with torch._subclasses.FakeTensorMode() as mode:
        fake = norm(mode.from_tensor(X), mode.from_tensor(W), *NORM)
    assert (type(fake), fake.shape) == (torch._subclasses.FakeTensor, X.shape)
    assert norm(X.to("meta"), W.to("meta"), *NORM).is_meta
    rows = torch.vmap(lambda x: norm(x, W, *NORM))(X)
    assert torch.equal(rows, right)
    negated = torch.view_as_complex(torch.randn(4, 16, 2)).conj().imag
    assert negated.is_neg()
    assert torch.equal(norm(negated, W, *NORM), membound.rms_norm(negated.resolve_neg(), W))


@needs_interface
@pytest.mark.parametrize(
    "arguments",
    [(), (X,), (X, W, 1e-6, 0.0, 1), (X, W, "1", 0.0, "once"), (None, W, *NORM), ([1.0], W, *NORM)],
)
def test_what_the_operator_refuses(arguments):
    errors = []
    for call in (operator("rms_norm_inference"), builtin("rms_norm_inference")):
        with pytest.raises((RuntimeError, TypeError)) as error:
            call(*arguments)
        errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]


@needs_interface
def test_results_under_gradients_and_in_inference_mode():
    """The code of graphs records nothing, even if inputs are parameters."""
    parameter = torch.nn.Parameter(W.clone())
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = builtin("rms_norm_inference")(X, parameter, *NORM)
        assert not found.requires_grad
    with torch.inference_mode():
        assert builtin("rms_norm_inference")(X, W, *NORM).is_inference()


# --- private interfaces of torch ---


@needs_interface
@pytest.mark.parametrize("missing", ["lowerings", "make_fallback", "tag_to_layout_constraint"])
def test_where_inductor_differs_operators_are_called(missing, monkeypatch):
    """A torch whose lowerings cannot be changed."""
    from torch._inductor import lowering

    theirs = {name: value for name, value in vars(lowering).items() if name != missing}
    monkeypatch.delitem(lowering.lowerings, operator("softmax_forward"), raising=False)
    monkeypatch.setattr(inductor, "_pending_lowerings", {"softmax_forward"})
    monkeypatch.setitem(sys.modules, "stand-in", SimpleNamespace(**theirs))
    monkeypatch.setattr(inductor, "_LOWERING", "stand-in")
    with torch.no_grad():
        found, codes = codes_of(torch.compile(mt.softmax, fullgraph=True), X)
    assert called(codes) == ([], ["softmax_forward.default"])
    assert_same(found, mt.softmax(X))


@needs_interface
@pytest.mark.parametrize("written", ["python", "c++", "fx", "in other words", "who knows where"])
def test_names_change_in_python_code_alone(written, monkeypatch):
    """Uses stand-ins, as compiling C++ takes half a minute."""
    from torch._inductor import lowering
    from torch._inductor.virtualized import V

    wanted = operator("softmax_forward")
    other = SimpleNamespace(op_overload=operator("rms_norm"), python_kernel_name="torch.ops.x")
    own = "torch.ops.membound.softmax_forward.default"
    first = own if written != "in other words" else "ops.softmax_forward"
    made = SimpleNamespace(op_overload=wanted, python_kernel_name=first)
    made_here = [other, made, object()]
    graph = SimpleNamespace(operations=[], cpp_wrapper=written == "c++", fx_wrapper=written == "fx")
    operations = graph.operations
    if written == "who knows where":
        del graph.operations
    monkeypatch.setitem(lowering.lowerings, wanted, lambda: operations.extend(made_here))
    inductor._lower_to_builtin("softmax_forward", lowering)
    with V.set_graph_handler(graph):
        lowering.lowerings[wanted]()
    assert other.python_kernel_name == "torch.ops.x"
    short = "torch.ops.membound.builtins.softmax_forward"
    assert made.python_kernel_name == (short if written == "python" else first)


COMPILES = """
import sys
import torch, membound.torch as mt
assert "torch._inductor.lowering" not in sys.modules
from torch._dynamo.utils import counters
x = torch.linspace(-1, 1, 64).view(4, 16)
with torch.no_grad():
    y = torch.compile(lambda x: mt.rms_norm(x), fullgraph=True)(x)
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(hits > 0, y.view(torch.int32).sum().item())
"""


@needs_interface
def test_code_out_of_caches_finds_its_names(tmp_path):
    """Written by another process, also for one whose operators have no kernels."""
    found = []
    for value in ("", "", "python"):
        there = {
            **os.environ,
            "MEMBOUND_TORCH_KERNELS": value,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
        }
        command = [sys.executable, "-c", COMPILES]
        answer = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        found.append(answer.stdout.split())
    assert [hit for hit, _ in found] == ["False", "True", "True"]
    assert len({bits for _, bits in found}) == 1
    codes = "\n".join(path.read_text() for path in tmp_path.rglob("*.py"))
    assert called([codes])[0] == ["rms_norm_inference"]
