# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of membound.autograd beside torch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
from gradients_of_tensors import close, numbers
from hypothesis import strategies as st
from ndarrays import DEVICES, every, strided, to_numpy
from seeds import SEED

import membound
import membound.autograd as ag
import membound.ndarray as nd

torch = pytest.importorskip("torch")
F = torch.nn.functional

on_devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture
def rng(request):
    return np.random.default_rng([SEED, len(request.node.name)])


def compare(rng, device, arrays, ours, theirs=None, rtol=1e-9):
    """Compare values and gradients of one function of arrays, with random gradients of results."""
    xs = [ag.Tensor(strided(one, device), requires_grad=True) for one in arrays]
    others = [torch.tensor(one.copy(), requires_grad=True) for one in arrays]
    found, right = ours(*xs), (theirs or ours)(*others)
    found = found if isinstance(found, tuple) else (found,)
    right = right if isinstance(right, tuple) else (right,)
    for y, other in zip(found, right, strict=True):
        close(y.data, other, rtol, "value")
    given = [rng.standard_normal(other.shape) for other in right]
    dys = [nd.asarray(dy, device=device) for dy in given]
    dxs = torch.autograd.grad(right, others, [torch.tensor(dy) for dy in given])
    for at, (dx, other) in enumerate(zip(ag.grad(found, xs, dys), dxs, strict=True)):
        close(dx, other, rtol, f"gradient {at}")


# Shapes of the arguments, our function, and torch's if it is another.
BROADCAST = [[(3, 4), (3, 4)], [(3, 1), (4,)], [(), (2, 3)], [(2, 1, 3), (2, 3)], [(2, 0), (1,)]]
OPERATORS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "pow": lambda x, y: (x * x) ** y,
    "used twice": lambda x, y: (x * y + x) * y - x / y,
}


@on_devices
@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_broadcast(rng, device, name, shapes):
    arrays = [numbers(rng, shape) for shape in shapes]
    compare(rng, device, arrays, OPERATORS[name])


OF_NUMBERS = {
    "add": lambda x: 2 + x + 0.5,
    "subtract": lambda x: 2 - (x - 0.5),
    "multiply": lambda x: 2 * (x * 0.5),
    "divide": lambda x: 2 / x / 0.5,
    "pow": lambda x: x**3 + x**1 + x**0 + (x * x) ** -0.5 + 2.0 ** (x / 2),
    "negative": lambda x: -x,
    "abs": abs,
    "matrix transpose": lambda x: x.mT * 2,
    "T": lambda x: x[0].T,
    "same both sides": lambda x: x * x * x,
}


@on_devices
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_operators_of_one_tensor(rng, device, name):
    compare(rng, device, [numbers(rng, (2, 3, 4))], OF_NUMBERS[name])


UNARY = {
    "exp": (ag.exp, torch.exp),
    "log": (lambda x: ag.log(abs(x)), lambda x: torch.log(abs(x))),
    "tanh": (ag.tanh, torch.tanh),
    "sqrt": (lambda x: ag.sqrt(x * x), lambda x: torch.sqrt(x * x)),
    "relu": (ag.relu, torch.relu),
    "sigmoid": (ag.sigmoid, torch.sigmoid),
    "astype": (lambda x: ag.astype(x, "float64"), lambda x: x.double()),
    "reshape": (lambda x: ag.reshape(x, (-1,)) * 2, lambda x: x.reshape(-1) * 2),
    "detach": (lambda x: x * x.detach(), lambda x: x * x.detach()),
}


@on_devices
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 2)], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(rng, device, name, shape):
    compare(rng, device, [numbers(rng, shape)], *UNARY[name])


def test_slopes_at_the_edge():
    x = ag.Tensor([0.0, -0.0, nd.nan], requires_grad=True)
    assert ag.grad(ag.relu(x), x, nd.ones(3)).tolist()[:2] == [0, 0]
    zero = ag.Tensor([0.0, 2.0], requires_grad=True)
    dx, dy = ag.grad(zero**zero, [zero, zero], nd.ones(2))
    assert dx.tolist() == dy.tolist()
    assert dx.tolist()[1] == pytest.approx(4 + 4 * np.log(2))
    assert ag.grad(zero**0, zero, nd.ones(2)).tolist() == [0, 0]
    assert ag.grad(zero ** nd.asarray([0.0, 0.0]), zero, nd.ones(2)).tolist() == [0, 0]
    assert ag.grad(0.0**zero, zero, nd.ones(2)).tolist() == [0, 0]
    assert ag.grad(abs(zero), zero, nd.ones(2)).tolist() == [0, 1]


