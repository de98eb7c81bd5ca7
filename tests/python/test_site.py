# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The reference pages of docs/ name everything that is public; `nox -s docs` builds them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import membound

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"
HEADERS = sorted((ROOT / "include/membound").rglob("*.hpp"))
INTERNAL = {"export.hpp", "elementwise_ops.hpp"}  # they declare macros for others


def script(name):
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_name_of_the_package():
    text = (REFERENCE / "membound.md").read_text()
    named = re.findall(r"^(?:   |\.\. auto\w+:: )(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(n for n in membound.__all__ if n != "__version__")


def test_the_reference_has_every_public_header(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = [(REFERENCE / "cpp.md").read_text()]
    script("conf").read_page(None, "reference/cpp", page)
    named = re.findall(r"\{doxygenfile\} (\S+)", page[0])
    assert sorted(named) == sorted(path.name for path in HEADERS if path.name not in INTERNAL)


def test_the_reference_has_every_module_with_names_of_others():
    text = (REFERENCE / "other_names.md").read_text()
    modules = {path.stem for path in (ROOT / "src/membound/torch").glob("[a-z]*.py")}
    assert set(re.findall(r"^   membound\.torch\.(\w+)$", text, re.MULTILINE)) == modules


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_doxygen_reads_the_same_code(header):
    def code(lines):
        found = [re.sub(r" *//.*", "", line) for line in lines]
        return [line for line in found if line.strip()]

    lines = header.read_text().splitlines()
    assert code(script("doxygen_filter").filtered(lines)) == code(lines)


def test_doxygen_gets_lists_formulas_and_remarks():
    filtered = script("doxygen_filter").filtered
    header = ["// Scales x:", "//", "//   out = a * x", "//"]
    header += ["// x    (n,), of", "//      any @kind", "// out  x's"]
    text = "\n".join(filtered([*header, "void f();  // quick,", "           // too"]))
    assert "/// @verbatim\n///   out = a * x\n" in text
    assert "/// - @b x: (n,), of\n///   any \\@kind\n/// - @b out: x's\n" in text
    assert "void f();  //!< quick,\n           //!< too" in text


def test_links_lead_to_pages_or_to_the_repository(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    conf = script("conf")
    links = conf.with_links_of_the_site
    assert links(ROOT, "[a](docs/ops.md#norms) [b](#c)") == "[a](/ops.md#norms) [b](#c)"
    assert links(ROOT / "docs", "[a](../LICENSE)") == f"[a]({conf.REPOSITORY}/blob/main/LICENSE)"
    assert links(ROOT / "examples", "![p](../docs/images/ops.svg)") == "![p](/images/ops.svg)"
