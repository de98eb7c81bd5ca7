# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope with k and v written into a cache, contiguous or of pages, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import arrays
import numpy as np
import pytest
import rotary
from arrays import FRAMEWORKS
from qk_norms import PARTS, check, framework
from qk_norms import case as drawn
from reference import DTYPES, NUMPY_DTYPES
from rotary import draw, from_layout, to_layout

import membound

LAYOUTS = ("bshd", "sbhd", "bhsd", "thd")
IN_PLACE = [name for name in FRAMEWORKS if "jax" not in str(name)]
BLOCKS, SIZE, HEADS = 5, 6, 2  # 30 slots, at least twice as many as tokens


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"i{x.itemsize}")


def noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random bits, including NaNs of every kind."""
    kind = np.dtype(NUMPY_DTYPES[dtype])
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)


# Layouts of caches: the shape of the memory, and views of it for keys and values.
Memory = tuple[tuple[int, ...], Callable[[Any, Callable], tuple[Any, Any]]]


def memories(head_dim: int) -> dict[str, Memory]:
    return {
        "contiguous": ((2, BLOCKS * SIZE, HEADS, head_dim), lambda kv, _: (kv[0], kv[1])),
        "pages": ((2, BLOCKS, SIZE, HEADS, head_dim), lambda kv, _: (kv[0], kv[1])),
        "pages of both": ((BLOCKS, 2, SIZE, HEADS, head_dim), lambda kv, _: (kv[:, 0], kv[:, 1])),
        "heads first": (
            (2, BLOCKS, HEADS, SIZE, head_dim),
            lambda kv, permute: tuple(permute(kv[i], [0, 2, 1, 3]) for i in range(2)),
        ),
        "k and v of a head": (
            (BLOCKS * SIZE, HEADS, 2 * head_dim),
            lambda kv, _: (kv[..., :head_dim], kv[..., head_dim:]),
        ),
        "every other element": (
            (BLOCKS, SIZE, HEADS, 2 * head_dim),
            lambda kv, _: (kv[..., 1::2], kv[..., ::2]),
        ),
    }


def slots_of(rng: np.random.Generator, batch: int, seq: int) -> np.ndarray:
    """(batch, seq) slots, all different except for tokens without one."""
    found = rng.permutation(BLOCKS * SIZE)[: batch * seq].astype(np.int64)
    nowhere = np.array([-1, -SIZE, BLOCKS * SIZE, BLOCKS * SIZE + 1, 2**31 - 1, -(2**31)])
    found[rng.integers(0, batch * seq, 3)] = rng.choice(nowhere, 3)
    return found.reshape(batch, seq)


def filled(rng: np.random.Generator, memory: Memory, dtype: str, k: Any, v: Any, slots: Any) -> Any:
    """The memory's contents before the call, and the expected contents after it."""
    before = noise(rng, memory[0], dtype)
    after = before.copy()
    for cache, heads in zip(memory[1](after, np.transpose), (k, v), strict=True):
        rows = np.array(list(np.ndindex(cache.shape[:-2])))
        for at, slot in np.ndenumerate(slots):
            if heads is not None and 0 <= slot < len(rows):
                cache[tuple(rows[slot])] = heads[at]
    return before, after


