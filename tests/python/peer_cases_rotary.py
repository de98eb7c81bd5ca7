# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries' rotary embeddings with their own arguments, paired with the formula."""

from __future__ import annotations

import math

import torch
from peer_formulas import angles, case, rms, rotate, rotate_by, values

# Tokens of two sequences, 3 and 4 long, in one row.
Q, K = values(7, 4, 8), values(7, 2, 8)
STARTS = torch.tensor([0, 3, 7], dtype=torch.int32)
OFFSETS = torch.tensor([5, 2], dtype=torch.int32)
POSITIONS = torch.tensor([0, 1, 2, 0, 1, 2, 3])
OFFSET_POSITIONS = POSITIONS + torch.tensor([5, 5, 5, 2, 2, 2, 2])
IDS = torch.tensor([4, 0, 9, 9, 1, 30, 2])
# Two sequences of 6 tokens.
X, Y = values(2, 6, 4, 8), values(2, 6, 2, 8)
AT = torch.arange(6)
COS, SIN = values(40, 4), values(40, 4, seed=1)


def llama31(at, factor=8.0, theta=5e5, low=1.0, high=4.0, trained=8192):
    """(..., 4) angles of positions: long waves slower, short ones as they are."""
    kept = 1 / angles(torch.ones(1), 8, theta)
    frequencies = []
    for wave in (2 * math.pi * kept[0]).tolist():
        frequency, cycles = 2 * math.pi / wave, trained / wave
        share = min(max((cycles - low) / (high - low), 0.0), 1.0)
        frequencies.append(share * frequency + (1 - share) * frequency / factor)
    return at[..., None].double() * torch.tensor(frequencies, dtype=torch.float64)


def in_place(f, expected, *given, **options):
    """Pairs of got and expected for a function that overwrites its first two arguments."""
    q, k = Q.float(), K.float()
    assert f(q, k, *given, **options) is None
    yield q, expected(Q)
    yield k, expected(K)


# --- flashinfer: float32 frequencies, and angles up to 40 ---


def register_flashinfer(name, formula):
    longer = {"rope_theta": 1e3, "rope_scale": 2.0}

    def new(f):
        where = (IDS,) if "pos_ids" in name else (STARTS, OFFSETS)
        at = IDS if "pos_ids" in name else OFFSET_POSITIONS
        for options, expected in (
            ({}, lambda x: rotate_by(x, formula(at))),
            ({"interleave": True}, lambda x: rotate_by(x, formula(at), True)),
            (longer, lambda x: rotate_by(x, formula(at, 2.0, 1e3))),
        ):
            yield where, options, expected

    @case(f"flashinfer.{name}")
    def calls(f):
        for where, options, expected in new(f):
            got = f(Q.float(), K.float(), *where, **options)
            yield from zip(got, (expected(Q), expected(K)), strict=True)

    @case(f"flashinfer.{name}_inplace")
    def calls_in_place(f):
        for where, options, expected in new(f):
            yield from in_place(f, expected, *where, **options)


def linear(at, factor=1.0, theta=1e4):
    return angles(at, 8, theta, factor)


for _kind, _formula in (("rope", linear), ("llama31_rope", llama31)):
    for _where in ("", "_pos_ids"):
        register_flashinfer(f"apply_{_kind}{_where}", _formula)


CACHE = torch.cat((COS, SIN), dim=1)


def _flat(x):
    return x.flatten(-2)


@case("flashinfer.apply_rope_with_cos_sin_cache")
def cos_sin_cache(f):
    for neox in (True, False):
        got = f(IDS, _flat(Q), _flat(K), 8, CACHE, neox)
        for found, x in zip(got, (Q, K), strict=True):
            yield found, _flat(rotate(x, COS[IDS], SIN[IDS], not neox))


@case("flashinfer.apply_rope_with_cos_sin_cache_inplace")
def cos_sin_cache_in_place(f):
    q, k = _flat(Q).clone(), _flat(K).clone()
    f(IDS, q, k, 8, CACHE)
    yield q, _flat(rotate(Q, COS[IDS], SIN[IDS]))
    yield k, _flat(rotate(K, COS[IDS], SIN[IDS]))


# --- vLLM ---


@case("vllm.rotary_embedding")
def rotary_embedding(f):
    for neox in (True, False):
        q, k = _flat(Q).clone(), _flat(K).clone()
        assert f(IDS, q, k, 8, CACHE, neox) is None
        yield q, _flat(rotate(Q, COS[IDS], SIN[IDS], not neox))
        yield k, _flat(rotate(K, COS[IDS], SIN[IDS], not neox))
    q, half = Q.clone(), CACHE[:, [0, 1, 4, 5]]
    f(IDS, q, None, 8, half, True, 2, True)
    rotated = rotate(Q[..., 2:], COS[IDS][:, :2], SIN[IDS][:, :2], inverse=True)
    yield q, torch.cat((Q[..., :2], rotated), dim=-1)


