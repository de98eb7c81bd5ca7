# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays staged through a GPU in many small chunks; test_rms_norm.py covers single ones."""

from __future__ import annotations

import threading

import arrays
import numpy as np
import pytest
import reference
from arrays import LAYOUTS
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

SLOT = 1 << 16  # bytes: a few rows of the shapes below


def set_options(**options) -> None:
    chosen = membound.StagingOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    membound.set_staging_options(chosen)


@pytest.fixture
def small_slots():
    set_options(slot_bytes=SLOT, threads=5)
    yield
    membound.set_staging_options(membound.StagingOptions())


def staged(x, weight=None, **options):
    return membound.rms_norm(x, weight, device="cuda", **options)


def draw(seed, dtype, shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY_DTYPES[dtype])


def test_options_are_kept_and_checked():
    set_options(slot_bytes=8192, slots_per_thread=3, threads=2, cached_bytes=1 << 20)
    options = membound.staging_options()
    found = (options.slot_bytes, options.slots_per_thread, options.threads, options.cached_bytes)
    assert found == (8192, 3, 2, 1 << 20)
    for name, value in (("slot_bytes", 4095), ("slots_per_thread", 0), ("threads", -1)):
        with pytest.raises(ValueError, match=f"argument '{name}'"):
            set_options(**{name: value})
    assert membound.staging_options().slot_bytes == 8192
    membound.set_staging_options(membound.StagingOptions())
    assert membound.staging_options().slot_bytes == 2 << 20


