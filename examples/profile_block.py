# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a feed-forward block goes: a table of operators and a trace to look at.

    python examples/profile_block.py --trace trace.json   # open it in chrome://tracing or Perfetto

On a GPU calls return before their work is done. The last lines show what that does to a stopwatch:
without a synchronisation it measures how fast Python can ask, not how fast the GPU can do. Needs
torch.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import membound.torch as mt


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = mt.RMSNorm(width)
        self.up = torch.nn.Linear(width, 8 * width, bias=False)
        self.act = mt.GatedActivation("silu")
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        with record_function("norm"):
            y = self.norm(x)
        with record_function("gated activation"):
            y = self.act(self.up(y))
        return x + self.down(y)


def stopwatch(step, device: str) -> None:
    """The time of the same calls, with the end awaited and without."""
    for awaited in (False, True):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            step()
        if awaited and device == "cuda":
            torch.cuda.synchronize()
        taken = (time.perf_counter() - start) / 10
        what = "with the work awaited" if awaited else "until the calls returned"
        print(f"{what:<26} {taken * 1e3:8.3f} ms a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--trace", metavar="PATH")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    options = parser.parse_args()
    model = Block(options.width).to(options.device)
    x = torch.randn(options.rows, options.width, device=options.device)

    def step() -> None:
        model(x).square().mean().backward()

    step()
    activities = [ProfilerActivity.CPU]
    if options.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(5):
            step()
    order = "self_cuda_time_total" if options.device == "cuda" else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=12, max_name_column_width=40))
    if options.trace:
        profiler.export_chrome_trace(options.trace)
        print(f"wrote {options.trace}")
    stopwatch(step, options.device)


if __name__ == "__main__":
    main()
