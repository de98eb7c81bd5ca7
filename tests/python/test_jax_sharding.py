# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax under automatic sharding and shard_map, on virtual devices of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["jax_devices.py", "jax_columns.py"])
def test_devices(program, seed):
    pytest.importorskip("jax")
    program = Path(__file__).with_name(program)
    command = [sys.executable, "-W", "ignore", str(program), str(seed)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout
