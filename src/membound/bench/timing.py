# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The timing method behind every figure of this project, on a GPU and on a CPU."""

from __future__ import annotations

import collections
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[], Any]

REPLAYS = 9
# A graph of one call would show its launch; one tiny kernel in a long graph takes under 1 us.
FEWEST_CALLS = 10
# Below 16 KiB per call three times the cache would need more; 12,000 sets still exceed the cache.
MOST_SETS = 12_000


def buffer_sets(bytes_per_call: int, cache_bytes: int) -> int:
    """How many sets of buffers a measurement must rotate over so that every call runs cold."""
    return min(MOST_SETS, max(2, -(-3 * cache_bytes // max(1, bytes_per_call))))


def rotate(calls: Sequence[Call]) -> list[Call]:
    """One call per set of buffers, repeated until there are enough of them to time."""
    rounds = -(-FEWEST_CALLS // len(calls))
    return list(calls) * rounds


class TorchGraphs:
    """Times calls captured in one CUDA graph: the median of its replays, per call."""

    def __init__(self, device: str):
        import torch

        self.torch = torch
        self.device = torch.device(device)

    def rounds(self, calls: Sequence[Call], sets: int) -> list[float]:
        """Microseconds per call of each replay."""
        torch = self.torch
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for call in calls:  # run all once: first-call setup is not timed
                    call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Results that a peer allocates stay alive as long as ours do, or they would share one
            # buffer that never leaves the cache.
            kept: collections.deque = collections.deque(maxlen=sets)
            # Capture this thread only: other threads (JAX's) may call what a capture forbids.
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                for call in calls:
                    kept.append(call())
            times = [self._replay(graph) for _ in range(REPLAYS + 1)][1:]
        return [milliseconds * 1e3 / len(calls) for milliseconds in times]

    def microseconds(self, calls: Sequence[Call], sets: int) -> float:
        return statistics.median(self.rounds(calls, sets))

    def _replay(self, graph: Any) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


class CuPyGraphs:
    """The same with CuPy; its calls must not allocate, as its pool cannot grow during capture."""

    def __init__(self, device: str):
        import cupy

        self.cupy = cupy
        self.index = int(device.partition(":")[2] or 0)

    def rounds(self, calls: Sequence[Call], sets: int) -> list[float]:  # noqa: ARG002
        cupy = self.cupy
        with cupy.cuda.Device(self.index):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                for call in calls:
                    call()
                stream.synchronize()
                stream.begin_capture()
                for call in calls:
                    call()
                graph = stream.end_capture()
                times = [self._replay(graph, stream) for _ in range(REPLAYS + 1)][1:]
        return [milliseconds * 1e3 / len(calls) for milliseconds in times]

    def _replay(self, graph: Any, stream: Any) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, end)


def cpu_cache_bytes() -> int:
    """Size of the last-level cache from the C library; 32 MiB if unknown."""
    try:
        known = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        known = 0
    return known if known > 0 else 32 << 20


def cpu_rounds(
    contestants: dict[str, Sequence[Call]], seconds_per_round: float = 0.02
) -> dict[str, list[float]]:
    """Microseconds per call of each round; interleaved, they spread a machine's noise evenly."""
    repeats: dict[str, int] = {}
    for name, calls in contestants.items():
        spent = _loop(calls, 1)  # the first touches memory and starts threads
        spent = min(spent, _loop(calls, 1))
        repeats[name] = max(1, int(seconds_per_round / max(spent, 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(REPLAYS):
        for name, calls in contestants.items():
            spent = _loop(calls, repeats[name])
            times[name].append(spent * 1e6 / (repeats[name] * len(calls)))
    return times


def _loop(calls: Sequence[Call], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        for call in calls:
            call()
    return time.perf_counter() - start
