# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of embedding_backward: its check before the clock, and every form."""

from __future__ import annotations

import pytest
from benchmark_scripts import Stopwatch, script

import membound

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    return script(monkeypatch, "bench_embedding_backward")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_form_runs_and_is_right(bench, dtype):
    every = bench.goals() + bench.others()
    for form, ids, wide in sorted({(one.form, one.ids, one.wide) for one in every}):
        if wide and dtype == "float64":
            continue
        names = ["torch"] if form != "sparse" and not wide else []
        options = {"vocab": 90, "dtype": dtype, "form": form, "ids": ids, "wide": wide}
        record = bench.measure(Stopwatch(), bench.shape(100, 24, **options, peers=True), names)
        assert record.ours == record.copy == 1.0
        if any(note.startswith("torch is off") for note in record.notes):
            assert dtype in ("float16", "bfloat16")  # in which torch's CPU code sums
        else:
            assert record.peers == dict.fromkeys(names, 1.0), record.notes


def test_a_wrong_result_stops_the_benchmark(bench, monkeypatch):
    right = membound.embedding_backward
    for form in ("dense", "accumulated", "sparse"):
        one = bench.shape(50, 24, vocab=30, form=form)

        def wrong(*arrays, out, **options):
            right(*arrays, out=out, **options)
            (out[1] if isinstance(out, tuple) else out).mul_(1.02)

        monkeypatch.setattr(membound, "embedding_backward", wrong)
        with pytest.raises(SystemExit, match="WRONG"):
            bench.measure(Stopwatch(), one, [])
        monkeypatch.setattr(membound, "embedding_backward", lambda *_, out, **__: out)
        with pytest.raises(SystemExit, match="WRONG"):
            bench.measure(Stopwatch(), one, [])


def test_shapes_are_all_different_and_named(bench):
    every = bench.goals() + bench.others()
    assert len({(one.text, one.dtype) for one in every}) == len(every)
    assert bench.shape(64).text == "dense, uniform ids, 128256 x 4096, 64 tokens"
