# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmarks: their check before the clock, their shapes and their report."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from benchmark_scripts import FOLDER, Stopwatch, script

import membound

torch = pytest.importorskip("torch")


OPS = ("rms_norm", "add_rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward")
OPS += ("rms_norm_gated", "rms_norm_gated_backward")
OPS += ("rms_norm_backward.OFFSET", "rms_norm_quant", "rms_norm_quant.STATIC")
OPS += ("gated_activation_quant", "gated_activation_quant.STATIC")
OPS += ("gated_activation", "gated_activation_backward", "softmax", "softmax_backward")


def spoil(result, factor):
    """Multiply every element by a factor; 8-bit elements by 2."""
    if result.itemsize == 1:
        result.copy_((result.float() / 2).to(result.dtype))
    else:
        result.mul_(factor)


@pytest.fixture
def timing(monkeypatch):
    """benchmarks/timing.py, imported as a script would; so are the others below."""
    return script(monkeypatch, "timing")


@pytest.fixture
def contest(timing):
    return importlib.import_module("contest")


@pytest.fixture(params=OPS)
def op(contest, request):
    return contest.op_of(request.param)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_check_before_the_clock_tells_right_from_wrong(timing, contest, op, dtype, seed):
    torch.manual_seed(seed)
    shape = timing.Shape(9, 1000, dtype)
    (a,) = contest.buffers(op, shape, "cpu", 1)
    op.ours(a)
    results = contest._results(op, a)
    assert timing.is_right(contest._worst(op, shape, a, results), dtype)
    for result in results:
        kept = result.clone()
        at = int(result.double().abs().argmax())
        # Two ulps of bfloat16 at least, as one ulp may make an error of 0.4999 one of 0.5001; far
        # above the rounding errors of sums whose terms cancel, up to 1e-5 of the terms.
        spoil(result.view(-1)[at : at + 1], 1.02 if dtype in ("float16", "bfloat16") else 1.001)
        assert not timing.is_right(contest._worst(op, shape, a, results), dtype)
        result.view(-1)[at] = float("nan")
        assert not timing.is_plausible(contest._worst(op, shape, a, results), dtype)
        result.copy_(kept)


@pytest.mark.parametrize("layout", ["contiguous", "strided rows", "off by one"])
def test_buffers_have_the_layout_asked_for(timing, layout):
    shape = timing.Shape(4, 64, "bfloat16", layout)
    x = timing.matrices(shape, "cpu", 3, readable=True)
    out = timing.matrices(shape, "cpu", 3, readable=False)
    assert len(x) == len(out) == 3
    assert all(one.shape == (4, 64) for one in x + out)
    assert not torch.stack(x).isnan().any()
    assert torch.stack(out).isnan().all()
    assert x[0].stride(0) == (576 if layout == "strided rows" else 64)
    assert x[0].storage_offset() == (1 if layout == "off by one" else 0)


def test_shapes_cover_what_the_goals_name(timing, contest):
    every = contest.goals() + contest.others() + contest.decode()
    assert len(set(every)) == len(every)
    assert {shape.dtype for shape in every} == set(timing.DTYPES)
    assert timing.Shape(2048, 65536, peers=True) in every
    assert sum(shape.mixed for shape in every) == 32
    assert contest.sizes("2x8:float16:off by one") == [
        timing.Shape(2, 8, "float16", "off by one", peers=True)
    ]


def test_the_report_is_written_as_markdown_and_json(timing, tmp_path):
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