REDUCTIONS = {
    "sum": (ag.sum, torch.sum),
    "mean": (ag.mean, torch.mean),
    "max": (ag.max, torch.amax),
    "min": (ag.min, torch.amin),
    "var": (ag.var, lambda x, **how: torch.var(x, correction=0, **how)),
    "var, correction 1": (
        lambda x, **how: ag.var(x, correction=1, **how),
        lambda x, **how: torch.var(x, correction=1, **how),
    ),
}


@on_devices
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(rng, device, name, axis, keepdims):
    ours, theirs = REDUCTIONS[name]
    dim = (0, 1, 2) if axis is None else axis
    compare(
        rng, device, [numbers(rng, (2, 3, 4))],
        lambda x: ours(x, axis=axis, keepdims=keepdims),
        lambda x: theirs(x, dim=dim, keepdim=keepdims),
    )  # fmt: skip


@on_devices
@pytest.mark.parametrize("name", ["max", "min"])
def test_equal_extremes_share_the_gradient(rng, device, name):
    ours, theirs = REDUCTIONS[name]
    x = rng.integers(0, 2, (4, 5)) * 1.0
    compare(rng, device, [x], lambda x: ours(x, axis=1), lambda x: theirs(x, dim=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", [ag.max, ag.mean, ag.var])
def test_reductions_of_more_elements_than_float16_counts(function, dtype):
    count = 70_000
    x = nd.zeros((count,), dtype=dtype)
    want = 1 / count
    if function is ag.var:
        x[: count // 2] = 2.0
        want *= 2
    x = ag.Tensor(x, requires_grad=True)
    dx = ag.grad(function(x), x)
    assert dx.dtype == dtype
    assert dx[0].item() == pytest.approx(want, rel=0.01)


@pytest.mark.parametrize("function", [ag.relu, ag.sigmoid])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_activations_of_no_elements(function, shape):
    x = ag.Tensor(nd.ones(shape), requires_grad=True)
    y = function(x)
    assert ag.grad(y, x, y.data).shape == y.shape == shape


def test_variance_of_too_few_elements():
    x = ag.Tensor([1.0], requires_grad=True)
    (dx,) = ag.grad(ag.var(x, correction=1), x).tolist()
    assert np.isnan(dx)


MATRICES = [
    [(3, 4), (4, 5)],
    [(2, 3, 4), (4, 5)],
    [(2, 1, 3, 4), (5, 4, 2)],
    [(3, 4), (2, 4, 5)],
    [(4,), (4, 5)],
    [(3, 4), (4,)],
    [(4,), (4,)],
    [(4,), (2, 4, 5)],
    [(2, 3, 4), (4,)],
    [(2, 0, 4), (4, 3)],
]


@on_devices
@pytest.mark.parametrize("shapes", MATRICES, ids=str)
def test_matmul(rng, device, shapes):
    compare(rng, device, [numbers(rng, shape) for shape in shapes], lambda x, y: x @ y)


@on_devices
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (-1, 1, 0)], ids=str)
def test_shapes(rng, device, axes):
    x = numbers(rng, (2, 3, 4))
    compare(
        rng, device, [x],
        lambda x: (x.permute_dims(axes) * 2).reshape((-1, 2)).broadcast_to((3, 12, 2)) * x[0, 0, 0],
        lambda x: (x.permute(axes) * 2).reshape(-1, 2).broadcast_to(3, 12, 2) * x[0, 0, 0],
    )  # fmt: skip


# Of an array (4, 3, 5); arrays of the key become each library's own.
ids = np.array([3, 0, 0, -1, 3])
KEYS = [
    1, -1, ..., None, slice(None), slice(3, None, -2), (slice(1, 3), 1), (..., 2), (1, 2, 3),
    (0, None, slice(0, 0)), ids, (ids,), (ids, None), ids.reshape(5, 1), (slice(None), ids % 3),
    (..., ids), (ids, ids % 3), (ids, slice(1, 2), ids), (1, slice(None), ids), (ids, 2, ids),
    (np.array(2),), (ids[:0],), np.array([True, False, True, True]),
    np.arange(60).reshape(4, 3, 5) % 3 == 0, (slice(None), np.array([True, False, True])),
    (np.array([True, False, True, True]), np.array([0, 1, 1])),
    (np.array([1, 1, 0]), np.eye(3, 5) > 0), [0, 0, 3], (slice(None), [True, False, True]),
    True, False, (True, ids),
]  # fmt: skip


def converted(key, convert):
    if isinstance(key, tuple):
        return tuple(converted(part, convert) for part in key)
    return convert(key) if isinstance(key, np.ndarray) else key


@on_devices
@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key)[:60])
def test_indexing(rng, device, key):
    """NumPy scatters for the reference, as torch has neither negative steps nor all of the keys."""
    x = numbers(rng, (4, 3, 5))
    as_numpy = converted(key, lambda part: part)
    y = x[as_numpy]
    dy = rng.standard_normal(y.shape)
    right = np.zeros(x.shape)
    np.add.at(right, as_numpy, dy)
    tensor = ag.Tensor(strided(x, device), requires_grad=True)
    own = converted(key, lambda part: nd.asarray(part, device=device))
    found = tensor[own]
    close(found.data, y)
    close(ag.grad(found, tensor, nd.asarray(dy, device=device)), right)


