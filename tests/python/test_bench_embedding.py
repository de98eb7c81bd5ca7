# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of embedding: its check before the clock, and every form on small shapes."""

from __future__ import annotations

import pytest
from benchmark_scripts import Stopwatch, script

import membound

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    return script(monkeypatch, "bench_embedding")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_form_runs_and_is_right(bench, dtype):
    for form in sorted({one.form for one in bench.goals() + bench.others()}):
        one = bench.shape(50, 24, vocab=30, dtype=dtype, form=form, peers=True, mixed=True)
        with_peers = form in ("", "scale", "positions")
        record = bench.measure(Stopwatch(), one, ["torch"] if with_peers else [])
        assert record.ours == record.copy == record.mixed == 1.0
        assert record.peers == ({"torch": 1.0} if with_peers else {})
        assert not record.notes


def test_a_wrong_result_stops_the_benchmark(bench, monkeypatch):
    right = membound.embedding
    one = bench.shape(50, 24, vocab=30)
    monkeypatch.setattr(membound, "embedding", lambda *a, **o: right(*a, **o).mul_(1.02))
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), one, [])
    monkeypatch.setattr(membound, "embedding", lambda *_, out, **__: out)
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), one, [])


def test_shapes_are_all_different_and_named(bench):
    every = bench.goals() + bench.others()
    assert len({(one.text, one.dtype) for one in every}) == len(every)
    assert bench.shape(64).text == "128256 x 4096, 64 tokens"
    assert bench.shape(64, form="scale").tensor_bytes == 64 * 4096 * 2
