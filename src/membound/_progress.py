# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How far a long command is: `check` and `bench` say it on stderr."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import TextIO

# Seconds between two signs of life: of the bar on a terminal, of lines elsewhere.
BAR_EVERY, LINE_EVERY = 0.1, 5.0
WIDTH = 100


class Progress:
    """n of N and the time left: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(
        self,
        total: int,
        stream: TextIO,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.stream, self.clock, self.done = total, stream, clock, 0
        self.seconds = seconds  # after which it ends, done or not
        self.terminal = stream.isatty()
        self.width = min(WIDTH, shutil.get_terminal_size().columns - 1)  # a wrapped bar stays
        self.started = self.said = clock()
        if self.terminal:
            self.said -= BAR_EVERY  # the bar is there at once

    def time_left(self, now: float) -> str:
        """Say how long the rest takes if it goes on as before; nothing at the start."""
        spent = now - self.started
        if not self.done or spent < 1:
            return ""
        rest = spent / self.done * (self.total - self.done)
        seconds = round(max(0.0, min(rest, self.seconds - spent)))
        if seconds < 90:
            return f", about {seconds} s left"
        return f", about {round(seconds / 60)} min left"

    def step(self, label: str) -> None:
        """Begin the next one of N."""
        now = self.clock()
        if now - self.said >= (BAR_EVERY if self.terminal else LINE_EVERY):
            self.said = now
            text = f"{self.done}/{self.total}{self.time_left(now)}: {label}"
            if self.terminal:
                filled = 20 * self.done // max(1, self.total)
                bar = f"[{'#' * filled}{'.' * (20 - filled)}] {text}"
                self.stream.write(f"\r{bar[: self.width]:<{self.width}}")
            else:
                self.stream.write(f"{text}\n")
            self.stream.flush()
        self.done += 1

    def close(self) -> None:
        """Take the bar away."""
        if self.terminal:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