@case("vllm.fused_qk_norm_rope")
def fused_qk_norm_rope(f):
    qkv, of_q, of_k = values(7, 8 * 8), values(8), values(8, seed=3)
    heads = qkv.clone().view(7, 8, 8)
    f(qkv, 4, 2, 2, 8, 1e-2, of_q, of_k, CACHE, True, IDS)
    got = qkv.view(7, 8, 8)
    for part, weight in ((slice(0, 4), of_q), (slice(4, 6), of_k)):
        expected = rotate(rms(heads[:, part], weight, 1e-2), COS[IDS], SIN[IDS])
        yield got[:, part], expected
    yield got[:, 6:], heads[:, 6:]


# --- Liger-Kernel and unsloth: heads before tokens ---


def rows(x):
    """Tables with every angle twice, a row for each token."""
    return torch.cat((x, x), dim=-1)


@case("liger.liger_rotary_pos_emb", "liger.liger_rope")
def liger_rotary(f):
    cos, sin = (rows(t[:6])[None] for t in (COS, SIN))
    for got, x in zip(f(X.transpose(1, 2), Y.transpose(1, 2), cos, sin), (X, Y), strict=True):
        yield got, rotate(x, COS[:6], SIN[:6]).transpose(1, 2)
    for got, x in zip(f(X, Y, cos, sin, unsqueeze_dim=2), (X, Y), strict=True):
        yield got, rotate(x, COS[:6], SIN[:6])
    half = f(X, Y, COS[None, :6, :2], SIN[None, :6, :2], unsqueeze_dim=2, rotary_dim=4)
    yield half[0], rotate(X, COS[:6, :2], SIN[:6, :2])


@case("liger.liger_rotary_pos_emb_gpt_oss")
def liger_gpt_oss(f):
    got = f(X.transpose(1, 2), Y.transpose(1, 2), COS[None, :6], SIN[None, :6])
    yield got[0], rotate(X, COS[:6], SIN[:6]).transpose(1, 2)
    yield got[1], rotate(Y, COS[:6], SIN[:6]).transpose(1, 2)


@case("liger.liger_rotary_pos_emb_vision")
def liger_vision(f):
    got = f(Q, K, rows(COS[:7]), rows(SIN[:7]))
    yield got[0], rotate(Q, COS[:7], SIN[:7])
    yield got[1], rotate(K, COS[:7], SIN[:7])


@case("liger.liger_multimodal_rotary_pos_emb", "liger.liger_qwen2vl_mrope")
def liger_multimodal(f):
    cos, sin = values(3, 2, 6, 4), values(3, 2, 6, 4, seed=5)
    picked = [torch.cat((t[0, ..., :1], t[1, ..., 1:3], t[2, ..., 3:]), dim=-1) for t in (cos, sin)]
    got = f(X.transpose(1, 2), Y.transpose(1, 2), rows(cos), rows(sin), [1, 2, 1])
    yield got[0], rotate(X, *picked).transpose(1, 2)
    yield got[1], rotate(Y, *picked).transpose(1, 2)


@case("liger.liger_llama4_text_rotary_pos_emb")
def liger_llama4(f):
    for table in (torch.complex(COS[:6], SIN[:6]), torch.complex(COS[:6], SIN[:6])[None]):
        got = f(X, Y, table)
        yield got[0], rotate(X, COS[:6], SIN[:6], interleaved=True)
        yield got[1], rotate(Y, COS[:6], SIN[:6], interleaved=True)


@case("unsloth.fast_rope_embedding")
def fast_rope_embedding(f):
    q, k = X.transpose(1, 2), Y.transpose(1, 2)
    yield f(q, k, rows(COS), rows(SIN))[0], rotate(X, COS[:6], SIN[:6]).transpose(1, 2)
    at = torch.stack((AT, AT + 9))
    for got, x in zip(f(q, k, rows(COS), rows(SIN), at), (X, Y), strict=True):
        yield got, rotate(x, COS[at], SIN[at]).transpose(1, 2)


@case("unsloth.inplace_rope_embedding")
def inplace_rope_embedding(f):
    q, k, at = X.clone(), Y.clone(), torch.stack((AT, AT + 9))
    given = rows(COS)[None, None], rows(SIN)[None, None], at
    for got, there, x in zip(f(q, k, *given), (q, k), (X, Y), strict=True):
        assert got is there
        yield there, rotate(x, COS[at], SIN[at])


# --- apex and Transformer Engine: angles of (positions, 1, 1, dim) ---

ANGLES = 3 * values(40, 4)
FULL, NEIGHBOURS = rows(ANGLES)[:, None, None], ANGLES.repeat_interleave(2, 1)[:, None, None]
T = X.transpose(0, 1)  # (seq, batch, heads, head_dim)


@case("apex.fused_apply_rotary_pos_emb")
def apex_rope(f):
    expected = rotate_by(X, ANGLES[:6]).transpose(0, 1)
    yield f(T, FULL), expected
    got = f(T, FULL, True)
    assert got.transpose(0, 1).is_contiguous()
    yield got, expected


