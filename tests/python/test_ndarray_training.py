# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""adamw of membound.ndarray against torch.optim.AdamW."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ndarrays import DEVICES, to_numpy

import membound as mb
import membound.ndarray as nd

torch = pytest.importorskip("torch")

OPTIONS = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
SHAPES = [(), (0,), (7,), (33, 65), (3, 4, 2049)]

on_devices = pytest.mark.parametrize("device", DEVICES)


def zeros(arrays: list[np.ndarray], dtype: str, device: str = "cpu") -> list[nd.NDArray]:
    return [nd.zeros(x.shape, dtype=dtype, device=device) for x in arrays]


def drawn(seed: int, shapes: list[tuple[int, ...]], dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]


def torch_steps(params: list[np.ndarray], grads: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the parameters after one step of torch's optimiser for each list of gradients."""
    of_torch = [torch.from_numpy(p.copy()).requires_grad_() for p in params]
    options = {name: OPTIONS[name] for name in ("lr", "eps", "weight_decay")}
    betas = (OPTIONS["beta1"], OPTIONS["beta2"])
    optimiser = torch.optim.AdamW(of_torch, betas=betas, foreach=False, **options)
    for own in grads:
        for p, g in zip(of_torch, own, strict=True):
            p.grad = torch.from_numpy(g.copy())
        optimiser.step()
    return [p.detach().numpy() for p in of_torch]


@on_devices
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 2e-6)])
def test_steps_are_those_of_torch(dtype: str, tolerance: float, device: str) -> None:
    values = drawn(1, SHAPES, dtype)
    grads = [drawn(2 + step, SHAPES, dtype) for step in range(4)]
    params = [nd.asarray(p, copy=True, device=device) for p in values]
    means, squares = zeros(values, dtype, device), zeros(values, dtype, device)
    for step, own in enumerate(grads, 1):
        of_device = [nd.asarray(g, device=device) for g in own]
        nd.adamw(params, of_device, means, squares, step=step, **OPTIONS)
    for p, expected in zip(params, torch_steps(values, grads), strict=True):
        np.testing.assert_allclose(to_numpy(p), expected, rtol=tolerance, atol=tolerance)