@pytest.mark.parametrize("shape", [(4, 0), (0, 3)], ids=str)
def test_indexing_of_no_elements(shape):
    x = ag.Tensor(nd.ones(shape), requires_grad=True)
    y = x[nd.asarray(ids[: shape[0]])]
    assert ag.grad(y, x, nd.ones_like(y.data)).shape == shape
    assert x[[]].shape == (0, shape[1])


def test_indices_may_be_tensors():
    x = ag.Tensor([1.0, 2.0, 3.0], requires_grad=True)
    ag.sum(x[ag.Tensor([2, 2, 0])] * nd.asarray([1.0, 10.0, 5.0])).backward()
    assert x.grad.tolist() == [5, 0, 11]


@on_devices
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_joins(rng, device, axis):
    arrays = [numbers(rng, shape) for shape in [(2, 3), (2, 3), (2, 3)]]
    compare(
        rng, device, arrays,
        lambda x, y, z: ag.stack([x, y, x * z], axis=axis),
        lambda x, y, z: torch.stack([x, y, x * z], dim=axis),
    )  # fmt: skip
    arrays[1] = arrays[1].repeat(2, axis)
    arrays[2] = arrays[2].repeat(0, axis)
    compare(
        rng, device, arrays,
        lambda x, y, z: ag.concat([x, y, z, x], axis=axis),
        lambda x, y, z: torch.cat([x, y, z, x], dim=axis),
    )  # fmt: skip


@on_devices
def test_where(rng, device):
    chosen = rng.random((3, 1)) < 0.5
    own, other = nd.asarray(chosen, device=device), torch.tensor(chosen)
    arrays = [numbers(rng, (3, 4)), numbers(rng, (4,))]
    compare(
        rng, device, arrays,
        lambda x, y: ag.where(own, x, y) + ag.where(own, 1.0, x) + ag.where(own, y, 2.0),
        lambda x, y: torch.where(other, x, y) + torch.where(other, 1, x) + torch.where(other, y, 2),
    )  # fmt: skip


# Programs of hypothesis: each step makes a matrix of those that are there.
STEPS = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y.mT,
    lambda x, y: x @ y / 4,
    lambda x, y: x / (2 + y * y),
    lambda x, y: x[[2, 0, 0]] + y,
    lambda x, y: x + y[1],
    lambda x, y: (x[:, :1] * 0.5).broadcast_to((3, 3)) + y,
    lambda x, y: x * y * y + x.reshape((9,))[0],
]


@every(
    st.lists(st.tuples(st.sampled_from(STEPS), *[st.integers(0, 99)] * 2), min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
    examples=60,
)
def test_programs(device, program, seed):
    rng = np.random.default_rng(seed)

    def run(x, y):
        known = [x, y]
        for step, first, second in program:
            known.append(step(known[first % len(known)], known[second % len(known)]))
        return known[-1] + (x - y) * 0

    compare(rng, device, [numbers(rng, (3, 3)) for _ in range(2)], run, rtol=1e-7)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    cos, sin = (torch.tensor(table)[:, None] for table in (cos, sin))
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def with_rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight + 1)


LABELS = np.array([[2, 0, -100], [4, 4, 1]])
CLASSES = np.array([1.0, 2.0, 0.5, 1.0, 3.0])
LOSS = {"ignore_index": -100, "label_smoothing": 0.1}


def our_loss(x, **how):
    own = (nd.asarray(one, device=x.device) for one in (LABELS, CLASSES))
    return ag.cross_entropy(x, *own, **LOSS, **how)


def their_loss(x, **how):
    rows, labels = x.reshape(-1, 5), torch.tensor(LABELS).reshape(-1)
    return F.cross_entropy(rows, labels, torch.tensor(CLASSES), **LOSS, **how)


