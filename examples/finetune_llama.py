# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small Llama twice, as it is and patched, and lay the two loss curves over each other.

    python examples/finetune_llama.py --plot loss.png

The model comes from a configuration, with random weights; the text is synthetic: sentences of a
small grammar, one token for each character. Both models take each step in turn, so that what else
the machine does slows both. Needs torch and transformers; matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
from interleaved import seconds
from progress import progress
from transformers import LlamaConfig, LlamaForCausalLM

import membound.torch as mt

SUBJECTS, VERBS, OBJECTS = ("a cat", "the dog", "one bird"), ("sees", "hears"), ("rain", "wind")
WARM_UP = 2  # steps that are not timed


@dataclass
class Run:
    """One of the two models, and what its steps took."""

    model: Any
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    mib: float = 0.0  # that a step needs on the GPU beyond what lies there between steps

    def step(self, ids: torch.Tensor) -> None:
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())


def sentences(count: int, seed: int) -> torch.Tensor:
    """One long row of characters, as numbers below 128."""
    rng = random.Random(seed)
    parts = (" ".join(map(rng.choice, (SUBJECTS, VERBS, OBJECTS))) for _ in range(count))
    return torch.tensor([ord(c) for c in ". ".join(parts)])


def build(options: argparse.Namespace) -> Run:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=128,
        max_position_embeddings=options.length,
    )
    model = LlamaForCausalLM(config).to(options.device)
    return Run(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def train(options: argparse.Namespace, runs: list[Run]) -> None:
    """Give both models the same batches, in turn, and keep what each step took."""
    text = sentences(2000, seed=1)
    generator = torch.Generator().manual_seed(2)
    on_gpu = options.device == "cuda"
    for at in progress(range(options.steps), desc="steps of both"):
        places = torch.randint(len(text) - options.length, (options.batch,), generator=generator)
        ids = torch.stack([text[at : at + options.length] for at in places]).to(options.device)
        for run in runs if at % 2 else reversed(runs):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            taken = seconds(lambda run=run, ids=ids: run.step(ids), options.device)
            if at < WARM_UP:
                continue
            run.seconds.append(taken)
            if on_gpu:
                run.mib = max(run.mib, (torch.cuda.max_memory_allocated() - before) / 2**20)


def plot(path: str, runs: dict[str, Run], speeds: dict[str, float]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    bars = {"tokens/s": speeds}
    if any(run.mib for run in runs.values()):
        bars["MiB a step"] = {name: run.mib for name, run in runs.items()}
    figure, (curves, *others) = pyplot.subplots(
        1, 1 + len(bars), figsize=(8, 3.6), layout="constrained", width_ratios=[3] + [1] * len(bars)
    )
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        curves.plot(run.losses, style, label=name)
    curves.set(xlabel="step", ylabel="loss", title="A small Llama, the same seed and batches")
    curves.legend(frameon=False)
    for axes, (title, figures) in zip(others, bars.items(), strict=True):
        drawn = axes.bar(list(figures), list(figures.values()), color=["C0", "C1"])
        axes.bar_label(drawn, fmt="{:,.0f}")
        axes.set(title=title, yticks=[])
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--plot", metavar="PATH")
    options = parser.parse_args()
    runs = {"as it is": build(options), "patched": build(options)}
    print(mt.patch(runs["patched"].model))
    train(options, list(runs.values()))
    tokens = options.batch * options.length
    speeds = {name: tokens / statistics.median(run.seconds) for name, run in runs.items()}
    for name, run in runs.items():
        memory = f", {run.mib:.0f} MiB a step on the GPU" if run.mib else ""
        print(
            f"{name:<9} loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}, "
            f"{speeds[name]:,.0f} tokens/s in the median step{memory}"
        )
    print(f"a patched step takes {speeds['as it is'] / speeds['patched']:.2f} of the time")
    pairs = zip(*(run.losses for run in runs.values()), strict=True)
    print(f"the curves are at most {max(abs(a - b) for a, b in pairs):.3g} apart")
    if options.plot:
        plot(options.plot, runs, speeds)


if __name__ == "__main__":
    main()
