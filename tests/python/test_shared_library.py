# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the ELF headers of the installed libraries say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from membound import _core


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf (binutils)")
@pytest.mark.parametrize("name", ["_core", "libmembound"])
def test_relocations_are_read_only_once_the_library_is_loaded(name):
    extension = Path(_core.__file__)
    library = extension if name == "_core" else extension.parent / "lib" / "libmembound.so"
    command = ["readelf", "--wide", "--program-headers", "--dynamic", str(library)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "GNU_RELRO" in text
    assert "BIND_NOW" in text
    assert "TEXTREL" not in text
