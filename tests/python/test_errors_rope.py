# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that rope and rope_backward refuse: exception, text, nothing written."""

from __future__ import annotations

import bad_calls
import numpy as np
import pytest
from bad_calls import Call, Case, read_only
from numpy.lib.stride_tricks import as_strided

import membound


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape or (2, 3, 2, 8), np.float32)


def ids(*shape: int, dtype: str = "int64") -> np.ndarray:
    return np.zeros(shape or (2, 3), dtype)


def good() -> Call:
    return {"q": f32(), "k": f32(2, 3, 1, 8), "cos": f32(5, 4), "sin": f32(5, 4)}


def no_table(**more: object) -> Call:
    return {"cos": None, "sin": None, **more}


def thd(**more: object) -> Call:
    return {"q": f32(6, 2, 8), "k": None, "layout": "thd", **more}


def crossing() -> np.ndarray:
    return as_strided(f32(), strides=(96, 32, 16, 4))


def overlapping() -> Call:
    buffer = f32(3, 3, 2, 8)
    return {"q": buffer[:2], "out": buffer[1:]}


def transposed_in_place() -> Call:
    square = f32(3, 3, 2, 8)
    return {"q": square, "k": None, "out": square.swapaxes(0, 1)}


def k_out_in_q() -> Call:
    qk = f32(2, 3, 3, 8)
    return {"q": qk[:, :, :2], "k": f32(2, 3, 1, 8), "k_out": qk[:, :, 1:2]}


def same_outs() -> Call:
    out = f32()
    return {"k": f32(), "out": out, "k_out": out}


