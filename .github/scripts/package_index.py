# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Make a package index of a folder of wheels, as pages: `pip install --extra-index-url <page>`.

python .github/scripts/package_index.py dist pages
"""

from __future__ import annotations

import hashlib
import html
import shutil
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

PAGE = "<!DOCTYPE html>\n<html><head><title>{title}</title></head><body>\n{links}\n</body></html>\n"


def requires_python(wheel: Path) -> str:
    """Return what the metadata of a wheel says about interpreters."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())["Requires-Python"]


def write_index(dist: Path, pages: Path) -> None:
    """Write the index of indexes, and the page of membound with its wheels beside it."""
    folder = pages / "membound"
    folder.mkdir(parents=True)
    links = []
    for wheel in sorted(dist.glob("membound-*.whl")):
        shutil.copy2(wheel, folder)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        needs = html.escape(requires_python(wheel))
        target = f"{wheel.name}#sha256={digest}".replace("+", "%2B")
        links.append(f'<a href="{target}" data-requires-python="{needs}">{wheel.name}</a><br>')
        print(f"would publish membound/{wheel.name}")
    if not links:
        sys.exit(f"{dist} has no wheel of membound")
    (folder / "index.html").write_text(PAGE.format(title="membound", links="\n".join(links)))
    top = '<a href="membound/">membound</a>'
    (pages / "index.html").write_text(PAGE.format(title="nightly wheels", links=top))


if __name__ == "__main__":
    write_index(Path(sys.argv[1]), Path(sys.argv[2]))
