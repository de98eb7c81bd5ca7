# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Plain tables for a terminal, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; columns of numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    padded = []
    for name, *cells in columns:
        width = max(map(len, (name, *cells)))
        numbers = all(cell == "-" or (cell[:1].isdigit() and " " not in cell) for cell in cells)
        align = str.rjust if numbers and cells else str.ljust
        padded.append([align(name, width), "-" * width, *(align(cell, width) for cell in cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
