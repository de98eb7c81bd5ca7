# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small Llama twice, as it is and patched, and lay the two loss curves over each other.

    python examples/finetune_llama.py --plot loss.png

The model comes from a configuration, with random weights; the text is synthetic: sentences of a
small grammar, one token for each character. Needs torch, transformers and tqdm; matplotlib for the
plot.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

import membound.torch as mt

SUBJECTS, VERBS, OBJECTS = ("a cat", "the dog", "one bird"), ("sees", "hears"), ("rain", "wind")


class Run(NamedTuple):
    losses: list[float]
    tokens_per_second: float
    peak_mib: float


def sentences(count: int, seed: int) -> torch.Tensor:
    """One long row of characters, as numbers below 128."""
    rng = random.Random(seed)
    parts = (" ".join(map(rng.choice, (SUBJECTS, VERBS, OBJECTS))) for _ in range(count))
    return torch.tensor([ord(c) for c in ". ".join(parts)])


def build(options: argparse.Namespace) -> Any:
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
    return LlamaForCausalLM(config).to(options.device)


def train(options: argparse.Namespace, *, patched: bool) -> Run:
    model = build(options)
    if patched:
        print(mt.patch(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = sentences(2000, seed=1)
    generator = torch.Generator().manual_seed(2)
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, start = [], 0.0
    name = "patched" if patched else "as it is"
    for step in tqdm(range(options.steps), desc=name):
        if step == 1:  # the first one warms up
            start = time.perf_counter()
        places = torch.randint(len(text) - options.length, (options.batch,), generator=generator)
        ids = torch.stack([text[at : at + options.length] for at in places]).to(options.device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    taken = time.perf_counter() - start
    tokens = (options.steps - 1) * options.batch * options.length
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0.0
    return Run(losses, tokens / taken, peak)


def plot(path: str, runs: dict[str, Run]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        axes.plot(run.losses, style, label=f"{name}, {run.tokens_per_second:,.0f} tokens/s")
    axes.set(xlabel="step", ylabel="loss", title="A small Llama, the same seed")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--plot", metavar="PATH")
    options = parser.parse_args()
    runs = {
        "as it is": train(options, patched=False),
        "patched": train(options, patched=True),
    }
    for name, run in runs.items():
        print(
            f"{name:<9} loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}, "
            f"{run.tokens_per_second:,.0f} tokens/s, peak {run.peak_mib:.0f} MiB on the GPU"
        )
    pairs = zip(*(run.losses for run in runs.values()), strict=True)
    print(f"the curves are at most {max(abs(a - b) for a, b in pairs):.3g} apart")
    if options.plot:
        plot(options.plot, runs)


if __name__ == "__main__":
    main()
