# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/bench_eager.py: every op is there, and both sides of each compute the same."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from benchmark_scripts import FOLDER, script

import membound

torch = pytest.importorskip("torch")


@pytest.fixture
def eager(monkeypatch):
    return script(monkeypatch, "bench_eager")


def test_every_op_is_compared(eager):
    text = (FOLDER.parent / "cpp" / "ops.cmake").read_text(encoding="utf-8")
    stems = re.search(r"MEMBOUND_OPS(.*?)\)", text, re.DOTALL).group(1).split()
    assert set(stems) <= set(eager.OPS)


def first(result):
    return result[0] if isinstance(result, tuple) else result


# Ops with one result that equals torch's.
SAME = ("gelu_and_mul", "gelu_tanh_and_mul", "sigmoid_and_mul", "relu2", "softmax, mask")
SAME += ("silu_and_mul, halves", "silu_and_mul, interleaved", "silu_and_mul, transposed")
SAME += ("softmax, transposed", "softmax, out=", "cross_entropy, loss")
SAME += ("embedding, index_select", "embedding_backward, 8 tokens")


@pytest.mark.parametrize("name", SAME)
def test_both_sides_compute_the_same(eager, name, seed):
    torch.manual_seed(seed)
    op = eager.OPS[name]
    a = SimpleNamespace(**{one: torch.randn(6, 10) for one in (*op.read, *op.written)})
    theirs = first(op.torch_call(torch, a)()).clone()
    torch.testing.assert_close(first(op.ours(a)()), theirs, rtol=1e-5, atol=1e-5)


def test_its_table(eager, monkeypatch, capsys):
    words = ["bench_eager.py", "--only", "softmax", "--widths", "2", "--rows", "3", "--dtypes"]
    words += ["float32", "--rounds", "1", "--seconds", "1e-6", "--below", "0", "--markdown"]
    monkeypatch.setattr(sys, "argv", words)
    before, threads = membound.cpu_threads(), torch.get_num_threads()
    try:
        eager.main()
    finally:
        membound.set_cpu_threads(before)
        torch.set_num_threads(threads)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| softmax")]
    assert len(lines) == sum(name.split(",")[0].startswith("softmax") for name in eager.OPS)
    times = np.array([line.split("|")[4:6] for line in lines], float)
    assert (times > 0).all()
