# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a compiled model, with a small one."""

from __future__ import annotations

import json
import sys

import pytest
from benchmark_scripts import script

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours


def test_patched_and_not_are_compiled(monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    bench = script(monkeypatch, "bench_compiled_model")
    compile_with = torch.compile
    calls = []

    def without_inductor(model, **options):  # whose C++ takes a minute
        calls.append(options.pop("mode"))
        return compile_with(model, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", without_inductor)
    result, report = tmp_path / "result.json", tmp_path / "report.md"
    work = ["decode:2", "prefill:8", "training:2x8"]
    command = ["bench_compiled_model.py", "--tiny", "--steps", "2", "--device", "cpu", "--trace"]
    command += ["--work", ",".join(work), "--modes", "reduce-overhead"]
    monkeypatch.setattr(sys, "argv", [*command, "--json", str(result), "--markdown", str(report)])
    assert bench.main() == 0
    assert calls == ["reduce-overhead", "reduce-overhead"] * len(work)
    figures = json.loads(result.read_text())
    assert [figure["work"] for figure in figures] == work
    for figure in figures:
        assert min(figure["plain_ms"], figure["patched_ms"]) > 0
    assert "| prefill:8 | reduce-overhead |" in report.read_text()
    printed = capsys.readouterr().out
    assert "decode:2, reduce-overhead, not patched" in printed  # kernels
    assert "membound::rms_norm_backward" in printed
