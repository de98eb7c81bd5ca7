# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A program may end while a daemon thread of its own is inside an op."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

PROGRAM = """
import threading, time
import numpy as np
import membound as mb
{setup}
started = threading.Event()
def loop():
    while True:
        {call}
        started.set()
for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
started.wait()
time.sleep(0.05)
"""

PRODUCER = """
class Producer:
    def __dlpack__(self, **options):
        for _ in range(20):
            pass
        return array.__dlpack__()
    def __dlpack_device__(self):
        return (1, 0)
array = np.ones((3, 8), np.float32)
out = np.empty_like(array)
"""


def end_while_a_thread_calls(setup: str, call: str, runs: int) -> None:
    command = [sys.executable, "-c", PROGRAM.format(setup=setup, call=call)]
    for _ in range(runs):
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert (run.returncode, run.stderr) == (0, "")


# With the GIL kept, released briefly, and released for most of the time.
@pytest.mark.parametrize(("rows", "cols"), [(3, 8), (16, 1024), (64, 4096), (4096, 4096)])
def test_the_interpreter_ends_while_an_op_runs(rows, cols):
    setup = f"x, weight = np.ones(({rows}, {cols}), np.float32), np.ones({cols}, np.float32)"
    end_while_a_thread_calls(setup, "mb.rms_norm(x, weight)", runs=3)


# Calls that record a gradient are not here: torch's own end such a program in terminate(), too.
# Without a GIL the end of the interpreter waits for the lock of sys.modules, which a daemon thread
# that looks a module up may keep for ever; it takes no extension for that.
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="CPython hangs without a GIL"
)
def test_the_interpreter_ends_while_an_op_runs_python():
    end_while_a_thread_calls(PRODUCER, "mb.rms_norm(Producer(), out=out)", runs=10)
