# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The site of these pages, built by Sphinx: `nox -s docs`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from os.path import normpath
from pathlib import Path
from typing import Any

import membound

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src/ops"))
import tables  # noqa: E402 - of the folder that was just added

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]

project = "membound"
author = project_copyright = "The membound authors"
release = membound.__version__.partition("+")[0]
extensions = [
    "breathe", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary",
    "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design", "sphinxcontrib.programoutput",
]  # fmt: skip
exclude_patterns = ["images"]
templates_path = ["templates"]
html_theme = "furo"
html_title = f"membound {release}"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_css_files = ["site.css"]
html_static_path = ["static"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
python_maximum_signature_line_length = 80
add_module_names = False
autosummary_ignore_module_all = False
suppress_warnings = ["duplicate_declaration.cpp"]  # a namespace, once for each header
nitpicky = True
nitpick_ignore_regex = [(r"py:(class|exc)", ".*"), (r"cpp:.*", ".*")]  # types of others
linkcheck_ignore = ["https?://"]  # only what is ours
breathe_projects = {"membound": str(ROOT / "build/doxygen/xml")}
breathe_default_project = "membound"
DOXYGEN = f"""
INPUT = {ROOT / "include/membound"}
RECURSIVE = YES
STRIP_FROM_PATH = {ROOT / "include"}
OUTPUT_DIRECTORY = {ROOT / "build/doxygen"}
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
FILTER_PATTERNS = "*.hpp={sys.executable} {HERE / "doxygen_filter.py"}"
MARKDOWN_SUPPORT = NO
EXTRACT_ALL = YES
AUTOLINK_SUPPORT = NO
MACRO_EXPANSION = YES
PREDEFINED = "MEMBOUND_API:="
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
"""


def with_links_of_the_site(folder: Path, text: str) -> str:
    """Let relative links of a document lead to pages here, or to the repository."""

    def target(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        there = Path(normpath(folder / path))
        if there.is_relative_to(HERE) and there.is_file():
            return f"](/{there.relative_to(HERE)}{anchor})"
        return f"]({REPOSITORY}/blob/main/{there.relative_to(ROOT)}{anchor})"

    return re.sub(r"\]\((?!https?:|#|/)([^)#\s]+)(#[\w-]+)?\)", target, text)


def reference_of_headers(found: re.Match[str]) -> str:
    """Return the sections of all headers that a pattern names."""
    paths = sorted((ROOT / "include/membound").glob(found[1]))
    names = [path.name for path in paths if path.name != "elementwise_ops.hpp"]  # macros alone
    return "\n".join(f"### {name}\n\n```{{doxygenfile}} {name}\n```\n" for name in names)


def read_page(_app: Any, page: str, source: list[str]) -> None:
    """Of a page of this folder."""
    source[0] = re.sub(r"^\{headers\}`(.+)`$", reference_of_headers, source[0], flags=re.MULTILINE)
    if "generated/" not in page:
        source[0] = with_links_of_the_site((HERE / page).parent, source[0])


def read_include(_app: Any, path: Path, _page: str, source: list[str]) -> None:
    """Of a document that a page includes, wherever it is."""
    source[0] = with_links_of_the_site((HERE / path).parent, source[0])


FUNCTIONS = {
    function.name: function
    for function in tables.read_tables(
        [path for path in (ROOT / "src/ops").glob("*.toml") if path.name != "shared.toml"]
    )
}


def typed_signature(
    _app: Any, _what: str, name: str, _object: Any, _options: Any, *_plain: Any
) -> tuple[str, str] | None:
    """Return the signature of a builtin with the types of its table."""
    function = FUNCTIONS.get(name.removeprefix("membound."))
    if function is None or not name.startswith("membound."):
        return None
    parameters = ", ".join(tables.listed(function.parameters, tables.Parameter.typed))
    returns = dict.fromkeys(own.returns for own in function.overloads)
    return f"({parameters})", " | ".join(returns)


def as_napoleon_reads(
    _app: Any, what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """Mark what plain text leaves unmarked: examples of modules, "Raises: What another raises"."""
    text = "\n".join(lines)
    if what == "module":
        text = re.sub(r"^(\S.*)\n\n(?=    \S)", r"\1\n\n::\n\n", text, flags=re.MULTILINE)
    raises = r"^Raises:\n +(What .* raises)"
    text = re.sub(raises + r"\.(.*)", r"\1.\2", text, flags=re.MULTILINE)
    text = re.sub(raises + ", and$", r"\1.\n\nRaises:", text, flags=re.MULTILINE)
    lines[:] = text.replace("\nWhat ", "\nRaises what ").split("\n")


def run_doxygen(_app: Any) -> None:
    """Read the public headers."""
    xml = ROOT / "build/doxygen/xml"
    shutil.rmtree(xml, ignore_errors=True)
    xml.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "-"], input=DOXYGEN, text=True, check=True)
    for path in xml.glob("*membound*.xml"):  # each class would say again which header it is in
        path.write_text(re.sub(r"<includes.*?</includes>", "", path.read_text()))


def setup(app: Any) -> None:
    """Add what the extensions lack."""
    app.connect("builder-inited", run_doxygen)
    app.connect("autodoc-process-docstring", as_napoleon_reads, priority=400)
    app.connect("autodoc-process-signature", typed_signature)
    app.connect("source-read", read_page)
    app.connect("include-read", read_include)