@on_devices
@pytest.mark.parametrize("grad_dtype", ["same", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_parameter_of_16_bits_is_rounded_once(dtype: str, grad_dtype: str, device: str) -> None:
    np_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    values, grads = (x.astype(np_dtype) for x in drawn(3, [(40, 50), (40, 50)], "float32"))
    param = nd.astype(nd.asarray(values.astype("float32"), device=device), dtype)
    grad = nd.asarray(grads.astype("float32"), device=device)
    wide = nd.astype(param, nd.float32)
    state = [zeros([values], "float32", device) for _ in range(4)]
    nd.adamw([wide], [grad], *state[:2], step=1, **OPTIONS)
    own = nd.astype(grad, dtype) if grad_dtype == "same" else grad
    nd.adamw([param], [own], *state[2:], step=1, **OPTIONS)
    np.testing.assert_array_equal(to_numpy(param), to_numpy(nd.astype(wide, dtype)))
    for wide_state, narrow_state in zip(state[:2], state[2:], strict=True):
        np.testing.assert_array_equal(to_numpy(narrow_state[0]), to_numpy(wide_state[0]))


@on_devices
def test_strided_arrays_of_one_buffer_have_the_same_bits(device: str) -> None:
    values, grads = drawn(4, [(70, 90), (70, 90)], "float32")
    plain = nd.asarray(values, copy=True)
    nd.adamw([plain], [nd.asarray(grads)], *[zeros([values], "float32") for _ in range(2)],
             step=3, **OPTIONS)  # fmt: skip
    # Columns of one buffer, every other one; transposed; backwards.
    buffer = nd.zeros((70, 360), dtype=nd.float32, device=device)
    param, mean = buffer[:, :180:2], buffer[:, 1:181:2]
    square = nd.zeros((90, 70), dtype=nd.float32, device=device).mT
    param[...] = nd.asarray(values, device=device)
    grad = nd.flip(nd.asarray(grads[::-1, ::-1].copy(), device=device))
    nd.adamw([param], [grad], [mean], [square], step=3, **OPTIONS)
    np.testing.assert_array_equal(to_numpy(param), to_numpy(plain))
    assert not to_numpy(buffer[:, 181:]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_a_gpu_has_the_bits_of_the_cpu(dtype: str) -> None:
    # More parameters than one launch takes, among them unaligned ones.
    shapes = [(at % 50 * 37 + 1,) for at in range(700)] + [(300, 1001)]
    values = drawn(6, shapes, "float32")
    state_dtype = "float64" if dtype == "float64" else "float32"
    found = []
    for device in ("cpu", "cuda"):
        buffers = [nd.asarray(np.append(p, p[-1:], axis=0), device=device) for p in values]
        params = [nd.astype(p, dtype)[at % 2 :][: len(value)]
                  for at, (p, value) in enumerate(zip(buffers, values, strict=True))]  # fmt: skip
        state = [zeros(values, state_dtype, device) for _ in range(2)]
        for step in (1, 2):
            nd.adamw(params, [p * 0.5 for p in params], *state, step=step, **OPTIONS)
        found.append([to_numpy(x) for x in (*params, *state[0], *state[1])])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.gpu
def test_arrays_of_two_devices_raise() -> None:
    arrays = [[one()] for _ in range(4)]
    arrays[1] = [nd.ones((3,), dtype=nd.float32, device="cuda")]
    with pytest.raises(ValueError, match=r"^adamw: argument 'grads' must be on cpu"):
        nd.adamw(*arrays, step=1, **OPTIONS)


def test_bits_do_not_depend_on_threads() -> None:
    values = drawn(5, [(300_001,), (5,), (200, 301)], "float32")
    found = []
    for threads in (1, 2, 5):
        mb.set_cpu_threads(threads)
        try:
            params = [nd.asarray(p, copy=True) for p in values]
            state = [zeros(values, "float32") for _ in range(2)]
            nd.adamw(params, [nd.sin(p) for p in params], *state, step=2, **OPTIONS)
        finally:
            mb.set_cpu_threads(0)
        found.append(b"".join(np.asarray(p).tobytes() for p in params))
    assert len(set(found)) == 1


def one(shape: tuple[int, ...] = (3,), dtype: str = "float32") -> nd.NDArray:
    return nd.ones(shape, dtype=dtype)


READ_ONLY = np.ones(3, dtype="float32")
READ_ONLY.flags.writeable = False
SHARED = one((6,))
BAD_CALLS = [
    ({"grads": []}, ValueError, r"'grads' must have as many arrays as 'params', 1, got 0"),
    ({"grads": [one((4,))]}, ValueError, r"'grads' must have its parameter's shape \(3,\), got"),
    ({"grads": [one(dtype="float64")]}, TypeError, r"'grads' must be float32 for .* got float64"),
    ({"grads": [READ_ONLY]}, TypeError, r"'grads' must be a membound NDArray, got"),
    ({"params": [one(dtype="int32")]}, TypeError, r"'params' must be floats .* got int32"),
    ({"params": [nd.asarray(READ_ONLY)]}, ValueError, r"'params' must be writable"),
    ({"exp_avgs": [one(dtype="float16")]}, TypeError, r"'exp_avgs' must be float32 .* float16"),
    ({"exp_avg_sqs": [nd.broadcast_to(one(()), (3,))]}, ValueError, r"'exp_avg_sqs'"),
    ({"params": [SHARED[:3]], "exp_avgs": [SHARED[2:5]]}, ValueError, r"must not share memory"),
    ({"params": [SHARED[:3]], "grads": [SHARED[:3]]}, ValueError, r"must not share memory"),
    ({"lr": -1.0}, ValueError, r"'lr' must be finite and not negative, got -1"),
    ({"lr": float("nan")}, ValueError, r"'lr'"),
    ({"beta1": 1.0}, ValueError, r"'beta1' must be at least 0 and below 1, got 1"),
    ({"beta2": -0.1}, ValueError, r"'beta2'"),
    ({"eps": float("inf")}, ValueError, r"'eps'"),
    ({"weight_decay": -0.1}, ValueError, r"'weight_decay'"),
    ({"step": 0}, ValueError, r"'step' must be at least 1, got 0"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD_CALLS)
def test_bad_calls_raise_and_write_nothing(
    change: dict[str, object], error: type[Exception], text: str
) -> None:
    names = ("params", "grads", "exp_avgs", "exp_avg_sqs")
    arguments = {name: [one()] for name in names} | OPTIONS | {"step": 1} | change
    lists = [arguments.pop(name) for name in names]
    with pytest.raises(error, match=rf"^adamw: .*{text}"):
        nd.adamw(*lists, **arguments)
    for arrays in lists:
        for x in arrays:
            assert np.asarray(x).min() == 1 == np.asarray(x).max()


def test_two_parameters_may_share_a_gradient_and_lists_may_be_empty() -> None:
    grad, params = one(), [one(), one()]
    nd.adamw(params, [grad, grad], zeros([one(), one()], "float32"),
             zeros([one(), one()], "float32"), step=1, **OPTIONS)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(params[0]), np.asarray(params[1]))
    nd.adamw([], [], [], [], step=1, **OPTIONS)
