# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes, on the CPU or a GPU each: sharded tensors, FSDP2 and DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import arrays
import pytest

# NVLink multicast is disabled: it can hang shared GPUs, and nothing here needs it.
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}


def run_both(device: str, folder: Path, seed: int) -> None:
    program = Path(__file__).with_name("sharded.py")
    command = [sys.executable, "-W", "ignore", str(program)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(folder), str(seed % 2**31), device],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, texts, strict=True):
        assert rank.returncode == 0, text
        assert "all right" in text


def test_two_processes(tmp_path, seed):
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    run_both("cpu", tmp_path, seed)


@pytest.mark.gpu
@pytest.mark.multi_gpu
def test_two_gpus(tmp_path, seed):
    torch = arrays.torch_with_cuda()
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    run_both("cuda", tmp_path, seed)
