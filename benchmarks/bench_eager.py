# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Finds ops that are slower on the CPU than torch eager, on one thread.

python benchmarks/bench_eager.py                     every op, width, number of rows and dtype
python benchmarks/bench_eager.py --only softmax --widths 16 100 --below 0    all lines of some

It measures thread CPU time. The two are interleaved in alternating order, and a ratio (torch's time
/ ours) is the median over the rounds. torch allocates its results; with

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456

it does so without page faults, its best case, as results reuse the memory of the previous ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import membound
from membound import bench
from membound._table import markdown, render
from membound.bench import contestants
from membound.bench.contestants import Call, Op
from membound.bench.softmax import labels_of

WIDTHS = (1, 2, 7, 16, 64, 100, 128, 1000, 1024, 4096, 16384)
ROWS = (1, 64, 4096)
DTYPES = ("float32", "bfloat16", "float16", "float64")
MOST_BYTES = 128 << 20  # per matrix: four times the cache


def kept(a: Any, name: str, make: Call) -> Any:
    """Cache a call's further arguments, created at its first use."""
    if not hasattr(a, name):
        setattr(a, name, make())
    return getattr(a, name)


def activation(name: str, kind: str, function: Callable[[Any], Any]) -> Op:
    def ours(a: Any) -> Call:
        return partial(membound.gated_activation, a.gate, a.up, kind=kind, out=a.out)

    def theirs(_: Any, a: Any) -> Call:
        return lambda: function(a.gate) * a.up

    return Op(name, ("gate", "up"), ("out",), ours, theirs)


def packed_activation(packing: str) -> Op:
    """Gate and up in one matrix."""
    dim, parts = (-2, (2, -1)) if packing == "halves" else (-1, (-1, 2))

    def both(a: Any) -> Any:
        return kept(a, "both", lambda: torch.stack([a.gate, a.up], dim).flatten(1))

    def ours(a: Any) -> Call:
        return partial(membound.silu_and_mul, both(a), packing=packing, out=a.out)

    def theirs(_: Any, a: Any) -> Call:
        gate, up = both(a).unflatten(1, parts).unbind(dim)
        return lambda: torch.nn.functional.silu(gate) * up

    return Op(f"silu_and_mul, {packing}", ("gate", "up"), ("out",), ours, theirs)


def transposed(a: Any, *names: str) -> list[Any]:
    """Matrices of a case with contiguous columns instead of rows."""

    def views() -> list[Any]:
        return [(one := getattr(a, name)).view(*reversed(one.shape)).T for name in names]

    return kept(a, "transposed", views)


def transposed_activation() -> Op:
    def ours(a: Any) -> Call:
        gate, up, out = transposed(a, "gate", "up", "out")
        return partial(membound.silu_and_mul, gate, up, out=out)

    def theirs(_: Any, a: Any) -> Call:
        gate, up, out = transposed(a, "gate", "up", "out")
        return lambda: torch.mul(torch.nn.functional.silu(gate), up, out=out)

    return Op("silu_and_mul, transposed", ("gate", "up"), ("out",), ours, theirs)


def transposed_softmax() -> Op:
    def ours(a: Any) -> Call:
        x, out = transposed(a, "x", "out")
        return partial(membound.softmax, x, out=out)

    def theirs(_: Any, a: Any) -> Call:
        return partial(torch.softmax, transposed(a, "x", "out")[0], -1)

    return Op("softmax, transposed", ("x",), ("out",), ours, theirs)


def relu2() -> Op:
    def ours(a: Any) -> Call:
        return partial(membound.relu2, a.x, out=a.out)

    def theirs(_: Any, a: Any) -> Call:
        return lambda: torch.relu(a.x).square()

    return Op("relu2", ("x",), ("out",), ours, theirs)


def softmax_in_place_of_the_last() -> Op:
    def theirs(_: Any, a: Any) -> Call:
        return partial(torch._softmax, a.x, -1, False, out=a.out)

    return dataclasses.replace(bench.OPS["softmax"], name="softmax, out=", torch_call=theirs)


def masked_softmax() -> Op:
    """Scores with an additive mask."""

    def mask(a: Any) -> Any:
        return kept(a, "mask", lambda: made(a.x))

    def made(x: Any) -> Any:
        some = torch.where(torch.rand(x.shape) < 0.3, -torch.inf, 0.0).to(x.dtype)
        some[:, 0] = 0
        return some

    def ours(a: Any) -> Call:
        return partial(membound.softmax, a.x, mask(a), scale=0.5, out=a.out)

    def theirs(_: Any, a: Any) -> Call:
        added = mask(a)
        return lambda: torch.softmax(a.x * 0.5 + added, -1)

    return Op("softmax, mask", ("x",), ("out",), ours, theirs)


def loss_alone(name: str, matrix: Callable[[Any], Any]) -> Op:
    def ours(a: Any) -> Call:
        logits, labels = matrix(a), labels_of(a.logits)
        return partial(
            membound.cross_entropy, logits, labels, out=membound.cross_entropy(logits, labels)
        )

    def theirs(_: Any, a: Any) -> Call:
        labels = labels_of(a.logits)
        return partial(torch.nn.functional.cross_entropy, matrix(a), labels, reduction="none")

    return Op(name, ("logits",), (), ours, theirs)


def transposed_norm() -> Op:
    def ours(a: Any) -> Call:
        x, out = transposed(a, "x", "out")
        return partial(membound.rms_norm, x, a.weight, out=out)

    def theirs(_: Any, a: Any) -> Call:
        x, _ = transposed(a, "x", "out")
        return partial(torch.nn.functional.rms_norm, x, (x.shape[-1],), a.weight)

    return Op("rms_norm, transposed", ("x",), ("out",), ours, theirs)


