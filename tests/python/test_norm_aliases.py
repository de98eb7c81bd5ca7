# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gemma_rms_norm and gemma_fused_add_rms_norm: the bits of the op with weight_offset=1."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import FRAMEWORKS
from cases import needs
from reference import DTYPES, NUMPY_DTYPES

import membound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_gemma_rms_norm_is_rms_norm_with_one_added_to_the_weight(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, 300)).astype(NUMPY_DTYPES[dtype])
    weight = one.array(rng.normal(0.0, 0.1, 300).astype(NUMPY_DTYPES[dtype]))
    x = one.array(x)
    options = {"eps": 1e-5, **one.options}
    wanted = membound.rms_norm(x, weight, weight_offset=1.0, return_rstd=True, **options)
    found = membound.gemma_rms_norm(x, weight, return_rstd=True, **options)
    for got, right in zip(found, wanted, strict=True):
        assert one.numpy(got).tobytes() == one.numpy(right).tobytes()
    plain = membound.rms_norm(x, weight, **options)
    assert one.numpy(plain).tobytes() != one.numpy(wanted[0]).tobytes()
    if one.takes_out:
        assert membound.gemma_rms_norm(x, weight, out=x, **options) is x
        assert one.numpy(x).tobytes() == one.numpy(wanted[0]).tobytes()


IN_PLACE = [name for name in arrays.ON_CPU if not name.startswith("jax")]
IN_PLACE += [pytest.param(name, marks=pytest.mark.gpu) for name in ("torch-cuda", "cupy")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_gemma_fused_add_rms_norm_writes_both(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    x, residual = (one.array(rng.standard_normal((5, 300)).astype(kind)) for _ in range(2))
    weight = one.array(rng.normal(0.0, 0.1, 300).astype(kind))
    wanted = membound.add_rms_norm(x, residual, weight, eps=1e-5, weight_offset=1.0)
    wanted = [one.numpy(a).tobytes() for a in wanted]
    assert membound.gemma_fused_add_rms_norm(x, residual, weight, 1e-5) is None
    assert [one.numpy(a).tobytes() for a in (x, residual)] == wanted


def test_it_means_what_gemma_means(seed):
    """GemmaRMSNorm's forward, written out in torch."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 512, generator=generator).bfloat16()
    weight = (0.1 * torch.randn(512, generator=generator)).bfloat16()
    y, rstd = membound.gemma_rms_norm(x, weight, return_rstd=True)
    wanted = x.float() * rstd[:, None] * (1.0 + weight.float())
    assert torch.equal(y, wanted.to(x.dtype))


def test_autograd_notices_both_writes():
    torch = pytest.importorskip("torch")
    x, residual = torch.ones(2, 8), torch.ones(2, 8)
    versions = x._version, residual._version
    membound.gemma_fused_add_rms_norm(x, residual, torch.zeros(8))
    assert x._version > versions[0]
    assert residual._version > versions[1]
