# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Print the bill of materials of a release (CycloneDX): what its wheels hold, and their hashes.

    python .github/scripts/sbom.py dist > sbom.cdx.json

Every wheel carries what is linked in (cpp/cmake/sbom.cmake); a release is the union of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

IN_WHEEL = ".dist-info/sboms/membound.cdx.json"


def of_wheel(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials that a wheel carries."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(IN_WHEEL))
        document: dict[str, Any] = json.loads(archive.read(name))
    return document


def of_release(dist: Path) -> dict[str, Any]:
    """Merge the wheels' bills and add each distribution as a file."""
    wheels = sorted(dist.glob("*.whl"))
    if not wheels:
        sys.exit(f"{dist} has no wheel")
    bills = [of_wheel(wheel) for wheel in wheels]
    parts = [part for bill in bills for part in bill["components"]]
    for path in sorted(dist.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        hashes = [{"alg": "SHA-256", "content": digest}]
        parts.append({"type": "file", "name": path.name, "hashes": hashes})
    unique = [part for at, part in enumerate(parts) if part not in parts[:at]]
    return {**bills[0], "components": unique}


if __name__ == "__main__":
    print(json.dumps(of_release(Path(sys.argv[1])), indent=2))
