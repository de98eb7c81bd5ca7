# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Draw committed results: bandwidth of each op, a Llama's step, rope over the number of tokens.

    python benchmarks/picture.py docs/images

Writes ops.svg (the README's table), model.svg (results/model-h200.md) and rope.svg
(results/rope-h200.md), which follow the reader's light or dark theme. Needs matplotlib.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
README = FOLDER.parent / "README.md"
RESULTS = FOLDER / "results"
# Every colour of a picture, and what it becomes in the dark.
PAPER, INK, OURS, OTHERS, ON_OURS = "#ffffff", "#1f2328", "#0969da", "#c8ced5", "#fefefe"
DARK = {PAPER: "#0d1117", INK: "#e6edf3", OURS: "#1f6feb", OTHERS: "#484f58"}


def ops(text: str) -> list[tuple[str, float, float, str]]:
    """Return label, our ratio to a copy, the peer's and the peer of each row of the README's table.

    Ratio = time of a copy of the same bytes / time of the op; the peer's is ours times our time
    over the peer's.
    """
    row = re.compile(
        r"^\| (?:`(\w+)`(?: †)?([^|]*))?\| ([^|]+) \| ([\d.]+) \(([\d.]+)\) \| ([\d.]+) (\w+) \|$",
        re.MULTILINE,
    )
    found, op = [], ""
    for name, more, shape, ours, ratio, peer, who in row.findall(text):
        op = name + more.rstrip().replace(", ", " of ", 1) if name else op
        found.append(
            (f"{op}\n{shape}", float(ratio), float(ratio) * float(ours) / float(peer), who)
        )
    return found


def cases(text: str) -> dict[str, tuple[float, float]]:
    """Return milliseconds and GiB of a training step of each case of the last run of all cases."""
    table = re.search(r"(?s)## Every case at one commit\n.*?\n\n(\|.*?)(\n\n|\Z)", text)[1]
    row = re.compile(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)
    found = {name: (float(step), float(peak)) for name, step, peak in row.findall(table)}
    return {name: found[name] for name in found if "each layer" not in name}


def rope(text: str) -> list[tuple[int, float, float]]:
    """Return tokens, our microseconds and a copy's, of the newest table's single sequences.

    The copy's time is ours times the ratio: where copies of large buffers are slow, the ratio is to
    the bandwidth that others have.
    """
    row = re.compile(
        r"^\| 1 x (\d+) x 32 \+ 8 x 128 \| bfloat16 \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|",
        re.MULTILINE,
    )
    newest = text[: text.index("\n## ")]
    found = {int(tokens): (float(us), float(ratio)) for tokens, us, ratio in row.findall(newest)}
    return [(tokens, us, us * ratio) for tokens, (us, ratio) in sorted(found.items())]


def draw_ops(axes: Any, table: list[tuple[str, float, float, str]]) -> None:
    at = range(len(table))
    axes.barh([i - 0.2 for i in at], [row[1] for row in table], 0.38, color=OURS, label="membound")
    axes.barh([i + 0.2 for i in at], [row[2] for row in table], 0.38, color=OTHERS, label="peer")
    for i, (_, ours, peer, who) in enumerate(table):
        axes.text(0.015, i - 0.2, f"{ours:.2f} membound", va="center", color=ON_OURS)
        axes.text(0.015, i + 0.2, f"{peer:.2f} {who}", va="center")
    axes.axvline(1.0, color=INK, linewidth=1, linestyle="--")
    axes.annotate("copy", (1.0, -0.6), (0, 4), textcoords="offset points", ha="center")
    axes.set_yticks(list(at), [row[0] for row in table])
    axes.set(xlim=(0, 1.25), ylim=(len(table) - 0.5, -0.6))
    axes.set_xlabel("bandwidth, relative to a copy of the same bytes; one H200, bfloat16")


def draw_cases(panels: Any, table: dict[str, tuple[float, float]]) -> None:
    names = [name.replace(": norm, rotary, gated MLP", "") for name in table]
    colours = [OURS if name.startswith("membound") else OTHERS for name in table]
    titles = ("training step, ms", "peak memory, GiB")
    for axes, title, figures in zip(panels, titles, zip(*table.values(), strict=True), strict=True):
        axes.barh(names, figures, 0.75, color=colours)
        for i, figure in enumerate(figures):
            colour = ON_OURS if colours[i] == OURS else INK
            axes.text(max(figures) * 0.02, i, f"{figure:.1f}", va="center", color=colour)
        axes.set(title=title, xticks=[], ylim=(len(table) - 0.5, -0.5))
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].figure.supxlabel(
        "a Llama of 1B parameters, 2 x 4096 tokens, one H200; shorter is better", fontsize=10
    )


def draw_rope(axes: Any, table: list[tuple[int, float, float]]) -> None:
    tokens, ours, copies = zip(*table, strict=True)
    axes.loglog(tokens, copies, "o--", color=INK, label="a copy of the same bytes")
    axes.loglog(tokens, ours, "o-", color=OURS, label="membound")
    for count, us, copy in table:
        axes.annotate(
            f"{copy / us:.2f}", (count, us), (0, 9), textcoords="offset points", ha="center"
        )
    labelled = [count for count in tokens if not 1024 < count < 4096]  # so that labels fit
    axes.set_xticks(labelled, [f"{count:,}" for count in labelled])
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.set(ylim=(1, 1000), xlabel="tokens of one sequence; numbers: bandwidth relative to a copy")
    axes.set_title(
        "rope, 32 + 8 heads of 128, bfloat16, one H200: microseconds a call", fontsize=10
    )
    axes.legend(loc="upper left", frameon=False)


def themed(svg: str) -> str:
    """Let every colour change with the reader's theme."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}: {dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return svg.replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)


def write(path: Path, figure: Any) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    lines = [line.rstrip() for line in themed(text.getvalue()).splitlines()]
    path.write_text("\n".join(lines) + "\n")


def main(folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {
        "svg.hashsalt": "membound",  # the same bytes on every run
        "svg.fonttype": "none",  # text that can be searched
        "font.size": 10,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
    }
    table = ops(README.read_text())
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(table) + 0.9), layout="constrained")
    draw_ops(axes, table)
    write(folder / "ops.svg", figure)
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=(8, 3.2), layout="constrained")
    draw_cases(panels, cases((RESULTS / "model-h200.md").read_text()))
    write(folder / "model.svg", figure)
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    draw_rope(axes, rope((RESULTS / "rope-h200.md").read_text()))
    write(folder / "rope.svg", figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
