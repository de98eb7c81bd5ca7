# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmarks: their check before the clock, their shapes and their report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import membound

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """benchmarks/timing.py and benchmarks/bench_rms_norm.py, imported as a script would."""
    if not (FOLDER / "bench_rms_norm.py").is_file():
        pytest.skip("only in a source tree")
    monkeypatch.syspath_prepend(str(FOLDER))
    import bench_rms_norm
    import timing

    return timing, bench_rms_norm


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_check_before_the_clock_tells_right_from_wrong(modules, dtype, seed):
    timing, bench = modules
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 1000, generator=generator).to(timing.DTYPES[dtype])
    weight = torch.randn(1000, generator=generator).to(x.dtype)

    def worst(got):
        return timing.worst_ulps(got, x, lambda part: bench._formula(weight, part), dtype)

    right = membound.rms_norm(x, weight, eps=bench.EPS)
    assert timing.is_right(worst(right), dtype)
    wrong = right.clone()
    wrong[8, 999] *= 1.01 if dtype in ("float16", "bfloat16") else 1.00001
    assert not timing.is_right(worst(wrong), dtype)
    wrong[8, 999] = float("nan")
    assert not timing.is_plausible(worst(wrong), dtype)


@pytest.mark.parametrize("layout", ["contiguous", "strided rows", "off by one"])
def test_buffers_have_the_layout_asked_for(modules, layout):
    timing, _ = modules
    shape = timing.Shape(4, 64, "bfloat16", layout)
    x = timing.matrices(shape, "cpu", 3, readable=True)
    out = timing.matrices(shape, "cpu", 3, readable=False)
    assert len(x) == len(out) == 3
    assert all(one.shape == (4, 64) for one in x + out)
    assert not torch.stack(x).isnan().any()
    assert torch.stack(out).isnan().all()
    assert x[0].stride(0) == (576 if layout == "strided rows" else 64)
    assert x[0].storage_offset() == (1 if layout == "off by one" else 0)


def test_shapes_cover_what_the_goals_name(modules):
    timing, bench = modules
    every = bench._goals() + bench._others() + bench._decode()
    assert len(set(every)) == len(every)
    assert {shape.dtype for shape in every} == set(timing.DTYPES)
    assert timing.Shape(2048, 65536, peers=True) in every
    assert sum(shape.mixed for shape in every) == 32
    assert bench._sizes("2x8:float16:off by one") == [
        timing.Shape(2, 8, "float16", "off by one", peers=True)
    ]


def test_the_report_is_written_as_markdown_and_json(modules, tmp_path):
    timing, _ = modules
    shape = timing.Shape(16, 4096)
    record = timing.Record(shape, 1.25, 1.0, 1.5, {"torch": 4.0, "liger": 2.5}, ["a note"], 1.0)
    report = timing.Report("rms_norm", {"membound": "1"}, "Some GPU", [record])
    markdown, figures = report.write(tmp_path)
    assert "| 16 x 4096 | bfloat16 | 1.250 | 1.000 | 0.800 | 1.500 | 2.500 liger | 2.00 |" in (
        markdown.read_text()
    )
    assert "- 16 x 4096 bfloat16: a note" in markdown.read_text()
    assert json.loads(figures.read_text())["records"][0]["ratio"] == 0.8
    assert "0.800" in report.table()


class Stopwatch:
    """Makes every call once, on the CPU, and takes one microsecond for each."""

    device = "cpu"

    def __init__(self):
        self.calls = []

    def sets(self, _):
        return 3

    def microseconds(self, calls):
        self.calls.append(len(calls))
        for call in calls:
            call()
        return 1.0

    def between_copies(self, calls, copies, _):
        assert len(calls) == len(copies)
        return self.microseconds([*calls, *copies])

    def yardstick(self, _, copy):
        return copy


@pytest.mark.parametrize("layout", ["contiguous", "strided rows", "off by one"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_contestant_runs_on_every_set(modules, dtype, layout):
    timing, bench = modules
    clock = Stopwatch()
    shape = timing.Shape(5, 130, dtype, layout, peers=True, mixed=True)
    record = bench.measure(clock, shape, ["torch"])
    assert clock.calls == [3, 3, 6, 3]  # ours, copy, ours between copies, torch
    assert record.peers == {"torch": 1.0}
    assert record.mixed == 1.0
    assert not record.notes


def test_a_wrong_result_stops_the_benchmark(modules, monkeypatch):
    timing, bench = modules
    right = membound.rms_norm
    wrong = lambda x, weight, out, **rest: right(x, weight, out=out, **rest).mul_(1.01)  # noqa: E731
    monkeypatch.setattr(membound, "rms_norm", wrong)
    with pytest.raises(SystemExit, match="WRONG"):
        bench.measure(Stopwatch(), timing.Shape(5, 130), [])
    monkeypatch.setattr(membound, "rms_norm", lambda *_, out, **__: out)
    with pytest.raises(SystemExit, match="NaN"):
        bench.measure(Stopwatch(), timing.Shape(5, 130), [])


def test_a_peer_that_fails_is_noted(modules, monkeypatch):
    timing, bench = modules

    def refuses(weight, eps):
        raise NotImplementedError("no such width")

    monkeypatch.setitem(bench.peers.RMS_NORM, "torch", ("torch", refuses))
    record = bench.measure(Stopwatch(), timing.Shape(5, 130, peers=True), ["torch"])
    assert record.peers == {}
    assert record.notes == ["torch: NotImplementedError: no such width"]


@pytest.mark.gpu
def test_one_shape_is_measured(modules):
    timing, bench = modules
    clock = timing.Clock()
    record = bench.measure(clock, timing.Shape(64, 4096, peers=True), ["torch"])
    assert 0.5 < record.copy < 50
    assert 0.5 < record.ours < 50
    assert record.mixed is not None
    assert record.peers["torch"] > 0


def test_modules_come_from_this_tree(modules):
    assert all(Path(module.__file__).parent == FOLDER for module in modules)
    assert "bench_rms_norm" in sys.modules
