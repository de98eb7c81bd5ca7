# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The location of this installation's C++ library, for CMake."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path


def cmake_dir() -> Path:
    """Return the folder that holds membound-config.cmake, to be given as membound_DIR.

    It is found through the distribution's list of files, because in an editable install the
    compiled part is not in the folder of the Python sources.
    """
    for entry in files("membound") or []:
        if entry.name == "membound-config.cmake":
            return Path(entry.locate()).resolve().parent
    beside = Path(__file__).resolve().parent / "lib" / "cmake" / "membound"
    if (beside / "membound-config.cmake").is_file():
        return beside
    raise FileNotFoundError("this installation of membound holds no CMake package; reinstall it")
