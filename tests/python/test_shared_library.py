# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the ELF headers and symbols of the installed libraries say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from membound import _core

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf (binutils)")

EXTENSION = Path(_core.__file__)
LIBRARIES = {"_core": EXTENSION, "libmembound": EXTENSION.parent / "lib" / "libmembound.so"}
each_library = pytest.mark.parametrize("name", LIBRARIES)


def readelf(name, *options):
    command = ["readelf", "--wide", *options, str(LIBRARIES[name])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(name):
    """(binding, whether it is defined here, name) of the dynamic symbols."""
    for line in readelf(name, "--dyn-syms", "--demangle").splitlines():
        found = re.match(r"\s*\d+: \w+\s+\d+ \w+\s+(\w+)\s+\w+\s+(\w+) (.+)", line)
        if found:
            yield found[1], found[2] != "UND", found[3]


@each_library
def test_relocations_are_read_only_once_the_library_is_loaded(name):
    text = readelf(name, "--program-headers", "--dynamic")
    assert "GNU_RELRO" in text
    assert "BIND_NOW" in text
    assert "TEXTREL" not in text


@each_library
def test_host_code_has_a_stack_protector(name):
    assert any(symbol.startswith("__stack_chk_fail") for _, _, symbol in symbols(name))


@each_library
def test_the_stack_is_not_executable(name):
    (stack,) = [line for line in readelf(name, "--program-headers").splitlines() if "STACK" in line]
    assert " RWE " not in stack


@each_library
def test_no_path_of_the_build_is_inside(name):
    content = LIBRARIES[name].read_bytes()
    for folder in (b"cpp/", b"src/bindings/", b"include/membound/"):
        assert not re.search(rb"(?<![\w.])/[\w./-]*/" + folder + rb"[\w/]+\.(cu|cpp|hpp)", content)


def test_the_extension_exports_its_entry_alone():
    defined = [symbol for _, is_here, symbol in symbols("_core") if is_here]
    assert defined == ["PyInit__core"]


def test_the_library_exports_membound_alone():
    mine = re.compile(r"(typeinfo (name )?for |vtable for )?membound::")
    defined = [(bind, symbol) for bind, is_here, symbol in symbols("libmembound") if is_here]
    assert len(defined) > 50
    assert [symbol for _, symbol in defined if not mine.match(symbol)] == []
    weak = [symbol for bind, symbol in defined if bind in ("WEAK", "UNIQUE")]
    assert all(re.match(r"(typeinfo|vtable)", symbol) for symbol in weak), weak
