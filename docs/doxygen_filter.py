# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Print a header with its comments as Doxygen takes them; conf.py names it as the input filter.

Of a comment above a declaration, aligned names become a list, and indented lines, which are
formulas, stay as they lie. A comment behind a declaration is that declaration's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

COMMENT = re.compile(r"( *)// ?(.*)")
BEHIND = re.compile(r"(.*[;,{}] +)// (?!namespace)(.*)")
NAMED = re.compile(r"(\w+(?:, \w+)*  +)\S")


def escaped(text: str) -> str:
    """Keep Doxygen from taking signs for commands."""
    return re.sub(r"[@\\<>&#]", r"\\\g<0>", text.strip())


def described(lines: list[str]) -> Iterator[str]:
    """Return the text of a comment in Doxygen's words."""
    column, in_formula = 0, False  # where a list says what its names are
    for line in lines:
        if line and (line.startswith("  ") and not column) != in_formula:
            in_formula = not in_formula
            yield "@verbatim" if in_formula else "@endverbatim"
        if named := NAMED.match(line):
            column = len(named[1])
        elif not line:
            column = 0
        name = "" if in_formula else line[:column].strip()
        text = line if in_formula else escaped(line[column:])
        yield f"- @b {escaped(name)}: {text}" if name else "  " * bool(column) + text
    if in_formula:
        yield "@endverbatim"


def filtered(lines: list[str]) -> Iterator[str]:
    """Return the lines of a header, as many or more."""
    at, is_private = 0, False
    behind = None  # the column of a comment behind the last line
    while at < len(lines):
        own = COMMENT.fullmatch(lines[at])
        if own and own[1] == behind:
            yield f"{own[1]}//!< {escaped(own[2])}"
        elif own:
            first = at
            while at + 1 < len(lines) and COMMENT.fullmatch(lines[at + 1]):
                at += 1
            block = [COMMENT.fullmatch(line)[2] for line in lines[first : at + 1]]
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            is_of_code = follows.strip() and not follows.startswith(("#", "namespace"))
            yield from (f"{own[1]}/// {line}" for line in described(block) if is_of_code)
        elif found := BEHIND.fullmatch(lines[at]):
            behind = " " * len(found[1])
            yield f"{found[1]}//!< {escaped(found[2])}"
        else:
            behind = None
            if lines[at] == "};" and is_private:
                yield "/// @endcond"
                is_private = False
            yield lines[at]
            if lines[at] == " private:":
                yield "/// @cond"
                is_private = True
        at += 1


if __name__ == "__main__":
    print("\n".join(filtered(Path(sys.argv[1]).read_text().splitlines())))