def rows_copied() -> Op:
    """Lookups against index_select, which takes an output."""

    def ids(a: Any) -> Any:
        return kept(a, "ids", lambda: torch.randint(len(a.x), (len(a.x),)))

    def ours(a: Any) -> Call:
        return partial(membound.embedding, ids(a), a.x, out=a.out)

    def theirs(_: Any, a: Any) -> Call:
        return partial(torch.index_select, a.x, 0, ids(a), out=a.out)

    return Op("embedding, index_select", ("x",), ("out",), ours, theirs)


def few_tokens(name: str, tokens: int, vocab: int) -> Op:
    """The gradient of a large table for few tokens; the matrix x has one row per token."""

    def ids(a: Any) -> Any:
        return kept(a, "ids", lambda: torch.randint(vocab, (len(a.x[:tokens]),)))

    def ours(a: Any) -> Call:
        return partial(membound.embedding_backward, a.x[:tokens], ids(a), vocab)

    def theirs(_: Any, a: Any) -> Call:
        backward = torch.ops.aten.embedding_dense_backward
        return partial(backward, a.x[:tokens], ids(a), vocab, -1, False)

    return Op(name, ("x",), (), ours, theirs)


def to_float8(name: str, static: bool) -> Op:
    def ours(a: Any) -> Call:
        call = partial(membound.silu_and_mul_quant, a.gate, a.up)
        out, scale = call()
        if static:
            return partial(call, scale=torch.ones(()), out=out)
        return partial(call, out=out, scale_out=scale)

    def theirs(_: Any, a: Any) -> Call:
        one = torch.ones(())

        def call() -> Any:
            y = torch.nn.functional.silu(a.gate) * a.up
            scale = one if static else y.abs().amax(-1, keepdim=True).float() / 448
            return (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn)

        return call

    return Op(name, ("gate", "up"), (), ours, theirs, quantised=True)


functions = torch.nn.functional
_MORE = (
    activation("gelu_and_mul", "gelu", functions.gelu),
    activation("gelu_tanh_and_mul", "gelu_tanh", partial(functions.gelu, approximate="tanh")),
    activation("sigmoid_and_mul", "sigmoid", torch.sigmoid),
    relu2(),
    packed_activation("halves"),
    packed_activation("interleaved"),
    transposed_activation(),
    to_float8("silu_and_mul_quant, float8", static=False),
    to_float8("silu_and_mul_quant, float8, static", static=True),
    softmax_in_place_of_the_last(),
    masked_softmax(),
    transposed_softmax(),
    transposed_norm(),
    loss_alone("cross_entropy, transposed", lambda a: transposed(a, "logits")[0]),
    loss_alone("cross_entropy, loss", lambda a: a.logits),
    rows_copied(),
    few_tokens("embedding_backward, 8 tokens", 8, 5000),
    few_tokens("embedding_backward, 5000 rows", 1 << 20, 5000),
)
OPS: dict[str, Op] = {**bench.OPS, **{op.name: op for op in _MORE}}


def thread_nanoseconds(call: Call, repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def compare(ours: Call, theirs: Call, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Return the microseconds of ours and of theirs, and theirs / ours."""
    pair = (ours, theirs)
    repeats = []
    for call in pair:
        call()
        once = min(thread_nanoseconds(call, 1) for _ in range(3))
        repeats.append(max(1, int(seconds / max(once, 1e-7))))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(thread_nanoseconds(pair[which], repeats[which]))
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    return min(times[0]) * 1e6, min(times[1]) * 1e6, ratio


def cases(options: argparse.Namespace) -> Iterator[tuple[str, int, int, str]]:
    for name in OPS:
        if not any(wanted == name or wanted in name.split(",")[0] for wanted in options.only):
            continue
        for dtype in options.dtypes:
            size = contestants.ITEM_BYTES[dtype]
            for cols in options.widths:
                if "rope" in name and cols % 2:
                    continue
                for rows in options.rows:
                    if rows * cols * size <= MOST_BYTES:
                        yield name, rows, cols, dtype


def measure(
    name: str, rows: int, cols: int, dtype: str, options: argparse.Namespace
) -> tuple[float, float, float]:
    calls = contestants.on_torch(OPS[name], torch, "cpu", rows, cols, dtype, 1)
    ours, theirs = (calls[whose][0] for whose in ("membound", "torch"))
    found = compare(ours, theirs, options.rounds, options.seconds)
    if found[2] < options.below:  # measure slow cases again, longer
        found = compare(ours, theirs, 4 * options.rounds, options.seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="ops, or parts of their names")
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.001, help="of one op in one round")
    parser.add_argument("--below", type=float, default=0.95, help="list ratios below; 0: all")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    membound.set_cpu_threads(1)
    torch.manual_seed(0)
    lines, count = [], 0
    for name, rows, cols, dtype in cases(options):
        ours, theirs, ratio = measure(name, rows, cols, dtype, options)
        count += 1
        if ratio < options.below or options.below == 0:
            cells = [name, f"{rows} x {cols}", dtype, f"{ours:.2f}", f"{theirs:.2f}"]
            lines.append([*cells, f"{ratio:.2f}"])
            print(*lines[-1], sep="  ", flush=True)
    header = ["op", "shape", "dtype", "us", "torch us", "torch / ours"]
    print((markdown if options.markdown else render)(header, lines))
    print(f"{len(lines)} of {count}; {membound.cpu_isa()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