@pytest.mark.parametrize("memory", list(memories(2)))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_caches_hold_what_a_plain_call_returns(name, dtype, memory, seed):
    """k as without a cache, v bit for bit, nothing else written, and the same q."""
    one = framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    rng = np.random.default_rng(seed)
    for layout, part in zip((*LAYOUTS, "bshd", "thd"), rng.permutation(PARTS), strict=False):
        of = drawn(rng, dtype, layout, part=tuple(map(int, part)), offset=0.5,
                   interleaved=bool(rng.integers(2)))  # fmt: skip
        batch, seq = of.q.x.shape[:2]
        q, k = of.arrays(one)
        out, k_out = membound.qk_norm_rope(q, k, **of.options(one))
        check(from_layout(one.numpy(k_out), layout), of.k)
        v = noise(rng, of.k.x.shape, dtype)
        slots = slots_of(rng, batch, seq)
        keys = from_layout(one.numpy(k_out), layout)
        lying = memories(int(part[0]))[memory]
        for with_v, flat in ((True, False), (False, True)):
            before, after = filled(rng, lying, dtype, keys, v if with_v else None, slots)
            there = one.array(before)
            key_cache, value_cache = lying[1](there, one.permute)
            mapping = slots.astype(np.int32 if flat else np.int64)
            given: dict[str, Any] = {"key_cache": key_cache}
            if with_v:
                given["value_cache"] = value_cache
                given["v"] = one.array(np.ascontiguousarray(to_layout(v, layout)))
            found = membound.qk_norm_rope(
                q, k, **of.options(one), **given,
                slot_mapping=one.array(mapping.ravel() if flat else mapping),
            )  # fmt: skip
            np.testing.assert_array_equal(bits(one.numpy(found)), bits(one.numpy(out)))
            np.testing.assert_array_equal(bits(one.numpy(there)), bits(after))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_slices_of_one_qkv(name, layout, seed):
    """As serving engines call it: q is rotated in place, k and v are read in place."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    of = drawn(rng, "float32", layout, part=(64, 64, 0))
    batch, seq = of.q.x.shape[:2]
    qkv = draw(rng, (batch, seq, 3 + 2 + 2, 64), "float32")
    qkv[:, :, :3], qkv[:, :, 3:5] = of.q.x, of.k.x
    there = one.array(qkv)
    parts = [there[:, :, :3], there[:, :, 3:5], there[:, :, 5:]]
    if layout == "thd":
        parts = [part[0] for part in parts]
    else:
        parts = [one.permute(part, list(rotary.AXES[layout])) for part in parts]
    apart = np.full((batch, 2 * seq), -1)
    apart[:, ::2] = slots_of(rng, batch, seq)
    caches = [one.array(np.zeros((BLOCKS * SIZE, HEADS, 64), np.float32)) for _ in range(2)]
    found = membound.qk_norm_rope(
        *parts[:2], **of.options(one), v=parts[2], key_cache=caches[0], value_cache=caches[1],
        slot_mapping=one.array(apart)[:, ::2], out=parts[0],
    )  # fmt: skip
    assert found is parts[0]
    now = one.numpy(there)
    check(now[:, :, :3], of.q)
    np.testing.assert_array_equal(now[:, :, 3:], qkv[:, :, 3:])
    keys, values = (one.numpy(cache) for cache in caches)
    valid = (apart[:, ::2] >= 0) & (apart[:, ::2] < BLOCKS * SIZE)
    kept = apart[:, ::2][valid]
    np.testing.assert_array_equal(values[kept], qkv[:, :, 5:][valid])
    wanted = of.k.expected("float32").values[valid]
    np.testing.assert_allclose(keys[kept], wanted, atol=1e-5)
    others = np.setdiff1d(np.arange(BLOCKS * SIZE), kept)
    assert not keys[others].any()
    assert not values[others].any()


@pytest.mark.parametrize("name", IN_PLACE)
def test_decoding_a_token_of_each_sequence(name, seed):
    """Flat tokens at positions of their own fill a cache as one prefill does."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    seq, dim = 24, 128
    q, k, v = (draw(rng, (seq, heads, dim), "float16") for heads in (4, HEADS, HEADS))
    weight, freqs = (
        one.array(draw(rng, (dim,), "float16")),
        one.array(rotary.frequencies(dim).astype(np.float32)),
    )
    slots = rng.permutation(BLOCKS * SIZE)[:seq]

    def caches() -> list[Any]:
        return [one.array(np.zeros((BLOCKS, SIZE, HEADS, dim), np.float16)) for _ in range(2)]

    def run(tokens: np.ndarray, keys: Any, values: Any) -> np.ndarray:
        return one.numpy(
            membound.qk_norm_rope(
                *(one.array(x[tokens]) for x in (q, k)), weight, weight, freqs=freqs,
                position_ids=one.array(tokens), layout="thd", v=one.array(v[tokens]),
                key_cache=keys, value_cache=values, slot_mapping=one.array(slots[tokens]),
            )
        )  # fmt: skip

    whole, steps = caches(), caches()
    out = run(np.arange(seq), *whole)
    order = rng.permutation(seq)
    for tokens in (order[at::3] for at in range(3)):
        np.testing.assert_array_equal(run(tokens, *steps), out[tokens])
    for a, b in zip(whole, steps, strict=True):
        np.testing.assert_array_equal(one.numpy(a), one.numpy(b))
    np.testing.assert_array_equal(one.numpy(whole[1]).reshape(-1, HEADS, dim)[slots], v)


