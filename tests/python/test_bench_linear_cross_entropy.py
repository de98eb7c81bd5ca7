# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a last layer's loss and log-probabilities, with a small layer."""

from __future__ import annotations

import json
import sys

import pytest
from benchmark_scripts import script

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")


@pytest.fixture
def bench(monkeypatch):
    found = script(monkeypatch, "bench_linear_cross_entropy")
    cases = (
        "membound;membound, chunks as small as Liger-Kernel's;torch's linear_cross_entropy;torch"
    )
    command = ["bench.py", "--tiny", "--device", "cpu", "--steps", "1", "--cases", cases]
    monkeypatch.setattr(sys, "argv", command)
    return found


def test_every_case_is_measured_and_right(bench, tmp_path):
    report = {kind: tmp_path / f"report.{kind}" for kind in ("json", "markdown")}
    sys.argv += [f"--{kind}={path}" for kind, path in report.items()]
    assert bench.main() == 0
    figures = json.loads(report["json"].read_text())
    works = 2 * 5  # layers, and kinds of loss
    its_own = hasattr(torch.nn.functional, "linear_cross_entropy")  # without a soft cap
    assert len(figures) == 3 * works + its_own
    for one in figures:
        assert max(one["dx_error"], one["dweight_error"]) < bench.LARGEST_ERROR
        assert one["loss_error"] < 0.05
        assert one["step_ms"] > 0
    text = report["markdown"].read_text()
    assert text.count("| torch |") == works
    assert "Log-probabilities and entropies, temperature 0.7:" in text


@pytest.mark.parametrize("function", ["linear_cross_entropy", "linear_log_probs"])
def test_a_wrong_gradient_stops_the_benchmark(bench, monkeypatch, function):
    right = getattr(mt, function)
    monkeypatch.setattr(mt, function, lambda x, *args, **options: right(1.1 * x, *args, **options))
    with pytest.raises(SystemExit, match="WRONG: membound"):
        bench.main()


def test_the_reference_is_torchs_own(bench):
    work = bench.Work(bench.TINY[1], "log-probabilities", 0.7, True)
    data = bench.Data(work, "cpu")
    x, weight = (one.detach().double().requires_grad_() for one in data.leaves())
    cap = work.layer.softcap
    every = (cap * torch.tanh(x @ weight.T / cap) / 0.7).log_softmax(-1)
    chosen = every.gather(-1, data.labels[:, None])[:, 0]
    loss = data.weighted(chosen, torch.special.entr(every.exp()).sum(-1))
    found = bench.reference(work, data)
    torch.testing.assert_close(found[0], loss.item())
    torch.testing.assert_close(found[1:], torch.autograd.grad(loss, (x, weight)))
