# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The generator: its distributions, and that its numbers depend on seed and calls alone."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from ndarrays import DEVICES, FLOATS, INTEGERS, to_numpy

import membound.ndarray as nd

COUNT = 40_000
WITHIN = 5 / math.sqrt(COUNT)  # five standard deviations of a mean


def wide(x):
    return to_numpy(nd.astype(x, nd.float64))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(device, dtype, seed):
    numbers = wide(nd.Generator(seed).uniform(COUNT, low=2, high=4, dtype=dtype, device=device))
    assert numbers.min() >= 2
    assert numbers.max() <= 4  # by rounding
    assert wide(nd.Generator(seed).uniform(COUNT, dtype=dtype, device=device)).max() < 1
    assert abs(numbers.mean() - 3) < WITHIN + float(nd.finfo(dtype).eps)
    assert abs(numbers.std() - 2 / math.sqrt(12)) < WITHIN
    counts = np.bincount(np.minimum((numbers - 2) * 4, 7).astype(int), minlength=8)
    assert abs(counts / COUNT - 1 / 8).max() < WITHIN / 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(device, dtype, seed):
    numbers = wide(nd.Generator(seed).normal(COUNT, mean=-1, std=2, dtype=dtype, device=device))
    assert np.isfinite(numbers).all()
    standard = (numbers + 1) / 2
    assert abs(standard.mean()) < WITHIN
    assert abs(standard.std() - 1) < WITHIN
    assert abs((standard**3).mean()) < 5 * WITHIN
    for limit in (-2, -1, 0, 0.5, 1, 3):
        share = 0.5 * (1 + math.erf(limit / math.sqrt(2)))
        assert abs((standard <= limit).mean() - share) < WITHIN + 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(device, dtype, seed):
    numbers = to_numpy(nd.Generator(seed).integers(3, 13, COUNT, dtype=dtype, device=device))
    assert numbers.dtype.name == dtype
    counts = np.bincount(numbers.astype(int), minlength=13)
    assert len(counts) == 13
    assert counts[:3].sum() == 0
    assert abs(counts[3:] / COUNT - 0.1).max() < WITHIN / 2


def test_integers_of_the_full_range(seed):
    numbers = to_numpy(nd.Generator(seed).integers(-(2**63), 2**63 - 1, 1000))
    assert (numbers < -(2**62)).any()
    assert (numbers > 2**62).any()


@pytest.mark.parametrize("device", DEVICES)
def test_permutation(device, seed):
    generator = nd.Generator(seed)
    order = to_numpy(generator.permutation(500, device=device))
    assert sorted(order) == list(range(500))
    assert list(order) != list(range(500))
    x = nd.reshape(nd.arange(20, device=device), (10, 2))
    rows = to_numpy(generator.permutation(x))
    assert sorted(map(tuple, rows)) == [(2 * at, 2 * at + 1) for at in range(10)]


def test_numbers_depend_on_the_seed_and_the_calls(seed):
    first, second = nd.Generator(seed), nd.Generator(seed)
    other = nd.Generator(seed + 1)
    drawn = [to_numpy(first.uniform((3, 5))) for _ in range(2)]
    assert (drawn[0] != drawn[1]).all()
    assert (drawn[0] != to_numpy(other.uniform((3, 5)))).all()
    for expected in drawn:
        np.testing.assert_array_equal(to_numpy(second.uniform((3, 5))), expected)


def test_a_generator_keeps_its_state():
    generator = nd.Generator(7)
    generator.uniform(3)
    copies = [copy.copy(generator), pickle.loads(pickle.dumps(generator))]
    expected = to_numpy(generator.uniform(3))
    for one in copies:
        np.testing.assert_array_equal(to_numpy(one.uniform(3)), expected)
    assert repr(generator).startswith("Generator(seed=7, counter=")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_devices_draw_the_same(kind, dtype, seed):
    mine = [
        wide(getattr(nd.Generator(seed), kind)(4097, dtype=dtype, device=device))
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_array_equal(*mine)


@pytest.mark.gpu
def test_devices_draw_the_same_integers(seed):
    mine = [
        to_numpy(nd.Generator(seed).integers(-5, 1000, 4097, device=device))
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_array_equal(*mine)


WRONG = [
    (lambda g: g.uniform(3, dtype=nd.int8), TypeError, "uniform"),
    (lambda g: g.integers(0, 3, 2, dtype=nd.float32), TypeError, "integers"),
    (lambda g: g.integers(3, 3, 2), ValueError, "integers.*'high'.*3"),
    (lambda g: g.integers(0, 300, 2, dtype=nd.uint8), ValueError, "300"),
    (lambda _: nd.Generator(-1), ValueError, "Generator.*'seed'.*-1"),
    (lambda g: g.normal((2, -1)), ValueError, "-1"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_what_raises(call, error, text):
    with pytest.raises(error, match=text):
        call(nd.Generator(0))
