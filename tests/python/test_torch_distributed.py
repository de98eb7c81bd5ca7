# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Two or four processes, on the CPU or a GPU each: sharded tensors, FSDP2 and DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import arrays
import pytest

# NVLink multicast is disabled: it can hang shared GPUs, and nothing here needs it.
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}


def run_all(program: str, device: str, folder: Path, seed: int, count: int = 2) -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(program))]
    ranks = [
        subprocess.Popen(
            [*command, str(folder), device, str(rank), str(count), str(seed % 2**31)],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, texts, strict=True):
        assert rank.returncode == 0, text
        assert "all right" in text


@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("sharded.py", 2), ("sharded_vocabulary.py", 2), ("sharded_vocabulary.py", 4),
        ("sharded_patch.py", 2),
    ],
)  # fmt: skip
def test_processes(program, count, tmp_path, seed):
    distributed = pytest.importorskip("torch.distributed")
    if program == "sharded_patch.py":
        pytest.importorskip("transformers")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    run_all(program, "cpu", tmp_path, seed, count)


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("program", ["sharded.py", "sharded_vocabulary.py", "sharded_patch.py"])
def test_two_gpus(program, tmp_path, seed):
    torch = arrays.torch_with_cuda()
    if program == "sharded_patch.py":
        pytest.importorskip("transformers")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    run_all(program, "cuda", tmp_path, seed)
