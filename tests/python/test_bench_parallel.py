# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of several devices: a patched Llama has the results and collectives of eager."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from benchmark_scripts import FOLDER, script
from test_torch_distributed import ENVIRONMENT

PLANS = "FSDP2", "tensor parallel", "both"
CASES = "eager", "membound", "membound, linear cross-entropy"


def table(ranks, folder, *options):
    """The cells of each plan and case, from as many processes on the CPU."""
    pytest.importorskip("transformers")
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    if not FOLDER.is_dir():
        pytest.skip("only in a source tree")
    report = folder / "report.md"
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(FOLDER / "bench_parallel.py"), "--tiny"]
    command += ["--device", "cpu", "--cases", ";".join(CASES), "--markdown", str(report), *options]
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row.strip("| ").split(" | ") for row in report.read_text().splitlines()]
    return {(row[0], row[1]): row[2:] for row in rows if row[0] in PLANS}


@pytest.mark.parametrize(("ranks", "plans"), [(2, PLANS[:2]), (4, PLANS[2:])])
def test_results_are_those_of_one_device(ranks, plans, tmp_path):
    rows = table(ranks, tmp_path, "--check", "--plans", ";".join(plans))
    assert set(rows) == {(plan, case) for plan in plans for case in CASES}
    assert [cells[-1] for cells in rows.values()] == ["right"] * len(rows)


def test_an_error_that_is_not_a_number_is_the_worst(monkeypatch):
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    errors = {"loss": 1e-8, "first": float("nan"), "last": 1.0}
    errors = {name: torch.tensor(error) for name, error in errors.items()}
    worst_of = script(monkeypatch, "bench_parallel").worst_of
    assert worst_of(errors) == "first"
    del errors["first"]
    assert worst_of(errors) == "last"


def test_patched_models_gather_no_more(tmp_path):
    rows = table(2, tmp_path, "--steps", "1")
    for plan in PLANS[:2]:
        found = [rows[plan, case][-1] for case in CASES]
        assert "all_gather" in found[0]
        gathers = [each.partition(",")[0] for each in found]  # membound's losses reduce less
        assert gathers == gathers[:1] * len(CASES)


def test_jax_shares_arrays_of_devices():
    pytest.importorskip("jax")
    if not FOLDER.is_dir():
        pytest.skip("only in a source tree")
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, str(FOLDER / "bench_parallel_jax.py"), "--rows", "8"],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()[-4:]]
    assert [row[1] for row in rows] == ["rows", "columns", "rows", "heads"]
    assert all(float(row[-1]) < 1e-4 for row in rows)
    assert "gather" not in done.stdout
