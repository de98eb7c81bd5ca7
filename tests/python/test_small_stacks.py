# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Ops in threads whose stack is small: 128 KiB, as under musl."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import threading
import numpy as np
import membound as mb

x = np.ones((8, {cols}), np.{dtype})
rows, weight = np.ones(8, np.float32), np.ones({cols}, np.{dtype})
ids, tokens = np.zeros(4096, np.int64), np.ones((4096, 64), np.{dtype})
heads, table = np.ones((1, 8, 4, 128), np.{dtype}), np.ones((8, 64), np.float32)
labels, rstd = np.zeros(8, np.int64), np.ones((1, 8, 4), np.float32)
head_weight = np.ones(128, np.{dtype})

def calls():
    mb.rms_norm(x, weight)
    mb.layer_norm(x, weight, weight)
    mb.add_rms_norm(x, x, weight)
    mb.rms_norm_backward(x, x, weight, rows)
    mb.layer_norm_backward(x, x, weight, rows, rows)
    mb.rms_norm_gated(x, x, weight)
    mb.rms_norm_gated_backward(x, x, x, weight, rows)
    mb.rms_norm_quant(x, weight, dtype="int8")
    mb.gated_activation(x, x)
    mb.gated_activation_backward(x, x, x)
    mb.gated_activation_quant(x, x, dtype="int8")
    mb.softmax(x)
    mb.softmax_backward(x, x)
    mb.cross_entropy(x, labels)
    mb.embedding(ids, tokens)
    mb.embedding_backward(tokens, ids, 4)
    mb.rope(heads, heads, table, table)
    mb.qk_norm_rope(heads, heads, head_weight, head_weight, table, table)
    mb.qk_norm_rope_backward(
        heads, heads, heads, heads, head_weight, head_weight, table, table, q_rstd=rstd, k_rstd=rstd
    )
    print("all right")

mb.set_cpu_threads(1)
threading.stack_size(128 << 10)
thread = threading.Thread(target=calls)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("cols", [1000, 100_000])
def test_a_stack_of_128_kib_is_enough(dtype, cols):
    command = [sys.executable, "-c", PROGRAM.format(dtype=dtype, cols=cols)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "all right\n", "")
