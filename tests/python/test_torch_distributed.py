# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes on the CPU: sharded tensors, FSDP2 and DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_two_processes(tmp_path, seed):
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    program = Path(__file__).with_name("sharded.py")
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                str(program),
                str(rank),
                str(tmp_path),
                str(seed % 2**31),
            ],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
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
