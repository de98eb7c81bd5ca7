# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of membound.autograd share: inputs, and comparison with float64."""

from __future__ import annotations

import numpy as np
from ndarrays import to_numpy

import membound.ndarray as nd


def numbers(rng, shape, low=0.5):
    """Floats of either sign away from 0, in memory of another order than that of the axes."""
    flat = rng.uniform(low, 2, shape[::-1]) * rng.choice([-1, 1], shape[::-1])
    return flat.transpose()


def close(found, right, rtol=1e-9, what=""):
    right = np.asarray(right.detach() if hasattr(right, "detach") else right)
    assert isinstance(found, nd.NDArray), what
    assert found.shape == right.shape, what
    assert found.dtype.name == right.dtype.name, what
    scale = float(np.abs(right).max(initial=1e-30))
    np.testing.assert_allclose(to_numpy(found), right, rtol=rtol, atol=rtol * scale, err_msg=what)
