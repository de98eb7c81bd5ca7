# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding on a GPU, against a copy of as many bytes and installed peers.

python benchmarks/bench_rope.py            every shape
python benchmarks/bench_rope.py --quick    the goals' shapes alone
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import contest
import timing
import torch
from rope_peers import ROPE
from timing import Clock, Record, Shape

import membound

AXES = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}
MIXED_BELOW = 8 << 20  # bytes moved


@dataclass(frozen=True)
class RopeShape(Shape):
    """rows: tokens, cols: elements of a token."""

    batch: int = 1
    seq: int = 1
    heads: tuple[int, int] = (32, 8)
    head_dim: int = 128
    memory: str = "bshd"  # the memory layout of q and k, also the call's
    # "full": a row per token with a column per element, as Hugging Face passes them
    form: str = ""  # or "interleaved", "in place", "qkv", "freqs", "ids", "backward", "full"

    @property
    def text(self) -> str:
        sizes = f"{self.batch} x {self.seq} x {self.heads[0]} + {self.heads[1]} x {self.head_dim}"
        memory = "" if self.memory == "bshd" else f", {self.memory}"
        return sizes + memory + (f", {self.form}" if self.form else "")


def shape(batch: int, seq: int, head_dim: int = 128, **rest: Any) -> RopeShape:
    heads = rest.pop("heads", (32, 8))
    cols = sum(heads) * head_dim
    return RopeShape(
        batch * seq, cols, batch=batch, seq=seq, heads=heads, head_dim=head_dim, **rest
    )


def goals() -> list[RopeShape]:
    sizes = [(64, 1), (1, 1), (1, 2048), (4, 4096)]
    return [shape(*size, peers=True, mixed=size[1] == 1) for size in sizes]


def others() -> list[RopeShape]:
    """Further head widths, styles, layouts, dtypes and sources of the angles."""
    large = functools.partial(shape, 4, 4096)
    forms = ("interleaved", "in place", "qkv", "freqs", "ids", "backward", "full")
    return [
        *(large(head_dim) for head_dim in (64, 72, 80, 96, 100, 256)),
        *(large(form=form) for form in forms),
        *(large(memory=memory) for memory in ("sbhd", "bhsd")),
        *(large(memory="bhsd", form=form) for form in ("interleaved", "in place")),
        *(large(dtype=dtype) for dtype in ("float16", "float32")),
        shape(2, 2048, dtype="float64"),
        *(large(head_dim, form="interleaved") for head_dim in (64, 80, 96, 256)),
        *(shape(1, 2**power) for power in range(6, 18, 2)),
        *(shape(64, 1, form=form, mixed=True) for form in ("in place", "freqs", "interleaved")),
    ]


def _heads(one: RopeShape, device: str, *, readable: bool) -> tuple[Any, Any]:
    """q and k as (batch, seq, heads, head_dim) views of their memory."""
    kind, (hq, hk) = timing.DTYPES[one.dtype], one.heads
    if one.form == "qkv":
        qkv = torch.randn(one.batch, one.seq, hq + 2 * hk, one.head_dim, device=device).to(kind)
        return qkv[:, :, :hq], qkv[:, :, hq : hq + hk]
    found = []
    for heads in one.heads:
        full = (one.batch, one.seq, heads, one.head_dim)
        order = AXES[one.memory]
        x = torch.empty([full[axis] for axis in order], device=device, dtype=kind)
        x = (x.normal_() if readable else x.fill_(float("nan"))).permute(
            [order.index(axis) for axis in range(4)]
        )
        found.append(x)
    return tuple(found)


def buffers(one: RopeShape, device: str, count: int) -> list[Any]:
    like = torch.empty(0, device=device)
    freqs, _ = membound.rope_frequencies(None, one.head_dim, one.seq)
    wide = "float64" if one.dtype == "float64" else "float32"
    cos, sin, _ = membound.rope_table(None, one.head_dim, max(one.seq, one.batch), wide, like=like)
    positions = torch.arange(one.seq, device=device).repeat(one.batch, 1)
    if one.seq == 1:  # decoding: every sequence has another position
        positions = torch.arange(one.batch, device=device)[:, None]
    every = []
    for _ in range(count):
        a = SimpleNamespace(cos=cos, sin=sin, ids=positions, positions=positions.flatten())
        a.q, a.k = _heads(one, device, readable=True)
        a.out, a.k_out = _heads(one, device, readable=False) if one.form != "qkv" else (a.q, a.k)
        if one.form == "in place":
            a.out.copy_(a.q)
            a.k_out.copy_(a.k)
        a.freqs = torch.tensor(freqs, device=device, dtype=cos.dtype)
        a.cache = torch.cat([cos, sin], 1)
        rows = a.ids[0] if one.seq > 1 else a.positions
        a.cos_full, a.sin_full = (torch.cat([t[: one.seq]] * 2, 1)[None] for t in (cos, sin))
        twice = [torch.cat([t[rows]] * 2, 1).to(a.q.dtype) for t in (cos, sin)]
        a.cos_twice, a.sin_twice = (t[None] if one.seq > 1 else t[:, None] for t in twice)
        every.append(a)
    return every


