# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""soft_cap at its limits; test_elementwise.py has what it shares with other element-wise ops."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from reference import DTYPES, NUMPY_DTYPES

import membound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_limits(name, dtype):
    one, kind = framework(name, dtype), NUMPY_DTYPES[dtype]
    tiny = np.finfo(kind).smallest_normal if dtype != "bfloat16" else 2.0**-126
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, tiny, -tiny, 6e4, -6e4], kind)
    y = one.numpy(membound.soft_cap(one.array(x), 2.0)).astype(np.float64)
    np.testing.assert_array_equal(y, [2, -2, np.nan, 0, -0.0, tiny, -tiny, 2, -2])
    assert np.signbit(y[4])
    dx = membound.soft_cap_backward(one.array(np.ones_like(x)), one.array(x), 2.0)
    np.testing.assert_array_equal(
        one.numpy(dx).astype(np.float64), [0, 0, np.nan, 1, 1, 1, 1, 0, 0]
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan"), 1e60, 1e-60])
def test_a_cap_is_finite_and_above_zero(name, cap):
    one = framework(name)
    x = one.array(np.ones((2, 3), np.float32))
    for op, given in (("soft_cap", (x,)), ("soft_cap_backward", (x, x))):
        with pytest.raises(ValueError, match=rf"{op}: argument 'cap' must be (finite|above 0)"):
            getattr(membound, op)(*given, cap)


def test_as_gemma_caps_its_logits(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    logits = (50 * torch.randn(4, 1000)).to(torch.bfloat16)
    right = (logits.double() / 30).tanh() * 30
    torch.testing.assert_close(
        membound.soft_cap(logits, 30.0).double(), right, rtol=2**-8, atol=0.0
    )
