# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of a last layer and the log-probabilities of its tokens: time, memory and errors.

    python benchmarks/bench_linear_cross_entropy.py            # three last layers, on a GPU
    python benchmarks/bench_linear_cross_entropy.py --quick    # fewer kinds of log-probabilities
    python benchmarks/bench_linear_cross_entropy.py --tiny     # a small one, on whatever is here

A step is forward and backward in bfloat16, with the gradients of the states and of the weight. Its
time is the median of wall times with a synchronisation at the end; its memory is the peak beyond
the inputs: gradients and what the loss takes for itself. Errors are relative, of the loss and of
the norms of gradients, against float64; ours stop the benchmark where they are large.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from bench_model import wanted
from torch.nn import functional

import membound
import membound.torch as mt
from membound._table import markdown, render

REFERENCE_LOGITS = 1 << 27  # of float64, at a time
LARGEST_ERROR = 2**-6  # of gradients of bfloat16
SEQUENCES = 4  # rows of Liger-Kernel's GRPO loss belong to as many


@dataclass(frozen=True)
class Layer:
    """The last layer of a model, and how many tokens it has."""

    model: str
    rows: int
    width: int
    vocab: int
    softcap: float | None = None

    @property
    def text(self) -> str:
        cap = "" if self.softcap is None else f", soft cap {self.softcap:g}"
        return f"{self.rows} x {self.width} -> {self.vocab}{cap} ({self.model})"


LAYERS = (
    Layer("Llama 1B", 8192, 2048, 128256),
    Layer("Llama 8B", 4096, 4096, 128256),
    Layer("Gemma 2 2B", 8192, 2304, 256000, 30.0),
)
TINY = (Layer("tiny", 24, 32, 200), Layer("tiny", 24, 32, 200, 4.0))


@dataclass(frozen=True)
class Work:
    """The mean cross entropy, or a weighted sum of log-probabilities and maybe of entropies."""

    layer: Layer
    kind: str  # "cross entropy" or "log-probabilities"
    temperature: float = 1.0
    entropy: bool = False

    @property
    def text(self) -> str:
        if self.kind == "cross entropy":
            return self.kind
        more = " and entropies" if self.entropy else ""
        return f"{self.kind}{more}, temperature {self.temperature:g}"


