# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What each process that test_torch_distributed.py starts does around its checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist


def run(check: Callable[[int, int, str], None]) -> None:
    """Join the group, call ``check(rank, count, device)`` and leave the process."""
    folder, device = sys.argv[1:3]
    rank, count, seed = map(int, sys.argv[3:])
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(os.path.join(folder, "store"), count)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    torch.manual_seed(seed)
    check(rank, count, device)
    dist.destroy_process_group()
    print("all right", flush=True)
    # Python's own end aborts when a thread of gloo still frees a tensor: pytorch/pytorch#190489.
    os._exit(0)
