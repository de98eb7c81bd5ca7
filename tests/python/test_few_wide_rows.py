# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of few wide rows on a GPU, whose columns blocks of their own add up."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
from cases import needs
from reference import DTYPES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
@pytest.mark.parametrize(
    "shape", [(379, 8192), (131, 6400), (70, 8000), (16, 16384), (7, 20480), (700, 5640)]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_gradients(name, dtype, shape, centred, seed):
    """Of more rows than those blocks have on their way at once, too."""
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    rng = np.random.default_rng(seed)
    gradients.check(gradients.Case(one, dtype, cols, rows, centred=centred, rng=rng))
