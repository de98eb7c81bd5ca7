# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Say what a folder of distributions would publish, and refuse what must not be.

    python .github/scripts/check_dist.py dist [--release v0.1.0]

No wheel may exceed the size in wheel_sizes.toml, of the last that was really built, by more than a
tenth. A release has the sdist and the wheels of PYTHONS and MACHINES, all of the tag's version.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

SIZES = Path(__file__).with_name("wheel_sizes.toml")
ALLOWED = 1.1
PYTHONS = ("cp311-cp311", "cp312-abi3", "cp314-cp314t")
MACHINES = ("x86_64", "aarch64")
PLATFORM = "manylinux_2_28"
WHEEL = re.compile(r"membound-(?P<version>[^-]+)-(?P<python>\w+-\w+)-(?P<platform>[\w.]+)\.whl")


def has_cuda(wheel: Path) -> bool:
    """Say whether the CMake package in a wheel is of a library with CUDA kernels."""
    with ZipFile(wheel) as archive:
        text = archive.read("membound/lib/cmake/membound/membound-config.cmake").decode()
    return "set(membound_WITH_CUDA ON)" in text


def size_problems(wheel: Path, sizes: dict[str, dict[str, int]]) -> list[str]:
    """Compare the size of a wheel with the last one of its kind."""
    machine = next((one for one in MACHINES if wheel.stem.endswith(one)), "other")
    kind = "cuda" if has_cuda(wheel) else "cpu"
    last, now = sizes.get(kind, {}).get(machine), wheel.stat().st_size
    if last is None:
        print(f"  no size of {kind} wheels on {machine} is known: note {now} in {SIZES.name}")
        return []
    if now > last * ALLOWED:
        return [f"{wheel.name}: {now} bytes, at most {last} + 10 % are allowed"]
    return []


def release_problems(dist: Path, tag: str) -> list[str]:
    """Name what a release of this tag lacks, and what does not belong to it."""
    version = tag.removeprefix("v")
    found = {path.name for path in dist.iterdir()}
    wanted = {f"membound-{version}.tar.gz"}
    problems = [f"missing: {name}" for name in sorted(wanted - found)]
    for machine in MACHINES:
        for python in PYTHONS:
            start, end = f"membound-{version}-{python}-", f"{PLATFORM}_{machine}.whl"
            of_kind = {name for name in found if name.startswith(start) and name.endswith(end)}
            wanted |= of_kind
            if not of_kind:
                problems.append(f"missing: {start}{end}")
    return [*problems, *(f"not of this release: {name}" for name in sorted(found - wanted))]


def check(dist: Path, tag: str = "") -> list[str]:
    """Print what would be published and return what is wrong with it."""
    sizes = tomllib.loads(SIZES.read_text(encoding="utf-8"))
    problems = [] if any(dist.iterdir()) else [f"{dist} is empty"]
    for path in sorted(dist.iterdir()):
        print(f"would publish {path.name}, {path.stat().st_size / 1e6:.2f} MB")
        if WHEEL.fullmatch(path.name):
            problems += size_problems(path, sizes)
        elif path.suffix == ".whl":
            problems.append(f"not a wheel of membound: {path.name}")
    return problems + (release_problems(dist, tag) if tag else [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--release", default="", metavar="TAG")
    options = parser.parse_args()
    if wrong := check(options.dist, options.release):
        sys.exit("\n".join(wrong))
