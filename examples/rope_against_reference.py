# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding against the unfused formula: every element, forward and backward, and the time.

    python examples/rope_against_reference.py --plot rope.png

The formula is the one that Transformer Engine falls back to: t * cos + rotate_half(t) * sin, with
angles of shape (seq, 1, 1, rotary_dim) and cos and sin rounded to the dtype of t. membound.torch
takes the same arguments. Float32 results have the same bits; 16-bit ones differ, because membound
keeps cos, sin and products in float32, and the table says which of the two is nearer to float64.
Needs torch; matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
from interleaved import medians
from progress import progress

from membound.torch.transformer_engine import apply_rotary_pos_emb

Rotation = Callable[..., torch.Tensor]


def angles(seq: int, rotary_dim: int, interleaved: bool, device: str) -> torch.Tensor:
    """(seq, 1, 1, rotary_dim): each angle twice, half after half or adjacent."""
    inverse = 10000.0 ** -(torch.arange(0, rotary_dim, 2, device=device) / rotary_dim)
    turned = torch.arange(seq, device=device)[:, None] * inverse
    both = turned.repeat_interleave(2, -1) if interleaved else torch.cat((turned, turned), -1)
    return both[:, None, None, :]


def rotate_half(t: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack((-t[..., 1::2], t[..., ::2]), -1).flatten(-2)
    first, second = t.chunk(2, -1)
    return torch.cat((-second, first), -1)


def formula(t: torch.Tensor, freqs: torch.Tensor, layout: str, interleaved: bool) -> torch.Tensor:
    """The unfused form; what lies beyond rotary_dim passes through."""
    if layout == "bshd":
        freqs = freqs.transpose(0, 1)
    wide = freqs.double() if t.dtype == torch.float64 else freqs
    cos, sin = wide.cos().to(t.dtype), wide.sin().to(t.dtype)
    rotated, rest = t.split([freqs.shape[-1], t.shape[-1] - freqs.shape[-1]], -1)
    return torch.cat((rotated * cos + rotate_half(rotated, interleaved) * sin, rest), -1)


def both_ways(
    rotation: Rotation, t: torch.Tensor, dy: torch.Tensor, *arguments: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the gradient of t."""
    t = t.detach().requires_grad_()
    y = rotation(t, *arguments)
    return y.detach(), torch.autograd.grad(y, t, dy)[0]


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def compare(options: argparse.Namespace) -> int:
    """Print a line for each case; return how many of float32 differ."""
    seq, heads, dim = options.seq, options.heads, options.head_dim
    cases = list(itertools.product(
        (torch.float32, torch.bfloat16, torch.float16), ("sbhd", "bshd"), (dim, dim // 2),
        (False, True),
    ))  # fmt: skip
    head = ("dtype", "layout", "rotated", "pairs", "difference of y", "difference of dt")
    print(f"{'':73}error against float64")
    print("{:<9} {:<7} {:<8} {:<9} {:<17} {:<17} formula   membound".format(*head))
    different = 0
    lines = []
    for dtype, layout, rotary_dim, interleaved in progress(cases, desc="cases", leave=False):
        shape = (seq, 2, heads, dim) if layout == "sbhd" else (2, seq, heads, dim)
        t, dy = torch.randn(2, *shape, device=options.device).to(dtype)
        how = (angles(seq, rotary_dim, interleaved, options.device), layout)
        theirs = both_ways(formula, t, dy, *how, interleaved)
        ours = both_ways(apply_rotary_pos_emb, t, dy, *how, None, interleaved)
        exact = both_ways(formula, t.double(), dy.double(), *how, interleaved)
        apart = [
            "exactly the same" if torch.equal(a, b) else f"{largest(a, b):.3g}"
            for a, b in zip(ours, theirs, strict=True)
        ]
        if dtype == torch.float32:
            different += apart != ["exactly the same"] * 2
        errors = [max(map(largest, found, exact)) for found in (theirs, ours)]
        lines.append(
            f"{str(dtype)[6:]:<9} {layout:<7} {rotary_dim:>3}/{dim:<4} "
            f"{'adjacent' if interleaved else 'halves':<9} {apart[0]:<17} {apart[1]:<17} "
            f"{errors[0]:<9.2g} {errors[1]:.2g}"
        )
    print("\n".join(lines))
    return different


def times(options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Seconds of forward and backward together, by sequence length."""
    found, seq = {}, 64
    while seq <= options.longest:
        t, dy = torch.randn(2, 1, seq, options.heads, options.head_dim, device=options.device)
        how = (angles(seq, options.head_dim, False, options.device), "bshd")
        steps = {
            "unfused formula": lambda t=t, dy=dy, how=how: both_ways(formula, t, dy, *how, False),
            "membound": lambda t=t, dy=dy, how=how: both_ways(apply_rotary_pos_emb, t, dy, *how),
        }
        found[seq] = medians(steps, options.device, options.rounds, f"{seq} tokens")
        seq *= 2
    return found


def plot(path: str, found: dict[int, dict[str, float]], options: argparse.Namespace) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, style in (("unfused formula", "o--"), ("membound", "o-")):
        axes.loglog(list(found), [row[name] * 1e3 for row in found.values()], style, label=name)
    for seq, row in found.items():
        ratio = row["unfused formula"] / row["membound"]
        below = (seq, row["membound"] * 1e3)
        axes.annotate(f"{ratio:.1f} x", below, (0, -16), textcoords="offset points", ha="center")
    axes.set_xticks(list(found), [f"{seq:,}" for seq in found])
    axes.minorticks_off()
    axes.margins(y=0.15)
    heads = f"{options.heads} heads of {options.head_dim}, float32, {options.device}"
    axes.set(xlabel="tokens", ylabel="ms, forward and backward", title=f"Rotary embedding, {heads}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)
    print(f"wrote {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", type=int, default=256, help="tokens of the comparison")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--longest", type=int, default=8192, help="most tokens that are timed")
    parser.add_argument("--rounds", type=int, default=15, help="calls that a median is of")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plot", metavar="PATH", help="where to draw the time, as a PNG")
    options = parser.parse_args()
    torch.manual_seed(0)
    different = compare(options)
    print(f"float32 cases that differ: {different}\n")
    found = times(options)
    print(f"{'tokens':>7} {'formula, ms':>12} {'membound, ms':>13}")
    for seq, row in found.items():
        print(f"{seq:>7,} {row['unfused formula'] * 1e3:12.3f} {row['membound'] * 1e3:13.3f}")
    if options.plot:
        plot(options.plot, found, options)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
