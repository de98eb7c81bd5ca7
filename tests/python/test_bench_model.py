# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The whole-model benchmark, with a small model."""

from __future__ import annotations

import json
import sys

import pytest
from benchmark_scripts import script

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours


def test_patched_and_eager_train_alike(monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers")
    bench = script(monkeypatch, "bench_model")
    result, report = tmp_path / "result.json", tmp_path / "report.md"
    command = ["bench_model.py", "--tiny", "--steps", "2", "--device", "cpu"]
    cases = ["eager", "membound", "membound, linear cross-entropy"]
    command += ["--cases", ";".join(cases), "--json", str(result), "--markdown", str(report)]
    monkeypatch.setattr(sys, "argv", command)
    assert bench.main() == 0
    figures = json.loads(result.read_text())
    assert [figure["case"] for figure in figures] == cases
    for ours in figures:
        assert abs(ours["loss"] - figures[0]["loss"]) < 2e-2 * figures[0]["loss"]
        assert min(ours["training_ms"], ours["decoding_ms"]) > 0
    assert "| membound |" in report.read_text()
    assert "rms_norm" in capsys.readouterr().out


def test_cases_decode_in_turn(monkeypatch, capsys):
    pytest.importorskip("transformers")
    bench = script(monkeypatch, "bench_model")
    command = ["bench_model.py", "--tiny", "--steps", "1", "--device", "cpu", "--decoding"]
    monkeypatch.setattr(sys, "argv", [*command, "--cases", "eager;membound"])
    assert bench.main() == 0
    eager, membound = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    assert (eager[0], eager[-1], membound[0]) == ("eager", "1.000", "membound")
    assert float(membound[-1]) == pytest.approx(float(membound[1]) / float(eager[1]), abs=2e-3)