def test_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    tokens = 3000
    q, k, v = (draw(rng, (tokens, heads, 64), "float32") for heads in (4, 2, 2))
    slots = rng.permutation(tokens + 50)[:tokens] - 20
    results = []
    for threads in (1, 2, 5):
        membound.set_cpu_threads(threads)
        caches = [np.zeros((tokens + 30, 2, 64), np.float32) for _ in range(2)]
        out = membound.qk_norm_rope(
            q, k, freqs=rotary.frequencies(64), layout="thd", v=v, key_cache=caches[0],
            value_cache=caches[1], slot_mapping=slots,
        )  # fmt: skip
        results.append((out, *caches))
    membound.set_cpu_threads(0)
    for one in results[1:]:
        for a, b in zip(one, results[0], strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(results[0][2][slots[slots >= 0]], v[slots >= 0])


@pytest.mark.parametrize("name", IN_PLACE)
def test_nothing_to_write(name):
    """No tokens, no heads in q or in k, no slots."""
    one = framework(name)
    angles = one.array(np.ones(2, np.float32))
    for tokens, heads, k_heads, slots in ((0, 2, 2, 4), (3, 0, 2, 4), (3, 2, 0, 4), (3, 2, 2, 0)):
        q, k = (one.array(np.ones((tokens, n, 4), np.float32)) for n in (heads, k_heads))
        caches = [one.array(np.zeros((slots, k_heads, 4), np.float32)) for _ in range(2)]
        out = membound.qk_norm_rope(
            q, k, freqs=angles, layout="thd", v=k, key_cache=caches[0], value_cache=caches[1],
            slot_mapping=one.array(np.arange(tokens)),
        )  # fmt: skip
        assert tuple(out.shape) == (tokens, heads, 4)
        written = one.numpy(caches[1])[:tokens]
        assert (written == 1.0).all()
        assert written.size == (24 if heads == 0 else 0)


def test_slots_beyond_32_bits_are_beyond_the_cache():
    x, cache = np.ones((3, 1, 4), np.float32), np.zeros((4, 1, 4), np.float32)
    slots = np.array([2**32 + 1, -(2**32) + 2, np.iinfo(np.int64).min])
    given = {"freqs": np.ones(2), "layout": "thd", "key_cache": cache}
    membound.qk_norm_rope(x, x, **given, slot_mapping=slots)
    assert not cache.any()


def test_slots_are_looked_at_when_asked():
    x = np.ones((1, 3, 1, 4), np.float32)
    cache = np.zeros((2, 4, 1, 4), np.float32)
    given = {"freqs": np.ones(2), "key_cache": cache, "validate": True}
    with pytest.raises(ValueError, match=r"'slot_mapping' must have slots below 8, got 8 for tok"):
        membound.qk_norm_rope(x, x, **given, slot_mapping=np.array([[0, 8, 1]]))
    assert not cache.any()
    membound.qk_norm_rope(x, x, **given, slot_mapping=np.array([[7, -1, -5]]))
    assert cache.any(-1).sum() == cache[1, 3].any(-1).sum() == 1


@pytest.mark.large
@pytest.mark.parametrize("name", ["numpy", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def test_a_cache_of_more_than_two_to_the_31_elements(name, seed):
    """The first and the last slots; a CPU touches only their memory."""
    one = framework(name)
    rng = np.random.default_rng(seed)
    slots, heads, dim = (1 << 31) // 128 + 7, 2, 64
    k, v = (draw(rng, (3, heads, dim), "float16") for _ in range(2))
    freqs = rotary.frequencies(dim).astype(np.float32)
    right = membound.qk_norm_rope(k, k, freqs=freqs, layout="thd")[1]
    if name == "numpy":
        caches = [np.empty((slots, heads, dim), np.float16) for _ in range(2)]
    else:
        torch = arrays.torch_with_cuda()
        caches = [torch.empty((slots, heads, dim), dtype=torch.float16, device="cuda")
                  for _ in range(2)]  # fmt: skip
    tested = [slots - 1, 0, slots - 5]
    membound.qk_norm_rope(
        one.array(k), one.array(k), freqs=one.array(freqs), layout="thd", v=one.array(v),
        key_cache=caches[0], value_cache=caches[1], slot_mapping=one.array(np.array(tested)),
    )  # fmt: skip
    for token, slot in enumerate(tested):
        np.testing.assert_array_equal(one.numpy(caches[1][slot]), v[token])
        if name == "numpy":
            np.testing.assert_array_equal(caches[0][slot], right[token])
        else:
            np.testing.assert_allclose(one.numpy(caches[0][slot]), right[token], rtol=2e-3)


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if "jax" in str(name)])
def test_jax_cannot_write(name):
    one = framework(name)
    x, cache = (one.array(np.ones((n, 1, 4), np.float32)) for n in (3, 8))
    given = {"freqs": one.array(np.ones(2, np.float32)), "layout": "thd"}
    slots = one.array(np.arange(3))
    with pytest.raises(TypeError, match=r"'key_cache' must be None for JAX arrays"):
        membound.qk_norm_rope(x, x, **given, key_cache=cache, slot_mapping=slots)


def test_positions_and_slots_of_every_token_of_a_batch(seed):
    """(batch, seq) and flat mappings are the same, as are batches and one token after the other."""
    rng = np.random.default_rng(seed)
    for dtype, layout in itertools.product(("float32", "bfloat16"), LAYOUTS[:3]):
        of = drawn(rng, dtype, layout, part=(64, 64, 0))
        one = framework("numpy")
        q, k = of.arrays(one)
        slots = rng.permutation(BLOCKS * SIZE)[: 2 * 7].reshape(2, 7)
        found = []
        for mapping in (slots, slots.ravel(), np.asfortranarray(slots)):
            cache = np.zeros((BLOCKS, SIZE, HEADS, 64), q.dtype)
            membound.qk_norm_rope(q, k, **of.options(one), key_cache=cache, slot_mapping=mapping)
            found.append(bits(cache))
        assert (found[0] == found[1]).all()
        assert (found[0] == found[2]).all()
