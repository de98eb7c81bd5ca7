# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of flash-attention's and quack's rotary embeddings, in place with their gradients."""

from __future__ import annotations

import pytest
import torch
from peer_cases_rotary import AT, COS, OFFSETS, POSITIONS, SIN, STARTS, K, Q, X, Y
from peer_formulas import angles, case, rotate, rotate_by, unbound, values


@case("flash_attention.apply_rotary_emb", "flash_attention.apply_rotary_emb_func",
      "quack.apply_rotary_emb", "quack.apply_rotary_emb_func")  # fmt: skip
def flash_rope(f):
    yield f(X, COS, SIN), rotate(X, COS[:6], SIN[:6])
    at = AT + OFFSETS[:, None]
    x = X.clone()
    assert f(x, COS, SIN, True, True, OFFSETS) is x
    yield x, rotate(X, COS[at], SIN[at], True)
    yield f(Q, COS, SIN, cu_seqlens=STARTS), rotate(Q, COS[POSITIONS], SIN[POSITIONS])
    yield from _gradient(lambda x: f(x, COS, SIN, inplace=True), X, lambda x: rotate(
        x, COS[:6], SIN[:6]))  # fmt: skip


@case("flash_attention.apply_rotary", "quack.apply_rotary")
def flash_apply_rotary(f):
    at = AT + OFFSETS[:, None]
    expected = rotate(X, COS[at], SIN[at], True, inverse=True)
    yield f(X, COS, SIN), rotate(X, COS[:6], SIN[:6])
    x = X.clone()
    f(x, COS, SIN, OFFSETS, interleaved=True, inplace=True, conjugate=True)
    yield x, expected
    yield f(Q, COS, SIN, cu_seqlens=STARTS), rotate(Q, COS[POSITIONS], SIN[POSITIONS])


def _gradient(call, x, formula):
    """Check the gradient of a call in place, and that the version of its output has changed."""
    leaf = x.clone().requires_grad_()
    written = leaf * 1
    version = written._version
    got = call(written)
    assert got is written
    assert written._version > version
    weight = values(*x.shape, seed=8)
    again = x.clone().requires_grad_()
    expected = formula(again)
    yield got, expected.detach()
    yield (
        torch.autograd.grad(got, leaf, weight)[0],
        torch.autograd.grad(expected, again, weight)[0],
    )


def _fused(q, k, v, axis):
    return torch.stack((q, k, v), dim=axis)


@case("flash_attention.apply_rotary_emb_qkv_")
def flash_qkv(f):
    qkv = _fused(X, X + 1, X + 2, 2)

    def expected(t, cos=COS[:6], sin=SIN[:6], **of_k):
        q, k, v = t.unbind(2)
        k = rotate(k, of_k.get("k_cos", cos), of_k.get("k_sin", sin))
        return _fused(rotate(q, cos, sin), k, v, 2)

    yield from _gradient(lambda t: f(t, COS, SIN), qkv, expected)
    other = COS.flip(0), SIN.flip(0)
    of_k = {"k_cos": other[0][3:9], "k_sin": other[1][3:9]}
    given = {"seqlen_offsets": 3}
    yield from _gradient(
        lambda t: f(t, COS, SIN, *other, **given), qkv,
        lambda t: expected(t, COS[3:9], SIN[3:9], **of_k),
    )  # fmt: skip
    grouped = torch.cat((X, Y, Y + 1), dim=2)
    at = AT + OFFSETS[:, None]

    def of_groups(t):
        rotated = rotate(t[:, :, :6], COS[at], SIN[at], True)
        return torch.cat((rotated, t[:, :, 6:]), dim=2)

    call = {"interleaved": True, "seqlen_offsets": OFFSETS, "num_heads_q": 4}
    yield from _gradient(lambda t: f(t, COS, SIN, **call), grouped, of_groups)
    with pytest.raises(ValueError, match=r"^apply_rotary_emb_qkv_: argument 'num_heads_q'"):
        f(grouped, COS, SIN)


@case("flash_attention.apply_rotary_emb_kv_", "quack.apply_rotary_emb_kv_")
def flash_kv(f):
    kv = torch.stack((Y, Y + 1), dim=2)

    def expected(t):
        return torch.stack((rotate(t[:, :, 0], COS[:6], SIN[:6], True), t[:, :, 1]), dim=2)

    yield from _gradient(lambda t: f(t, COS, SIN, True), kv, expected)
    offset_kv, at = kv.clone(), AT + OFFSETS[:, None]
    f(offset_kv, COS, SIN, seqlen_offsets=OFFSETS)
    yield offset_kv[:, :, 0], rotate(Y, COS[at], SIN[at])


@case("quack.apply_rotary_emb_qkv_")
def quack_qkv(f):
    grouped, at = torch.cat((X, Y, Y + 1), dim=2), AT + OFFSETS[:, None]

    def expected(t):
        rotated = rotate(t[:, :, :6], COS[at], SIN[at], True)
        return torch.cat((rotated, t[:, :, 6:]), dim=2)

    yield from _gradient(lambda t: f(t, COS, SIN, True, OFFSETS, 4), grouped, expected)
    flat = grouped.flatten(2).clone()
    assert f(flat, COS, SIN, True, OFFSETS, 4, headdim=8) is flat
    yield flat, expected(grouped).flatten(2)
    packed = torch.cat((Q, K, K + 1), dim=1)
    tokens = packed.clone()
    f(tokens, COS, SIN, num_heads_q=4, cu_seqlens=STARTS, **unbound(f, max_seqlen=4))
    yield tokens[:, :6], rotate(packed[:, :6], COS[POSITIONS], SIN[POSITIONS])
    qkv = _fused(X, X + 1, X + 2, 2)
    yield f(qkv.clone(), COS, SIN)[:, :, 1], rotate(X + 1, COS[:6], SIN[:6])


@case("flash_attention.RotaryEmbedding")
def flash_module(f):
    qkv, at = _fused(X, X + 1, X + 2, 2).float(), angles(AT + 3, 8).float()
    assert f(8).state_dict() == {}

    def expected(t):
        return torch.cat(
            (rotate_by(t[:, :, :2].flatten(2, 3), at).view(2, 6, 2, 4, 8), t[:, :, 2:]), 2
        )

    yield from _gradient(lambda t: f(8)(t, seqlen_offset=3), qkv, expected)
    q, kv = f(8, 1e3, True)(X.float(), torch.stack((Y, Y + 1), dim=2).float(), OFFSETS, 40)
    later = angles(AT + OFFSETS[:, None], 8, 1e3)
    yield q, rotate_by(X, later, True)
    yield kv[:, :, 0], rotate_by(Y, later, True)
    grouped = f(8)(torch.cat((X, Y, Y + 1), dim=2).float(), num_heads_q=4)
    yield grouped[:, :, :4], rotate_by(X, angles(AT, 8))
    scale = (torch.arange(0, 8, 2) + 0.4 * 8) / (1.4 * 8)
    scale = scale.double() ** ((AT - 3) / 64.0)[:, None]
    plain = angles(AT, 8)
    got = f(8, scale_base=64)(qkv.clone())
    yield got[:, :, 0], rotate(X, plain.cos() * scale, plain.sin() * scale)
    yield got[:, :, 1], rotate(X + 1, plain.cos() / scale, plain.sin() / scale)
