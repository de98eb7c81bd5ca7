# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding table on a GPU, against a copy of as many bytes, and torch.

python benchmarks/bench_embedding_backward.py            every shape
python benchmarks/bench_embedding_backward.py --quick    the goals' shapes alone

Dense: dy is read, and the table is written once. Accumulated: dy is read, and the table's rows that
occur are read and written; torch makes a dense gradient and adds it. Sparse: dy is read, and the
same number of rows is written.
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

ROUNDINGS = 64  # the largest number of roundings of a segmented sum


@dataclass(frozen=True)
class GradientShape(Shape):
    """rows: tokens, cols: elements of a row."""

    vocab: int = 128256
    form: str = "dense"  # or "accumulated", "sparse"
    ids: str = "uniform"  # or "skewed": half of them one id, "zipf"
    wide: bool = False  # the gradient is float32

    @property
    def text(self) -> str:
        sizes = f"{self.form}, {self.ids} ids, {self.vocab} x {self.cols}, {self.rows} tokens"
        return sizes + (", as float32" if self.wide else "")

    @property
    def out_dtype(self) -> str:
        return "float32" if self.wide else self.dtype


def shape(rows: int, cols: int = 4096, **rest: Any) -> GradientShape:
    return GradientShape(rows, cols, **rest)


def goals() -> list[GradientShape]:
    return [
        shape(8192, form=form, ids=ids, peers=True)
        for form in ("dense", "accumulated")
        for ids in ("uniform", "skewed")
    ]


def others() -> list[GradientShape]:
    """Further forms, dtypes, aligned and odd widths, and token counts."""
    return [
        *(shape(8192, form=form, ids="zipf", peers=True) for form in ("dense", "accumulated")),
        *(shape(8192, form="sparse", ids=ids) for ids in ("uniform", "skewed")),
        *(shape(8192, form=form, wide=True) for form in ("dense", "accumulated")),
        *(shape(8192, dtype=dtype, peers=True) for dtype in ("float16", "float32")),
        shape(4096, dtype="float64", vocab=32000, peers=True),
        *(shape(16384, cols, vocab=50257, peers=True) for cols in (64, 768, 1600, 1601)),
        *(shape(2**power, form="accumulated", peers=True) for power in range(2, 18, 3)),
        shape(131072, ids="zipf", peers=True),
        shape(131072, ids="skewed", peers=True),
    ]


def drawn_ids(one: GradientShape, device: str) -> torch.Tensor:
    ids = torch.randint(one.vocab, (one.rows,), device=device)
    if one.ids == "skewed":
        ids[::2] = 7
    if one.ids == "zipf":  # lower ids are more frequent
        power = torch.rand(one.rows, device=device, dtype=torch.float64)
        ids = (one.vocab**power).long() - 1
    return ids.clamp_(0, one.vocab - 1)


def buffers(one: GradientShape, device: str, count: int) -> list[Any]:
    """Buffer sets with their own ids, gradients and results; all accumulate into one table.

    A table per set would take too much memory, as few tokens need many sets.
    """
    made = functools.partial(torch.empty, device=device)
    kind, out_kind = timing.DTYPES[one.dtype], timing.DTYPES[one.out_dtype]
    every, out = [], None
    for _ in range(count):
        ids = drawn_ids(one, device)
        dy = made(one.rows, one.cols, dtype=kind).normal_()
        height = one.rows if one.form == "sparse" else one.vocab
        if out is None or one.form != "accumulated":
            out = made(height, one.cols, dtype=out_kind).fill_(float("nan"))
        rows_ids, number = torch.empty_like(ids), made((), dtype=torch.int64)
        every.append(SimpleNamespace(ids=ids, dy=dy, out=out, rows_ids=rows_ids, count=number))
    return every


def call_of(one: GradientShape, a: Any) -> Callable[[], Any]:
    """Our call on one set."""
    call = functools.partial(membound.embedding_backward, a.dy, a.ids, one.vocab)
    if one.form == "sparse":
        return functools.partial(call, sparse=True, out=(a.rows_ids, a.out, a.count))
    return functools.partial(call, out=a.out, accumulate=one.form == "accumulated")


def worst(one: GradientShape, a: Any, result: torch.Tensor) -> float:
    """The largest error in ulps, beyond the slack of a float32 sum."""
    dy, ids, height = a.dy.double(), a.ids, one.vocab
    if one.form == "sparse":
        occur, ids = ids.unique(return_inverse=True)
        if not torch.equal(a.rows_ids[: len(occur)], occur) or int(a.count) != len(occur):
            return float("inf")
        height = one.rows
    wanted = torch.zeros(height, one.cols, device=dy.device, dtype=torch.float64)
    sizes = torch.zeros_like(wanted)
    wanted.index_add_(0, ids, dy)
    sizes.index_add_(0, ids, dy.abs())
    slack = sizes.mul_(timing.sum_slack(one.dtype) * ROUNDINGS)
    return timing.ulps(result, wanted, slack, one.out_dtype)


def moved_bytes(one: GradientShape, a: Any) -> int:
    row = one.cols * timing.ITEM_BYTES[one.out_dtype]
    if one.form == "dense":
        return one.tensor_bytes + one.vocab * row
    if one.form == "sparse":
        return one.tensor_bytes + one.rows * row
    return one.tensor_bytes + 2 * len(a.ids.unique()) * row


def _torch(one: GradientShape) -> Callable[[Any], Any]:
    dense = functools.partial(
        torch.ops.aten.embedding_dense_backward,
        num_weights=one.vocab,
        padding_idx=-1,
        scale_grad_by_freq=False,
    )
    if one.form == "accumulated":
        return lambda a: a.out.add_(dense(a.dy, a.ids))
    return lambda a: dense(a.dy, a.ids)


GRADIENT = {"torch": Peer("torch", _torch)}


def _time_peers(
    one: GradientShape, clock: Clock, record: Record, names: list[str], every: Any
) -> None:
    for name in names:
        try:
            call = GRADIENT[name].make(one)
            for a in every:
                a.out.zero_()
            error = worst(one, every[0], call(every[0]))
            if not timing.is_plausible(error, one.out_dtype):
                record.notes.append(f"{name} is off by {error:.3g} ulp, not timed")
                continue
            record.peers[name] = clock.microseconds([functools.partial(call, a) for a in every])
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(clock: Clock, one: GradientShape, names: list[str]) -> Record:
    moved = moved_bytes(one, buffers(one, clock.device, 1)[0])
    count = clock.sets(moved)
    every = buffers(one, clock.device, count)
    ours = [call_of(one, a) for a in every]
    for call, a in ((ours[0], every[0]), (ours[-1], every[-1])):
        if one.form == "accumulated":
            a.out.zero_()
        call()
        error = worst(one, a, a.out)
        if not timing.is_right(error, one.out_dtype):
            raise SystemExit(f"membound is WRONG by {error:.4g} ulp in {one.text}")
    elements = moved // (2 * every[0].dy.itemsize)
    copies = timing.copies(elements, one, clock.device, count)
    record = Record(one, clock.microseconds(ours), clock.microseconds(copies))
    record.yardstick = clock.yardstick(moved, record.copy)
    _time_peers(one, clock, record, names if one.peers else [], every)
    return record


def main() -> None:
    options = contest.arguments(__doc__).parse_args()
    shapes = goals() if options.quick else goals() + others()
    contest.run(options, "embedding_backward", GRADIENT, shapes, measure)


if __name__ == "__main__":
    main()
