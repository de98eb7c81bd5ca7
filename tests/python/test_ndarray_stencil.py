# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""stencil_1d of membound.ndarray and its gradients, against loops over elements in float64."""

from __future__ import annotations

import numpy as np
import pytest
from ndarrays import DEVICES, to_numpy

import membound as mb
import membound.ndarray as nd

# NumPy's names of what lies beyond the ends.
PADDINGS = {"zero": "constant", "nearest": "edge", "reflect": "symmetric", "wrap": "wrap"}
BOUNDARIES = ["valid", *PADDINGS]
TOLERANCES = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
# Shape, axis, radius: rows, columns, more radius than elements, more weights than one pass takes.
CASES = [
    ((9,), 0, 0),
    ((1000,), -1, 3),
    ((3, 5, 7), 1, 2),
    ((40, 33), 0, 1),
    ((2, 6, 300), -2, 2),
    ((4, 700), 1, 20),
    ((700, 4), 0, 20),
    ((3000, 3), 0, 3),
    ((1, 5000), 1, 4),
]

on_devices = pytest.mark.parametrize("device", DEVICES)


def padded(x: np.ndarray, axis: int, radius: int, boundary: str) -> np.ndarray:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (radius, radius)
    return x if boundary == "valid" else np.pad(x, widths, mode=PADDINGS[boundary])


