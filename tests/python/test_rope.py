# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope in every framework, dtype, layout and form of the angles, against float64."""

from __future__ import annotations

import array
import itertools

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from dlpack_objects import DlpackObject
from reference import DTYPES
from rotary import check, draw, from_layout, given_to, to_layout

import membound

LAYOUTS = ("bshd", "sbhd", "bhsd", "thd")
TABLES = ("halves", "twice", "elements", "cache", "freqs", "angles", "angles of elements")
# head_dim, rotary_dim, rotary_offset: whole vectors on a GPU or not, more than a block of pairs
PARTS = ((128, 128, 0), (64, 64, 0), (80, 80, 0), (96, 64, 32), (192, 64, 128), (64, 32, 8))
PARTS += ((10, 6, 3), (2, 2, 0), (7, 6, 1), (1040, 1040, 0))
# halves of 8, 4 and 2 bytes of 16 bits
PARTS += ((72, 72, 0), (100, 100, 0), (90, 90, 0), (96, 24, 0), (80, 20, 0))
ROWS = 64


def framework(name):
    one = arrays.framework(name)
    if one.options:
        pytest.skip("it takes no device")
    return one


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_form_of_the_angles(name, dtype, layout, seed):
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    batch, seq = (1 if layout == "thd" else 2), 23
    for form, interleaved, inverse in itertools.product(TABLES, (False, True), (False, True)):
        head_dim, rotary_dim, offset = PARTS[rng.integers(len(PARTS))]
        q, k = (draw(rng, (batch, seq, heads, head_dim), dtype) for heads in (3, 1))
        freqs = rotary.frequencies(rotary_dim)
        wide = "float64" if dtype == "float64" else str(rng.choice(("float32", dtype)))
        angles = rotary.table(form, freqs, ROWS, wide, interleaved)
        positions = rng.integers(0, ROWS, (batch, seq))
        ids = positions.astype(rng.choice(("int32", "int64")))
        out = membound.rope(
            *(one.array(np.ascontiguousarray(to_layout(x, layout))) for x in (q, k)),
            **given_to(one, angles), position_ids=one.array(ids), layout=layout,
            interleaved=interleaved, inverse=inverse, rotary_dim=rotary_dim, rotary_offset=offset,
        )  # fmt: skip
        cos, sin = rotary.angles_of(angles, positions, rotary_dim // 2)
        for x, y in zip((q, k), out, strict=True):
            y = from_layout(one.numpy(y), layout)
            check(y, x, cos, sin, interleaved, offset, inverse, pairs=rotary_dim // 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" not in str(name)])
def test_slices_of_one_qkv_in_place_and_out_of_place(name, layout, seed):
    """Different strides and head counts; nothing is copied, and nothing else is written."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    batch, seq, head_dim = (1 if layout == "thd" else 2), 9, 64
    angles = rotary.table("halves", rotary.frequencies(head_dim), seq, "float32", False)
    qkv = draw(rng, (batch, seq, 4 + 2 + 2, head_dim), "float32")
    there = one.array(qkv)
    parts = [there[:, :, :4], there[:, :, 4:6]]
    if layout == "thd":
        parts = [part[0] for part in parts]
    else:
        parts = [one.permute(part, list(rotary.AXES[layout])) for part in parts]
    given = given_to(one, angles)
    out = membound.rope(*parts, **given, layout=layout)
    membound.rope(*parts, **given, layout=layout, out=parts[0], k_out=parts[1])
    cos, sin = (table[None] for table in angles.values())
    now = one.numpy(there)
    for found, x in zip(out, (qkv[:, :, :4], qkv[:, :, 4:6]), strict=True):
        check(from_layout(one.numpy(found), layout), x, cos, sin, False)
    np.testing.assert_array_equal(now[:, :, :4], from_layout(one.numpy(out[0]), layout))
    np.testing.assert_array_equal(now[:, :, 4:6], from_layout(one.numpy(out[1]), layout))
    np.testing.assert_array_equal(now[:, :, 6:], qkv[:, :, 6:])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_have_the_bits_of_contiguous_heads(dtype, interleaved, seed):
    rng = np.random.default_rng(seed)
    for head_dim, rotary_dim, offset in ((64, 64, 0), (50, 20, 8)):
        angles = rotary.table("halves", rotary.frequencies(rotary_dim), 5, "float32", False)
        options = {"interleaved": interleaved, "rotary_dim": rotary_dim, "rotary_offset": offset}
        x = draw(rng, (2, 5, 3, head_dim), dtype)
        right = membound.rope(x, None, **angles, **options)
        wide = np.full((2, 5, 3, 2 * head_dim), np.nan, x.dtype)
        wide[..., ::2] = x
        back = x[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1]
        for source in (wide[..., ::2], back, np.asfortranarray(x)):
            np.testing.assert_array_equal(membound.rope(source, None, **angles, **options), right)
        membound.rope(wide[..., ::2], None, **angles, **options, out=wide[..., ::2])
        np.testing.assert_array_equal(wide[..., ::2], right)
        assert np.isnan(wide[..., 1::2].astype(np.float32)).all()


# --- positions ---


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_sequences_one_behind_the_other(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    ends = np.array([0, 3, 3, 10, 18], np.int32)
    starts = np.array([5, 0, 1, 2])
    x = draw(rng, (20, 2, 32), "float32")
    freqs = rotary.frequencies(32)
    angles = rotary.table("halves", freqs, 16, "float32", False)
    positions = np.concatenate([np.arange(b - a) for a, b in itertools.pairwise(ends)])
    shifted = positions + np.repeat(starts, np.diff(ends))
    given = {"layout": "thd", "cu_seqlens": one.array(ends), **given_to(one, angles)}
    for options, where in (({}, positions), ({"seqlen_offsets": one.array(starts)}, shifted)):
        y = one.numpy(membound.rope(one.array(x), **given, **options))
        cos, sin = rotary.angles_of(angles, where[None], 16)
        check(y[None, :18], x[None, :18], cos, sin, False)
        np.testing.assert_array_equal(y[18:], x[18:])  # in no sequence: not rotated
    if name != "jax-cpu":
        return
    with pytest.raises(ValueError, match="'cu_seqlens'"):
        membound.rope(one.array(x[None]), **{**given, "layout": "bshd"})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_offsets_of_sequences_in_a_batch(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    x = draw(rng, (3, 4, 2, 16), "float32")
    angles = rotary.table("halves", rotary.frequencies(16), 20, "float32", False)
    given = given_to(one, angles)
    for offsets, numbers in ((7, np.full(3, 7)), (one.array(np.array([0, 9, 16], np.int32)), None)):
        starts = np.array([0, 9, 16]) if numbers is None else numbers
        y = membound.rope(one.array(x), **given, seqlen_offsets=offsets)
        cos, sin = rotary.angles_of(angles, starts[:, None] + np.arange(4), 8)
        check(one.numpy(y), x, cos, sin, False)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_tables_of_each_token_as_hugging_face_passes_them(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    x = draw(rng, (2, 3, 5, 8), "float32")
    for batch, cols in itertools.product((1, 2), (4, 8)):
        cos, sin = (draw(rng, (batch, 5, cols), "float32") for _ in range(2))
        y = membound.rope(one.array(x), None, one.array(cos), one.array(sin), layout="bhsd")
        check(from_layout(one.numpy(y), "bhsd"), from_layout(x, "bhsd"), *(
            np.broadcast_to(t, (2, 5, cols)).astype(np.float64) for t in (cos, sin)
        ), False, pairs=4)  # fmt: skip
        y = membound.rope(one.array(x), freqs=one.array(cos), layout="bhsd", attention_scaling=2.0)
        check(from_layout(one.numpy(y), "bhsd"), from_layout(x, "bhsd"), *(
            2 * np.broadcast_to(part(cos.astype(np.float64)), (2, 5, cols))
            for part in (np.cos, np.sin)
        ), False, pairs=4)  # fmt: skip


def sectioned(per_axis, sections, interleaved):
    """The angles of each pair from those of its axis: per_axis is (axes, batch, seq, pairs)."""
    axes = len(sections)
    if not interleaved:
        bounds = np.cumsum((0, *sections))
        return np.concatenate(
            [per_axis[i][..., bounds[i] : bounds[i + 1]] for i in range(axes)], -1
        )
    chosen = per_axis[0].copy()
    for axis in range(1, axes):
        places = slice(axis, sections[axis] * axes, axes)
        chosen[..., places] = per_axis[axis][..., places]
    return chosen


@pytest.mark.parametrize("interleaved_sections", [False, True])
@pytest.mark.parametrize("form", ["halves", "freqs", "own rows"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_positions_of_several_axes(name, form, interleaved_sections, seed):
    """Time, height and width, as in Qwen2-VL and Qwen3-VL; 600 pairs are more than one block."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    for sections in ((16, 24, 24), (24, 20, 20), (4, 4), (300, 150, 150)):
        pairs = sum(sections)
        x = draw(rng, (2, 4, 2, 2 * pairs), "float64")
        ids = rng.integers(0, 30, (len(sections), 2, 4))
        freqs = rotary.frequencies(2 * pairs)
        every = ids[..., None] * freqs
        options = {"sections": sections, "interleaved_sections": interleaved_sections}
        if form == "own rows":
            angles = {"cos": np.cos(every), "sin": np.sin(every)}
        else:
            angles = rotary.table(form, freqs, 30, "float64", False)
            options["position_ids"] = one.array(ids)
        y = membound.rope(one.array(x), **given_to(one, angles), **options)
        chosen = sectioned(every, sections, interleaved_sections)
        check(one.numpy(y), x, np.cos(chosen), np.sin(chosen), False, slack=1e-12)


def test_positions_of_an_image_are_two_sections():
    """Rows rotate the first half of the pairs, columns the second, with the same frequencies."""
    half = rotary.frequencies(16)
    freqs = np.concatenate([half, half])
    ids = np.stack([np.repeat(np.arange(3), 5), np.tile(np.arange(5), 3)])
    x = np.random.default_rng(0).standard_normal((1, 15, 2, 32))
    y = membound.rope(x, freqs=freqs, position_ids=ids, sections=(8, 8))
    angles = np.concatenate([ids[0][:, None] * half, ids[1][:, None] * half], -1)[None]
    check(y, x, np.cos(angles), np.sin(angles), False)


@pytest.mark.parametrize("wrap", [memoryview, DlpackObject, rotary.frozen])
def test_every_kind_of_array(wrap):
    """Buffers, foreign objects and read-only arrays, alone and mixed with NumPy's."""
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32)
    angles = rotary.table("halves", rotary.frequencies(8), 6, "float32", False)
    right = membound.rope(x, None, **angles, position_ids=np.array([5, 0, 2, 3]))
    for ids in (array.array("q", [5, 0, 2, 3]), np.array([5, 0, 2, 3], np.int32)):
        given = {name: wrap(table) for name, table in angles.items()}
        y = membound.rope(wrap(x), None, **given, position_ids=ids)
        np.testing.assert_array_equal(np.asarray(y), right)
        into = np.empty_like(x)
        membound.rope(wrap(x), None, **given, position_ids=ids, out=into)
        np.testing.assert_array_equal(into, right)


# --- positions out of range ---


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_positions_that_a_table_has_not_give_nan(name):
    one = framework(name)
    x = one.array(np.ones((1, 5, 1, 64), np.float32))
    ids = one.array(np.array([0, -1, 8, 7, np.iinfo(np.int64).min]))
    tables = (one.array(np.ones((8, 32), np.float32)) for _ in range(2))
    y = one.numpy(membound.rope(x, None, *tables, position_ids=ids))
    assert np.isnan(y).all((0, 2, 3)).tolist() == [False, True, True, False, True]
    assert np.isfinite(y[:, [0, 3]]).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_wrong_ends_of_sequences_read_nothing_beyond(name, seed):
    one = framework(name)
    rng = np.random.default_rng(seed)
    x = one.array(np.ones((6, 1, 8), np.float32))
    tables = [one.array(np.ones((4, 4), np.float32)) for _ in range(2)]
    for _ in range(20):
        ends = rng.choice([-(2**31), -1, 0, 2, 5, 6, 2**31 - 1], 5).astype(np.int32)
        y = one.numpy(membound.rope(x, None, *tables, layout="thd", cu_seqlens=one.array(ends)))
        kinds = [np.isnan(y), y == 1.0, y == np.float32(0.0), y == np.float32(2.0)]
        assert np.logical_or.reduce(kinds).all()


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" not in str(name)])
def test_validate_looks_at_positions_on_the_cpu(name):
    one = framework(name)
    x = one.array(np.ones((1, 3, 1, 4), np.float32))
    tables = [one.array(np.ones((4, 2), np.float32)) for _ in range(2)]
    wrong, right = (one.array(np.array(ids)) for ids in ([0, 4, 1], [0, 3, 1]))
    with pytest.raises(ValueError, match=r"^rope: argument '(position_ids|validate)'"):
        membound.rope(x, None, *tables, position_ids=wrong, validate=True)
    if "cuda" not in name and name != "cupy":
        membound.rope(x, None, *tables, position_ids=right, validate=True)
        for ends in ([0, 2, 1], [1, 2, 3], [0, 1, 4]):
            with pytest.raises(ValueError, match=r"^rope: argument 'cu_seqlens'"):
                membound.rope(
                    x[0], None, *tables, layout="thd", cu_seqlens=one.array(np.array(ends)),
                    validate=True,
                )  # fmt: skip


# --- properties ---


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inverse_undoes_it_and_products_depend_on_the_distance(dtype, interleaved, seed):
    rng = np.random.default_rng(seed)
    x = draw(rng, (1, 50, 4, 64), dtype)
    given = {"freqs": rotary.frequencies(64), "interleaved": interleaved}
    y = membound.rope(x, **given)
    back = membound.rope(y, **given, inverse=True)
    eps = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-51}[dtype]
    size = np.abs(x.astype(np.float64)).max()
    assert np.abs(back.astype(np.float64) - x.astype(np.float64)).max() <= 2 * eps * size
    if dtype != "float64":
        return
    q, k = (np.broadcast_to(v, (1, 50, 1, 64)) for v in rng.standard_normal((2, 64)))
    q, k = (membound.rope(one, **given)[0, :, 0] for one in (q, k))
    products = q @ k.T
    for distance in (-20, 0, 7):
        same = np.diagonal(products, distance)
        np.testing.assert_allclose(same, same[0], atol=1e-12)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_bits_of_the_unfused_formula_in_float32(name, seed):
    """t * cos + rotate_half(t) * sin, as Transformer Engine has it, and the gradient of that."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    t = draw(rng, (70, 2, 3, 64), "float32")
    angles = rotary.table("twice", rotary.frequencies(64), 70, "float32", False)
    cos, sin = (table[:, None, None] for table in angles.values())
    rotated = np.concatenate([-t[..., 32:], t[..., :32]], -1)
    given = {"layout": "sbhd", **given_to(one, angles)}
    y = one.numpy(membound.rope(one.array(t), **given))
    np.testing.assert_array_equal(y, t * cos + rotated * sin)
    rotated = t * sin
    gradient = t * cos + np.concatenate([rotated[..., 32:], -rotated[..., :32]], -1)
    dt = one.numpy(membound.rope_backward(one.array(t), **given))
    np.testing.assert_array_equal(dt, gradient)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_angles_at_long_positions(name, dtype):
    one = framework(name)
    positions = np.array([0, 1, 8191, 131071, 1048575, 16777215, -16777215])
    freqs = np.concatenate([rotary.frequencies(128), [1.0, 3.14159265, 0.7853981634, 2.5e-7]])
    freqs = freqs.astype(dtype)
    x = np.zeros((1, positions.size, 1, 2 * freqs.size), dtype)
    x[..., : freqs.size] = 1
    y = one.numpy(membound.rope(
        one.array(x), freqs=one.array(freqs), position_ids=one.array(positions)
    ))  # fmt: skip
    angles = positions[:, None] * freqs.astype(np.float64)
    right = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    assert np.abs(y[0, :, 0] - right).max() <= (2e-7 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nothing_to_do(name):
    one = framework(name)
    tables = [one.array(np.ones((4, 2), np.float32)) for _ in range(2)]
    for shape in ((0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4)):
        x = one.array(np.ones(shape, np.float32))
        assert tuple(membound.rope(x, None, *tables).shape) == shape


def test_results_are_the_same_for_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    x = draw(rng, (3, 700, 8, 64), "float32")
    given = {"freqs": rotary.frequencies(64)}
    results = []
    for threads in (1, 2, 5):
        membound.set_cpu_threads(threads)
        results.append(membound.rope(x, **given))
    membound.set_cpu_threads(0)
    one_token = membound.rope(x[1:2, 300:301], **given, seqlen_offsets=300)
    assert all((one == results[0]).all() for one in results)
    np.testing.assert_array_equal(results[0][1:2, 300:301], one_token)


@pytest.mark.gpu
@pytest.mark.large
def test_more_than_2_to_the_32_elements():
    torch = arrays.torch_with_cuda()
    seq = (1 << 32) // (8 * 128) + 5
    q = torch.ones(1, seq, 8, 128, dtype=torch.float16, device="cuda")
    freqs = torch.tensor(rotary.frequencies(128), device="cuda")
    membound.rope(q, freqs=freqs, out=q)
    for place in (0, seq // 2, seq - 1):
        one = membound.rope(torch.ones_like(q[:, :1]), freqs=freqs, seqlen_offsets=place)
        assert torch.equal(q[:, place : place + 1], one)
