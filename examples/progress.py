# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The progress bar of the examples: tqdm where it is installed, else lines on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

SECONDS_BETWEEN_LINES = 5.0


class Lines:
    """As much of tqdm as the examples use: iteration, a description and a postfix."""

    def __init__(self, items: Any, desc: str = "", leave: bool = True):  # noqa: ARG002
        self.items, self.name, self.postfix = items, desc, ""

    def __iter__(self) -> Iterator[Any]:
        said = time.monotonic()
        for at, item in enumerate(self.items):
            if time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                print(f"{self.name}: {at} of {len(self.items)}{self.postfix}", file=sys.stderr)
            yield item

    def set_postfix_str(self, text: str) -> None:
        self.postfix = f", {text}"


try:
    from tqdm import tqdm as progress
except ImportError:
    progress = Lines
