# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rope: its check before the clock, and every contestant on small shapes."""

from __future__ import annotations

import pytest
from benchmark_scripts import Stopwatch, script

import membound

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    return script(monkeypatch, "bench_rope")


def small(bench, **rest):
    batch, seq = rest.pop("tokens", (2, 5))
    return bench.shape(batch, seq, 32, heads=(3, 1), **rest)


@pytest.mark.parametrize("memory", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_form_runs_and_is_right(bench, dtype, memory):
    forms = {one.form for one in bench.others()} - ({"qkv"} if memory != "bshd" else set())
    for form in sorted(forms):
        one = small(bench, dtype=dtype, memory=memory, form=form, peers=form == "", mixed=True)
        record = bench.measure(Stopwatch(), one, ["torch"])
        assert record.ours == record.copy == record.mixed == 1.0
        assert record.peers == ({"torch": 1.0} if form == "" else {})
        assert not record.notes
    bench.measure(Stopwatch(), small(bench, dtype=dtype, memory=memory, tokens=(6, 1)), [])


def test_a_wrong_result_stops_the_benchmark(bench, monkeypatch):
    right = membound.rope

    def wrong(*arrays, **options):
        result = right(*arrays, **options)
        result[1].mul_(1.02)
        return result

    monkeypatch.setattr(membound, "rope", wrong)
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), small(bench), [])
    monkeypatch.setattr(membound, "rope", lambda *_, out, k_out, **__: (out, k_out))
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), small(bench), [])


def test_shapes_are_all_different_and_named(bench):
    every = bench.goals() + bench.others()
    assert len({(one.text, one.dtype) for one in every}) == len(every)
    assert bench.shape(4, 4096).text == "4 x 4096 x 32 + 8 x 128"
    assert bench.shape(4, 4096).tensor_bytes == 4 * 4096 * 40 * 128 * 2
