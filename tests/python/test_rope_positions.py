# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Positions in two parts, and tables with axes of heads or of sequences, as views."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from rotary import check, draw, from_layout, given_to

import membound

STARTS = np.array([0, 9], np.int32)
IDS = np.array([3, 1, 4, 1], np.int32)


@pytest.mark.parametrize("form", ["halves", "elements", "freqs", "angles"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_offsets_of_sequences_are_added_to_ids(name, form, seed):
    one = arrays.framework(name)
    x = draw(np.random.default_rng(seed), (2, 4, 3, 16), "float32")
    angles = rotary.table(form, rotary.frequencies(16), 20, "float32", False)
    given = given_to(one, angles)
    y = membound.rope(
        one.array(x), **given, position_ids=one.array(IDS), seqlen_offsets=one.array(STARTS)
    )
    cos, sin = rotary.angles_of(angles, IDS + STARTS[:, None], 8)
    check(one.numpy(y), x, cos, sin, False, pairs=8)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_ids_beside_ends_of_sequences(name, seed):
    one = arrays.framework(name)
    x = draw(np.random.default_rng(seed), (6, 3, 16), "float32")
    angles = rotary.table("halves", rotary.frequencies(16), 20, "float32", False)
    ids = np.array([5, 4, 3, 2, 1, 7], np.int32)
    given = given_to(one, angles) | {
        "layout": "thd", "position_ids": one.array(ids),
        "cu_seqlens": one.array(np.array([0, 2, 5], np.int32)),
    }  # fmt: skip
    shifted = ids + np.array([0, 0, 9, 9, 9, 0])
    for options, where in (({}, ids), ({"seqlen_offsets": one.array(STARTS)}, shifted)):
        y = one.numpy(membound.rope(one.array(x), **given, **options))
        cos, sin = rotary.angles_of(angles, where[None], 8)
        check(y[None, :5], x[None, :5], cos[:, :5], sin[:, :5], False)
        np.testing.assert_array_equal(y[5:], x[5:])  # in no sequence: not rotated


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("cols", [8, 16])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_table_for_each_sequence(name, cols, batch, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    x = draw(rng, (2, 4, 3, 16), "float32")
    cos, sin = (draw(rng, (batch, 20, cols), "float32") for _ in range(2))
    for options, where in (
        ({"seqlen_offsets": one.array(STARTS)}, np.arange(4) + STARTS[:, None]),
        ({"seqlen_offsets": 5}, np.arange(4) + np.array([[5], [5]])),
        ({"position_ids": one.array(IDS)}, np.stack([IDS, IDS])),
    ):
        y = membound.rope(one.array(x), None, one.array(cos), one.array(sin), **options)
        rows = [np.take_along_axis(np.broadcast_to(t, (2, 20, cols)), where[..., None], 1)
                for t in (cos, sin)]  # fmt: skip
        check(one.numpy(y), x, *(row.astype(np.float64) for row in rows), False, pairs=8)


LAYOUT_SHAPES = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}


@pytest.mark.parametrize("layout", LAYOUT_SHAPES)
@pytest.mark.parametrize("cols", [8, 16])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_axis_of_heads_is_dropped(name, cols, layout, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    order = LAYOUT_SHAPES[layout]
    x = draw(rng, (2, 4, 3, 16), "float32").transpose(order).copy()
    for batch in (1, 2):
        cos, sin = (draw(rng, (batch, 4, cols), "float32") for _ in range(2))
        wide = [np.broadcast_to(t, (2, 4, cols)).astype(np.float64) for t in (cos, sin)]
        given = [t[:, :, None].transpose(order).copy() for t in (cos, sin)]
        y = membound.rope(one.array(x), None, *map(one.array, given), layout=layout)
        check(from_layout(one.numpy(y), layout), from_layout(x, layout), *wide, False, pairs=8)
    cos, sin = (draw(rng, (6, 1, 1, cols), "float32") for _ in range(2))  # by position
    for options, first in (({}, 0), ({"seqlen_offsets": 2}, 2)):
        rows = [np.broadcast_to(t[first : first + 4, 0, 0], (2, 4, cols)).astype(np.float64)
                for t in (cos, sin)]  # fmt: skip
        y = membound.rope(
            one.array(x), None, one.array(cos), one.array(sin), layout=layout, **options
        )
        check(from_layout(one.numpy(y), layout), from_layout(x, layout), *rows, False, pairs=8)


def test_one_token_of_as_many_sequences_as_positions(seed):
    x = draw(np.random.default_rng(seed), (3, 1, 2, 8), "float32")
    table = draw(np.random.default_rng(seed + 1), (3, 1, 1, 8), "float32")
    own = membound.rope(x, None, table, table)
    np.testing.assert_array_equal(own, membound.rope(x, None, table[:, 0], table[:, 0]))
    starts = np.array([2, 0, 1], np.int32)
    by_position = membound.rope(x, None, table, table, seqlen_offsets=starts)
    rotated = membound.rope(x, None, table[starts, 0], table[starts, 0])
    np.testing.assert_array_equal(by_position, rotated)


def test_parts_of_a_complex_table(seed):
    x = draw(np.random.default_rng(seed), (1, 4, 2, 8), "float32")
    table = np.exp(1j * np.arange(4)[:, None] * rotary.frequencies(8)).astype(np.complex64)
    y = membound.rope(x, None, table.real, table.imag)
    right = membound.rope(x, None, table.real.copy(), table.imag.copy())
    np.testing.assert_array_equal(y, right)
