# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The scripts of benchmarks/ as modules, and a clock for them that needs no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(monkeypatch, name):
    """benchmarks/<name>.py, imported as a script would."""
    if not (FOLDER / f"{name}.py").is_file():
        pytest.skip("only in a source tree")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


class Stopwatch:
    """Runs every call once, on the CPU, and reports one microsecond for each."""

    device = "cpu"

    def __init__(self):
        self.calls = []

    def sets(self, _):
        return 3

    def microseconds(self, calls):
        self.calls.append(len(calls))
        for call in calls:
            call()
        return 1.0

    def between_copies(self, calls, copies, _):
        assert len(calls) == len(copies)
        return self.microseconds([*calls, *copies])

    def yardstick(self, _, copy):
        return copy
