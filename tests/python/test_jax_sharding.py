# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax under automatic sharding and shard_map, on virtual devices of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("program", "devices"), [("jax_devices.py", 4), ("jax_columns.py", 8), ("jax_vocabulary.py", 4)]
)
def test_devices(program, devices, seed):
    pytest.importorskip("jax")
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name(program)), str(seed)]
    # Programs are small: compiling them is what takes time.
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout
