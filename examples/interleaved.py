# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Times of several calls, measured in turn: what else the machine does falls on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from progress import progress


def seconds(step: Callable[[], object], device: str) -> float:
    """How long one call takes, the device being done at both ends."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def medians(
    steps: dict[str, Callable[[], object]], device: str, rounds: int = 15, desc: str = ""
) -> dict[str, float]:
    """Return the median seconds of each step; every round runs all of them, in changing order."""
    for step in steps.values():
        step()  # warms up
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for at in progress(range(rounds), desc=desc, leave=False):
        names = list(steps) if at % 2 else list(reversed(steps))
        for name in names:
            taken[name].append(seconds(steps[name], device))
    return {name: statistics.median(times) for name, times in taken.items()}
