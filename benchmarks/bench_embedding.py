# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Embedding lookup on a GPU, against a copy of as many bytes, torch and torch.compile.

python benchmarks/bench_embedding.py            every shape
python benchmarks/bench_embedding.py --quick    the goals' shapes alone
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
from peers import Peer
from timing import Clock, Record, Shape

import membound

MIXED_BELOW = 8 << 20  # bytes moved
START = 1000  # the first id of one rank's rows
SCALE = 1.75  # exact in every dtype


@dataclass(frozen=True)
class EmbeddingShape(Shape):
    """rows: tokens, cols: elements of a row."""

    vocab: int = 128256
    form: str = ""  # or "scale", "positions", "one rank", "skewed"

    @property
    def text(self) -> str:
        sizes = f"{self.vocab} x {self.cols}, {self.rows} tokens"
        return sizes + (f", {self.form}" if self.form else "")


def shape(rows: int, cols: int = 4096, **rest: Any) -> EmbeddingShape:
    return EmbeddingShape(rows, cols, **rest)


def goals() -> list[EmbeddingShape]:
    return [shape(rows, peers=True, mixed=rows < 1024) for rows in (1, 64, 8192)]


def others() -> list[EmbeddingShape]:
    """Further forms, dtypes, aligned and odd widths, and token counts."""
    return [
        *(shape(8192, form=form, peers=True) for form in ("scale", "positions")),
        *(shape(8192, form=form) for form in ("one rank", "skewed")),
        *(shape(8192, dtype=dtype) for dtype in ("float16", "float32")),
        shape(4096, dtype="float64", vocab=32000),
        *(shape(16384, cols, vocab=50257) for cols in (64, 768, 1600, 1601)),
        shape(8192, 8192),
        *(shape(2**power) for power in range(2, 18, 3)),
    ]


def buffers(one: EmbeddingShape, device: str, count: int) -> list[Any]:
    """Buffer sets with their own ids; they share one table, which is larger than the cache."""
    kind = timing.DTYPES[one.dtype]
    made = functools.partial(torch.empty, device=device, dtype=kind)
    weight = made(one.vocab, one.cols).normal_()
    positions = made(one.rows, one.cols).normal_() if one.form == "positions" else None
    every = []
    for _ in range(count):
        ids = torch.randint(one.vocab, (one.rows,), device=device)
        if one.form == "skewed":
            ids[::2] = 7
        if one.form == "one rank":  # every fourth row belongs to another rank
            ids = ids * 4 // 3 + START
        out = made(one.rows, one.cols).fill_(float("nan"))
        every.append(SimpleNamespace(ids=ids, weight=weight, positions=positions, out=out))
    return every


def call_of(one: EmbeddingShape, a: Any) -> Callable[[], Any]:
    """Our call on one set."""
    options: dict[str, Any] = {"position_weight": a.positions}
    if one.form == "scale":
        options["scale"] = SCALE
    if one.form == "one rank":
        options["vocab_start"] = START
    return functools.partial(membound.embedding, a.ids, a.weight, out=a.out, **options)


def definition(one: EmbeddingShape, a: Any) -> torch.Tensor:
    rows = a.ids - (START if one.form == "one rank" else 0)
    inside = (rows >= 0) & (rows < one.vocab)
    found = a.weight[torch.where(inside, rows, 0)].double()
    if one.form == "scale":
        found *= SCALE
    if a.positions is not None:
        found += a.positions.double()
    return torch.where(inside[:, None], found, 0.0)


def worst(one: EmbeddingShape, a: Any, result: torch.Tensor) -> float:
    """The largest error in ulps, beyond the slack of a float32 sum."""
    wanted = definition(one, a)
    slack = torch.zeros_like(wanted)
    if a.positions is not None:
        slack = timing.sum_slack(one.dtype) * (wanted.abs() + 2 * a.positions.double().abs())
    return timing.ulps(result, wanted, slack, one.dtype)


def looked_up(ids: Any, weight: Any, positions: Any, scale: float) -> Any:
    found = torch.nn.functional.embedding(ids, weight)
    if scale != 1.0:
        found = found * scale
    return found if positions is None else found + positions


def _torch(one: EmbeddingShape) -> Callable[[Any], Any]:
    scale = SCALE if one.form == "scale" else 1.0
    return lambda a: looked_up(a.ids, a.weight, a.positions, scale)


def _compile(one: EmbeddingShape) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    function = torch.compile(looked_up, dynamic=False)
    scale = SCALE if one.form == "scale" else 1.0
    return lambda a: function(a.ids, a.weight, a.positions, scale)


EMBEDDING = {"torch": Peer("torch", _torch), "compile": Peer("torch", _compile)}


def _time_peers(
    one: EmbeddingShape, clock: Clock, record: Record, names: list[str], every: Any
) -> None:
    for name in names:
        try:
            call = EMBEDDING[name].make(one)
            error = worst(one, every[0], call(every[0]))
            if not timing.is_right(error, one.dtype):
                record.notes.append(f"{name} is off by {error:.3g} ulp, not timed")
                continue
            record.peers[name] = clock.microseconds([functools.partial(call, a) for a in every])
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(clock: Clock, one: EmbeddingShape, names: list[str]) -> Record:
    moved = (2 if one.form != "positions" else 3) * one.tensor_bytes
    count = clock.sets(moved)
    every = buffers(one, clock.device, count)
    ours = [call_of(one, a) for a in every]
    for call in ours:
        call()
    for a in (every[0], every[-1]):
        error = worst(one, a, a.out)
        if not timing.is_right(error, one.dtype):
            raise SystemExit(f"membound is WRONG by {error:.4g} ulp in {one.text}")
    copies = timing.copies(moved // (2 * every[0].out.itemsize), one, clock.device, count)
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
    contest.run(options, "embedding", EMBEDDING, shapes, measure)


if __name__ == "__main__":
    main()
