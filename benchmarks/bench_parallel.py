# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A Llama trained on several GPUs: eager, patched by Liger-Kernel and by membound.

    torchrun --nproc-per-node 2 benchmarks/bench_parallel.py
    torchrun --nproc-per-node 4 benchmarks/bench_parallel.py --check
    torchrun --nproc-per-node 2 benchmarks/bench_parallel.py --tiny --device cpu --check

FSDP2 shards the parameters of each decoder layer, and each rank has sequences of its own. Tensor
parallel shards heads, MLPs and the vocabulary; norms and residual additions take a part of the
sequence on each rank. With four ranks or more both are together, two ranks for tensor parallel.
A step is forward, loss, backward and AdamW on 2 x 4,096 tokens, of each rank where it has sequences
of its own; figures are medians on the first rank. The collectives of one step are counted by
torch's profiler. --check compares loss and gradients of a small model in float32 with those of the
model on one device.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench_model import Bench, patch_with_liger, patch_with_membound, wanted
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import membound
import membound.torch as mt
from membound._table import markdown, render

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
HEADER = (
    "plan", "case", "tokens a second", "step, ms", "host, ms", "peak, GiB", "loss", "collectives",
)  # fmt: skip
PLANS = "FSDP2", "tensor parallel", "both"
IGNORED = -100


def loss_of_logits(model: Any, tokens: Any, labels: Any) -> Any:
    logits = model(input_ids=tokens).logits.flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)


def loss_by_cross_entropy(model: Any, tokens: Any, labels: Any) -> Any:
    logits = model(input_ids=tokens).logits.flatten(0, 1)
    return mt.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="mean")


def loss_without_logits(model: Any, tokens: Any, labels: Any) -> Any:
    hidden, weight = model.model(input_ids=tokens).last_hidden_state, model.lm_head.weight
    if isinstance(weight, DTensor):  # by vocabulary; the sequence was sharded
        hidden = DTensor.from_local(hidden, weight.device_mesh, [Shard(1)])
        hidden = hidden.redistribute(placements=[Replicate()])
    return mt.linear_cross_entropy(hidden, weight, labels, ignore_index=IGNORED)


@dataclass(frozen=True)
class Case:
    name: str
    patch: Callable[[Any], Any] = lambda _: None
    loss: Callable[[Any, Any, Any], Any] = loss_of_logits
    needs: str = "torch"


CASES = (
    Case("eager"),
    Case("membound", patch_with_membound, loss_by_cross_entropy),
    Case("membound, linear cross-entropy", patch_with_membound, loss_without_logits),
    Case("Liger-Kernel: norm, rotary, gated MLP", patch_with_liger, needs="liger_kernel"),
)


class WithLoss(torch.nn.Module):
    """The root of FSDP2: the last layer's weight is whole inside of its forward alone."""

    def __init__(self, model: Any, loss: Callable[[Any, Any, Any], Any]):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, tokens: Any, labels: Any) -> Any:
        return self.loss(self.model, tokens, labels)


def shard_parameters(root: WithLoss, mesh: Any) -> None:
    for layer in root.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(root, mesh=mesh)


def shard_tensors(root: WithLoss, mesh: Any) -> None:
    model = root.model
    whole, rows = Replicate(), Shard(1)
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "model.layers.0": PrepareModuleInput(
            input_layouts=whole, desired_input_layouts=rows, use_local_output=True
        ),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(
            input_layouts=rows, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    layer = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": rows},
            desired_input_kwarg_layouts={"hidden_states": whole},
            use_local_output=True,
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=rows),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(
            input_layouts=rows, desired_input_layouts=whole, use_local_output=True
        ),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=rows),
    }
    parallelize_module(model, mesh, plan)
    for each in model.model.layers:
        parallelize_module(each, mesh, layer)
    model.lm_head.weight = model.model.embed_tokens.weight  # tied, as before


