# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A language model of proteins from nothing: tokenizer, training, loss on other proteins, samples.

    python examples/protein_lm/train.py --folder protein_run --plot loss.png
    python examples/protein_lm/train.py --folder mine --fasta proteins.fasta
    python examples/protein_lm/sample.py --folder protein_run --start MKV

Needs torch, tokenizers and tqdm (which comes with it); matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
from model import Config, ProteinModel
from sample import grow
from sequences import entropy, read_fasta, synthetic
from tokens import encode, train_tokenizer
from tqdm import tqdm


@torch.no_grad()
def bits_per_residue(model: ProteinModel, tokens: torch.Tensor, length: int, each: float) -> float:
    """The loss over all tokens, in bits, shared among the residues; each: tokens per residue."""
    rows = tokens[: len(tokens) // length * length].view(-1, length)
    nats = [model.loss(part) * part[:, 1:].numel() for part in rows.split(32)]
    return float(sum(nats)) / rows[:, 1:].numel() / math.log(2) * each


def train(
    model: ProteinModel, tokens: torch.Tensor, options: argparse.Namespace
) -> tuple[list[float], float]:
    """Return the losses of all steps, and the tokens per second."""
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, options.steps)
    losses = []
    start = time.perf_counter()
    bar = tqdm(range(options.steps), desc="steps")
    for _ in bar:
        places = torch.randint(len(tokens) - options.length, (options.batch,), generator=generator)
        loss = model.loss(torch.stack([tokens[at : at + options.length] for at in places]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
    spent = time.perf_counter() - start
    return losses, options.steps * options.batch * options.length / spent


def plot(path: str, bits: list[float], before: float, after: float) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(bits, linewidth=1, label="training batches")
    axes.plot([0, len(bits) - 1], [before, after], "o", label="other proteins, before and after")
    axes.axhline(entropy(), color="black", linestyle="--", linewidth=1)
    axes.text(len(bits), entropy(), "residue frequencies alone", ha="right", va="bottom")
    axes.set(xlabel="step", ylabel="bits per residue", title="A protein language model", ylim=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("protein_run"), help="what it writes")
    parser.add_argument("--fasta", metavar="PATH", help="proteins of your own, at least 20")
    parser.add_argument("--proteins", type=int, default=2000, help="how many synthetic ones")
    parser.add_argument("--vocab", type=int, default=256, help="pieces of the tokenizer, at most")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--rate", type=float, default=4e-3, help="the largest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="PATH", help="where to draw the loss")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)

    proteins = read_fasta(options.fasta) if options.fasta else synthetic(options.proteins)
    random.Random(options.seed).shuffle(proteins)
    held_out, others = proteins[: len(proteins) // 10], proteins[len(proteins) // 10 :]
    tokenizer = train_tokenizer(others, options.vocab, options.folder / "tokenizer.json")
    tokens, other = encode(tokenizer, others), encode(tokenizer, held_out)
    for name, row in (("training", tokens), ("other", other)):
        if len(row) <= options.length:
            raise SystemExit(f"the {name} proteins have {len(row)} tokens, need {options.length}")
    each = len(other) / sum(map(len, held_out))
    print(
        f"{len(proteins):,} proteins, {sum(map(len, proteins)):,} residues; "
        f"{tokenizer.get_vocab_size()} pieces, {1 / each:.2f} residues in one"
    )
    if tokenizer.decode(tokenizer.encode(others[0]).ids) != others[0]:
        raise SystemExit("the tokenizer does not return what it was given")

    model = ProteinModel(Config(vocab=tokenizer.get_vocab_size()))
    before = bits_per_residue(model, other, options.length, each)
    losses, speed = train(model, tokens, options)
    after = bits_per_residue(model, other, options.length, each)
    model.save(options.folder / "model.pt")
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {speed:,.0f} tokens/s")
    print(
        f"bits per residue of other proteins: {before:.2f} before, {after:.2f} after; "
        f"the residue frequencies alone give {entropy():.2f}"
    )
    if options.plot:
        bits = [loss / math.log(2) * each for loss in losses]
        plot(options.plot, bits, before, after)
    for protein in grow(options.folder, start="M", count=2, seed=options.seed):
        print(f"> sampled, {len(protein)} residues\n{protein}")


if __name__ == "__main__":
    main()