class Data:
    """Inputs of bfloat16, and the slopes of log-probabilities and entropies in a step's loss."""

    def __init__(self, work: Work, device: str):
        layer, generator = work.layer, torch.Generator(device).manual_seed(0)
        draw = functools.partial(torch.randn, device=device, generator=generator)
        self.x = draw(layer.rows, layer.width).bfloat16().requires_grad_()
        weight = draw(layer.vocab, layer.width).mul_(2 * layer.width**-0.5)
        self.weight = weight.bfloat16().requires_grad_()
        self.labels = torch.randint(layer.vocab, (layer.rows,), device=device, generator=generator)
        if work.kind == "cross entropy":
            self.slopes = torch.full((layer.rows,), -1.0 / layer.rows, device=device)
        else:  # one number for all tokens of a sequence, as GRPO's advantages are
            self.advantages = draw(SEQUENCES)
            self.slopes = self.advantages.repeat_interleave(layer.rows // SEQUENCES) / layer.rows
        self.entropy_slopes = draw(layer.rows) / layer.rows if work.entropy else None

    def leaves(self) -> tuple[Any, Any]:
        return self.x, self.weight

    def weighted(self, log_probs: Any, entropies: Any = None) -> Any:
        total = (self.slopes * log_probs).sum()
        return total if entropies is None else total + (self.entropy_slopes * entropies).sum()


Loss = Callable[[Data], Any]


# --- the contestants: (work) -> loss of the data, or None where they have no such function ---


def ours(work: Work, chunk_rows: int | None = None) -> Loss:
    options = {"softcap": work.layer.softcap}
    if chunk_rows is not None:
        options["chunk_rows"] = chunk_rows
    if work.kind == "cross entropy":
        return lambda d: mt.linear_cross_entropy(d.x, d.weight, d.labels, **options)
    options |= {"temperature": work.temperature, "entropy": work.entropy}

    def loss(d: Data) -> Any:
        found = mt.linear_log_probs(d.x, d.weight, d.labels, **options)
        return d.weighted(*found) if work.entropy else d.weighted(found)

    return loss


def ours_in_small_chunks(work: Work) -> Loss:
    """Chunks of as many rows as Liger-Kernel's: as many logits as x has numbers."""
    layer = work.layer
    most = max(1, layer.rows * layer.width // layer.vocab)
    return ours(work, min(layer.rows, 1 << (most - 1).bit_length()))


def plain(work: Work) -> Loss:
    cap = work.layer.softcap

    def logits(d: Data) -> Any:
        found = functional.linear(d.x, d.weight)
        return found if cap is None else cap * torch.tanh(found / cap)

    def log_probs(d: Data) -> Any:
        every = (logits(d).float() / work.temperature).log_softmax(-1)
        chosen = every.gather(-1, d.labels[:, None])[:, 0]
        return d.weighted(chosen, -(every.exp() * every).sum(-1) if work.entropy else None)

    if work.kind == "cross entropy":
        return lambda d: functional.cross_entropy(logits(d), d.labels)
    return log_probs


def torch_linear_cross_entropy(work: Work) -> Loss | None:
    function = getattr(functional, "linear_cross_entropy", None)
    if function is None or work.kind != "cross entropy" or work.layer.softcap is not None:
        return None
    options = torch.nn.LinearCrossEntropyOptions()
    return lambda d: function(d.x, d.weight, d.labels, options=options)


def liger(work: Work) -> Loss | None:
    if work.kind != "cross entropy":
        return None
    functions = importlib.import_module("liger_kernel.transformers.functional")
    function = functools.partial(
        functions.liger_fused_linear_cross_entropy, softcap=work.layer.softcap
    )
    return lambda d: function(d.x, d.weight, d.labels)


def liger_log_probs(work: Work) -> Loss | None:
    """Its chunks of torch ops: the kernels for these GPUs take CUTLASS's DSL, which is large."""
    if work.kind == "cross entropy" or work.layer.softcap is not None:
        return None
    module = importlib.import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    apply = module._FusedLinearPPOFallbackFunction.apply

    def loss(d: Data) -> Any:
        found = apply(d.x, d.weight, d.labels, work.temperature, -100, work.entropy)
        return d.weighted(-found[0], found[1]) if work.entropy else d.weighted(-found)

    return loss


def liger_grpo(work: Work) -> Loss | None:
    """On policy: its gradient is that of advantages times log-probabilities; its value is not."""
    if work.kind == "cross entropy" or work.layer.softcap is not None or work.entropy:
        return None
    module = importlib.import_module("liger_kernel.chunked_loss")
    loss = module.LigerFusedLinearGRPOLoss(
        beta=0.0, use_ref_model=False, loss_type="bnpo", temperature=work.temperature
    )

    def call(d: Data) -> Any:
        of_sequences = SEQUENCES, -1
        x, labels = d.x.view(*of_sequences, d.x.shape[-1]), d.labels.view(of_sequences)
        mask = torch.ones_like(labels)
        return -loss(x, d.weight, labels, mask, d.advantages)[0]

    return call


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Work], Loss | None]
    compiled: bool = False
    needs: str = "torch"
    tells_loss: bool = True


CASES = (
    Case("membound", ours),
    Case("membound, chunks as small as Liger-Kernel's", ours_in_small_chunks),
    Case("membound, torch.compile", ours, compiled=True),
    Case("Liger-Kernel", liger, needs="liger_kernel"),
    Case("Liger-Kernel, chunks of torch ops", liger_log_probs, needs="liger_kernel"),
    Case("Liger-Kernel, GRPO loss", liger_grpo, needs="liger_kernel", tells_loss=False),
    Case("torch's linear_cross_entropy", torch_linear_cross_entropy),
    Case("torch", plain),
    Case("torch.compile", plain, compiled=True),
)


# --- the reference ---


