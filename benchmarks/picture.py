# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Draw the README's table: bandwidth of membound and of the best peer, relative to a copy.

    python benchmarks/picture.py docs/images/ops.svg

Needs matplotlib. Ratio = time of a copy of the same bytes / time of the op; the peer's ratio is
ours times our time over the peer's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
ROW = re.compile(
    r"^\| (?:`(\w+)`(?: †)?([^|]*))?\| ([^|]+) \| ([\d.]+) \(([\d.]+)\) \| ([\d.]+) (\w+) \|$",
    re.MULTILINE,
)


def rows(text: str) -> list[tuple[str, float, float, str]]:
    """Return label, our ratio, the peer's ratio and the peer of each row."""
    found, op = [], ""
    for name, more, shape, ours, ratio, peer, who in ROW.findall(text):
        op = name + more.rstrip().replace(", ", " of ", 1) if name else op
        found.append(
            (f"{op}\n{shape}", float(ratio), float(ratio) * float(ours) / float(peer), who)
        )
    return found


def draw(table: list[tuple[str, float, float, str]], to: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "membound"  # the same bytes on every run
    plt.rcParams["svg.fonttype"] = "none"  # text that can be searched
    figure, axes = plt.subplots(figsize=(8, 0.46 * len(table) + 1.2), layout="constrained")
    at = range(len(table))
    axes.barh([i - 0.2 for i in at], [row[1] for row in table], 0.38, color="#1f77b4")
    axes.barh([i + 0.2 for i in at], [row[2] for row in table], 0.38, color="#c7c7c7")
    for i, (_, ours, peer, who) in enumerate(table):
        axes.text(0.02, i - 0.2, f"{ours:.2f} membound", va="center", fontsize=8, color="white")
        axes.text(0.02, i + 0.2, f"{peer:.2f} {who}", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_yticks(list(at), [row[0] for row in table], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3)
    axes.set_xlabel("bandwidth relative to a copy of the same bytes (dashed), one H200, bfloat16")
    axes.legend(["copy", "membound", "best peer"], loc="lower right", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, metadata={"Date": None})


if __name__ == "__main__":
    draw(rows(README.read_text()), sys.argv[1])
