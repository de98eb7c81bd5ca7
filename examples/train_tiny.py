# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small transformer, or a classifier of digits, with membound.autograd and no framework.

    python examples/train_tiny.py                  # a transformer learns to reverse 8 digits
    python examples/train_tiny.py --task digits    # an MLP on the 1,797 scans of scikit-learn
    python examples/train_tiny.py --plot loss.png

Each stops when the mean loss of the last 20 steps is below 0.01: guessing has ln(10) = 2.3. That
takes less than a minute on one core. The task digits needs scikit-learn, --plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from progress import progress

import membound.autograd as ag
import membound.ndarray as nd

TARGET, AVERAGED = 0.01, 20
BATCH, LENGTH, SEPARATOR = 64, 8, 10  # ten digits, and what stands before the answer
WIDTH, HEADS, LAYERS = 64, 4, 2

# The loss of a new batch, and the share of new examples that are answered right.
Task = tuple[ag.Module, Callable[[], ag.Tensor], Callable[[], float]]


class Block(ag.Module):
    """Attention and a gated feed-forward, each of the norm of a stream that it adds to."""

    def __init__(self, generator: nd.Generator, device: str) -> None:
        def linear(inputs: int, outputs: int) -> ag.Linear:
            return ag.Linear(inputs, outputs, bias=False, generator=generator, device=device)

        self.norms = [ones(WIDTH, device) for _ in range(2)]
        self.qkv, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.gate_up, self.down = linear(WIDTH, 4 * WIDTH), linear(2 * WIDTH, WIDTH)
        size = WIDTH // HEADS
        self.freqs = nd.asarray([100 ** (-2 * at / size) for at in range(size // 2)], device=device)

    def __call__(self, x: ag.Tensor) -> ag.Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(ag.rms_norm(x, self.norms[0]))
        q, k, v = qkv.reshape((batch, tokens, 3, HEADS, -1)).permute_dims((2, 0, 3, 1, 4))
        q, k = ag.rope(q, k, freqs=self.freqs, layout="bhsd")
        weights = ag.softmax(q @ k.mT, scale=(WIDTH // HEADS) ** -0.5, causal_offset=0)
        mixed = (weights @ v).permute_dims((0, 2, 1, 3)).reshape((batch, tokens, WIDTH))
        x = x + self.out(mixed)
        return x + self.down(ag.silu_and_mul(self.gate_up(ag.rms_norm(x, self.norms[1]))))


class Transformer(ag.Module):
    """Logits (batch, tokens, 11) of what follows each of the tokens (batch, tokens)."""

    def __init__(self, generator: nd.Generator, device: str) -> None:
        kind = {"dtype": nd.float32, "device": device}
        self.table = ag.Tensor(generator.normal((11, WIDTH), **kind), requires_grad=True)
        self.blocks = [Block(generator, device) for _ in range(LAYERS)]
        self.norm = ones(WIDTH, device)
        self.head = ag.Linear(WIDTH, 11, bias=False, generator=generator, device=device)

    def __call__(self, tokens: nd.NDArray) -> ag.Tensor:
        x = ag.embedding(tokens, self.table)
        for block in self.blocks:
            x = block(x)
        return self.head(ag.rms_norm(x, self.norm))


def ones(size: int, device: str) -> ag.Tensor:
    return ag.Tensor(nd.ones(size, dtype=nd.float32, device=device), requires_grad=True)


def reversal(generator: nd.Generator, device: str) -> Task:
    """Sequences of digits, a separator, and the digits in reverse, which count for the loss."""
    model = Transformer(generator, device)

    def run() -> tuple[ag.Tensor, nd.NDArray]:
        digits = generator.integers(0, 10, (BATCH, LENGTH), device=device)
        separator = nd.full((BATCH, 1), SEPARATOR, device=device)
        tokens = nd.concat([digits, separator, nd.flip(digits, axis=1)], axis=1)
        return model(tokens[:, :-1])[:, LENGTH:], tokens[:, LENGTH + 1 :]

    def loss() -> ag.Tensor:
        logits, answers = run()
        return ag.cross_entropy(logits, answers, reduction="mean")

    def accuracy() -> float:
        logits, answers = run()
        return nd.mean(nd.astype(nd.argmax(logits.data, axis=-1) == answers, nd.float32)).item()

    return model, loss, accuracy


def scans(generator: nd.Generator, device: str) -> Task:
    """Scans of digits, 64 pixels each; the last fifth is not trained on."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the task digits needs scikit-learn, which has them: pip install scikit-learn")
    pixels, labels = load_digits(return_X_y=True)
    x = nd.asarray(pixels / 16, dtype=nd.float32, device=device)
    y = nd.asarray(labels, device=device)
    order = generator.permutation(x.shape[0], device=device)
    split = 4 * x.shape[0] // 5
    seen, unseen = order[:split], order[split:]
    kind = {"generator": generator, "device": device}
    model = ag.Sequential(ag.Linear(64, 128, **kind), ag.relu, ag.Linear(128, 10, **kind))

    def loss() -> ag.Tensor:
        rows = seen[generator.integers(0, split, (BATCH,), device=device)]
        return ag.cross_entropy(model(x[rows]), y[rows], reduction="mean")

    def accuracy() -> float:
        found = nd.argmax(model(x[unseen]).data, axis=-1)
        return nd.mean(nd.astype(found == y[unseen], nd.float32)).item()

    return model, loss, accuracy


def train(model: ag.Module, loss: Callable[[], ag.Tensor], steps: int, lr: float) -> list[float]:
    """Take steps until the loss is below the target; return the loss of each."""
    optimizer = ag.AdamW(model.parameters(), lr=lr)
    losses: list[float] = []
    bar = progress(range(steps), desc="steps", leave=False)
    for _ in bar:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
        bar.set_postfix_str(f"loss {mean_of_last(losses):.3f}")
        if len(losses) >= AVERAGED and mean_of_last(losses) < TARGET:
            break
    return losses


def mean_of_last(losses: list[float]) -> float:
    last = losses[-AVERAGED:]
    return sum(last) / len(last)


def plot(losses: list[float], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, linewidth=1)
    axes.axhline(TARGET, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["reverse", "digits"], default="reverse")
    parser.add_argument("--steps", type=int, default=3000, help="at most")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--plot", help="where to draw the loss: a path")
    options = parser.parse_args()

    make = reversal if options.task == "reverse" else scans
    model, loss, accuracy = make(nd.Generator(options.seed), options.device)
    count = sum(x.size for x in model.parameters())
    print(f"{options.task}: {count:,} parameters on {options.device}")
    start = time.perf_counter()
    losses = train(model, loss, options.steps, options.lr)
    seconds = time.perf_counter() - start
    with ag.no_grad():
        right = accuracy()
    last = mean_of_last(losses)
    print(f"loss {losses[0]:.2f} to {last:.3f} in {len(losses)} steps, {seconds:.0f} s")
    print(f"target of {TARGET} {'reached' if last < TARGET else 'not reached'}")
    print(f"right answers to new examples: {right:.1%}")
    if options.plot:
        plot(losses, options.plot)


if __name__ == "__main__":
    main()
