# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""python -m membound bench: what it measures, prints, writes and refuses."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import math
import statistics

import pytest

import membound
from membound import __main__ as command_line
from membound import _elementwise, _progress, bench
from membound.bench import picture, results, timing

SMALL = ("bench", "--device", "cpu", "--sizes", "1x64,8x128")


@pytest.fixture
def quick(monkeypatch):
    """Short rounds over few buffers, for meaningless figures."""
    rounds = functools.partial(timing.cpu_rounds, seconds_per_round=0.001)
    monkeypatch.setattr(timing, "cpu_rounds", rounds)
    monkeypatch.setattr(timing, "cpu_cache_bytes", lambda: 1 << 12)


def test_a_table_and_json_with_a_copy_beside_every_op(quick, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert command_line.main([*SMALL, "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "of copy" in text
    assert "1 x 64" in text
    figures = json.loads(path.read_text())
    assert figures["info"]["version"] == membound.__version__
    assert figures["complete"]
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
    for one in figures["results"]:
        times = one["microseconds"]
        assert {"membound", "copy"} <= set(times)
        assert all(time > 0 for time in times.values())
        assert set(one["spread"]) == set(times)
        moved = 4 * matrices.get(one["op"], 4)
        moved = quantised.get(one["op"], moved)
        assert one["bytes"] == moved * one["rows"] * one["cols"]
        assert one["ratio_to_copy"] == pytest.approx(times["copy"] / times["membound"])


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
    for kind in picture.KINDS:
        arguments = [*ops, "--plot", str(path), "--plot-kind", kind]
        assert command_line.main([*SMALL, *arguments]) == 0
        assert path.read_bytes().startswith(b"\x89PNG")


def result(op="rms_norm", ours=100.0, copy=100.0, spread=0.01, size=(8, 128), dtype="float32"):
    spreads = {"membound": spread, "copy": spread}
    times = {"membound": ours, "copy": copy, "torch": 2 * ours}
    return bench.Result(op, *size, dtype, 8192, times, spreads)


@pytest.mark.parametrize("kind", picture.KINDS)
def test_many_panels_are_wrapped_in_rows(kind):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    panels = 2 * picture.COLUMNS + 1
    results = [result(dtype=f"float{at}") for at in range(panels)]
    draw = {
        "ratio": lambda: picture.draw_ratios(results, "a"),
        "time": lambda: picture.draw_times(results, set(), "a"),
    }
    figure = draw[kind]()
    shown = [axis for axis in figure.axes if axis.axison]
    assert len(shown) == panels * (1 if kind == "ratio" else 2)
    assert figure.get_figwidth() < 20
    if kind == "ratio":
        assert [bar.get_width() for bar in shown[0].patches] == [1.0]
    pyplot.close(figure)


@pytest.mark.parametrize("panels", [1, 2, 5])
def test_all_of_a_picture_of_ratios_is_inside_it(panels):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    peers = dict.fromkeys(("numpy", "jax", "torch.compile", "a kernel library"), 5.0)
    results = [result(dtype=f"float{at}") for at in range(panels)]
    for one in results:
        one.microseconds |= peers  # 20 times as fast
    figure = picture.draw_ratios(results, "NVIDIA H200, driver 580.65.06, 132 multiprocessors")
    figure.draw_without_rendering()
    inside = figure.get_tightbbox()
    assert inside.x0 >= 0
    assert inside.x1 <= figure.get_figwidth()
    for axis in figure.axes[:panels]:
        assert axis.get_xlim()[1] > 20.0
    pyplot.close(figure)


def test_ops_of_sequences_are_drawn_over_their_length():
    sizes = [(64, 128), (4, 4096), (1, 64), (1, 4096)]
    for op in bench.OPS:
        made = [bench.Result(op, *size, "float32", size[0] * size[1], {}, {}) for size in sizes]
        label, points = picture.axis_of(bench.OPS[op].sequences, made)
        if "rope" in op:
            assert label == "sequence length, tokens of 4096 elements"
            assert [(x, one.rows) for x, one in points] == [(1.0, 1), (4.0, 4)]
        else:
            assert label == "MiB read and written"
            assert [x * 2**20 for x, _ in points] == [64, 4096, 8192, 16384]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "said"),
    [
        (io.StringIO, math.inf, ["1/4, about 15 s left: b", "3/4, about 3 s left: d"]),
        (io.StringIO, 12.0, ["1/4, about 7 s left: b", "3/4, about 2 s left: d"]),
        (Terminal, math.inf, ["[....................] 0/4: a", "[#####...............] 1/4"]),
    ],
)
def test_progress_says_n_of_n_and_the_time_left(stream, seconds, said):
    """A bar on a terminal, elsewhere a line every few seconds."""
    times, file = iter([0.0, 0.0, 5.0, 6.0, 10.0]), stream()
    progress = _progress.Progress(4, file, seconds, lambda: next(times))
    for label in "abcd":
        progress.step(label)
    progress.close()
    for line in said:
        assert line in file.getvalue()
    assert (file.getvalue().count("\n") == 0) == (stream is Terminal)


def test_a_bar_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    file = Terminal()
    progress = _progress.Progress(1, file)
    progress.step("a label that is long " * 9)
    progress.close()
    assert {len(part) for part in file.getvalue().split("\r")} == {0, 59}


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
    rounds = timing.cpu_rounds(
        {"short": [lambda: sum(range(10))], "long": [lambda: sum(range(10_000))]}, 0.002
    )
    assert 0 < statistics.median(rounds["short"]) < statistics.median(rounds["long"])


def test_the_spread_is_that_of_the_quartiles():
    rounds = {"membound": [1.0, 1.0, 1.0, 9.0, 1.0], "copy": [4.0, 5.0, 6.0, 7.0, 8.0]}
    one = results.result_of("rms_norm", 8, 128, "float32", 1, rounds)
    assert one.microseconds == {"membound": 1.0, "copy": 6.0}
    assert one.spread == {"membound": 0.0, "copy": pytest.approx(1 / 3)}
    assert one.noise == pytest.approx(1 / 3)


def test_rows_that_are_noise_are_marked():
    quiet, loud = result(spread=0.01), result(spread=0.2, size=(1, 64))
    rows = results.table([quiet, loud]).splitlines()[2:]
    assert [row.endswith("~") for row in rows] == [False, True]
    assert "1 of 2 rows are noise" in results.marked_as_noise([quiet, loud])
    assert results.marked_as_noise([quiet]) == ""


@pytest.mark.parametrize(
    ("ours", "copy", "spread", "said"),
    [
        (100.0, 100.0, 0.0, "same"),
        (101.5, 100.0, 0.0, "same"),  # less than the smallest change
        (110.0, 100.0, 0.0, "slower"),
        (90.0, 100.0, 0.0, "faster"),
        (110.0, 100.0, 0.12, "same"),  # the rounds hide it
        (120.0, 119.0, 0.01, "machine"),  # so does the copy
        (80.0, 81.0, 0.01, "machine"),
        (90.0, 110.0, 0.01, "faster"),
    ],
)
def test_a_comparison_knows_the_noise(ours, copy, spread, said):
    assert results.verdict(result(spread=0.0), result(ours=ours, copy=copy, spread=spread)) == said


def test_compare_with_an_earlier_file(quick, tmp_path, capsys, monkeypatch):
    path, ops = tmp_path / "old.json", ["--op", "rms_norm"]
    assert command_line.main([*SMALL, *ops, "--json", str(path)]) == 0
    old = json.loads(path.read_text())
    for one in old["results"]:
        one["spread"] = dict.fromkeys(one["spread"], 0.0)
        one["microseconds"] = dict.fromkeys(one["microseconds"], 1000000000.0)
        one["microseconds"]["copy"] = 1.0
    old["results"][0]["microseconds"]["membound"] = 1e-9
    del old["results"][1]["spread"]  # as files of earlier versions
    path.write_text(json.dumps(old))
    monkeypatch.setattr(results, "spread_of", lambda _: 0.0)
    capsys.readouterr()
    assert command_line.main([*SMALL, *ops, "--compare", str(path)]) == bench.SLOWER
    text = capsys.readouterr().out
    assert "1 faster, 1 slower, 0 same, 0 machine" in text
    for wrong in ("{}", "no JSON"):
        path.write_text(wrong)
        assert command_line.main([*SMALL, *ops, "--compare", str(path)]) == 2
        assert f"{path} has no results" in capsys.readouterr().err
    assert command_line.main([*SMALL, *ops, "--compare", str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_measured(quick, tmp_path, capsys, monkeypatch):
    path, right, calls = tmp_path / "figures.json", bench.OnCpu.measure, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return right(*arguments)

    monkeypatch.setattr(bench.OnCpu, "measure", interrupted)
    arguments = [*SMALL, "--op", "rms_norm", "--json", str(path)]
    assert command_line.main(arguments) == bench.INTERRUPTED
    assert "interrupted: 1 of 2 were measured" in capsys.readouterr().out
    figures = json.loads(path.read_text())
    assert not figures["complete"]
    assert [one["rows"] for one in figures["results"]] == [1]


def test_what_cannot_be_measured_is_told_and_the_others_are_kept(quick, tmp_path, capsys):
    path = tmp_path / "figures.json"
    chosen = ["--op", "rope", "--op", "softmax", "--json", str(path)]
    code = command_line.main(["bench", "--device", "cpu", "--sizes", "3x7", *chosen])
    assert code == bench.UNUSABLE
    text = capsys.readouterr().out
    assert "not measured: rope 3 x 7 float32 (ValueError: rope_table: argument 'head_dim'" in text
    assert "interrupted" not in text
    figures = json.loads(path.read_text())
    assert [one["op"] for one in figures["results"]] == ["softmax"]
    assert not figures["complete"]


def test_a_dtype_of_which_there_are_no_arrays(monkeypatch, capsys):
    find = bench._frameworks.installed_version
    hidden = lambda name: None if name in ("torch", "ml_dtypes") else find(name)  # noqa: E731
    monkeypatch.setattr(bench._frameworks, "installed_version", hidden)
    assert command_line.main([*SMALL, "--op", "softmax", "--dtype", "bfloat16"]) == 2
    assert "bench in bfloat16 needs torch, or on the CPU ml_dtypes" in capsys.readouterr().err


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