def our_capped_loss(x):
    labels = nd.asarray(LABELS, device=x.device)
    return ag.cross_entropy(x, labels, softcap=2.0, z_loss=0.1, reduction="sum")


def their_capped_loss(x):
    rows, labels = 2 * torch.tanh(x.reshape(-1, 5) / 2), torch.tensor(LABELS).reshape(-1)
    of_z = rows.logsumexp(-1)[labels >= 0].square().sum()
    return F.cross_entropy(rows, labels, reduction="sum") + 0.1 * of_z


SCALES = np.array([1.0, 0.5, 2.0])


def our_gate(x):
    scales = nd.asarray(SCALES, device=x.device)
    options = {"alpha": 1.702, "limit": 1.0, "up_offset": 1.0, "row_scale": scales}
    return ag.gated_activation(x, packing="interleaved", **options)


def their_gate(x):
    gate, up = x[:, ::2].clamp(max=1), x[:, 1::2].clamp(-1, 1) + 1
    return gate * torch.sigmoid(1.702 * gate) * up * torch.tensor(SCALES)[:, None]


ANGLES = np.linspace(0, 3, 12).reshape(3, 4)
TABLE = np.cos(ANGLES), np.sin(ANGLES)
IDS = np.array([[1, 1], [4, 0]])


def our_rope(q, k=None):
    return ag.rope(q, k, *(nd.asarray(table, device=q.device) for table in TABLE))


FUSED = {
    "softmax": ([(3, 4)], lambda x: ag.softmax(x, scale=0.5), lambda x: (x * 0.5).softmax(-1)),
    "softmax with a mask": (
        [(2, 3, 4), (3, 4)],
        lambda x, mask: ag.softmax(x, mask, scale=0.5),
        lambda x, mask: (x * 0.5 + mask).softmax(-1),
    ),
    "causal softmax": (
        [(2, 4, 4)],
        lambda x: ag.softmax(x, causal_offset=0),
        lambda x: x.masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf).softmax(-1),
    ),
    "cross_entropy, mean": (
        [(2, 3, 5)],
        lambda x: our_loss(x, reduction="mean"),
        lambda x: their_loss(x, reduction="mean"),
    ),
    "cross_entropy, none": (
        [(2, 3, 5)],
        our_loss,
        lambda x: their_loss(x, reduction="none").reshape(2, 3),
    ),
    "cross_entropy with a cap and z loss": ([(2, 3, 5)], our_capped_loss, their_capped_loss),
    "gated_activation with options": ([(3, 8)], our_gate, their_gate),
    "rms_norm": (
        [(2, 3, 4), (4,)],
        lambda x, weight: ag.rms_norm(x, weight, weight_offset=1.0),
        with_rms,
    ),
    "rms_norm without a weight": (
        [(3, 4)],
        lambda x: ag.rms_norm(x, eps=1e-3),
        lambda x: F.rms_norm(x, (4,), eps=1e-3),
    ),
    "layer_norm": (
        [(2, 3, 4), (4,), (4,)],
        lambda x, weight, bias: ag.layer_norm(x, weight, bias, eps=1e-5),
        lambda x, weight, bias: F.layer_norm(x, (4,), weight, bias),
    ),
    "layer_norm with a bias alone": (
        [(3, 4), (4,)],
        lambda x, bias: ag.layer_norm(x, bias=bias, eps=1e-5),
        lambda x, bias: F.layer_norm(x, (4,), None, bias),
    ),
    "rope": (
        [(2, 3, 2, 8), (2, 3, 1, 8)],
        our_rope,
        lambda q, k: (rotated(q, *TABLE), rotated(k, *TABLE)),
    ),
    "rope of q alone": ([(2, 3, 2, 8)], our_rope, lambda q: rotated(q, *TABLE)),
    "rope, half of it used": (
        [(2, 3, 2, 8), (2, 3, 1, 8)],
        lambda q, k: our_rope(q, k)[1] + ag.sum(q),
        lambda q, k: rotated(k, *TABLE) + q.sum(),
    ),
    "silu_and_mul": (
        [(3, 8)],
        ag.silu_and_mul,
        lambda x: F.silu(x[:, :4]) * x[:, 4:],
    ),
    "gated_activation": (
        [(3, 4), (3, 4)],
        lambda gate, up: ag.gated_activation(gate, up, kind="gelu_tanh", up_offset=1.0),
        lambda gate, up: F.gelu(gate, approximate="tanh") * (up + 1),
    ),
    "embedding": (
        [(5, 3)],
        lambda weight: ag.embedding(
            nd.asarray(IDS, device=weight.device), weight, padding_idx=0, scale=0.5
        ),
        lambda weight: F.embedding(torch.tensor(IDS), weight, padding_idx=0) * 0.5,
    ),
}


