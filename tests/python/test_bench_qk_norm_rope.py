# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of qk_norm_rope: its check before the clock, and every form on small shapes."""

from __future__ import annotations

import pytest
from benchmark_scripts import Stopwatch, script
from test_bench_rope import small

import membound

pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    return script(monkeypatch, "bench_qk_norm_rope")


@pytest.mark.parametrize("memory", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_every_form_runs_and_is_right(bench, dtype, memory):
    every = bench.goals() + bench.others()
    names = ["two calls"] if dtype == "float64" else ["torch", "two calls"]  # float32 within
    for form in sorted({one.form for one in every} - ({"qkv"} if memory != "bshd" else set())):
        with_peers = form in ("", "cache")
        one = small(bench, dtype=dtype, memory=memory, form=form, peers=with_peers, mixed=True)
        record = bench.measure(Stopwatch(), one, names)
        assert record.ours == record.copy == record.mixed == 1.0
        assert list(record.peers) == (names if with_peers else [])
        assert not record.notes
    bench.measure(Stopwatch(), small(bench, dtype=dtype, memory=memory, tokens=(6, 1)), [])


def test_a_wrong_result_stops_the_benchmark(bench, monkeypatch):
    for name, form in (("qk_norm_rope", ""), ("qk_norm_rope_backward", "backward")):
        right = getattr(membound, name)

        def wrong(*arrays, right=right, **options):
            result = right(*arrays, **options)
            result[1].mul_(1.02)
            return result

        monkeypatch.setattr(membound, name, wrong)
        with pytest.raises(SystemExit, match="WRONG"):
            bench.measure(Stopwatch(), small(bench, form=form), [])


def test_shapes_are_all_different(bench):
    every = bench.goals() + bench.others()
    assert len({(one.text, one.dtype) for one in every}) == len(every)


def test_values_that_are_not_copied_stop_the_benchmark(bench, monkeypatch):
    right = membound.qk_norm_rope

    def wrong(*arrays, value_cache, **options):
        result = right(*arrays, value_cache=value_cache, **options)
        value_cache.add_(1)
        return result

    monkeypatch.setattr(membound, "qk_norm_rope", wrong)
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), small(bench, form="cache"), [])