def reference(x: np.ndarray, weights: np.ndarray, axis: int, boundary: str) -> np.ndarray:
    wide = padded(x, axis, len(weights) // 2, boundary)
    windows = np.lib.stride_tricks.sliding_window_view(wide, len(weights), axis=axis)
    return windows @ weights


def reference_gradients(
    dy: np.ndarray, x: np.ndarray, weights: np.ndarray, axis: int, boundary: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return both gradients: of x by the place that each padded element comes from."""
    radius = len(weights) // 2
    places = padded(np.arange(x.size).reshape(x.shape) + 1, axis, radius, boundary)  # 0: none
    windows = np.lib.stride_tricks.sliding_window_view(places, len(weights), axis=axis)
    dx = np.zeros(x.size + 1)
    np.add.at(dx, windows, dy[..., None] * weights)
    values = np.concatenate([[0.0], x.ravel()])[windows]
    return dx[1:].reshape(x.shape), (values * dy[..., None]).reshape(-1, len(weights)).sum(axis=0)


def drawn(
    shape: tuple[int, ...], axis: int, radius: int, boundary: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(shape) + radius)
    x, weights = rng.standard_normal(shape), rng.standard_normal(2 * radius + 1)
    return x, weights, rng.standard_normal(reference(x, weights, axis, boundary).shape)


@on_devices
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("shape", "axis", "radius"), CASES)
def test_results_and_gradients(
    shape: tuple[int, ...], axis: int, radius: int, boundary: str, device: str
) -> None:
    x, weights, dy = drawn(shape, axis, radius, boundary)
    for dtype, tolerance in TOLERANCES.items():
        arrays = [nd.astype(nd.asarray(v, device=device), dtype) for v in (dy, x, weights)]
        y = nd.stencil_1d(*arrays[1:], axis=axis, boundary=boundary)
        found = [y, *nd.stencil_1d_backward(*arrays, axis=axis, boundary=boundary)]
        rounded = [to_numpy(nd.astype(array, nd.float64)) for array in arrays]
        expected = [reference(*rounded[1:], axis, boundary)]
        expected += reference_gradients(*rounded, axis, boundary)
        for own, wanted in zip(found, expected, strict=True):
            assert own.dtype.name == dtype
            np.testing.assert_allclose(
                to_numpy(nd.astype(own, nd.float64)), wanted,
                rtol=tolerance, atol=tolerance * np.abs(wanted).max(initial=1),
            )  # fmt: skip


@on_devices
@pytest.mark.parametrize("boundary", ["nearest", "reflect", "wrap"])
def test_a_radius_of_several_lengths(boundary: str, device: str) -> None:
    x, weights, dy = drawn((2, 3), 1, 8, boundary)
    args = [nd.asarray(values, device=device) for values in (dy, x, weights)]
    np.testing.assert_allclose(
        to_numpy(nd.stencil_1d(*args[1:], boundary=boundary)), reference(x, weights, 1, boundary)
    )
    for own, wanted in zip(
        nd.stencil_1d_backward(*args, boundary=boundary),
        reference_gradients(dy, x, weights, 1, boundary),
        strict=True,
    ):
        np.testing.assert_allclose(to_numpy(own), wanted)


@on_devices
def test_operands_of_any_strides_and_dtypes(device: str) -> None:
    x, weights, _ = drawn((30, 40), 0, 1, "wrap")
    # x's columns backwards, every other row.
    strided = nd.asarray(x.T.copy(), device=device)[::-1, ::2].mT
    single = nd.asarray(weights, dtype=nd.float32, device=device)
    y = nd.stencil_1d(strided, single[::-1], axis=0, boundary="wrap")
    reversed_weights = weights.astype("float32").astype("float64")[::-1]
    assert y.dtype == nd.float64
    np.testing.assert_allclose(to_numpy(y), reference(x[::2, ::-1], reversed_weights, 0, "wrap"))


@pytest.mark.gpu
@pytest.mark.parametrize("boundary", BOUNDARIES)
# Tiles inside of the array: along its last axis, across it, of several lines, of many weights.
@pytest.mark.parametrize(
    ("shape", "axis", "radius"),
    [
        *CASES,
        ((70, 4001), 1, 9),
        ((20_011,), 0, 3),
        ((20_011,), 0, 1100),
        ((301, 130), 0, 3),
        ((77, 128), 1, 1),
        ((9, 200, 3), 1, 2),
        ((40, 70, 33), 1, 20),
    ],
)
def test_a_gpu_has_the_bits_of_the_cpu(
    shape: tuple[int, ...], axis: int, radius: int, boundary: str
) -> None:
    x, weights, dy = (own.astype("float32") for own in drawn(shape, axis, radius, boundary))
    found = []
    for device in ("cpu", "cuda"):
        args = [nd.asarray(values, device=device) for values in (dy, x, weights)]
        y = nd.stencil_1d(*args[1:], axis=axis, boundary=boundary)
        dx, _ = nd.stencil_1d_backward(*args, axis=axis, boundary=boundary)
        found.append([to_numpy(y), to_numpy(dx)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.gpu
def test_sums_of_weights_have_the_same_bits_in_every_run() -> None:
    rng = np.random.default_rng(9)
    x, dy = (nd.asarray(rng.standard_normal((50, 40001)).astype("f4"), device="cuda") for _ in "xy")
    weights = nd.asarray(rng.standard_normal(21).astype("f4"), device="cuda")
    found = {to_numpy(nd.stencil_1d_backward(dy, x, weights, boundary="wrap")[1]).tobytes()
             for _ in range(5)}  # fmt: skip
    assert len(found) == 1


def test_bits_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(8)
    x, dy = (nd.asarray(rng.standard_normal((70, 4001)).astype("float32")) for _ in range(2))
    weights = nd.asarray(rng.standard_normal(19).astype("float32"))
    found = set()
    for threads in (1, 2, 5):
        mb.set_cpu_threads(threads)
        try:
            y = nd.stencil_1d(x, weights, boundary="reflect")
            gradients = nd.stencil_1d_backward(dy, x, weights, boundary="reflect")
        finally:
            mb.set_cpu_threads(0)
        found.add(b"".join(np.asarray(array).tobytes() for array in (y, *gradients)))
    assert len(found) == 1


@on_devices
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_empty_arrays(boundary: str, device: str) -> None:
    weights = nd.ones((3,), dtype=nd.float32, device=device)
    shape = (2, 2) if boundary == "valid" else (2, 0)
    x = nd.ones(shape, dtype=nd.float32, device=device)
    y = nd.stencil_1d(x, weights, boundary=boundary)
    assert y.shape == (2, 0)
    dx, dweights = nd.stencil_1d_backward(y, x, weights, boundary=boundary)
    assert dx.shape == shape
    assert not to_numpy(dx).any()
    assert to_numpy(dweights).tolist() == [0, 0, 0]


def ones(*shape: int, dtype: str = "float32") -> nd.NDArray:
    return nd.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("x", "weights", "options", "error", "text"),
    [
        (ones(4), ones(2), {}, ValueError, r"'weights' must have one axis of odd length, got.*2"),
        (ones(4), ones(3, 1), {}, ValueError, r"'weights' must have one axis"),
        (ones(4), ones(7), {}, ValueError, r"'x' must have at least 6 elements on axis 0 .* got 4"),
        (ones(4, dtype="int32"), ones(3), {}, TypeError, r"'x' must be floats .* got int32"),
        (ones(4), ones(3, dtype="bool"), {}, TypeError, r"'weights' must be floats .* got bool"),
        (ones(4), ones(3), {"axis": 1}, ValueError, r"'axis'"),
        (ones(4), ones(3), {"boundary": "mirror"}, ValueError, r"'boundary' must be valid, zero"),
        (ones(4), ones(3), {"boundary": 0}, TypeError, r"'boundary' must be a str, got int"),
        (4.0, ones(3), {}, TypeError, r"'x' must be an NDArray, got float"),
        (ones(4), [1.0], {}, TypeError, r"'weights' must be an NDArray, got list"),
    ],
)
def test_bad_calls(
    x: object, weights: object, options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"^stencil_1d: .*{text}"):
        nd.stencil_1d(x, weights, **options)


def test_a_gradient_of_another_shape_raises() -> None:
    with pytest.raises(ValueError, match=r"'dy' must have shape \(2,\), got \(4,\)"):
        nd.stencil_1d_backward(ones(4), ones(4), ones(3))
