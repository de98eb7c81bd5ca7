# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Print the wheel in a folder that pip would install for this interpreter.

python .github/scripts/fitting_wheel.py dist
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit


def fitting_wheel(dist: Path) -> str:
    """Ask pip, which knows the tags of this interpreter and machine."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    command += ["--no-index", "--no-deps", "--pre", "--only-binary", ":all:"]
    command += ["--find-links", str(dist), "--report", "-", "membound"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return unquote(urlsplit(report["install"][0]["download_info"]["url"]).path)


if __name__ == "__main__":
    print(fitting_wheel(Path(sys.argv[1])))
