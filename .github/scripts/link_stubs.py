# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Write stubs of the C and C++ libraries with what manylinux_2_28 has; print the linker's flags.

    python .github/scripts/link_stubs.py FOLDER

What is linked against them asks for the versions of symbols that the stubs have, so it loads where
glibc is 2.28. A newer symbol fails the link, but for those that newer_symbols.cpp defines: enough
for GCC 12 with glibc up to 2.37. The headers of later ones call more; there, take the image.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
TYPES = {"FUNC": "function", "IFUNC": "function", "TLS": "tls_object"}
# readelf prints: Num: Value Size Type Bind Vis Ndx Name@@Version, with one @ for an older version.
SYMBOL = re.compile(r"(\w+) +\w+ +\w+ +\d+ (\S+?)@@?((\w+)_([\d.]+))$", re.MULTILINE)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_stub(stub: Path, library: str) -> None:
    """Write what a library exports in versions that are not too new, with nothing behind it."""
    newest: dict[str, tuple[tuple[int, ...], str]] = {}
    types = {}
    listed = output("readelf", "-W", "--dyn-syms", output("c++", f"-print-file-name={library}"))
    for kind, name, version, family, number in SYMBOL.findall(listed):
        numbers = tuple(map(int, number.split(".")))
        if numbers <= NEWEST.get(family, ()):
            newest[name] = max(newest.get(name, ((), "")), (numbers, version))
            types[name] = TYPES.get(kind, "object")
    with stub.with_suffix(".s").open("w") as source, stub.with_suffix(".map").open("w") as script:
        for version in {version for _, version in newest.values()}:
            names = [name for name, (_, its) in newest.items() if its == version]
            script.write(f"{version} {{ {'; '.join(names)}; }};\n")
        for name, kind in types.items():
            section = '.section .tbss, "awT", %nobits' if kind == "tls_object" else ".text"
            source.write(f"{section}\n.globl {name}\n.type {name}, %{kind}\n{name}: .zero 8\n")
    options = f"-Wl,-soname,{library},--version-script={stub.with_suffix('.map')}"
    output("c++", "-shared", "-nostdlib", options, str(stub.with_suffix(".s")), "-o", str(stub))


def write_stubs(folder: Path) -> str:
    """Write all stubs and return the flags that link against them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libstdc++.so.6", "libm.so.6", "libc.so.6"):
        write_stub(folder / name.removesuffix(".6"), name)
    (folder / "libc.so").rename(folder / "stub.so")
    script = Path(output("c++", "-print-file-name=libc.so")).read_text()  # has a static part, too
    (folder / "libc.so").write_text(re.sub(r"\S+/libc\.so\.6", str(folder / "stub.so"), script))
    source, symbols = Path(__file__).with_name("newer_symbols.cpp"), folder / "newer_symbols.o"
    output("c++", "-c", "-O2", "-fPIC", str(source), "-o", str(symbols))
    # Until glibc 2.34 threads, dlopen and shm_open were in libraries of their own.
    apart = "-l:libpthread.so.0 -l:libdl.so.2 -l:librt.so.1"
    return f"-L{folder} {symbols} -Wl,--push-state,--no-as-needed {apart} -Wl,--pop-state"


if __name__ == "__main__":
    print(write_stubs(Path(sys.argv[1]).absolute()))
