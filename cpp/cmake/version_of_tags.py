# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The package's version for scikit-build-core: from the git tags, where setuptools-scm is there.

pip brings it into an isolated build. Without isolation a machine may lack it; the package builds
there all the same, with the version of the sdist or the fallback that pyproject.toml names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from scikit_build_core.metadata import setuptools_scm


class VersionOfTags:
    """A provider of dynamic metadata; called in the folder of pyproject.toml."""

    @staticmethod
    def dynamic_metadata(
        _settings: Mapping[str, Any], _project: Mapping[str, Any]
    ) -> dict[str, str]:
        try:
            return {"version": setuptools_scm.dynamic_metadata("version")}
        except ModuleNotFoundError:
            return {"version": _without_setuptools_scm()}

    @staticmethod
    def get_requires_for_dynamic_metadata(_settings: Mapping[str, Any]) -> list[str]:
        return ["setuptools-scm>=8"]


def _without_setuptools_scm() -> str:
    sdist = Path("PKG-INFO")
    if sdist.exists():
        return str(HeaderParser().parsestr(sdist.read_text(encoding="utf-8"))["Version"])
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["tool"]["setuptools_scm"]["fallback_version"])
