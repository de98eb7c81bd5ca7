# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Look for invalid instructions in a wheel's CUDA code: `python tests/machine_code.py WHEEL`.

nvcc 13.0 makes some of asynchronous copies with a priority in L2 (cuda/launch/async_copy.cuh): what
describes the access is then in an odd register of a pair that starts at an even one. A GPU stops at
them, and one of each architecture is seldom at hand. Needs cuobjdump, as pip installs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

LIBRARY = "membound/lib/libmembound.so"
FUNCTION = re.compile(r"Function : (\S+)")
INVALID = re.compile(r"\S \[[^\]]*\], desc\[UR\d*[13579]\]")


def cuobjdump() -> str:
    folders = find_spec("nvidia.cu13").submodule_search_locations
    return next(str(path) for f in folders for path in Path(f).glob("bin/cuobjdump"))


def invalid(lines: list[str]) -> Counter[str]:
    """How many there are, by function."""
    found: Counter[str] = Counter()
    function = ""
    for line in lines:
        if begins := FUNCTION.search(line):
            function = begins[1]
        elif INVALID.search(line):
            found[function] += 1
    return found


def main(wheel: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        library = zipfile.ZipFile(wheel).extract(LIBRARY, folder)
        if b".nv_fatbin" not in Path(library).read_bytes():
            print(f"{wheel}: built without CUDA")
            return 0
        listing = subprocess.run(
            [cuobjdump(), "-sass", library], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()
    functions = sum("Function :" in line for line in listing)
    found = invalid(listing)
    for function, count in found.items():
        print(f"{count} invalid instructions in {function}")
    print(f"{wheel}: {functions} functions, invalid instructions in {len(found)}")
    return bool(found) or functions == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
