# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of few rows on a GPU, whose column sums have blocks of their own, and of a few more."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
from cases import needs
from reference import DTYPES
from torch_bits import every_second_column, same_bits

import membound

pytestmark = pytest.mark.gpu

# Also more rows than those blocks have in flight at once.
WIDE = [(379, 8192), (131, 6400), (70, 8000), (16, 16384), (7, 20480), (700, 5640)]
# Unaligned rows: four, two or one blocks per segment of columns, wide rows, clusters.
ODD = [(129, 65), (640, 77), (70, 300), (601, 333), (200, 513), (130, 1001), (300, 2049)]
ODD += [(33, 4097), (257, 5001), (100, 7001), (65, 8193), (9, 20001)]
# Persistent blocks: several thread groups, three blocks per SM, two, or one block in place of both.
MORE = [(1050, 1001), (1050, 2601), (1026, 3335), (1301, 4091)]
# Four blocks per SM, two with two vectors per thread, enough rows for a pipeline, and clusters, two
# of which share an SM.
MANY = [(2050, 1151), (2050, 2303), (1301, 3071), (1301, 6143), (5130, 1535)]
MANY += [(402, 10239), (300, 20479)]


@pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
@pytest.mark.parametrize("shape", [*WIDE, *ODD, *MORE, (1201, 4096)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_gradients(name, dtype, shape, centred, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    rng = np.random.default_rng(seed)
    gradients.check(gradients.Case(one, dtype, cols, rows, centred=centred, rng=rng))


def layouts(values):
    """Contiguous rows, rows one element off, rows with gaps, and rows in two axes."""
    rows, cols = values.shape
    yield values
    for gap in (0, 3):
        wide = values.new_full((rows * (cols + gap) + 1,), float("nan"))
        view = wide[1:].view(rows, cols + gap)[:, :cols]
        view.copy_(values)
        yield view
    heads = values.new_full((rows // 2, 3, cols + 1), float("nan"))[:, 1:, :cols]
    heads.copy_(values.view(heads.shape))
    yield heads


@pytest.mark.parametrize("norm", ["once", "before_weight", "layer_norm", "gated"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_bits_do_not_depend_on_strides_or_alignment(dtype, norm, seed):
    torch = pytest.importorskip("torch")
    generator = torch.Generator(device="cuda").manual_seed(seed % 2**63)
    kind = getattr(torch, dtype)

    def draw(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)

    def call(dy, x, *gate):
        of_rows = [a.view(x.shape[:-1]) for a in statistics]
        if norm == "layer_norm":
            return membound.layer_norm_backward(dy, x, weight, *of_rows)
        if norm == "gated":
            return membound.rms_norm_gated_backward(dy, x, *gate, weight, *of_rows)
        return membound.rms_norm_backward(dy, x, weight, *of_rows, rounding=norm)

    odd = [*ODD, *MORE, *MANY]
    shapes = [*odd, *((rows, cols - cols % 16) for rows, cols in odd)]
    for rows, cols in ((rows - rows % 2, cols) for rows, cols in shapes):
        matrices = [draw(rows, cols).to(kind) for _ in range(3 if norm == "gated" else 2)]
        weight = draw(cols).to(kind)
        statistics = [draw(rows).abs() + 0.5]
        if norm == "layer_norm":
            statistics.insert(0, draw(rows))
        for infinite in (False, True):  # rstd of one row, which must not affect another
            if infinite:
                statistics[-1][rows // 3] = torch.inf
            wanted = call(*map(every_second_column, matrices))
            for inputs in zip(*map(layouts, matrices), strict=True):
                found = call(*inputs)
                for got, right in zip(found, wanted, strict=True):
                    where = rows, cols, infinite, inputs[0].stride()
                    assert same_bits(got.reshape(right.shape), right), where