def reference(work: Work, data: Data) -> tuple[Any, Any, Any]:
    """The loss and the gradients of x and weight in float64, some rows at a time."""
    layer = work.layer
    weight = data.weight.detach().double().requires_grad_()
    total, dx, dweight = 0.0, [], torch.zeros_like(weight)
    for first in range(0, layer.rows, max(1, REFERENCE_LOGITS // layer.vocab)):
        rows = slice(first, first + max(1, REFERENCE_LOGITS // layer.vocab))
        x = data.x[rows].detach().double().requires_grad_()
        logits = x @ weight.T
        if layer.softcap is not None:
            logits = layer.softcap * torch.tanh(logits / layer.softcap)
        every = (logits / work.temperature).log_softmax(-1)
        loss = (data.slopes[rows].double() * every.gather(-1, data.labels[rows, None])[:, 0]).sum()
        if work.entropy:
            loss = loss - (data.entropy_slopes[rows].double() * (every.exp() * every).sum(-1)).sum()
        of_x, of_weight = torch.autograd.grad(loss, (x, weight))
        total, dweight = total + loss.item(), dweight.add_(of_weight)
        dx.append(of_x)
    return total, torch.cat(dx), dweight


def error(got: Any, right: Any) -> float:
    """Of all numbers: the norm of the difference over that of what is right."""
    return ((got - right).norm() / right.norm()).item()  # promoted to float64


# --- one contestant ---


@dataclass
class Figures:
    layer: str
    work: str
    case: str
    step_ms: float
    peak_mib: float
    loss_error: float | None
    dx_error: float
    dweight_error: float

    def cells(self) -> list[str]:
        loss = "-" if self.loss_error is None else f"{self.loss_error:.1e}"
        errors = (f"{one:.1e}" for one in (self.dx_error, self.dweight_error))
        return [self.case, f"{self.step_ms:.2f}", f"{self.peak_mib:.0f}", loss, *errors]


HEADER = ("case", "step, ms", "peak, MiB", "error of the loss", "of dx", "of dweight")


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.device, self.steps, self.seconds = options.device, options.steps, options.seconds
        self.on_gpu = options.device != "cpu"

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def measure(self, work: Work, case: Case, data: Data, right: Any) -> Figures | None:
        loss = case.make(work)
        if loss is None:
            return None
        torch.compiler.reset()
        if case.compiled:
            loss = torch.compile(loss, dynamic=False)

        def step() -> tuple[Any, Any, Any]:
            found = loss(data)
            return found.detach(), *torch.autograd.grad(found, data.leaves())

        for _ in range(2):  # compile
            found = step()
        wrong = [error(got, one) for got, one in zip(found[1:], right[1:], strict=True)]
        of_loss = abs(found[0].item() - right[0]) / abs(right[0]) if case.tells_loss else None
        if case.name.startswith("membound") and not max(wrong) < LARGEST_ERROR:
            raise SystemExit(f"WRONG: {case.name}, {work.text}: gradients are off by {max(wrong)}")
        del found
        peak = self.peak_mib(step)
        return Figures(
            work.layer.text, work.text, case.name, self.median_ms(step), peak, of_loss, *wrong
        )

    def peak_mib(self, step: Callable[[], Any]) -> float:
        if not self.on_gpu:
            return 0.0
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def median_ms(self, step: Callable[[], Any]) -> float:
        times: list[float] = []
        step()
        while len(times) < self.steps and (len(times) < 3 or sum(times) < 1e3 * self.seconds):
            self.synchronize()
            start = time.perf_counter()
            step()
            self.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)


def works(layers: tuple[Layer, ...], quick: bool) -> Iterator[Work]:
    for layer in layers:
        yield Work(layer, "cross entropy")
        for temperature in (1.0, 0.7):
            for entropy in (False, True):
                if not quick or (temperature != 1.0) == entropy:
                    yield Work(layer, "log-probabilities", temperature, entropy)


def tables(rows: list[Figures]) -> Iterator[str]:
    for layer in dict.fromkeys(row.layer for row in rows):
        yield f"## {layer}"
        for work in dict.fromkeys(row.work for row in rows if row.layer == layer):
            cells = [row.cells() for row in rows if (row.layer, row.work) == (layer, work)]
            yield f"{work[0].upper()}{work[1:]}:"
            yield markdown(HEADER, cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--tiny", action="store_true", help="a small layer")
    parser.add_argument("--quick", action="store_true", help="two kinds of log-probabilities")
    parser.add_argument("--layers", default="", help="models between semicolons; all by default")
    parser.add_argument("--cases", default="", help="names between semicolons; all by default")
    parser.add_argument("--steps", type=int, default=15, help="at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a case, about")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    layers = TINY if options.tiny else LAYERS
    if options.layers:
        layers = tuple(one for one in layers if one.model in options.layers.split(";"))
    bench, rows, cases = Bench(options), [], list(wanted(options.cases, CASES))
    for work in works(layers, options.quick):
        data = Data(work, options.device)
        right = reference(work, data)
        print(f"\n{work.layer.text}: {work.text}", flush=True)
        for case in cases:
            try:
                found = bench.measure(work, case, data, right)
            except Exception as problem:
                if case.needs == "torch":
                    raise
                print(f"{case.name}: {type(problem).__name__}: {problem}", flush=True)
                continue
            if found is not None:
                rows.append(found)
                print(render(HEADER, [found.cells()]), flush=True)
        del data, right
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.markdown:
        where = torch.cuda.get_device_name() if bench.on_gpu else "the CPU"
        versions = f"membound {membound.__version__}, torch {torch.__version__}"
        head = f"# Losses of a last layer on {where}\n\n`{' '.join(sys.argv)}`, {versions}"
        options.markdown.write_text("\n\n".join([head, *tables(rows)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
