# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Print the section of CHANGELOG.md that python-semantic-release wrote for a tag.

python .github/scripts/release_notes.py v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def notes(changelog: str, tag: str) -> str:
    """Return the section without its heading."""
    heading, rest = rf"^## {re.escape(tag)}\b[^\n]*\n", r"(.*?)(?=^## |\Z)"
    section = re.search(heading + rest, changelog, re.DOTALL | re.MULTILINE)
    if section is None:
        sys.exit(f"{CHANGELOG.name} has no section of {tag}")
    return section[1].strip()


if __name__ == "__main__":
    print(notes(CHANGELOG.read_text(encoding="utf-8"), sys.argv[1]))
