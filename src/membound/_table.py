# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Plain tables for a terminal, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first column to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    rule = tuple("-" * width for width in widths)

    def line(cells: Sequence[str], align: bool) -> str:
        padded = []
        for cell, width in zip(cells, widths, strict=True):
            number = align and cell[:1].isdigit() and " " not in cell
            padded.append(cell.rjust(width) if number else cell.ljust(width))
        return "  ".join(padded).rstrip()

    return "\n".join([line(header, False), line(rule, False), *(line(row, True) for row in rows)])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
