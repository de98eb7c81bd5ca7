# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A compiled model with and without membound.torch.patch: decoding, prefill and training.

    python benchmarks/bench_compiled_model.py                      # all of it, on a GPU
    python benchmarks/bench_compiled_model.py --tiny --steps 2     # a small one, anywhere
    python benchmarks/bench_compiled_model.py --trace --work decode:1 --modes reduce-overhead

The models are those of bench_model.py. Both live in one process and take turns, a series of steps
each; figures are the least of the series' medians of a step's wall time, with a synchronisation at
its end. Decoding is one token of each sequence after 1,024 cached ones, prefill fills a static
cache with one prompt, training is forward, loss, backward and AdamW on 2 x 4,096 tokens.
--trace prints the kernels of one step of each model: how many, and their microseconds.
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from bench_model import MODELS, Bench, patch_with_membound

import membound
from membound._table import markdown, render

WORK = "decode:1,decode:8,decode:64,prefill:2048,training:2x4096"
MODES = "default,reduce-overhead"
SERIES = 5
ROOM = 64  # tokens that fit into a cache after a prompt
HEADER = ("work", "mode", "not patched, ms", "patched, ms", "ratio", "compiling, s")
REGIONS = ("## ", "Torch-Compiled Region", "ProfilerStep")  # spans of others' events
Step = Callable[[], Any]


@dataclass
class Figures:
    work: str
    mode: str
    plain_ms: float
    patched_ms: float
    compiling_s: float

    def cells(self) -> list[str]:
        times = (f"{ms:.3f}" for ms in (self.plain_ms, self.patched_ms))
        ratio = f"{self.patched_ms / self.plain_ms:.3f}"
        return [self.work, self.mode, *times, ratio, f"{self.compiling_s:.0f}"]


class Compiled(Bench):
    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self.models = {"not patched": self.model(), "patched": self.model()}
        patch_with_membound(self.models["patched"])

    def step(self, model: Any, work: str, mode: str) -> Step:
        kind, _, size = work.partition(":")
        run = torch.compile(model, mode=None if mode == "default" else mode, dynamic=False)
        if kind == "training":
            batch, seq = map(int, size.split("x"))
            return self.training_step(model.train(), run, batch, seq)
        make = self.decoding_step if kind == "decode" else self.prefill_step
        inference = torch.no_grad()(make(model.eval(), run, int(size)))

        def step() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            inference()

        return step

    def decoding_step(self, model: Any, run: Any, batch: int) -> Step:
        past = self.tokens(batch, self.cached)
        cache, rewind = self.cache(model, past)
        position = torch.tensor([[self.cached]], device=self.device)
        count = itertools.count()

        def step() -> None:
            if next(count) % ROOM == 0:
                rewind(self.cached)
            count_as(cache, self.cached)
            run(input_ids=past[:, :1], position_ids=position, past_key_values=cache, use_cache=True)

        return step

    def prefill_step(self, model: Any, run: Any, length: int) -> Step:
        prompt = self.tokens(1, length)
        cache, rewind = self.cache(model, prompt)
        position = torch.arange(length, device=self.device)[None]

        def step() -> None:
            rewind(0)
            run(
                input_ids=prompt, position_ids=position, past_key_values=cache, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip

        return step

    def training_step(self, model: Any, run: Any, batch: int, seq: int) -> Step:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.device != "cpu")
        tokens = self.tokens(batch, seq)

        def step() -> None:
            run(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    @torch.no_grad()
    def cache(self, model: Any, tokens: Any) -> tuple[Any, Callable[[int], None]]:
        """A static cache of these tokens, and a function that sets how many of them it holds."""
        from transformers import StaticCache

        cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1] + ROOM)
        model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        lengths = [layer.cumulative_length for layer in cache.layers]

        def rewind(length: int) -> None:
            torch._foreach_zero_(lengths)
            torch._foreach_add_(lengths, length)
            count_as(cache, length)

        return cache, rewind

    def tokens(self, batch: int, seq: int) -> Any:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, self.sizes["vocab_size"], (batch, seq), generator=generator)
        return tokens.to(self.device)

    def measure(self, work: str, mode: str, trace: bool) -> Figures:
        torch.compiler.reset()
        start = time.perf_counter()
        steps = {name: self.step(model, work, mode) for name, model in self.models.items()}
        for step in steps.values():
            for _ in range(4):  # compile, record CUDA graphs
                step()
        self.synchronize()
        compiling = time.perf_counter() - start
        times = collections.defaultdict(list)
        for _ in range(SERIES):
            for name, step in steps.items():
                times[name].append(self.median_ms(step, warm=1))
        if trace:
            for name, step in steps.items():
                print(f"\n{work}, {mode}, {name}\n{kernels(step, self.device)}", flush=True)
        least = [min(times[name]) for name in steps]
        steps.clear()
        gc.collect()
        return Figures(work, mode, *least, compiling)


def count_as(cache: Any, length: int) -> None:
    """Sliding layers count in an int as well, and a graph is compiled for each of its values."""
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length_int"):
            layer.cumulative_length_int = length


def kernels(step: Step, device: str) -> str:
    """A table of the kernels of one step, by name."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    on_gpu = device != "cpu"
    if on_gpu:
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    found: dict[str, list[float]] = collections.defaultdict(list)
    spans = []
    for event in profile.events():
        if event.name.startswith(REGIONS):
            continue
        if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name].append(event.time_range.elapsed_us())
            spans.append((event.time_range.start, event.time_range.end))
    rows = sorted(found.items(), key=lambda item: -sum(item[1]))
    cells = [(name[:100], str(len(us)), f"{sum(us):.1f}", f"{min(us):.2f}") for name, us in rows]
    count, total = sum(map(len, found.values())), sum(map(sum, found.values()))
    span = max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0
    cells.append((f"all; from first to last {span:.1f} us", str(count), f"{total:.1f}", ""))
    return render(("kernel", "count", "us", "least us"), cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--model", choices=MODELS, default="Llama")
    parser.add_argument("--tiny", action="store_true", help="a small model")
    parser.add_argument("--layers", type=int, help="of the model's; compiling takes less")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--work", default=WORK, help="decode:batch, prefill:length, training:BxS")
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--trace", action="store_true", help="print the kernels of a step")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    bench, rows = Compiled(options), []
    for work in options.work.split(","):
        for mode in options.modes.split(","):
            rows.append(bench.measure(work, mode, options.trace))
            print(render(HEADER, [rows[-1].cells()]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    table = [row.cells() for row in rows]
    if options.markdown:
        where = torch.cuda.get_device_name() if options.device != "cpu" else "the CPU"
        versions = f"membound {membound.__version__}, torch {torch.__version__}"
        text = f"# A compiled {options.model} on {where}\n\n`{' '.join(sys.argv)}`, {versions}\n\n"
        options.markdown.write_text(text + markdown(HEADER, table) + "\n")
    print(render(HEADER, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