CASES: list[Case] = [
    ("list", lambda: {"q": [[1.0]]}, TypeError, "q"),
    ("integers", lambda: {"q": np.ones((2, 3, 2, 8), np.int32)}, TypeError, "q"),
    ("three axes", lambda: {"q": f32(3, 2, 8), "k": None}, ValueError, "q"),
    ("four axes for thd", lambda: {"layout": "thd"}, ValueError, "q"),
    ("no elements", lambda: {"q": f32(2, 3, 2, 0), "k": None}, ValueError, "q"),
    ("k of another dtype", lambda: {"k": np.ones((2, 3, 1, 8))}, TypeError, "k"),
    ("k of another length", lambda: {"k": f32(2, 4, 1, 8)}, ValueError, "k"),
    ("k of another width", lambda: {"k": f32(2, 3, 1, 6)}, ValueError, "k"),
    ("k of another rank", lambda: {"k": f32(3, 1, 8)}, ValueError, "k"),
    ("layout", lambda: {"layout": "dhsb"}, ValueError, "layout"),
    ("layout of another type", lambda: {"layout": 1}, TypeError, "layout"),
    ("no angles", no_table, ValueError, "cos"),
    ("sin alone", lambda: {"cos": None}, ValueError, "cos"),
    ("narrow cos", lambda: {"cos": f32(5, 3), "sin": f32(5, 3)}, ValueError, "cos"),
    ("half of a cache", lambda: {"sin": None, "rotary_dim": 8}, ValueError, "cos"),
    ("1-D cos", lambda: {"cos": f32(4), "sin": f32(4)}, ValueError, "cos"),
    ("integer cos", lambda: {"cos": ids(5, 4)}, TypeError, "cos"),
    ("sin of another dtype", lambda: {"sin": np.ones((5, 4))}, TypeError, "sin"),
    ("sin of another shape", lambda: {"sin": f32(6, 4)}, ValueError, "sin"),
    ("sin of another rank", lambda: {"sin": f32(2, 3, 4)}, ValueError, "sin"),
    ("short table", lambda: {"cos": f32(2, 4), "sin": f32(2, 4)}, ValueError, "cos"),
    ("too far a start", lambda: {"seqlen_offsets": 3}, ValueError, "cos"),
    ("start before 0", lambda: {"seqlen_offsets": -1}, ValueError, "cos"),
    ("rows of other tokens", lambda: {"cos": f32(2, 4, 4), "sin": f32(2, 4, 4)}, ValueError, "cos"),
    ("rows of tokens and ids", lambda: {
        "cos": f32(2, 3, 4), "sin": f32(2, 3, 4), "position_ids": ids()
    }, ValueError, "position_ids"),
    ("cos and freqs", lambda: {"freqs": f32(4)}, ValueError, "cos"),
    ("short freqs", lambda: no_table(freqs=f32(3), rotary_dim=8), ValueError, "freqs"),
    ("16-bit freqs", lambda: no_table(freqs=f32(4).astype("f2")), TypeError, "freqs"),
    ("2-D freqs", lambda: no_table(freqs=f32(1, 4)), ValueError, "freqs"),
    ("scaled table", lambda: {"attention_scaling": 2.0}, ValueError, "attention_scaling"),
    ("infinite scale", lambda: no_table(freqs=f32(4), attention_scaling=np.inf), ValueError,
     "attention_scaling"),
    ("float ids", lambda: {"position_ids": f32(2, 3)}, TypeError, "position_ids"),
    ("short ids", lambda: {"position_ids": ids(2, 3, dtype="int16")}, TypeError, "position_ids"),
    ("ids of other tokens", lambda: {"position_ids": ids(3, 2)}, ValueError, "position_ids"),
    ("ids of axes", lambda: {"position_ids": ids(3, 2, 3)}, ValueError, "position_ids"),
    ("starts of others", lambda: {"seqlen_offsets": ids(3)}, ValueError, "seqlen_offsets"),
    ("no start", lambda: {"seqlen_offsets": 1.5}, TypeError, "seqlen_offsets"),
    ("ends of a batch", lambda: {"cu_seqlens": ids(3)}, ValueError, "cu_seqlens"),
    ("no ends", lambda: thd(cu_seqlens=ids(1)), ValueError, "cu_seqlens"),
    ("2-D ends", lambda: thd(cu_seqlens=ids(2, 2)), ValueError, "cu_seqlens"),
    ("odd rotary_dim", lambda: {"rotary_dim": 7}, ValueError, "rotary_dim"),
    ("no rotary_dim", lambda: {"rotary_dim": 0}, ValueError, "rotary_dim"),
    ("rotary_dim of a float", lambda: {"rotary_dim": 8.0}, TypeError, "rotary_dim"),
    ("wide rotary_dim", lambda: {"rotary_dim": 10}, ValueError, "rotary_offset"),
    ("rotary_offset", lambda: {"rotary_dim": 4, "rotary_offset": 5}, ValueError, "rotary_offset"),
    ("before a head", lambda: {"rotary_dim": 4, "rotary_offset": -1}, ValueError, "rotary_offset"),
    ("sections of a number", lambda: {"sections": 4}, TypeError, "sections"),
    ("sections of text", lambda: {"sections": "22"}, TypeError, "sections"),
    ("sections without axes", lambda: {"sections": np.array(1)}, TypeError, "sections"),
    ("sections with two axes", lambda: {"sections": memoryview(np.ones((2, 2), int))}, TypeError,
     "sections"),
    ("sections of floats", lambda: {"sections": (2.0, 2.0)}, TypeError, "sections"),
    ("short sections", lambda: {"sections": (1, 2)}, ValueError, "sections"),
    ("five sections", lambda: {"sections": (1, 1, 1, 1, 0)}, ValueError, "sections"),
    ("negative section", lambda: {"sections": (-1, 5)}, ValueError, "sections"),
    ("sections without ids", lambda: {"sections": (2, 2)}, ValueError, "sections"),
    ("ids without axes", lambda: {"sections": (2, 1, 1), "position_ids": ids()}, ValueError,
     "position_ids"),
    ("style of a number", lambda: {"interleaved": 1}, TypeError, "interleaved"),
    ("out of another shape", lambda: {"out": f32(2, 3, 1, 8)}, ValueError, "out"),
    ("out of another dtype", lambda: {"out": np.ones((2, 3, 2, 8))}, TypeError, "out"),
    ("read-only out", lambda: {"out": np.broadcast_to(f32(1), (2, 3, 2, 8))}, ValueError, "out"),
    ("crossing out", lambda: {"out": crossing()}, ValueError, "out"),
    ("overlapping out", overlapping, ValueError, "out"),
    ("out across q", transposed_in_place, ValueError, "out"),
    ("k_out in q", k_out_in_q, ValueError, "k_out"),
    ("one array for both", same_outs, ValueError, "k_out"),
    ("k_out without k", lambda: {"k": None, "k_out": f32(2, 3, 1, 8)}, ValueError, "k_out"),
    ("stream on the CPU", lambda: {"stream": 1}, ValueError, "stream"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_rope_refuses(call, expected, argument):
    bad_calls.check(membound.rope, call(), good(), expected, argument)


def good_backward() -> Call:
    return {"dq": f32(), "freqs": f32(4), "q": f32()}


def q_in_dq_out() -> Call:
    q = f32()
    return {"q": q, "dq_out": q}


def dfreqs_in_dq() -> Call:
    dq = f32()
    return {"dq": dq, "dfreqs": dq[0, 0, 0, :4]}


BACKWARD_CASES: list[Case] = [
    ("odd q", lambda: {"q": f32(2, 3, 1, 8)}, ValueError, "q"),
    ("q of another dtype", lambda: {"q": np.ones((2, 3, 2, 8))}, TypeError, "q"),
    ("k without dk", lambda: {"k": f32()}, ValueError, "k"),
    ("dk without k", lambda: {"dk": f32()}, ValueError, "k"),
    ("tables", lambda: {"freqs": None, "cos": f32(5, 4), "sin": f32(5, 4)}, ValueError, "freqs"),
    ("dfreqs without q", lambda: {"q": None, "dfreqs": f32(4)}, ValueError, "q"),
    ("short dfreqs", lambda: {"dfreqs": f32(3)}, ValueError, "dfreqs"),
    ("16-bit dfreqs", lambda: {"dfreqs": f32(4).astype("f2")}, TypeError, "dfreqs"),
    ("read-only dfreqs", lambda: {"dfreqs": read_only()[0]}, ValueError, "dfreqs"),
    ("dq_out over q", q_in_dq_out, ValueError, "dq_out"),
    ("dfreqs in dq", dfreqs_in_dq, ValueError, "dfreqs"),
    ("odd dq", lambda: {"dq": f32(3, 2, 8), "q": f32(3, 2, 8)}, ValueError, "dq"),
    ("dk of another width", lambda: {"dk": f32(2, 3, 1, 6), "k": f32()}, ValueError, "dk"),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in BACKWARD_CASES],
                         ids=[c[0] for c in BACKWARD_CASES])  # fmt: skip
def test_rope_backward_refuses(call, expected, argument):
    bad_calls.check(membound.rope_backward, call(), good_backward(), expected, argument)


def test_torch_tables_that_require_grad_are_refused():
    torch = pytest.importorskip("torch")
    q, table = torch.ones(1, 2, 1, 4), torch.ones(2, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^rope: argument 'cos' requires grad"):
        membound.rope(q, None, table, table.detach())
    q.requires_grad_()
    with pytest.raises(RuntimeError, match=r"^rope: argument 'q' requires grad"):
        membound.rope(q, freqs=torch.ones(2), out=torch.empty(1, 2, 1, 4))
    with torch.no_grad():
        membound.rope(q, None, table, table)


def test_frameworks_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^rope: argument 'freqs' must be a torch array"):
        membound.rope(torch.ones(1, 2, 1, 4), freqs=np.ones(2))