@case("apex.fused_apply_rotary_pos_emb_cached")
def apex_rope_cached(f):
    expected = rotate_by(X, ANGLES[:6]).transpose(0, 1)
    yield f(T, FULL.cos(), FULL.sin()), expected
    yield f(T, FULL.cos(), FULL.sin(), True), expected


@case("apex.fused_apply_rotary_pos_emb_thd")
def apex_rope_thd(f):
    yield f(Q, STARTS, FULL), rotate_by(Q, ANGLES[POSITIONS])


@case("apex.fused_apply_rotary_pos_emb_2d")
def apex_rope_2d(f):
    high, wide = 3 * values(5, 2), 3 * values(4, 2)
    tables = [rows(t)[None, :, None] for t in (high.cos(), high.sin(), wide.cos(), wide.sin())]
    row, column = AT // 3, AT % 3
    first = rotate_by(X[..., :4], high[row])
    expected = torch.cat((first, rotate_by(X[..., 4:], wide[column])), dim=-1)
    yield f(X, 2, 3, *tables), expected


def of_rank(length, rank, ranks):
    """Positions in the two chunks of a rank, of a sequence of `ranks * length`."""
    chunks = torch.arange(ranks * length).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


@case("transformer_engine.apply_rotary_pos_emb")
def te_rope(f):
    yield f(T, FULL), rotate_by(X, ANGLES[:6]).transpose(0, 1)
    yield f(X, NEIGHBOURS, "bshd", None, True), rotate_by(X, ANGLES[:6], True)
    offset_kv = AT + OFFSETS[:, None]
    yield f(X, FULL, "bshd", OFFSETS), rotate_by(X, ANGLES[offset_kv])
    yield f(Q, FULL, "thd", cu_seqlens=STARTS), rotate_by(Q, ANGLES[POSITIONS])
    yield f(Q, FULL, "thd", OFFSETS, cu_seqlens=STARTS), rotate_by(Q, ANGLES[OFFSET_POSITIONS])
    yield f(T, FULL, cp_size=1, cp_rank=0), rotate_by(X, ANGLES[:6]).transpose(0, 1)
    for ranks in (2, 3):
        for rank in range(ranks):
            at, given = of_rank(6, rank, ranks), {"cp_size": ranks, "cp_rank": rank}
            yield f(T, FULL, **given), rotate_by(X, ANGLES[at]).transpose(0, 1)
            later = at + OFFSETS[:, None]
            yield f(X, FULL, "bshd", OFFSETS, **given), rotate_by(X, ANGLES[later])
            lengths, q = (2, 4), Q[:6]
            starts = torch.tensor([0, 2 * ranks, 6 * ranks], dtype=torch.int32)
            at = torch.cat([of_rank(n, rank, ranks) for n in lengths])
            yield f(q, FULL, "thd", cu_seqlens=starts, **given), rotate_by(q, ANGLES[at])
            at = at + torch.tensor([5, 5, 2, 2, 2, 2])
            yield f(q, FULL, "thd", OFFSETS, cu_seqlens=starts, **given), rotate_by(q, ANGLES[at])
    coarse = FULL.bfloat16()
    yield f(T.float(), coarse), rotate_by(X.float(), coarse[:6, 0, 0, :4].float()).transpose(0, 1)


@case("transformer_engine.apply_fused_qkv_rotary_pos_emb")
def te_fused_qkv(f):
    qkv, other = values(2, 6, 2, 5 * 8), 3 * values(40, 4, seed=9)
    k_table = rows(other)[:, None, None]
    q, k, v = qkv.split([24, 8, 8], dim=-1)
    q = q.reshape(2, 6, 6, 8)
    for options, at in (
        ({}, AT),
        ({"start_positions": OFFSETS}, AT + OFFSETS[:, None]),
        ({"cp_size": 2, "cp_rank": 1}, of_rank(6, 1, 2)),
    ):
        expected = rotate_by(q, ANGLES[at]), rotate_by(k, other[at]), v
        got = f(qkv, FULL, k_table, [24, 8, 8], "bshd", **options)
        yield from zip(got, expected, strict=True)
        got = f(qkv.transpose(0, 1).contiguous(), FULL, k_table, [24, 8, 8], **options)
        yield from zip((t.transpose(0, 1) for t in got), expected, strict=True)


@case("transformer_engine.RotaryPositionEmbedding")
def te_angles(f):
    plain = angles(torch.arange(6), 8)
    assert list(f(8).state_dict()) == ["inv_freq"]
    yield f(8)(6), rows(plain)[:, None, None]
    yield f(8)(6, 3), rows(angles(torch.arange(3, 9), 8))[:, None, None]
    yield f(16, 0.5, interleaved=True)(6), plain.repeat_interleave(2, 1)[:, None, None]
    yield f(8, 1.0, 2, 8, 1e3)(6), rows(angles(torch.arange(6), 8, 1e3, 2))[:, None, None]
    yield f(8, 1.0, 2, 2)(6), rows(angles(torch.arange(6), 8, 1e4, 3))[:, None, None]
