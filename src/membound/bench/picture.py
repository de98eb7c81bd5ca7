# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`membound bench --plot`: bars of the ratio to a copy, or curves of time and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from membound.bench.results import Result

COLUMNS = 4  # panels side by side, then the next row
NARROWEST = 6.4  # inches, which hold the title
LEGEND_ENTRY = 1.4
KINDS = ("ratio", "time")


def axis_of(sequences: bool, results: Sequence[Result]) -> tuple[str, list[tuple[float, Result]]]:
    """Return the x axis of curves and their results: bytes, or the length for ops on sequences.

    Curves over lengths keep the results of one width, the most frequent one.
    """
    if not sequences:
        points = [(one.bytes / 2**20, one) for one in results]
        label = "MiB read and written"
    else:
        widths = [one.cols for one in results]
        width = max(widths, key=widths.count)
        points = [(float(one.rows), one) for one in results if one.cols == width]
        label = f"sequence length, tokens of {width} elements"
    return label, sorted(points, key=lambda point: point[0])


def panels_of(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Return the results of each panel: an op in one dtype."""
    panels: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        panels.setdefault((one.op, one.dtype), []).append(one)
    return panels


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _colours(results: Sequence[Result]) -> dict[str, str]:
    names = dict.fromkeys(name for one in results for name in one.microseconds if name != "copy")
    return {name: f"C{at}" for at, name in enumerate(names)}


def draw_ratios(results: Sequence[Result], title: str) -> Any:
    """Draw a panel for each op and dtype, a bar for each size; the others are dots."""
    panels = panels_of(results)
    rows = -(-len(panels) // COLUMNS)
    most = max(len(of_one) for of_one in panels.values())
    width = max(NARROWEST, 3.4 * min(COLUMNS, len(panels)) + 0.6)
    size = (width, rows * (0.75 + 0.24 * most) + 0.9)
    figure, axes = _pyplot().subplots(
        rows, min(COLUMNS, len(panels)), figsize=size, squeeze=False, layout="constrained"
    )
    colours = _colours(results)
    handles: dict[str, Any] = {}
    for axis, ((op, dtype), of_one) in zip(axes.flat, panels.items(), strict=False):
        places = list(range(len(of_one)))
        ours = [one.ratio for one in of_one]
        errors = [one.ratio * one.noise / 2 for one in of_one]
        style = {"color": colours["membound"], "height": 0.7, "ecolor": "0.3", "capsize": 2}
        handles["membound"] = axis.barh(places, ours, xerr=errors, **style)
        largest = max(ours)
        for name in colours:
            timed = [at for at, one in enumerate(of_one) if name in one.microseconds]
            if name != "membound" and timed:
                ratios = [of_one[at].ratio_of(name) for at in timed]
                dots = {"s": 22, "zorder": 3, "color": colours[name], "edgecolors": "white"}
                handles[name] = axis.scatter(ratios, timed, linewidths=0.5, **dots)
                largest = max(largest, *ratios)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(places, [f"{one.rows} x {one.cols}" for one in of_one])
        axis.invert_yaxis()
        axis.set_xlim(0, max(1.25, 1.08 * largest))
        axis.set_title(f"{op} {dtype}", fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.suptitle(f"{title}\nspeed relative to a copy of the same bytes (line: as fast)")
    fitting = max(1, int(width / LEGEND_ENTRY))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=fitting)
    return figure


def draw_times(results: Sequence[Result], sequences: set[str], title: str) -> Any:
    """Draw two panels for each op and dtype: time, and bytes per second below."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panels = panels_of(results)
    rows, columns = -(-len(panels) // COLUMNS), min(COLUMNS, len(panels))
    size = (max(NARROWEST, 4.2 * columns), 5.4 * rows + 0.8)
    figure = _pyplot().figure(figsize=size, layout="constrained")
    axes = figure.subplots(2 * rows, columns, squeeze=False)
    colours = {**_colours(results), "copy": "0.4"}
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis in axes.flat:
        axis.set_axis_off()
    for at, ((op, dtype), of_one) in enumerate(panels.items()):
        upper, lower = (axes[at // COLUMNS * 2 + below, at % COLUMNS] for below in (0, 1))
        label, points = axis_of(op in sequences, of_one)
        for name in dict.fromkeys(name for _, one in points for name in one.microseconds):
            mine = [(x, one) for x, one in points if name in one.microseconds]
            x = [place for place, _ in mine]
            style = {"color": colours[name], "label": name, "markersize": 4}
            upper.plot(x, [one.microseconds[name] for _, one in mine], "o-", **style)
            lower.plot(x, [one.gigabytes_per_second(name) for _, one in mine], "o-", **style)
        upper.set(xscale="log", yscale="log", ylabel="microseconds")
        upper.set_title(f"{op} {dtype}", fontsize=10)
        lower.set(xscale="log", xlabel=label, ylabel="GB/s")
        lower.set_ylim(bottom=0)
        for axis in (upper.xaxis, upper.yaxis, lower.xaxis):
            axis.set_major_locator(LogLocator(numticks=6))
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(NullFormatter())
        for panel in (upper, lower):
            panel.set_axis_on()
            panel.tick_params(labelsize=8)
            panel.grid(alpha=0.3)
        upper.legend(fontsize=8)
    figure.suptitle(title)
    return figure


def write(path: str, kind: str, results: Sequence[Result], sequences: set[str], title: str) -> None:
    """Draw one of KINDS into a file; sequences: the ops that are drawn over their length."""
    if kind == "ratio":
        figure = draw_ratios(results, title)
    else:
        figure = draw_times(results, sequences, title)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
