# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""That tests/machine_code.py sees what nvcc 13.0 wrote, in listings of it and of valid code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "machine_code.py"


@pytest.mark.parametrize(
    ("instruction", "count"),
    [
        ("LDGSTS.E.BYPASS.128 [R5+UR0], desc[UR1][R18.64], P0 ;", 1),
        ("LDGSTS.E.BYPASS.128.ZFILL [UR16], desc[UR17][R10.64], P1 ;", 1),
        ("LDGSTS.E.BYPASS.128 [R25], desc[UR10][R16.64], P2 ;", 0),
        ("@!P0 LDG.E.128 R4, desc[UR4][R2.64] ;", 0),
    ],
)
def test_instructions(instruction, count):
    spec = importlib.util.spec_from_file_location("machine_code", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    listing = ["\t\tFunction : one", f"        /*0ac0*/                   {instruction}  /* 0x0 */"]
    assert sum(script.invalid(listing).values()) == count
