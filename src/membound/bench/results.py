# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured: the table, the JSON file, and the comparison with an earlier one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from membound import _info
from membound._table import render

# A row whose rounds differ by more than this part of their median is marked as noise.
NOISE = 0.1
# A change of less is the same, however quiet the machine; what a file without spreads may hide.
SMALLEST_CHANGE, UNKNOWN_SPREAD = 0.02, 0.05


def spread_of(rounds: Sequence[float]) -> float:
    """Return the distance of the quartiles as a part of the median."""
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return (high - low) / middle


@dataclass
class Result:
    """One op at one size: microseconds per call of each contestant, and its rounds' spread."""

    op: str
    rows: int
    cols: int
    dtype: str
    bytes: int
    microseconds: dict[str, float]
    spread: dict[str, float]

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.op, self.rows, self.cols, self.dtype

    @property
    def ratio(self) -> float:
        """Speed relative to a copy of the same bytes: 1 means equally fast."""
        return self.ratio_of("membound")

    def ratio_of(self, contestant: str) -> float:
        return self.microseconds["copy"] / self.microseconds[contestant]

    @property
    def noise(self) -> float:
        """The larger spread of the two times that make the ratio."""
        return max(self.spread.get(name, UNKNOWN_SPREAD) for name in ("membound", "copy"))

    def gigabytes_per_second(self, contestant: str) -> float:
        return self.bytes / self.microseconds[contestant] / 1e3


def result_of(
    op: str, rows: int, cols: int, dtype: str, moved: int, rounds: dict[str, list[float]]
) -> Result:
    """Make a result of the rounds of each contestant."""
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    spreads = {name: spread_of(times) for name, times in rounds.items()}
    return Result(op, rows, cols, dtype, moved, medians, spreads)


def table(results: Sequence[Result]) -> str:
    peers = dict.fromkeys(name for result in results for name in result.microseconds)
    header = ["op", "rows x cols", "dtype", *(f"{name} us" for name in peers)]
    rows = []
    for one in results:
        times = [f"{one.microseconds[p]:.3f}" if p in one.microseconds else "-" for p in peers]
        speed = f"{one.gigabytes_per_second('membound'):.1f}"
        mark = "~" if one.noise > NOISE else ""
        measured = [speed, f"{one.ratio:.3f}", f"{100 * one.noise:.1f}{mark}"]
        rows.append([one.op, f"{one.rows} x {one.cols}", one.dtype, *times, *measured])
    return render([*header, "GB/s", "of copy", "spread %"], rows)


def marked_as_noise(results: Sequence[Result]) -> str:
    """Say what the mark means, if there is one."""
    count = sum(one.noise > NOISE for one in results)
    if not count:
        return ""
    return (
        f"~ {count} of {len(results)} rows are noise: half of the rounds of membound or of the copy"
        f" lie further apart than {100 * NOISE:.0f} % of their median"
    )


def write_json(path: str, device: str, warm: bool, complete: bool, results: list[Result]) -> None:
    document = {
        "device": device,
        "cache": "warm" if warm else "cold",
        "complete": complete,
        "info": _info.collect(),
        "results": [{**asdict(one), "ratio_to_copy": one.ratio} for one in results],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)


@dataclass
class Earlier:
    """The results of a JSON file."""

    device: str
    cache: str
    results: dict[tuple[str, int, int, str], Result]


def read_json(path: str) -> Earlier:
    """Read what write_json wrote; a ValueError says what is wrong with the file."""
    names = Result.__dataclass_fields__
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        every = [
            Result(**{"spread": {}, **{name: one[name] for name in names if name in one}})
            for one in document["results"]
        ]
        return Earlier(document["device"], document["cache"], {one.key: one for one in every})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no results of `membound bench --json`") from error


def verdict(old: Result, new: Result) -> str:
    """Compare two times of an op: faster or slower is more than the rounds of both may hide."""
    change = new.microseconds["membound"] / old.microseconds["membound"] - 1
    of_copy = new.microseconds["copy"] / old.microseconds["copy"] - 1
    hidden = max(SMALLEST_CHANGE, old.noise + new.noise)
    if abs(change) <= hidden:
        return "same"
    if abs(change - of_copy) <= hidden:
        return "machine"  # a copy takes as much longer, or less
    return "faster" if change < 0 else "slower"


def comparison(earlier: Earlier, results: Sequence[Result]) -> tuple[str, list[str]]:
    """Return the table of the changes and the verdicts."""
    header = (
        "op",
        "rows x cols",
        "dtype",
        "before us",
        "now us",
        "change %",
        "hidden %",
        "verdict",
    )
    rows, verdicts = [], []
    for new in results:
        where = (new.op, f"{new.rows} x {new.cols}", new.dtype)
        now, old = new.microseconds["membound"], earlier.results.get(new.key)
        if old is None:
            rows.append((*where, "-", f"{now:.3f}", "-", "-", "new"))
            continue
        before = old.microseconds["membound"]
        hidden = max(SMALLEST_CHANGE, old.noise + new.noise)
        verdicts.append(verdict(old, new))
        change = f"{100 * (now / before - 1):+.1f}"
        cells = (f"{before:.3f}", f"{now:.3f}", change, f"{100 * hidden:.1f}", verdicts[-1])
        rows.append((*where, *cells))
    return render(header, rows), verdicts