def call_of(one: RopeShape, a: Any) -> Callable[[], Any]:
    """Our call on one set."""
    order = AXES[one.memory]
    q, k, out, k_out = (x.permute(order) for x in (a.q, a.k, a.out, a.k_out))
    options = {"layout": one.memory, "interleaved": one.form == "interleaved"}
    if one.form == "freqs":
        options["freqs"] = a.freqs
    elif one.form == "full":
        options |= {"cos": a.cos_full, "sin": a.sin_full}
    else:
        options |= {"cos": a.cos, "sin": a.sin}
    if one.form in ("freqs", "ids") or one.seq == 1:
        options["position_ids"] = a.ids
    if one.form == "backward":
        return functools.partial(membound.rope_backward, q, k, dq_out=out, dk_out=k_out, **options)
    if one.form in ("in place", "qkv"):
        q, k = out, k_out
    return functools.partial(membound.rope, q, k, out=out, k_out=k_out, **options)


def wide_tables(one: RopeShape, a: Any) -> tuple[Any, Any]:
    """cos and sin of every token in float64, from the call's angles."""
    if one.form == "freqs":
        angles = a.ids[:, :, None, None].double() * a.freqs.double()
        return angles.cos(), angles.sin()
    return tuple(table.double()[a.ids][:, :, None] for table in (a.cos, a.sin))


def worst(
    one: RopeShape,
    a: Any,
    read: tuple[Any, Any],
    results: tuple[Any, Any],
    patience: float = 1.0,
) -> float:
    """The largest error of results for the inputs read, in ulps of the magnitude of the terms."""
    found = 0.0
    cos, sin = wide_tables(one, a)
    sin = -sin if one.form == "backward" else sin
    half = one.head_dim // 2
    interleaved = one.form == "interleaved"
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (
        slice(half), slice(half, None)
    )  # fmt: skip
    for x, y in zip(read, results, strict=True):
        at = slice(max(1, timing.VERIFY_ELEMENTS // x[:1].numel()))  # some of the sequences
        wide, c, s = x[at].double(), cos[at], sin[at]
        wanted, terms = torch.empty_like(wide), torch.empty_like(wide)
        wanted[..., first] = wide[..., first] * c - wide[..., second] * s
        wanted[..., second] = wide[..., second] * c + wide[..., first] * s
        terms[..., first] = wide[..., first].abs() + wide[..., second].abs()
        terms[..., second] = terms[..., first]
        slack = patience * timing.sum_slack(one.dtype) * terms
        found = max(found, timing.ulps(y[at], wanted, slack, one.dtype))
    return found


def _time_peers(one: RopeShape, clock: Clock, record: Record, names: list[str], every: Any) -> None:
    for name in names:
        peer = ROPE[name]
        try:
            call = peer.make(every[0])
            if peer.in_place:
                for a in every:
                    a.out.copy_(a.q)
                    a.k_out.copy_(a.k)
            read = (every[0].q, every[0].k)
            patience = timing.PEER_PATIENCE[one.dtype]
            error = worst(one, every[0], read, call(every[0]), patience)
            if not timing.is_plausible(error, one.dtype):
                record.notes.append(f"{name} is off by {error:.3g} ulp, not timed")
                continue
            record.peers[name] = clock.microseconds([functools.partial(call, a) for a in every])
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(clock: Clock, one: RopeShape, names: list[str]) -> Record:
    moved = 2 * one.tensor_bytes
    count = clock.sets(moved)
    every = buffers(one, clock.device, count)
    ours = [call_of(one, a) for a in every]
    read = [(a.out.clone(), a.k_out.clone()) if one.form in ("in place", "qkv") else (a.q, a.k)
            for a in (every[0], every[-1])]  # fmt: skip
    for call in ours:
        call()
    for a, before in zip((every[0], every[-1]), read, strict=True):
        error = worst(one, a, before, (a.out, a.k_out))
        if not timing.is_right(error, one.dtype):
            raise SystemExit(f"membound is WRONG by {error:.4g} ulp in {one.text}")
    copies = timing.copies(one.rows * one.cols, one, clock.device, count)
    record = Record(one, clock.microseconds(ours), clock.microseconds(copies))
    record.yardstick = clock.yardstick(moved, record.copy)
    if one.mixed or moved < MIXED_BELOW:
        half = max(1, count // 2)
        between = (copies[half:] + copies[:half])[: len(ours)]
        record.mixed = clock.between_copies(ours, between, record.copy)
    _time_peers(one, clock, record, names if one.peers else [], every)
    return record


def main() -> None:
    options = contest.arguments(__doc__).parse_args()
    shapes = goals() if options.quick else goals() + others()
    contest.run(options, "rope", ROPE, shapes, measure)


if __name__ == "__main__":
    main()
