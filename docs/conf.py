# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The site of these pages, built by Sphinx: `nox -s docs`."""

from __future__ import annotations

import re
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
nitpicky = True
nitpick_ignore_regex = [(r"py:(class|exc)", ".*"), (r"cpp:.*", ".*")]  # types of others
linkcheck_ignore = ["https?://"]  # only what is ours
breathe_default_project = "membound"


def with_links_of_the_site(folder: Path, text: str) -> str:
    """Let relative links of a document lead to pages here, or to the repository."""

    def target(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        there = Path(normpath(folder / path))
        if there.is_relative_to(HERE):
            return f"](/{there.relative_to(HERE)}{anchor})"
        return f"]({REPOSITORY}/blob/main/{there.relative_to(ROOT)}{anchor})"

    return re.sub(r"\]\((?!https?:|#|/)([^)#\s]+)(#[\w-]+)?\)", target, text)


def read_page(_app: Any, page: str, source: list[str]) -> None:
    """Of a page of this folder."""
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


def setup(app: Any) -> None:
    """Add what the extensions lack."""
    app.connect("autodoc-process-signature", typed_signature)
    app.connect("source-read", read_page)
    app.connect("include-read", read_include)
