# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `check` prints: a line for each op, or for each op, framework, device and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from membound._table import render


@dataclass
class Line:
    """What was found for one op, framework, device and dtype."""

    op: str
    framework: str
    device: str
    dtype: str
    cases: int = 0
    worst: float = 0.0
    allowed: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def part(self) -> float:
        """The worst error as a part of the allowed one."""
        return self.worst / self.allowed if self.allowed else self.worst

    def cells(self) -> tuple[str, ...]:
        where = (self.op, self.framework, self.device, self.dtype, str(self.cases))
        return (*where, f"{self.worst:.4g}", f"{self.allowed:g}", verdict(self.failures))


HEADER = ("op", "framework", "device", "dtype", "cases", "excess ulp", "allowed", "result")
HEADER_OF_OPS = ("op", "frameworks and devices", "cases", "excess ulp", "allowed", "in", "result")
EXCESS = (
    "excess ulp: the largest distance from the exact result, in units in the last place of the "
    "dtype,\nbeyond what the rounding of the terms of sums explains"
)


def verdict(failures: Sequence[str]) -> str:
    return f"WRONG in {len(failures)}" if failures else "ok"


def of_op(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return the cells of an op: its cases, and its line that is the closest to what is allowed."""
    devices: dict[str, list[str]] = {}
    for line in lines:
        if line.framework not in devices.setdefault(line.device, []):
            devices[line.device].append(line.framework)
    where = "; ".join(f"{device}: {' '.join(names)}" for device, names in devices.items())
    worst = max(lines, key=lambda line: line.part)
    cases = str(sum(line.cases for line in lines))
    of = f"{worst.framework} {worst.dtype}" if worst.worst else "-"
    result = verdict([failure for line in lines for failure in line.failures])
    return (lines[0].op, where, cases, f"{worst.worst:.4g}", f"{worst.allowed:g}", of, result)


def print_report(
    lines: Sequence[Line], missing: dict[str, str], total: int, seconds: float, verbose: bool
) -> None:
    """Print the table, what was not tested and why, and the verdict; total: the cases there are."""
    tested = [line for line in lines if line.cases]
    by_op: dict[str, list[Line]] = {}
    for line in tested:
        by_op.setdefault(line.op, []).append(line)
    if tested and verbose:
        print(render(HEADER, [line.cells() for line in tested]))
    elif tested:
        print(render(HEADER_OF_OPS, [of_op(of_one) for of_one in by_op.values()]))
    if tested:
        print(EXCESS)
    for name, reason in missing.items():
        print(f"not checked: {name} ({reason})")
    untouched = list(dict.fromkeys(line.op for line in lines if line.op not in by_op))
    if untouched and tested:
        print(f"not checked, for lack of time: {', '.join(untouched)}")
    print_verdict(tested, total, seconds, verbose)


def print_verdict(lines: Sequence[Line], total: int, seconds: float, verbose: bool) -> None:
    failures = [failure for line in lines for failure in line.failures]
    for failure in failures if verbose else failures[:10]:
        print(f"WRONG {failure}")
    if len(failures) > 10 and not verbose:
        print(f"... and {len(failures) - 10} more; --verbose lists them")
    count = sum(line.cases for line in lines)
    if not total:
        print("nothing was checked: no framework and device match")
    elif failures:
        print(f"{len(failures)} of {count} cases are WRONG ({seconds:.1f} s)")
    elif count < total:
        print(f"all {count} cases that were tried are right ({seconds:.1f} s); there are {total}")
    else:
        print(f"all {count} cases are right ({seconds:.1f} s)")