@pytest.mark.parametrize("layout", ["contiguous", "strided rows", "off by one"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_contestant_runs_on_every_set(timing, contest, op, dtype, layout):
    clock = Stopwatch()
    shape = timing.Shape(5, 130, dtype, layout, peers=True, mixed=True)
    on_cpu = not op.name.endswith("backward")  # torch has that function on GPUs alone
    record = contest.measure(op, clock, shape, ["torch"] if on_cpu else [])
    assert clock.calls[:3] == [3, 3, 6]  # ours, copy, ours between copies
    assert record.mixed == 1.0
    assert record.peers == ({"torch": 1.0} if on_cpu else {})
    assert not record.notes


def test_the_copy_moves_as_many_bytes_as_the_op(timing, contest, op, monkeypatch):
    copied = []
    vectors = timing.vectors
    monkeypatch.setattr(timing, "vectors", lambda n, *rest: copied.append(n) or vectors(n, *rest))
    contest.measure(op, Stopwatch(), timing.Shape(6, 128), [])
    more = {"add_rms_norm": 4, "rms_norm_gated": 3, "rms_norm_gated_backward": 5}
    more |= {"gated_activation": 3, "gated_activation_backward": 5}
    matrices = more.get(op.name, 3 if op.name.endswith("backward") else 2)
    in_bytes = 2 * len(op.read) + 1 if "quant" in op.name else 2 * matrices
    assert copied == [in_bytes * 6 * 128 // 4]


def test_a_wrong_result_stops_the_benchmark(timing, contest, op, monkeypatch):
    right = getattr(membound, op.name)

    def wrong(*arrays, **options):
        result = right(*arrays, **options)
        spoil(result[0] if isinstance(result, tuple) else result, 1.01)
        return result

    def nothing(*arrays, **options):
        return options.get("out", options.get("dx")), None

    # Forwards also compute the statistics that a backward reads.
    plain = lambda *_, out=None, **rest: right(*_, **rest) if out is None else (out, None)  # noqa: E731
    monkeypatch.setattr(membound, op.name, wrong)
    with pytest.raises(SystemExit, match="WRONG"):
        contest.measure(op, Stopwatch(), timing.Shape(5, 130), [])
    monkeypatch.setattr(
        membound, op.name, plain if op.name in ("rms_norm", "layer_norm") else nothing
    )
    with pytest.raises(SystemExit, match="NaN"):
        contest.measure(op, Stopwatch(), timing.Shape(5, 130), [])


def test_a_peer_that_fails_is_noted(timing, contest, op, monkeypatch):
    def refuses(_):
        raise NotImplementedError("no such width")

    peers = importlib.import_module("peers")
    monkeypatch.setitem(op.peers, "torch", peers.Peer("torch", refuses))
    record = contest.measure(op, Stopwatch(), timing.Shape(5, 130, peers=True), ["torch"])
    assert record.peers == {}
    assert record.notes == ["torch: NotImplementedError: no such width"]


def test_a_peer_in_place_starts_from_the_same_values(timing, contest, monkeypatch):
    """It may overwrite the outputs, which hold copies of the inputs at that time."""
    peers = importlib.import_module("peers")
    op = importlib.import_module("bench_add_rms_norm").OP

    def in_place(_):
        def call(a):
            membound.fused_add_rms_norm(a.out, a.residual_out, a.weight, peers.EPS)
            return a.out, a.residual_out

        return call

    monkeypatch.setitem(op.peers, "flashinfer", peers.Peer("torch", in_place, in_place=True))
    shape = timing.Shape(5, 130, peers=True)
    record = contest.measure(op, Stopwatch(), shape, ["flashinfer"])
    assert record.peers == {"flashinfer": 1.0}
    monkeypatch.setitem(op.peers, "flashinfer", peers.Peer("torch", in_place))
    record = contest.measure(op, Stopwatch(), shape, ["flashinfer"])
    assert "not timed" in record.notes[0]


@pytest.mark.parametrize("op_name", OPS)
@pytest.mark.parametrize("name", ["compile", "liger", "quack", "flashinfer"])
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own
def test_peers_give_right_results(timing, contest, op_name, name):
    op = contest.op_of(op_name)
    peers = importlib.import_module("peers")
    if name not in op.peers or not peers.installed([name], op.peers):
        pytest.skip(f"{name} is not installed or has no such op")
    record = contest.measure(op, timing.Clock(), timing.Shape(64, 4096, peers=True), [name])
    if (name, op_name) == ("liger", "rms_norm_backward"):  # rounds the terms to 16 bits
        assert "liger is off by" in record.notes[0]
        assert record.peers == {}
        return
    assert record.notes == []
    assert record.peers[name] > 0


@pytest.mark.gpu
def test_one_shape_is_measured(timing, contest, op):
    clock = timing.Clock()
    peers = [name for name in op.peers if name == "torch"]
    record = contest.measure(op, clock, timing.Shape(64, 4096, peers=True), peers)
    assert 0.5 < record.copy < 50
    assert 0.5 < record.ours < 50
    assert record.mixed is not None
    assert record.peers.get("torch", 1.0) > 0


def test_modules_come_from_this_tree(timing, contest, op):
    assert all(Path(module.__file__).parent == FOLDER for module in (timing, contest))
    assert f"bench_{op.name}" in sys.modules


@pytest.fixture
def sweep(timing):
    return importlib.import_module("sweep")


def test_a_sweep_has_every_op_and_as_many_rows_as_move_the_bytes(sweep, contest):
    for name in sweep.OPS:
        op = contest.op_of(name)
        for cols in (64, 1001, 16384):
            rows = sweep.rows_of(op, cols, "bfloat16", 24)
            moved = op.moved_bytes(sweep.Shape(rows, cols, "bfloat16"))
            assert 22e6 < moved <= 24e6, (name, cols)
    assert sweep.rows_of(op, 1 << 30, "bfloat16", 1) == 1


def test_a_sweep_names_what_is_slower_than_its_neighbours(sweep):
    times = {f"norm 512 x {cols} bfloat16": (8.0, 7.0) for cols in (640, 704, 768, 832)}
    times |= {f"norm 9999 x {cols} bfloat16": (80.0, 77.0) for cols in (640, 704, 768, 832)}
    assert sweep.slower_than_neighbours(times, 0.86) == []
    times["norm 512 x 704 bfloat16"] = (10.0, 7.0)
    times["norm 9999 x 768, off by one bfloat16"] = (160.0, 77.0)  # has no neighbours
    found = sweep.slower_than_neighbours(times, 0.86)
    assert found == ["norm 512 x 704 bfloat16: 10.00 us, 0.70 beside 0.88"]


@pytest.mark.gpu
def test_a_sweep_beside_one_before(sweep, tmp_path, capsys):
    file = tmp_path / "times.json"
    asked = ["--ops", "rms_norm,rms_norm_quant.STATIC", "--cols", "256,4096", "--rows", "8,64"]
    assert sweep.main([*asked, "--json", str(file)]) == 0
    times = json.loads(file.read_text())
    assert len(times) == 8
    assert all(0.5 < time < 50 for pair in times.values() for time in pair)
    capsys.readouterr()
    sweep.main([*asked, "--against", str(file)])
    assert capsys.readouterr().out.count(" us (") == 8
