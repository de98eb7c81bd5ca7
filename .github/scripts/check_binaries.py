# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Check the libraries of a wheel and report what they consist of; needs pyelftools.

    python .github/scripts/check_binaries.py WHEEL

Full RELRO, no text relocations, no executable stack, nothing needed beyond the C and C++ libraries.
With CUDA: the bytes of machine code by family of ops and compute capability.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

NEEDED = re.compile(r"lib(c|m|stdc\+\+|gcc_s|membound|pthread|dl|rt)\.so|ld-linux")
# The first that a kernel's name holds.
FAMILIES = ("cross_entropy", "softmax", "embedding", "rope", "norm", "activation", "elementwise")


def dynamic_entries(elf: ELFFile) -> dict[str, list[int | str]]:
    """Return the entries of the dynamic section by name; names of libraries as text."""
    entries: dict[str, list[int | str]] = {}
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                value = tag.needed if tag.entry.d_tag == "DT_NEEDED" else tag.entry.d_val
                entries.setdefault(tag.entry.d_tag, []).append(value)
    return entries


def problems(elf: ELFFile) -> list[str]:
    """Name what a library should not have, or lacks."""
    entries = dynamic_entries(elf)
    segments = {segment.header.p_type: segment.header.p_flags for segment in elf.iter_segments()}
    flags = sum(int(value) for value in entries.get("DT_FLAGS", []))
    found = []
    if "PT_GNU_RELRO" not in segments or not flags & 0x8:  # DF_BIND_NOW
        found.append("RELRO is not full")
    if "DT_TEXTREL" in entries or flags & 0x4:  # DF_TEXTREL
        found.append("text relocations")
    if segments.get("PT_GNU_STACK", 1) & 1:  # PF_X
        found.append("an executable stack")
    needed = [str(name) for name in entries.get("DT_NEEDED", [])]
    return [*found, *(f"needs {name}" for name in needed if not NEEDED.match(name))]


def print_sections(elf: ELFFile) -> None:
    """Print the sections of more than 100 kB."""
    sizes = {section.name: section.header.sh_size for section in elf.iter_sections()}
    large = {name: size for name, size in sizes.items() if size > 100_000}
    print("   ", ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in large.items()))


def family(function: str) -> str:
    """Return the family of ops that a mangled kernel belongs to."""
    return next((name for name in FAMILIES if name in function), "other")


def machine_code(library: Path) -> Counter[tuple[str, str]]:
    """Return the bytes of machine code, unpacked, by family and compute capability."""
    places = find_spec("nvidia.cu13")
    folders = places.submodule_search_locations if places else []
    tool = next(path for one in folders or [] for path in Path(one).glob("bin/cuobjdump"))
    found: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(tool), "-xelf", "all", str(library)]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        for path in Path(folder).glob("*.cubin"):
            (capability,) = re.findall(r"\.sm_(\d+)", path.name)
            with path.open("rb") as file:
                for section in ELFFile(file).iter_sections():
                    if section.name.startswith(".text."):
                        found[family(section.name), capability] += section.header.sh_size
    return found


def print_machine_code(library: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        sizes = machine_code(Path(file.name))
    capabilities = sorted({capability for _, capability in sizes}, key=int)
    print(
        "    MB of machine code, unpacked".ljust(36), *(f"{int(n) / 10:>6}" for n in capabilities)
    )
    for name in sorted({name for name, _ in sizes}):
        cells = (f"{sizes[name, one] / 1e6:6.2f}" for one in capabilities)
        print(f"    {name:<32}", *cells)


def main(wheel: Path) -> int:
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    wrong = []
    with ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".so"):
                continue
            data = archive.read(entry)
            packed, unpacked = entry.compress_size / 1e6, entry.file_size / 1e6
            print(f"  {entry.filename}: {unpacked:.2f} MB, {packed:.2f} MB in the wheel")
            elf = ELFFile(io.BytesIO(data))
            print_sections(elf)
            wrong += [f"{entry.filename}: {problem}" for problem in problems(elf)]
            if elf.get_section_by_name(".nv_fatbin"):
                print_machine_code(data)
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
