# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""python -m membound: what it prints, and its exit codes."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import membound
from membound import __main__ as command_line
from membound import _frameworks, _table, bench, check, oracle
from membound.check import activations, cases, report

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "membound", *arguments], capture_output=True, text=True, check=False
    )


def test_info_names_version_cpu_gpu_and_frameworks(capsys):
    assert command_line.main(["info"]) == 0
    text = capsys.readouterr().out
    assert membound.__version__ in text
    assert membound.cpu_isa() in text
    status = membound.cuda_status()
    if status.device_count == 0:
        assert f"none: {status.message}" in text
    else:
        assert membound.device_properties(0).name in text
    assert ("without CUDA" in text) == (not status.built_with_cuda)
    for name in _frameworks.NAMES:
        assert re.search(rf"^{name} ", text, re.MULTILINE)


def test_info_as_json_and_in_a_new_process_imports_no_framework():
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["version"] == membound.__version__
    assert facts["cpu"]["threads"] >= 1
    code = (
        "import sys; from membound.__main__ import main; main(['info'])\n"
        "assert not {'numpy', 'torch', 'jax', 'cupy'} & set(sys.modules), 'a framework came in'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("arguments", [(), ("check",), ("bench",), ("info",), ("cmake-dir",)])
def test_help_explains(arguments):
    done = run(*arguments, "--help")
    assert done.returncode == 0
    assert "usage: python -m membound" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("check", "--op", "nonsense"),
        ("check", "--framework", "nonsense"),
        ("bench", "--sizes", "4096"),
        ("bench", "--sizes", "0x4096"),
        ("bench", "--op", "nonsense"),
        ("bench", "--device", "nonsense"),
        ("check", "--quick", "--thorough"),
    ],
)
def test_wrong_arguments_are_refused_with_a_reason(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_an_unknown_op_is_compared_with_those_that_are_known(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["check", "--op", "rmsnorm"])
    assert "unknown op rmsnorm; did you mean 'rms_norm'?" in capsys.readouterr().err


def test_help_lists_dtypes_alone(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["bench", "--help"])
    assert "{float16,bfloat16,float32,float64}" in capsys.readouterr().out


def test_a_reader_that_goes_away_gets_no_traceback():
    command = [sys.executable, "-m", "membound", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_cmake_dir_is_a_cmake_package():
    done = run("cmake-dir")
    if done.returncode == 2:
        assert "membound: " in done.stderr
        pytest.skip("this membound is a build folder, not an installation")
    assert (Path(done.stdout.strip()) / "membound-config.cmake").is_file()


@pytest.mark.parametrize("framework", ["memoryview", "numpy"])
def test_check_passes(framework, monkeypatch, capsys):
    """Only some widths: exact arithmetic is slow, and the ops' own tests cover all widths."""
    monkeypatch.setattr(cases, "WIDTHS", (1, 2, 7, 33, 64, 257))
    code = command_line.main(["check", "--framework", framework, "--device", "cpu"])
    text = capsys.readouterr().out
    assert code == 0, text
    assert "are right" in text
    for op in check.OPS:
        assert re.search(rf"^{op} +cpu: {framework} +\d+ .* ok$", text, re.MULTILINE)


def test_check_passes_with_torch(monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(cases, "WIDTHS", (7,))
    assert command_line.main(["check", "--framework", "torch", "--device", "cpu"]) == 0
    assert "are right" in capsys.readouterr().out


def test_the_summary_shows_the_worst_of_an_op_and_the_long_table_all(capsys):
    lines = [
        report.Line("softmax", "numpy", "cpu", "float32", 10, 0.4, 0.5),
        report.Line("softmax", "numpy", "cpu", "float64", 10, 0.6, 6.0),
        report.Line("softmax", "torch", "cuda:0", "float32", 4, 0.7, 0.5, ["a case"]),
    ]
    report.print_report(lines, {"jax": "not installed"}, 24, 1.0, verbose=False)
    text = capsys.readouterr().out
    shown = r"^softmax +cpu: numpy; cuda:0: torch +24 +0.7 +0.5 +torch float32 +WRONG in 1$"
    assert re.search(shown, text, re.MULTILINE)
    assert "not checked: jax (not installed)" in text
    assert "excess ulp: the largest distance" in text
    report.print_report(lines, {}, 24, 1.0, verbose=True)
    text = capsys.readouterr().out
    assert re.search(r"^softmax +numpy +cpu +float64 +10 +0.6 +6 +ok$", text, re.MULTILINE)
    assert text.count("softmax ") == 3
    assert text.endswith("1 of 24 cases are WRONG (1.0 s)\n")


def test_a_quick_check_takes_every_op_before_it_takes_one_again(monkeypatch, capsys):
    """Each look at the clock is a second here."""
    seconds = itertools.count()
    monkeypatch.setattr(check.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(check, "QUICK_SECONDS", 3 * len(check.OPS))
    assert command_line.main(["check", "--quick", "--framework", "numpy"]) == 0
    text = capsys.readouterr().out
    for op in check.OPS:
        assert re.search(rf"^{op} +cpu: numpy +3 ", text, re.MULTILINE)
    assert f"all {3 * len(check.OPS)} cases that were tried are right" in text


def test_a_quick_check_names_the_ops_that_it_did_not_reach(monkeypatch, capsys):
    monkeypatch.setattr(check, "QUICK_SECONDS", 0.0)
    chosen = ["--op", "embedding", "--op", "softmax", "--framework", "memoryview"]
    seconds = iter([0.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(check.time, "perf_counter", lambda: next(seconds))
    assert command_line.main(["check", "--quick", *chosen]) == 0
    assert "not checked, for lack of time: softmax" in capsys.readouterr().out


def run_alone(code: str, *packages: str) -> subprocess.CompletedProcess:
    """Run Python with these alone of the packages that membound works with."""
    missing = {"numpy", "ml_dtypes", "torch", "jax", "cupy"} - {*packages}
    head = f"import sys; sys.modules.update(dict.fromkeys({sorted(missing)}))\n"
    command = [sys.executable, "-c", f"{head}from membound.__main__ import main\n{code}"]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_check_without_numpy_tests_memoryviews_and_says_what_to_install():
    done = run_alone("sys.exit(main(['check']))")
    assert done.returncode == 0, done.stdout + done.stderr
    for op in check.OPS:
        assert re.search(rf"^{op} +cpu: memoryview +[1-9]\d* .* ok$", done.stdout, re.MULTILINE)
    assert "not checked: torch (not installed)" in done.stdout
    *_, verdict, last = done.stdout.splitlines()
    assert re.fullmatch(r"all \d+ cases are right \(.*\)", verdict)
    assert "only memoryviews were tested" in last
    assert "pip install 'membound[numpy]' tests more" in last


def test_a_check_of_torch_without_numpy():
    pytest.importorskip("torch")
    chosen = ["--op", "embedding", "--op", "softmax", "--framework", "torch", "--device", "cpu"]
    done = run_alone(f"sys.exit(main(['check', *{chosen}]))", "torch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^softmax +cpu: torch .* ok$", done.stdout, re.MULTILINE)
    assert "only memoryviews" not in done.stdout


def test_a_check_with_numpy_does_not_ask_for_it(capsys):
    arguments = ["check", "--op", "softmax", "--framework", "memoryview"]
    assert command_line.main(arguments) == 0
    assert "only memoryviews" not in capsys.readouterr().out


def test_a_check_without_numpy_fails_on_a_wrong_op():
    """Every result of every op, one after the other."""
    folder = str(Path(__file__).parent)
    done = run_alone(
        f"import contextlib, io; sys.path.insert(0, {folder!r})\n"
        "import test_cli as t\n"
        "t.cases.WIDTHS, t.check.DTYPES = (7, 33), ('float32',)\n"
        "for op, which in t.RESULTS_OF_OPS:\n"
        "    right = getattr(t.membound, op)\n"
        "    setattr(t.membound, op, t._wrong_by(op, t.CHANGES['small'], which))\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = main(['check', '--op', op])\n"
        "    setattr(t.membound, op, right)\n"
        "    print(op, which, code)\n"
    )
    wanted = [f"{op} {which} 1" for op, which in RESULTS_OF_OPS]
    assert done.stdout.splitlines() == wanted, done.stderr


def test_the_version_and_the_console_script(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        command_line.main(["--version"])
    assert capsys.readouterr().out == f"membound {membound.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/membound"])
    assert command_line.parser().prog == "membound"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["membound"].partition(":")
    assert getattr(importlib.import_module(module), function) is command_line.run_process


# Of the others two.
RESULTS = {"rms_norm": 1, "layer_norm_backward": 3, "add_layer_norm_backward": 3}
RESULTS |= {"rms_norm_gated": 1, "rms_norm_gated_backward": 3, "gated_activation": 1}
RESULTS |= {"embedding": 1, "embedding_backward": 1}
RESULTS |= {"embedding": 1, "softmax": 1, "softmax_backward": 1}
RESULTS |= {"cross_entropy": 1, "cross_entropy_backward": 1}


def _arrays_in(result):
    return [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]


def _wrong_by(op, change, which):
    """A wrapper of an op that changes one element of a returned or written result."""
    right = getattr(membound, op)

    def wrong(*arrays, **options):
        result = right(*arrays, **options)
        found = _arrays_in(result)
        y = found[min(which, len(found) - 1)]
        last = tuple(extent - 1 for extent in y.shape)
        # An 8-bit element changes to another code or stays.
        y[last] = change(y[last]) if y.itemsize > 1 else int(y[last] == 0)
        return result

    return wrong


def wrong_everywhere(monkeypatch):
    """Make every element wrong, at any width and in any dtype."""
    monkeypatch.setattr(cases, "WIDTHS", (7, 33))
    monkeypatch.setattr(check, "DTYPES", ("float32",))


RESULTS_OF_OPS = [(op, which) for op in check.OPS for which in range(RESULTS.get(op, 2))]
CHANGES = {"small": lambda v: v * 1.0001, "nan": lambda _: float("nan"), "sign": lambda v: -v - 1}


@pytest.mark.parametrize(
    ("framework", "change"),
    [("memoryview", "small"), *(("numpy", change) for change in CHANGES)],
)
@pytest.mark.parametrize(("op", "which"), RESULTS_OF_OPS)
def test_check_fails_on_a_wrong_op(monkeypatch, capsys, framework, change, op, which):
    """which: the first result, or a later one."""
    monkeypatch.setattr(membound, op, _wrong_by(op, CHANGES[change], which))
    arguments = ["check", "--op", op, "--framework", framework, "--device", "cpu"]
    wrong_everywhere(monkeypatch)
    assert command_line.main(arguments) == 1
    text = capsys.readouterr().out
    assert "WRONG" in text
    assert "off by" in text


NORMS = [op for op in check.OPS if "norm" in op and "rope" not in op]
# Backwards with sums over rows, which return only the gradients that are wanted.
BACKWARDS = [op for op in NORMS if op.endswith("backward")]


@pytest.mark.parametrize("op", BACKWARDS)
def test_check_fails_on_gradients_that_change_from_run_to_run(monkeypatch, capsys, op):
    right, calls = getattr(membound, op), []

    def wandering(*arrays, **options):
        dx, *sums = right(*arrays, **options)
        calls.append(op)
        if sums[-1] is not None and len(calls) % 2:
            sums[-1][0] = np.nextafter(sums[-1][0], sums[-1].dtype.type(100))
        return dx, *sums

    np = pytest.importorskip("numpy")
    monkeypatch.setattr(membound, op, wandering)
    wrong_everywhere(monkeypatch)
    assert command_line.main(["check", "--op", op, "--framework", "numpy"]) == 1
    assert "off by inf" in capsys.readouterr().out


@pytest.mark.parametrize("op", BACKWARDS)
def test_check_fails_on_gradients_that_nobody_asked_for(monkeypatch, capsys, op):
    right = getattr(membound, op)

    def generous(*arrays, **options):
        return right(*arrays, **{k: v for k, v in options.items() if not k.startswith("need_")})

    monkeypatch.setattr(membound, op, generous)
    wrong_everywhere(monkeypatch)
    assert command_line.main(["check", "--op", op, "--framework", "numpy"]) == 1
    assert "not wanted" in capsys.readouterr().out


@pytest.mark.parametrize(("op", "which"), [("rms_norm", 1), ("layer_norm", 1), ("layer_norm", 2)])
def test_check_fails_on_wrong_statistics(monkeypatch, capsys, op, which):
    right = getattr(membound, op)

    def wrong(*arrays, **options):
        result = right(*arrays, **options)
        if isinstance(result, tuple):
            return *result[:which], result[which] * 1.001, *result[which + 1 :]
        return result

    monkeypatch.setattr(membound, op, wrong)
    wrong_everywhere(monkeypatch)
    assert command_line.main(["check", "--op", op, "--framework", "numpy"]) == 1
    assert "are WRONG" in capsys.readouterr().out


def test_check_counts_an_exception_as_wrong(monkeypatch, capsys):
    def broken(x, weight=None, **options):
        raise RuntimeError("out of order")

    monkeypatch.setattr(membound, "rms_norm", broken)
    arguments = ["check", "--op", "rms_norm", "--framework", "memoryview", "--verbose"]
    assert command_line.main(arguments) == 1
    assert "RuntimeError: out of order" in capsys.readouterr().out


def test_check_says_when_there_is_nothing_to_check(capsys):
    assert command_line.main(["check", "--device", "cuda:77"]) == check.NOTHING_TESTED
    text = capsys.readouterr().out
    assert "nothing was checked" in text
    assert "excess ulp" not in text  # of a table without rows


def test_an_interrupt_keeps_what_was_checked(monkeypatch, capsys):
    right, calls = membound.softmax, []

    def interrupted(*arrays, **options):
        calls.append(arrays)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return right(*arrays, **options)

    monkeypatch.setattr(membound, "softmax", interrupted)
    arguments = ["check", "--op", "softmax", "--framework", "memoryview"]
    assert command_line.main(arguments) == check.INTERRUPTED
    told = capsys.readouterr()
    assert "interrupted" in told.err
    assert re.search(r"^softmax +cpu: memoryview +3 .* ok$", told.out, re.MULTILINE)
    assert "all 3 cases that were tried are right" in told.out


def test_an_interrupt_of_a_command_leaves_no_traceback(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "main", interrupted)
    assert command_line.run_process() == 130


def test_a_wrong_op_sets_the_exit_code_of_the_process():
    code = (
        "import sys, membound; from membound.__main__ import main\n"
        "membound.rms_norm = lambda x, *a, out=None, **k: out\n"
        "sys.exit(main(['check', '--op', 'rms_norm', '--framework', 'memoryview']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr


def test_every_op_of_the_package_is_checked_and_measured():
    aliases = {"fused_add_rms_norm", "gemma_fused_add_rms_norm", "gemma_rms_norm"}
    for kind in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "sigmoid_and_mul", "relu2"):
        aliases |= {kind, f"{kind}_backward"}
    aliases.add("silu_and_mul_quant")
    ops = set(membound.__test__) - aliases  # add_rms_norm's are checked as its forms
    assert set(check.OPS) == ops
    assert set(bench.OPS) == ops


@pytest.mark.parametrize(
    "op", ["gated_activation", "gated_activation_backward", "gated_activation_quant"]
)
def test_the_cases_of_activations_cover_each_kind_in_each_layout(op):
    every = list(check.OPS[op].cases(_frameworks.NumPy(), "float32", thorough=False))
    seen = {(case.kind, case.layout) for case in every}
    assert len(seen) == len(activations.KINDS) * len(cases.LAYOUTS)
    assert {case.cols for case in every} == set(activations.WIDTHS)
    assert {case.form for case in every} == set(check.OPS[op].forms)
    assert {case.limited for case in every} == {True, False}


@pytest.mark.parametrize("op", NORMS)
def test_the_cases_cover_each_pair_of_layout_weight_and_option(op):
    one = _frameworks.NumPy()
    every = list(check.OPS[op].cases(one, "float32", thorough=False))
    same = [case for case in every if not case.by_head]  # only some layouts allow this
    assert {case.layout for case in every if case.heads > 1} == {"3-D", "3-D permuted"}
    option = "rounding" if "rms_norm" in op else "bias"
    for attributes in (("layout", "weight"), ("layout", option), ("weight", option)):
        seen = {tuple(getattr(case, name) for name in attributes) for case in same}
        values = [{getattr(case, name) for case in same} for name in attributes]
        assert len(seen) == len(values[0]) * len(values[1])
    assert {case.cols for case in same} >= set(cases.WIDTHS)
    assert {case.form for case in same} == set(check.OPS[op].forms)


@pytest.mark.parametrize(
    ("got", "wanted", "dtype", "ulps"),
    [
        (1.0, 1.0, "float32", 0.0),
        (1.0 + 2**-23, 1.0, "float32", 1.0),
        (1.0 + 2**-10, 1.0, "float16", 1.0),
        (1.0 - 2**-8, 1.0, "bfloat16", 0.5),
        (2**-24, 0.0, "float16", 1.0),
        (float("inf"), 1e6, "float16", 0.0),
        (65504.0, 1e6, "float16", float("inf")),
        (float("nan"), 1.0, "float64", float("inf")),
    ],
)
def test_errors_are_counted_in_units_in_the_last_place(got, wanted, dtype, ulps):
    assert oracle.errors_in_ulps(got, oracle.wide(wanted, dtype), dtype) == ulps


def test_tables_line_up():
    text = _table.render(("name", "us"), [("a", "1.5"), ("longer", "10.25")])
    lines = ["name       us", "------  -----", "a         1.5", "longer  10.25"]
    assert text.splitlines() == lines
    assert _table.markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_info_prints_the_plan_of_a_norm(capsys):
    assert command_line.main(["info", "--plan", "rms_norm", "8192x2304", "bfloat16"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rms_norm of 8192 x 2304 bfloat16, contiguous, without options, on ")
    assert "\nkernel: rms_norm_" in text
    assert "\nlaunch: " in text
    assert command_line.main(["info", "--plan", "layer_norm_backward", "512x4096", "float32"]) == 0
    assert "\ncolumn sums: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("softmax", "8x8", "float32"), "op must be one of rms_norm, add_rms_norm"),
        (("rms_norm", "8", "float32"), "expected ROWSxCOLS, such as 8192x2304, and got '8'"),
        (("rms_norm", "0x8", "float32"), "rows and cols must be at least 1, got 0 x 8"),
        (("rms_norm", "\u0663x8", "float32"), "expected ROWSxCOLS"),
        (("rms_norm", f"{10**20}x8", "float32"), "rows * cols must be below 2**48"),
        (("rms_norm", f"{2**47}x2", "float32"), "rows * cols must be below 2**48"),
        (("rms_norm", "8x8", "int8"), "dtype must be one of float16"),
    ],
)
def test_info_refuses_a_plan_that_is_none(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        command_line.main(["info", "--plan", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