def test_a_gpu_that_is_not_there_is_named_and_nothing_is_written():
    x = np.ones((4, 8), np.float32)
    out = np.full_like(x, 7)
    absent = membound.cuda_status().device_count == 0
    with pytest.raises(membound.CudaError if absent else ValueError, match="rms_norm: "):
        membound.rms_norm(x, out=out, device="cuda" if absent else "cuda:99")
    assert (out == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["returned", "out", "in place"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_in_chunks(small_slots, dtype, layout, form, seed):
    one, chosen = arrays.NumPy("cuda"), LAYOUTS[layout]
    if form != "returned" and not chosen.writable:
        pytest.skip("elements share memory")
    rows, cols = 640, 333
    rng = np.random.default_rng(seed)
    x = arrays.place(one, chosen, rng.standard_normal, dtype, rows, cols)
    weight = draw(seed + 1, "float32", (cols,))
    expected = norms.rms_norm(x.values, weight, dtype, eps=1e-5)
    written = x if form == "in place" else None
    if form == "out":
        nothing = lambda shape: np.full(shape, np.nan)  # noqa: E731
        written = arrays.place(one, chosen, nothing, dtype, rows, cols)
    out, rstd = staged(
        x.array, weight, eps=1e-5, return_rstd=True, out=None if written is None else written.array
    )
    reference.assert_right(out, expected, rstd, what=(dtype, layout, form))
    if written is not None:
        assert out is written.array
        assert arrays.gaps_are_untouched(one, chosen, written, rows, cols)
    if form != "in place":
        assert x.array.tobytes() == x.values.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [1, 2, 127, 4096, SLOT // 4, SLOT // 4 + 1, 100_003, 1 << 20])
@pytest.mark.parametrize("rows", [1, 2, 31, 40])
def test_rows_shorter_and_longer_than_a_slot(small_slots, rows, cols, seed):
    x, weight = draw(seed, "float32", (rows, cols)), draw(seed + 1, "float32", (cols,))
    out, rstd = staged(x, weight, return_rstd=True)
    reference.assert_right(out, norms.rms_norm(x, weight, "float32"), rstd, (rows, cols))


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["returned", "out", "in place"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_added_norm_in_chunks(small_slots, dtype, form, seed):
    x, residual = draw(seed, dtype, (640, 333)), draw(seed + 2, dtype, (640, 333))
    weight = draw(seed + 1, "float32", (333,))
    wanted, total = norms.add_rms_norm(x, residual, weight, dtype)
    outputs = {"out": np.empty_like(x), "residual_out": np.empty_like(x)} if form == "out" else {}
    if form == "in place":
        outputs = {"out": x, "residual_out": residual}
    y, summed, rstd = membound.add_rms_norm(
        x, residual, weight, return_rstd=True, device="cuda", **outputs
    )
    reference.assert_right(y, wanted, rstd, (dtype, form))
    np.testing.assert_array_equal(summed, total)
    for name, got in (("out", y), ("residual_out", summed)):
        assert got is outputs.get(name, got)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["returned", "out", "in place"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norms_in_chunks(small_slots, dtype, form, seed):
    x, residual = draw(seed, dtype, (640, 333)), draw(seed + 2, dtype, (640, 333))
    parameters = draw(seed + 1, "float32", (333,)), draw(seed + 3, "float64", (333,))
    options = {"return_stats": True, "device": "cuda"}
    wanted = norms.layer_norm(x, *parameters, dtype)
    out = np.empty_like(x) if form == "out" else None
    y, *statistics = membound.layer_norm(x, *parameters, out=out, **options)
    reference.assert_centred_right(y, wanted, tuple(statistics), (dtype, form))
    wanted, total = norms.add_layer_norm(x, residual, *parameters, dtype)
    outputs = {"out": out, "residual_out": np.empty_like(x)} if form == "out" else {}
    if form == "in place":
        outputs = {"out": x, "residual_out": residual}
    found = membound.add_layer_norm(x, residual, *parameters, **options, **outputs)
    y, summed, *statistics = found
    reference.assert_centred_right(y, wanted, tuple(statistics), (dtype, form))
    np.testing.assert_array_equal(summed, total)
    for name, got in (("out", y), ("residual_out", summed)):
        assert got is outputs.get(name, got)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["returned", "out", "over x", "over z"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_norms_in_chunks(small_slots, dtype, form, seed):
    for order in (True, False):
        x, z = draw(seed, dtype, (640, 333)), draw(seed + 2, dtype, (640, 333))
        weight, options = draw(seed + 1, "float32", (333,)), {"norm_before_gate": order}
        wanted = norms.rms_norm_gated(x, z, weight, dtype, **options)
        out = {"out": np.empty_like(x), "over x": x, "over z": z}.get(form)
        y, rstd = membound.rms_norm_gated(
            x, z, weight, out=out, return_rstd=True, device="cuda", **options
        )
        reference.assert_right(y, wanted, rstd, (dtype, form, order))
        assert out is None or y is out


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 3, 7, 64])
def test_weights_of_heads_in_chunks(small_slots, heads, seed):
    """Chunks hold all heads of a token, even if the token is longer than a slot."""
    x, z = draw(seed, "float32", (90, heads, 512)), draw(seed + 2, "float32", (90, heads, 512))
    weight = draw(seed + 1, "float32", (heads, 512))
    by_head = {"normalized_shape": 512, "device": "cuda"}
    out, rstd = membound.rms_norm(x, weight, return_rstd=True, **by_head)
    reference.assert_right(out, norms.rms_norm(x, weight, "float32"), rstd, heads)
    y, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **by_head)
    reference.assert_right(y, norms.rms_norm_gated(x, z, weight, "float32"), rstd, heads)
    y, *statistics = membound.layer_norm(x, weight, weight, return_stats=True, **by_head)
    wanted = norms.layer_norm(x, weight, weight, "float32")
    reference.assert_centred_right(y, wanted, tuple(statistics), heads)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_do_not_change_a_bit(dtype, seed):
    x, weight = draw(seed, dtype, (3000, 1024)), draw(seed + 1, dtype, (1024,))
    results = []
    for options in ({}, {"slot_bytes": 9000}, {"threads": 1, "slots_per_thread": 1},
                    {"slot_bytes": SLOT, "threads": 32, "slots_per_thread": 4}):  # fmt: skip
        set_options(**options)
        out, rstd = staged(x, weight, return_rstd=True)
        results.append((out.tobytes(), rstd.tobytes()))
    membound.set_staging_options(membound.StagingOptions())
    assert len(set(results)) == 1


@pytest.mark.gpu
def test_a_large_array_at_the_default_sizes(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40_000, 2048), np.float32)
    weight = rng.standard_normal(2048, np.float32)
    out, rstd = staged(x, weight, return_rstd=True)
    for start in range(0, len(x), 3900):
        part = slice(start, start + 100)
        expected = norms.rms_norm(x[part], weight, "float32")
        reference.assert_right(out[part], expected, rstd[part], what=start)


@pytest.mark.gpu
def test_a_weight_longer_than_a_slot(seed):
    set_options(slot_bytes=4096)
    x, weight = draw(seed, "bfloat16", (9, 5000)), draw(seed + 1, "float64", (10_000,))[::2]
    out = staged(x, weight)
    membound.set_staging_options(membound.StagingOptions())
    reference.assert_right(out, norms.rms_norm(x, weight, "bfloat16"))


@pytest.mark.gpu
def test_python_threads_share_the_buffers(small_slots, seed):
    x, weight = draw(seed, "float32", (500, 700)), draw(seed + 1, "float32", (700,))
    wanted = staged(x, weight).tobytes()
    wrong = []

    def work() -> None:
        for _ in range(20):
            if staged(x, weight).tobytes() != wanted:
                wrong.append("different")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert membound.cached_staging_bytes() <= membound.staging_options().cached_bytes


@pytest.mark.gpu
def test_buffers_are_kept_bounded_and_released(seed):
    x = draw(seed, "float32", (4000, 1024))
    set_options(slot_bytes=SLOT, threads=8, cached_bytes=6 * SLOT)
    wanted = staged(x).tobytes()
    assert 0 < membound.cached_staging_bytes() <= 6 * SLOT
    membound.release_staging()
    assert membound.cached_staging_bytes() == 0
    assert staged(x).tobytes() == wanted
    membound.set_staging_options(membound.StagingOptions())


@pytest.mark.gpu
def test_a_refused_call_leaves_the_next_one_right(small_slots, seed):
    x, weight = draw(seed, "float32", (500, 700)), draw(seed + 1, "float32", (700,))
    x.flags.writeable = False
    wanted = staged(x, weight).tobytes()
    for options in ({"eps": -1.0}, {"device": "cuda:99"}, {"out": x}):
        with pytest.raises(ValueError, match="rms_norm: "):
            membound.rms_norm(x, weight, **{"device": "cuda", **options})
        assert staged(x, weight).tobytes() == wanted


@pytest.mark.multi_gpu
def test_the_device_index_is_honoured(small_slots, seed):
    x, weight = draw(seed, "float32", (500, 700)), draw(seed + 1, "float32", (700,))
    expected = norms.rms_norm(x, weight, "float32")
    first = membound.rms_norm(x, weight, device="cuda:0")
    second = membound.rms_norm(x, weight, device="cuda:1")
    reference.assert_right(second, expected)
    assert first.tobytes() == second.tobytes()
