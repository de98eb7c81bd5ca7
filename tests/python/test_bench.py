# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""python -m membound bench: what it measures, prints, writes and refuses."""

from __future__ import annotations

import functools
import importlib.util
import io
import json

import pytest

import membound
from membound import __main__ as command_line
from membound import _elementwise, bench
from membound.bench import timing

SMALL = ("bench", "--device", "cpu", "--sizes", "1x64,8x128")


@pytest.fixture
def quick(monkeypatch):
    """Short rounds over few buffers, for meaningless figures."""
    times = functools.partial(timing.cpu_microseconds, seconds_per_round=0.001)
    monkeypatch.setattr(timing, "cpu_microseconds", times)
    monkeypatch.setattr(timing, "cpu_cache_bytes", lambda: 1 << 12)


def test_a_table_and_json_with_a_copy_beside_every_op(quick, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert command_line.main([*SMALL, "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "of copy" in text
    assert "1 x 64" in text
    figures = json.loads(path.read_text())
    assert figures["info"]["version"] == membound.__version__
    found = [(r["op"], r["rows"], r["cols"]) for r in figures["results"]]
    assert found == [(op, *size) for op in bench.OPS for size in ((1, 64), (8, 128))]
    matrices = {"rms_norm": 2, "layer_norm": 2, "rms_norm_backward": 3, "layer_norm_backward": 3}
    matrices |= {"rms_norm_gated": 3, "rms_norm_gated_backward": 5, "rope": 2, "rope_backward": 2}
    matrices |= {"gated_activation": 3, "gated_activation_backward": 5, "embedding": 2}
    matrices |= {"embedding_backward": 2}
    matrices |= {"softmax": 2, "softmax_backward": 3}
    matrices |= {"cross_entropy": 2, "cross_entropy_backward": 2}
    matrices |= {"qk_norm_rope": 2, "qk_norm_rope_backward": 3}
    matrices |= {name: len(op.inputs) + 1 for name, op in _elementwise.OPS.items()}
    quantised = {"rms_norm_quant": 4 + 1, "add_rms_norm_quant": 3 * 4 + 1}
    quantised |= {"gated_activation_quant": 2 * 4 + 1}
    for result in figures["results"]:
        times = result["microseconds"]
        assert {"membound", "copy"} <= set(times)
        assert all(time > 0 for time in times.values())
        moved = 4 * matrices.get(result["op"], 4)
        moved = quantised.get(result["op"], moved)
        assert result["bytes"] == moved * result["rows"] * result["cols"]
        assert result["ratio_to_copy"] == pytest.approx(times["copy"] / times["membound"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype_and_a_warm_cache(quick, dtype, capsys):
    arguments = ["bench", "--device", "cpu", "--sizes", "2x64", "--dtype", dtype, "--warm"]
    assert command_line.main(arguments) == 0
    text = capsys.readouterr().out
    assert dtype in text
    assert "warm cache" in text


def test_a_gpu_that_is_not_there(capsys):
    count = membound.cuda_status().device_count
    arguments = ["bench", "--device", f"cuda:{count}", "--sizes", "1x64"]
    assert command_line.main(arguments) == 2
    assert "GPU" in capsys.readouterr().err


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch, capsys):
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert command_line.main([*SMALL, "--plot", "figures.png"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "path", "said"),
    [
        ("--json", "absent/figures.json", "--json cannot write to "),
        ("--json", ".", "--json cannot write to "),
        ("--plot", "absent/figures.png", "--plot cannot write to "),
        ("--plot", "figures.xyz", "--plot cannot draw .xyz; known: "),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(
    option, path, said, monkeypatch, tmp_path, capsys
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench.OnCpu, "measure", lambda *_: pytest.fail("measured"))
    assert command_line.main([*SMALL, option, str(tmp_path / path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"membound: {said}")
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_plot(quick, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figures.png"
    ops = ["--op", "rms_norm", "--op", "rope"]  # one of each kind of axis
    assert command_line.main([*SMALL, *ops, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_ops_of_sequences_are_drawn_over_their_length():
    sizes = [(64, 128), (4, 4096), (1, 64), (1, 4096)]
    for op in bench.OPS:
        results = [bench.Result(op, *size, "float32", size[0] * size[1], {}) for size in sizes]
        label, points = bench.plot_axis(op, results)
        if "rope" in op:
            assert label == "sequence length, tokens of 4096 elements"
            assert [(x, one.rows) for x, one in points] == [(1.0, 1), (4.0, 4)]
        else:
            assert label == "MiB read and written"
            assert [x * 2**20 for x, _ in points] == [64, 4096, 8192, 16384]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_progress_bar_on_a_terminal_only():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = bench.Progress(2, stream)
        progress.step("rms_norm 1 x 64")
        progress.step("rms_norm 8 x 128")
        progress.close()
    assert file.getvalue() == ""
    assert "1/2 rms_norm 8 x 128" in terminal.getvalue()
    assert "###" in terminal.getvalue()


def test_buffers_overflow_the_cache_three_times():
    cache = 60 << 20
    for moved in (16 << 10, 1 << 20, 100 << 20):
        assert timing.buffer_sets(moved, cache) * moved >= 3 * cache or moved < cache // 4000
    assert timing.buffer_sets(1 << 30, cache) == 2
    assert timing.buffer_sets(1, cache) == timing.MOST_SETS


def test_a_graph_is_never_short():
    calls = [lambda: 1, lambda: 2, lambda: 3]
    rotated = timing.rotate(calls)
    assert len(rotated) >= timing.FEWEST_CALLS
    assert [call() for call in rotated[:4]] == [1, 2, 3, 1]


def test_cpu_times_order_a_short_call_before_a_long_one():
    times = timing.cpu_microseconds(
        {"short": [lambda: sum(range(10))], "long": [lambda: sum(range(10_000))]}, 0.002
    )
    assert 0 < times["short"] < times["long"]


@pytest.mark.gpu
@pytest.mark.parametrize("timer", ["torch", "cupy"])
def test_on_a_gpu(timer, tmp_path, monkeypatch):
    pytest.importorskip(timer)
    if timer == "cupy":
        find = bench._frameworks.installed_version
        hidden = lambda name: None if name == "torch" else find(name)  # noqa: E731
        monkeypatch.setattr(bench._frameworks, "installed_version", hidden)
    path = tmp_path / "figures.json"
    arguments = ["bench", "--device", "cuda", "--sizes", "16x4096", "--dtype", "float16"]
    assert command_line.main([*arguments, "--json", str(path)]) == 0
    times = json.loads(path.read_text())["results"][0]["microseconds"]
    assert {"membound", "copy"} <= set(times)
    assert all(0.1 < time < 1000 for time in times.values())
