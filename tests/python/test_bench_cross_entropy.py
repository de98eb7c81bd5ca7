# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of cross_entropy: its check before the clock, and what it copies."""

from __future__ import annotations

import pytest
from benchmark_scripts import Stopwatch, script

import membound

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    return script(monkeypatch, "bench_cross_entropy")


@pytest.mark.parametrize("layout", ["contiguous", "strided rows", "off by one"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_contestant_runs_and_is_right(bench, dtype, layout):
    shape = bench.contest.Shape(5, 130, dtype, layout, peers=True, mixed=True)
    record = bench.contest.measure(bench.OP, Stopwatch(), shape, ["torch"])
    assert record.ours == record.copy == record.mixed == 1.0
    assert record.peers == {"torch": 1.0}
    assert not record.notes


def test_a_wrong_result_stops_the_benchmark(bench, monkeypatch):
    right, shape = membound.cross_entropy, bench.contest.Shape(5, 130)

    def wrong(*arrays, dlogits, **options):
        loss = right(*arrays, dlogits=dlogits, **options)
        dlogits.mul_(1.02)
        return loss

    monkeypatch.setattr(membound, "cross_entropy", wrong)
    with pytest.raises(SystemExit, match="WRONG"):
        bench.contest.measure(bench.OP, Stopwatch(), shape, [])
    monkeypatch.setattr(membound, "cross_entropy", lambda *_, out, **__: out)
    with pytest.raises(SystemExit, match="NaN"):
        bench.contest.measure(bench.OP, Stopwatch(), shape, [])
