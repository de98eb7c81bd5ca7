# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A program may end while a daemon thread of its own is inside an op."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
import numpy as np
import membound as mb
weight = np.ones({cols}, np.float32)
x = np.ones(({rows}, {cols}), np.float32)
started = threading.Event()
def loop():
    while True:
        mb.rms_norm(x, weight)
        started.set()
for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
started.wait()
time.sleep(0.05)
"""


# With the GIL kept, let go of for a moment, and for most of the time.
@pytest.mark.parametrize(("rows", "cols"), [(3, 8), (16, 1024), (64, 4096), (4096, 4096)])
def test_the_interpreter_ends_while_an_op_runs(rows, cols):
    command = [sys.executable, "-c", PROGRAM.format(rows=rows, cols=cols)]
    for _ in range(3):
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert (run.returncode, run.stderr) == (0, "")
