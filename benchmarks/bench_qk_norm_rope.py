# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm of heads and rotary embedding on a GPU, against a copy of as many bytes and peers.

python benchmarks/bench_qk_norm_rope.py            every shape
python benchmarks/bench_qk_norm_rope.py --quick    the goals' shapes alone
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import bench_rope as rope
import contest
import peers
import timing
import torch
from bench_rope import RopeShape, shape
from peers import Peer
from rope_peers import hugging_face
from timing import Clock, Record

import membound

EPS = 1e-6
BLOCK = 16  # slots of a page of a cache


def goals() -> list[RopeShape]:
    sizes = [(64, 1), (1, 2048), (4, 4096)]
    goals = [shape(*size, peers=True, mixed=size[1] == 1) for size in sizes]
    return [
        *goals,
        *(shape(*size, form="cache", peers=True, mixed=size[1] == 1) for size in sizes),
        *(shape(4, 4096, form=form) for form in ("backward", "backward, no dweight")),
    ]


def others() -> list[RopeShape]:
    """Further head widths, styles, layouts, dtypes and sources of the angles."""
    large = functools.partial(shape, 4, 4096)
    return [
        *(large(head_dim, form=form) for head_dim in (64, 72, 80, 100, 256)
          for form in ("", "backward")),
        *(large(form=form) for form in ("interleaved", "in place", "qkv", "freqs", "ids")),
        *(large(memory=memory) for memory in ("sbhd", "bhsd")),
        *(large(dtype=dtype, form=form) for dtype in ("float16", "float32")
          for form in ("", "backward")),
        *(shape(1, 2**power) for power in range(6, 18, 2)),
        *(shape(64, 1, form=form, mixed=True) for form in ("in place", "qkv", "freqs")),
        shape(64, 1, form="backward"),
        shape(1, 2048, form="backward"),
    ]  # fmt: skip


def is_backward(one: RopeShape) -> bool:
    return one.form.startswith("backward")


def buffers(one: RopeShape, device: str, count: int) -> list[Any]:
    """Buffers of rope, weights, and for the backward gradients and saved tensors."""
    every = rope.buffers(one, device, count)
    for a in every:
        a.weights = [torch.randn(one.head_dim, device=device).to(a.q.dtype) for _ in range(2)]
        if one.form == "cache":
            a.v = torch.randn_like(a.k)
            blocks = one.rows // BLOCK + 1
            a.caches = [
                torch.zeros(blocks, BLOCK, *a.k.shape[2:], device=device, dtype=a.k.dtype)
                for _ in range(2)
            ]
            a.slots = torch.randperm(blocks * BLOCK, device=device)[: one.rows]
        if is_backward(one):
            a.dq, a.dk = (torch.randn_like(x) for x in (a.q, a.k))
            wide = torch.float64 if one.dtype == "float64" else torch.float32
            a.rstds = [1 / (x.to(wide).pow(2).mean(-1) + EPS).sqrt() for x in (a.q, a.k)]
            a.dweights = [torch.empty_like(weight) for weight in a.weights]
    return every


def call_of(one: RopeShape, a: Any) -> Callable[[], Any]:
    """Our call on one set."""
    order = rope.AXES[one.memory]
    q, k, out, k_out = (x.permute(order) for x in (a.q, a.k, a.out, a.k_out))
    options = {"layout": one.memory, "interleaved": one.form == "interleaved"}
    options |= {"freqs": a.freqs} if one.form == "freqs" else {"cos": a.cos, "sin": a.sin}
    if one.form in ("freqs", "ids") or one.seq == 1:
        options["position_ids"] = a.ids
    if one.form == "cache":
        return functools.partial(
            membound.qk_norm_rope, q, k, *a.weights, out=out, v=a.v.permute(order),
            key_cache=a.caches[0], value_cache=a.caches[1], slot_mapping=a.slots, **options,
        )  # fmt: skip
    if not is_backward(one):
        if one.form in ("in place", "qkv"):
            q, k = out, k_out
        return functools.partial(
            membound.qk_norm_rope, q, k, *a.weights, out=out, k_out=k_out, **options
        )
    dq, dk = (x.permute(order) for x in (a.dq, a.dk))
    rstds = [x.permute(order[:3]) for x in a.rstds]
    if one.form == "backward":
        options |= {"dq_weight": a.dweights[0], "dk_weight": a.dweights[1]}
    else:
        options["need_dweight"] = False
    return functools.partial(
        membound.qk_norm_rope_backward, dq, dk, q, k, *a.weights, q_rstd=rstds[0],
        k_rstd=rstds[1], dq_out=out, dk_out=k_out, **options,
    )  # fmt: skip


def in_caches(a: Any) -> Any:
    """k of every token, read from its cache; NaN if v is not in the other cache."""
    k, v = (cache.flatten(0, 1)[a.slots].view(a.k.shape) for cache in a.caches)
    return k if torch.equal(v, a.v) else torch.full_like(k, float("nan"))


def formula(x: Any, weight: Any, cos: Any, sin: Any, one: RopeShape) -> tuple[Any, Any]:
    """The right result in float64, differentiable, and the magnitude of its terms."""
    wide = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight
    half = one.head_dim // 2
    if one.form == "interleaved":
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = wide[..., :half], wide[..., half:]
    parts = [first * cos - second * sin, second * cos + first * sin]
    sizes = [(first.abs() + second.abs()).detach()] * 2
    if one.form == "interleaved":
        return tuple(torch.stack(found, -1).flatten(-2) for found in (parts, sizes))
    return tuple(torch.cat(found, -1) for found in (parts, sizes))


def worst(
    one: RopeShape,
    a: Any,
    read: tuple[Any, Any],
    results: tuple[Any, Any],
    patience: float = 1.0,
) -> float:
    """The largest error of results for the inputs read, in ulps of the magnitude of the terms."""
    found = 0.0
    cos, sin = rope.wide_tables(one, a)
    dys = (a.dq, a.dk) if is_backward(one) else (None, None)
    for x, y, weight, dy in zip(read, results, a.weights, dys, strict=True):
        at = slice(max(1, timing.VERIFY_ELEMENTS // x[:1].numel()))  # some of the sequences
        wide = x[at].double().requires_grad_(dy is not None)
        wanted, terms = formula(wide, weight.double(), cos[at], sin[at], one)
        if dy is not None:
            (wanted,) = torch.autograd.grad(wanted, wide, dy[at].double())
            terms = 4 * wanted.abs().amax(-1, keepdim=True)
        slack = 4 * patience * timing.sum_slack(one.dtype) * terms
        found = max(found, timing.ulps(y[at], wanted.detach(), slack, one.dtype))
    return found


# --- peers: functions of a list of sets, for q and k of (batch, seq, heads, head_dim) ---


def in_torch(q: Any, k: Any, q_weight: Any, k_weight: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Qwen 3's attention in Hugging Face transformers."""
    normed = [
        peers.hugging_face(x, weight, EPS).transpose(1, 2)
        for x, weight in ((q, q_weight), (k, k_weight))
    ]
    return tuple(x.transpose(1, 2) for x in hugging_face(*normed, cos, sin))


def with_caches(function: Callable) -> Callable[..., Any]:
    """The same with k and v written to caches; returns q alone."""

    def call(caches: Any, slots: Any, v: Any, q: Any, k: Any, *rest: Any) -> Any:
        q, k = function(q, k, *rest)
        for cache, x in zip(caches, (k, v), strict=True):
            cache.flatten(0, 1).index_copy_(0, slots, x.flatten(0, 1))
        return q

    return call


def _in_torch(like: Any, make: Callable) -> Callable[[Any], Any]:
    cached = hasattr(like, "caches")
    function = make(with_caches(in_torch) if cached else in_torch)

    def call(a: Any) -> Any:
        first = (a.caches, a.slots, a.v) if cached else ()
        return function(*first, a.q, a.k, *a.weights, a.cos_twice, a.sin_twice)

    return call


def _torch(like: Any) -> Callable[[Any], Any]:
    return _in_torch(like, lambda function: function)


def _compile(like: Any) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    return _in_torch(like, functools.partial(torch.compile, dynamic=False))


def _two_calls(like: Any) -> Callable[[Any], Any]:
    """Our separate norm and rope, and torch's copies into caches."""

    def call(a: Any) -> Any:
        for x, out, weight in zip((a.q, a.k), (a.out, a.k_out), a.weights, strict=True):
            membound.rms_norm(x, weight, out=out)
        options = {"position_ids": a.ids} if a.q.shape[1] == 1 else {}
        return membound.rope(a.out, a.k_out, a.cos, a.sin, out=a.out, k_out=a.k_out, **options)

    if not hasattr(like, "caches"):
        return call
    cached = with_caches(lambda _q, _k, a: call(a))
    return lambda a: cached(a.caches, a.slots, a.v, a.q, a.k, a)


PEERS = {
    "torch": Peer("torch", _torch),
    "compile": Peer("torch", _compile),
    "two calls": Peer("torch", _two_calls),
}


def _time_peers(one: RopeShape, clock: Clock, record: Record, names: list[str], every: Any) -> None:
    for name in names:
        try:
            call, a = PEERS[name].make(every[0]), every[0]
            for cache in getattr(a, "caches", []):
                cache.zero_()
            found = call(a)
            results = (found, in_caches(a)) if one.form == "cache" else found
            error = worst(one, a, (a.q, a.k), results, timing.PEER_PATIENCE[one.dtype])
            if not timing.is_plausible(error, one.dtype):
                record.notes.append(f"{name} is off by {error:.3g} ulp, not timed")
                continue
            record.peers[name] = clock.microseconds([functools.partial(call, a) for a in every])
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(clock: Clock, one: RopeShape, names: list[str]) -> Record:
    moved = (3 if is_backward(one) else 2) * one.tensor_bytes
    if one.form == "cache":
        moved += 2 * one.rows * one.heads[1] * one.head_dim * timing.ITEM_BYTES[one.dtype]
    count = clock.sets(moved)
    every = buffers(one, clock.device, count)
    ours = [call_of(one, a) for a in every]
    read = [(a.out.clone(), a.k_out.clone()) if one.form in ("in place", "qkv") else (a.q, a.k)
            for a in (every[0], every[-1])]  # fmt: skip
    for call in ours:
        call()
    for a, before in zip((every[0], every[-1]), read, strict=True):
        k_found = in_caches(a) if one.form == "cache" else a.k_out
        error = worst(one, a, before, (a.out, k_found))
        if not timing.is_right(error, one.dtype):
            raise SystemExit(f"membound is WRONG by {error:.4g} ulp in {one.text}")
    elements = moved // 2 // timing.ITEM_BYTES[one.dtype]
    copies = timing.copies(elements, one, clock.device, count)
    record = Record(one, clock.microseconds(ours), clock.microseconds(copies))
    record.yardstick = clock.yardstick(moved, record.copy)
    if one.mixed or moved < rope.MIXED_BELOW:
        half = max(1, count // 2)
        between = (copies[half:] + copies[:half])[: len(ours)]
        record.mixed = clock.between_copies(ours, between, record.copy)
    _time_peers(one, clock, record, names if one.peers else [], every)
    return record


def main() -> None:
    options = contest.arguments(__doc__).parse_args()
    shapes = goals() if options.quick else goals() + others()
    contest.run(options, "qk_norm_rope", PEERS, shapes, measure)


if __name__ == "__main__":
    main()