class Parallel(Bench):
    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self.ranks = dist.get_world_size()
        if options.check:
            self.sizes, self.batch, self.seq = SMALL, 2, 64
            # Before any case: functions that Liger-Kernel patches stay patched, in every model.
            shapes = [self.shape(plan) for plan in PLANS]
            self.right = {batches: self.reference(batches) for batches, _ in shapes if batches}

    def tokens(self, batches: int) -> tuple[Any, Any]:
        """Those of all ranks."""
        generator = torch.Generator().manual_seed(1)
        shape = (batches * self.batch, self.seq)
        tokens = torch.randint(0, self.sizes["vocab_size"], shape, generator=generator)
        labels = tokens.roll(-1, 1)
        labels[:, -1] = IGNORED
        return tokens.to(self.device), labels.to(self.device)

    def root(self, case: Case, plan: str, model: Any) -> tuple[WithLoss, int, int]:
        """A sharded model, how many batches there are, and which one is this rank's."""
        case.patch(model)
        root = WithLoss(model, case.loss)
        shape = batches, parts = self.shape(plan)
        mesh = init_device_mesh(self.device, shape, mesh_dim_names=("data", "tensor"))
        if parts > 1:
            shard_tensors(root, mesh["tensor"])
        if batches > 1:
            shard_parameters(root, mesh["data"])
        return root, batches, mesh.get_local_rank("data")

    def shape(self, plan: str) -> tuple[int, int]:
        """How many batches there are, and how many ranks share each."""
        parts = {"FSDP2": 1, "tensor parallel": self.ranks}.get(plan, 2)
        return self.ranks // parts, parts

    def reference(self, batches: int) -> tuple[Any, dict[str, Any]]:
        """The loss and the gradients of the model on one device."""
        plain = self.model().float()
        loss = WithLoss(plain, loss_of_logits)(*self.tokens(batches))
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in plain.named_parameters()}

    def context(self, case: Case, plan: str) -> Any:
        """What F.cross_entropy needs for logits of a sharded vocabulary."""
        sharded = plan != "FSDP2" and case.loss is loss_of_logits
        return loss_parallel() if sharded else contextlib.nullcontext()

    def row(self, case: Case, plan: str) -> list[str]:
        root, batches, mine = self.root(case, plan, self.model())
        tokens, labels = (each.chunk(batches)[mine] for each in self.tokens(batches))
        optimizer = torch.optim.AdamW(root.parameters(), lr=1e-4, fused=self.device != "cpu")
        loss = torch.zeros(())

        def step() -> None:
            nonlocal loss
            with self.context(case, plan):
                loss = root(tokens, labels)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        taken, peak = self.time_and_peak(step)
        host = self.host_ms(step)
        a_second = batches * self.batch * self.seq / taken * 1e3
        figures = [f"{a_second:,.0f}", *(f"{number:.1f}" for number in (taken, host, peak))]
        return [plan, case.name, *figures, f"{whole(loss.detach()):.4f}", collectives(step)]

    def host_ms(self, step: Callable[[], None]) -> float:
        """How long the host takes to launch a step."""
        self.synchronize()
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3

    def check(self, case: Case, plan: str) -> list[str]:
        """The largest error of a gradient, as a part of its norm, and that of the loss."""
        root, batches, mine = self.root(case, plan, self.model().float())
        tokens, labels = self.tokens(batches)
        right, gradients = self.right[batches]
        with self.context(case, plan):
            loss = root(*(each.chunk(batches)[mine] for each in (tokens, labels)))
            loss.backward()
        mean = whole(loss.detach()).clone()
        dist.all_reduce(mean)
        errors = {"loss": (mean / self.ranks - right).abs() / right}
        slopes = dict(root.model.named_parameters())
        for name, gradient in gradients.items():
            slope = whole(slopes[name].grad)
            errors[name] = (slope - gradient).norm() / gradient.norm()
        worst = worst_of(errors)
        verdict = "right" if errors[worst] < 1e-4 else "WRONG"
        return [plan, case.name, f"{errors['loss']:.1e}", f"{errors[worst]:.1e}", worst, verdict]


def worst_of(errors: dict[str, Any]) -> str:
    """The name of the largest, or of one that is not a number, which no comparison finds."""
    return max(errors, key=lambda name: (bool(errors[name].isnan()), float(errors[name])))


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def collectives(step: Callable[[], None]) -> str:
    """How many of each the host started in one step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    names = (e.name.partition(":") for e in profile.events())
    found = collections.Counter(
        after.strip("_") for before, _, after in names if before in ("nccl", "gloo")
    )
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model")
    parser.add_argument("--check", action="store_true", help="compare with one device")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cases", default="", help="names between semicolons; all by default")
    parser.add_argument("--plans", default="", help="names between semicolons; all by default")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    options.model, options.layers = "Llama", None
    if options.device != "cpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    first = dist.get_rank() == 0
    with contextlib.nullcontext() if first else contextlib.redirect_stdout(None):
        bench, rows = Parallel(options), []
        header = ("plan", "case", "loss", "gradients", "worst", "") if options.check else HEADER
        plans = PLANS if bench.ranks >= 4 else PLANS[:2]
        plans = [plan for plan in plans if plan in (options.plans or plan).split(";")]
        cases = wanted(options.cases, CASES)
        for case, plan in itertools.product(cases, plans):  # what Liger patches stays patched
            rows.append((bench.check if options.check else bench.row)(case, plan))
            print(render(header, rows[-1:]), flush=True)
            gc.collect()
            if options.device != "cpu":
                torch.cuda.empty_cache()
        print(render(header, rows))
        if options.markdown and first:
            where = "the CPU" if options.device == "cpu" else torch.cuda.get_device_name()
            versions = f"membound {membound.__version__}, torch {torch.__version__}"
            text = f"# {bench.ranks} x {where}\n\n`{' '.join(sys.argv)}`, {versions}\n\n"
            options.markdown.write_text(text + markdown(header, rows) + "\n")
    dist.destroy_process_group()
    return int(any("WRONG" in row for row in rows))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Python's own end aborts when a thread of gloo still frees a tensor: pytorch/pytorch#190489.
    os._exit(status)
