# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""README.md for the page of a package index: links into the tree become links to the repository."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_absolute_links(text: str, repository: str) -> str:
    """Replace the targets of `](docs/x.md)`; an image needs the file itself, not its page."""
    at_root = r"\]\((?!https?:|#)"
    text = re.sub(r"(!\[[^\]]*)" + at_root, rf"\1]({repository}/raw/main/", text)
    return re.sub(at_root, f"]({repository}/blob/main/", text)


class ReadmeOfIndex:
    """A provider of dynamic metadata; called in the folder of pyproject.toml."""

    @staticmethod
    def dynamic_metadata(
        _settings: Mapping[str, Any], project: Mapping[str, Any]
    ) -> dict[str, dict[str, str]]:
        text = Path("README.md").read_text(encoding="utf-8")
        text = with_absolute_links(text, project["urls"]["Homepage"])
        return {"readme": {"content-type": "text/markdown", "text": text}}
