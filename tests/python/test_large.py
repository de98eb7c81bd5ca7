# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays whose element counts, rows, columns or offsets do not fit 32 bits."""

from __future__ import annotations

import mmap

import arrays
import numpy as np
import pytest
import reference

import membound
from membound.oracle import norms

# GPU tests take up to 35 GB; the CPU test reserves addresses and touches few pages.
MORE = 1 << 32


def _needs_memory(torch, gigabytes):
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes} GB of GPU memory, {free:.0f} GB are free")


@pytest.fixture
def torch():
    module = arrays.torch_with_cuda()
    _needs_memory(module, 40)
    yield module
    module.cuda.empty_cache()


def _assert_rows_right(torch, x, y, rows):
    """Some rows against wider arithmetic on the CPU."""
    for row in rows:
        values = x[row : row + 1].float().cpu().numpy()
        got = y[row : row + 1].float().cpu().numpy()
        dtype = str(x.dtype).removeprefix("torch.")
        kind = reference.NUMPY_DTYPES[dtype]
        wanted = norms.rms_norm(values.astype(kind), None, dtype)
        reference.assert_right(got.astype(kind), wanted, what=f"row {row}")


def _fill(torch, x):
    """Normal values, a slice at a time: torch's own generator stops at 2^32 elements."""
    torch.manual_seed(0)
    rows = max(1, (1 << 28) // x.shape[-1])
    for first in range(0, x.shape[0], rows):
        x[first : first + rows].normal_()


def _assert_like_slices(torch, x, y):
    """Every row has the bits that a call on its slice alone gives."""
    rows = max(1, (1 << 28) // x.shape[-1])
    for first in range(0, x.shape[0], rows):
        part = membound.rms_norm(x[first : first + rows].contiguous())
        assert torch.equal(y[first : first + rows], part), f"rows from {first}"


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        ((1 << 20) + 3, 4096),  # elements
        ((1 << 31) + 5, 2),  # rows beyond 31 bits
        (5, (1 << 30) - 1),  # odd and long
    ],
)
def test_more_than_2_to_the_32_elements(torch, rows, cols):
    assert rows * cols > MORE
    x = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
    _fill(torch, x)
    y = torch.full_like(x, float("nan"))
    membound.rms_norm(x, out=y)
    if cols < 1 << 20:
        _assert_like_slices(torch, x, y)
    sample = [0, rows // 2, rows - 1]
    _assert_rows_right(torch, x, y, [row for row in sample if cols < 1 << 20])
    for row in range(rows if cols > 1 << 20 else 0):
        _assert_long_row_right(torch, x[row], y[row])


def _assert_long_row_right(torch, x, y):
    """One row of a billion elements against float64 on the GPU, a slice at a time."""
    slices = x.split(1 << 27)
    mean = sum(part.double().square().sum() for part in slices) / x.numel()
    rstd = torch.rsqrt(mean + 1e-6)
    for part, got in zip(slices, y.split(1 << 27), strict=True):
        wanted = part.double() * rstd
        ulp = torch.ldexp(torch.ones_like(wanted), torch.frexp(wanted).exponent.clamp(-125) - 8)
        assert bool(((got.double() - wanted).abs() <= 0.51 * ulp).all())


@pytest.mark.gpu
@pytest.mark.large
def test_one_row_of_more_than_2_to_the_31_elements(torch):
    x = torch.empty(1, (1 << 31) + 8, device="cuda", dtype=torch.float16)
    _fill(torch, x.view(8, -1))
    x[0, -8:] = 100.0
    y = membound.rms_norm(x)
    mean = sum(part.double().square().sum() for part in x[0].split(1 << 27)) / x.numel()
    wanted = (x[0, -16:].double() * torch.rsqrt(mean + 1e-6)).to(torch.float16)
    torch.testing.assert_close(y[0, -16:], wanted, rtol=2e-3, atol=0.0)
    assert bool(y.isfinite().all())


@pytest.mark.gpu
@pytest.mark.large
def test_views_whose_offsets_pass_2_to_the_32(torch):
    rows, cols = (1 << 19) + 1, 4096
    buffer = torch.empty(rows, 2 * cols + 3, device="cuda", dtype=torch.bfloat16)
    assert buffer.numel() > MORE
    x = buffer[:, 5 : 5 + cols]
    _fill(torch, x)
    y = membound.rms_norm(x)
    _assert_like_slices(torch, x, y)
    _assert_rows_right(torch, x, y, [0, rows - 1])
    before = buffer[:, :5].clone(), buffer[:, 5 + cols :].clone()
    membound.rms_norm(x, out=x)
    assert torch.equal(x, y)
    assert torch.equal(buffer[:, :5].view(torch.int16), before[0].view(torch.int16))
    assert torch.equal(buffer[:, 5 + cols :].view(torch.int16), before[1].view(torch.int16))


def _far_apart(kind, rows, cols, seed):
    """Rows of random values with 2^32 elements between them, and a copy of the values."""
    stride = (MORE + 64) * kind.itemsize
    no_reserve = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        memory = mmap.mmap(-1, (rows - 1) * stride + 4096, flags=flags)
    except OSError as error:
        pytest.skip(f"this machine gives no address range of that size: {error}")
    buffer = np.frombuffer(memory, kind)
    x = np.lib.stride_tricks.as_strided(buffer, (rows, cols), (stride, kind.itemsize))
    x[...] = np.random.default_rng(seed).standard_normal((rows, cols))
    return x, x.copy()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_offsets_on_the_cpu_pass_2_to_the_32(dtype, seed):
    rows, cols = 3, 100
    x, values = _far_apart(np.dtype(dtype), rows, cols, seed)
    y = membound.rms_norm(x)
    reference.assert_right(y, norms.rms_norm(values, None, dtype))
    membound.rms_norm(x, out=x)
    np.testing.assert_array_equal(x, y)
    # In a column of that length, consecutive elements are more than 2^32 elements apart.
    x[...] = values
    column = np.lib.stride_tricks.as_strided(x, (1, rows), (0, x.strides[0]))
    got = membound.rms_norm(column)
    reference.assert_right(got, norms.rms_norm(values[:, 0][None], None, dtype))


def _backward_like_slices(torch, dy, x, rstd, dx):
    """Every row of dx has the bits that a call on its slice alone gives."""
    rows = max(1, (1 << 28) // x.shape[-1])
    for first in range(0, x.shape[0], rows):
        part = [one[first : first + rows].contiguous() for one in (dy, x)]
        right, _ = membound.rms_norm_backward(*part, None, rstd[first : first + rows])
        assert torch.equal(dx[first : first + rows], right), f"rows from {first}"


@pytest.mark.gpu
@pytest.mark.large
def test_gradients_of_more_than_2_to_the_32_elements(torch):
    """dx over dy; dweight against sums of slices; the added norm in place."""
    rows, cols = (1 << 20) + 3, 4096
    _needs_memory(torch, 60)
    x = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
    dy = torch.empty_like(x)
    _fill(torch, x)
    _fill(torch, dy)
    weight = torch.ones(cols, device="cuda", dtype=torch.bfloat16)
    rstd = membound.rms_norm(x, return_rstd=True)[1]
    dx, into = torch.empty_like(x), torch.empty(cols, device="cuda")
    membound.rms_norm_backward(dy, x, weight, rstd, dx=dx, dweight=into)
    _backward_like_slices(torch, dy, x, rstd, dx)
    wanted = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for part in torch.arange(rows, device="cuda").split(1 << 16):
        products = dy[part].double() * x[part].double() * rstd[part, None].double()
        wanted += products.sum(0)
    torch.testing.assert_close(into.double(), wanted, rtol=1e-4, atol=1e-2 * rows**0.5)
    last = rows - 1
    total = (x[last].float() + dy[last].float()).to(torch.bfloat16)
    membound.add_rms_norm(x, dy, out=x, residual_out=dy)
    assert torch.equal(dy[last], total)
    assert bool(x[last].isfinite().all())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_with_offsets_on_the_cpu_past_2_to_the_32(dtype, seed):
    kind = np.dtype(dtype)
    rows, cols = 3, 100
    x, values = _far_apart(kind, rows, cols, seed)
    rstd = norms.statistics(norms.rms_norm(values, None, dtype))[1]
    weight = np.linspace(0.5, 1.5, cols).astype(kind)
    wanted = membound.rms_norm_backward(values[::-1].copy(), values, weight, rstd)
    dx, dweight = membound.rms_norm_backward(values[::-1], x, weight, rstd, dx=x)
    assert dx is x
    np.testing.assert_array_equal(x, wanted[0])
    np.testing.assert_array_equal(dweight, wanted[1])
    x[...] = values
    right = membound.add_rms_norm(values, values[::-1].copy(), weight)
    got = membound.add_rms_norm(x, values[::-1], weight, residual_out=x)
    np.testing.assert_array_equal(got[0], right[0])
    np.testing.assert_array_equal(x, right[1])


@pytest.mark.gpu
@pytest.mark.large
def test_layer_norms_of_more_than_2_to_the_32_elements(torch):
    """Forward and dx like slices, dbias against float64; the added norm in place."""
    rows, cols = (1 << 20) + 3, 4096
    _needs_memory(torch, 60)
    x = torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16)
    _fill(torch, x)
    weight, bias = (torch.randn(cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    y, mean, rstd = membound.layer_norm(x, weight, bias, return_stats=True)
    dbias = torch.empty(cols, device="cuda")
    dx, *_ = membound.layer_norm_backward(
        y, x, weight, mean, rstd, need_dweight=False, dx=torch.empty_like(x), dbias=dbias
    )
    wanted = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for part in torch.arange(rows, device="cuda").split(1 << 16):
        some = slice(int(part[0]), int(part[-1]) + 1)
        right, *statistics = membound.layer_norm(x[some], weight, bias, return_stats=True)
        assert torch.equal(y[some], right)
        sums = {"need_dweight": False, "need_dbias": False}
        right = membound.layer_norm_backward(right, x[some], weight, *statistics, **sums)[0]
        assert torch.equal(dx[some], right)
        wanted += y[some].double().sum(0)
    torch.testing.assert_close(dbias.double(), wanted, rtol=1e-4, atol=1e-2 * rows**0.5)
    last = rows - 1
    total = (x[last].float() + dx[last].float()).to(torch.bfloat16)
    membound.add_layer_norm(x, dx, weight, bias, out=x, residual_out=dx)
    assert torch.equal(dx[last], total)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_layer_norms_with_offsets_on_the_cpu_past_2_to_the_32(dtype, seed):
    kind = np.dtype(dtype)
    rows, cols = 3, 100
    x, values = _far_apart(kind, rows, cols, seed)
    parameters = np.linspace(0.5, 1.5, cols).astype(kind), np.linspace(-1, 1, cols).astype(kind)
    wanted = membound.layer_norm(values, *parameters, return_stats=True)
    got = membound.layer_norm(x, *parameters, return_stats=True)
    for one, right in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, right)
    inputs = (parameters[0], *wanted[1:])
    wanted = membound.layer_norm_backward(values[::-1].copy(), values, *inputs)
    got = membound.layer_norm_backward(values[::-1], x, *inputs, dx=x)
    assert got[0] is x
    for one, right in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, right)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("order", [True, False])
def test_gated_norms_of_more_than_2_to_the_32_elements(torch, order):
    """Forward, dx and dz like slices, dweight against sums of theirs; the forward in place."""
    rows, cols = (1 << 20) + 3, 4096
    _needs_memory(torch, 70)
    x, z = (torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    _fill(torch, x)
    _fill(torch, z)
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    options = {"norm_before_gate": order}
    y, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **options)
    dweight, into = torch.empty(cols, device="cuda"), torch.empty(cols, device="cuda")
    dx, dz, _ = membound.rms_norm_gated_backward(y, x, z, weight, rstd, dweight=dweight, **options)
    wanted = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for first in range(0, rows, 1 << 16):
        part = [one[first : first + (1 << 16)] for one in (x, z)]
        right, root = membound.rms_norm_gated(*part, weight, return_rstd=True, **options)
        some = slice(first, first + (1 << 16))
        assert torch.equal(y[some], right)
        found = membound.rms_norm_gated_backward(
            right, *part, weight, root, dweight=into, **options
        )
        assert torch.equal(dx[some], found[0])
        assert torch.equal(dz[some], found[1])
        wanted += into.double()
    torch.testing.assert_close(dweight.double(), wanted, rtol=1e-4, atol=1e-2 * rows**0.5)
    del dx, dz
    membound.rms_norm_gated(x, z, weight, out=z, **options)
    assert torch.equal(z[-1000:], y[-1000:])


@pytest.mark.gpu
@pytest.mark.large
def test_heads_of_more_than_2_to_the_32_elements(torch):
    """The last tokens' heads take their own weights."""
    tokens, heads, cols = (1 << 18) + 3, 128, 128
    x = torch.empty(tokens * heads, cols, device="cuda", dtype=torch.bfloat16)
    _fill(torch, x)
    x = x.view(tokens, heads, cols)
    weight = torch.randn(heads, cols, device="cuda", dtype=torch.bfloat16)
    by_head = {"normalized_shape": cols}
    y, rstd = membound.rms_norm(x, weight, return_rstd=True, **by_head)
    dx, dweight = membound.rms_norm_backward(y, x, weight, rstd, **by_head)
    for head in (0, 1, 77, heads - 1):
        alone = x[:, head].contiguous()
        right, root = membound.rms_norm(alone, weight[head], return_rstd=True)
        assert torch.equal(y[:, head], right)
        found = membound.rms_norm_backward(right, alone, weight[head], root)
        assert torch.equal(dx[:, head], found[0])
        close = {"rtol": 2e-2, "atol": 1e-2 * tokens**0.5}
        torch.testing.assert_close(dweight[head], found[1], **close)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gated_norms_with_offsets_on_the_cpu_past_2_to_the_32(dtype, seed):
    kind = np.dtype(dtype)
    rows, cols = 3, 100
    z, values = _far_apart(kind, rows, cols, seed)
    x, weight = values[::-1].copy(), np.linspace(0.5, 1.5, cols).astype(kind)
    y, rstd = membound.rms_norm_gated(x, values, weight, return_rstd=True)
    wanted = norms.rms_norm_gated(x, values, weight, dtype)
    reference.assert_right(y, wanted, rstd)
    right = membound.rms_norm_gated_backward(y, x, values, weight, rstd)
    found = membound.rms_norm_gated_backward(y, x, z, weight, rstd, dz=z)
    assert found[1] is z
    for one, wanted_bits in zip(found, right, strict=True):
        np.testing.assert_array_equal(one, wanted_bits)
    z[...] = values
    membound.rms_norm_gated(x, z, weight, out=z)
    np.testing.assert_array_equal(z, y)


@pytest.mark.large
@pytest.mark.gpu
def test_gradients_of_a_table_and_of_tokens_beyond_32_bits(torch):
    """Row offsets in both; the segments of a row with a million tokens are as far apart."""
    rows, dim = MORE // 4096 + 3, 4096
    dy = torch.ones(2, dim, device="cuda", dtype=torch.bfloat16)
    ids = torch.tensor([rows - 1, rows - 2], device="cuda")
    table = membound.embedding_backward(dy, ids, rows)
    assert (table[-2:] == 1).all()
    assert not table[: rows - 2].any()
    del table
    many = torch.ones(rows, dim, device="cuda", dtype=torch.bfloat16)
    many[-1] = 3
    ids = torch.zeros(rows, device="cuda", dtype=torch.int64)
    ids[-2:] = 4
    table = membound.embedding_backward(many, ids, 5, dtype="float32")
    assert (table[0] == rows - 2).all()
    assert (table[4] == 4).all()
    assert not table[1:4].any()