@on_devices
@pytest.mark.parametrize("name", FUSED)
def test_fused_ops(rng, device, name):
    shapes, ours, theirs = FUSED[name]
    compare(rng, device, [numbers(rng, shape) for shape in shapes], ours, theirs, rtol=1e-7)


@pytest.mark.parametrize("name", [name for name, case in FUSED.items() if len(case[0]) > 1])
def test_fused_ops_with_one_gradient_alone(rng, name):
    shapes, ours, _ = FUSED[name]
    arrays = [nd.asarray(numbers(rng, shape), copy=True) for shape in shapes]

    def total(*wanted):
        xs = [ag.Tensor(x, requires_grad=at in wanted) for at, x in enumerate(arrays)]
        y = ours(*xs)
        y = y[0] + ag.sum(y[1]) if isinstance(y, tuple) else y
        return ag.grad(ag.sum(y * y), [xs[at] for at in wanted])

    together = total(*range(len(arrays)))
    for at, right in enumerate(together):
        (found,) = total(at)
        np.testing.assert_allclose(to_numpy(found), to_numpy(right), rtol=1e-12)


@on_devices
def test_gradients_by_central_differences(rng, device):
    """No other library: a block of a transformer, each of its parameters in some direction."""
    generator = nd.Generator(SEED)
    kind = {"dtype": nd.float64, "device": device}
    xs = [generator.normal(shape, **kind) for shape in [(2, 3, 8), (8,), (8, 24), (8, 16), (8, 8)]]

    def loss(x, norm, attention, gate_up, down):
        q, k, v = (
            (ag.rms_norm(x, norm) @ attention)
            .reshape((2, 3, 3, 2, 4))
            .permute_dims((2, 0, 3, 1, 4))
        )
        q, k = ag.rope(q, k, freqs=nd.asarray([1.0, 0.1], device=device), layout="bhsd")
        mixed = ag.softmax(q @ k.mT, scale=0.5, causal_offset=0) @ v
        x = x + mixed.permute_dims((0, 2, 1, 3)).reshape((2, 3, 8))
        x = x + ag.silu_and_mul(x @ gate_up) @ down
        return ag.cross_entropy(x, nd.asarray([[1, 2, 3]] * 2, device=device), reduction="mean")

    tensors = [ag.Tensor(x, requires_grad=True) for x in xs]
    found = ag.grad(loss(*tensors), tensors)
    for at, dx in enumerate(found):
        way = generator.normal(dx.shape, **kind)
        ends = [
            loss(
                *(
                    x + step * way if other == at else x
                    for other, x in enumerate(map(ag.Tensor, xs))
                )
            )
            for step in (1e-6, -1e-6)
        ]
        slope = (ends[0] - ends[1]).item() / 2e-6
        assert nd.sum(dx * way).item() == pytest.approx(slope, rel=1e-6, abs=1e-8), at


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_have_the_dtype_of_their_tensor(dtype):
    x = ag.Tensor(nd.ones((2, 4), dtype=dtype), requires_grad=True)
    weight = ag.Tensor(nd.ones(4), requires_grad=True)
    y = ag.rms_norm(x, weight) * x * 2 + x @ nd.ones((4, 4), dtype=dtype)
    assert y.dtype == dtype
    wide = ag.sum(ag.astype(y, nd.float32) * nd.ones(4))
    assert wide.dtype == "float64"
    wide.backward()
    assert x.grad.dtype == dtype
    assert weight.grad.dtype == "float64"


def test_rounding_reaches_both_passes():
    x, weight, dy = nd.Generator(SEED).normal((3, 64, 64), dtype="bfloat16")
    found = []
    for rounding in ("once", "before_weight"):
        tensors = [ag.Tensor(one, requires_grad=True) for one in (x, weight[0])]
        y = ag.rms_norm(*tensors, rounding=rounding)
        right, rstd = membound.rms_norm(x, weight[0], rounding=rounding, return_rstd=True)
        dxs = membound.rms_norm_backward(dy, x, weight[0], rstd, rounding=rounding)
        found.append((y.data, *ag.grad(y, tensors, dy)))
        for one, other in zip(found[-1], (right, *dxs), strict=True):
            assert nd.all(one == other)
    assert not nd.all(found[0][0] == found[1][0])
    assert not nd.all(found[0][2] == found[1][2])
