# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The Python examples run, small."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import membound

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {
    "rms_norm_layer": (
        ["--rows", "64", "--cols", "128"],
        ["tqdm"],
        r"difference of dx.*: \S+e-0[67]",
    ),
    "finetune_llama": (
        ["--steps", "3", "--hidden", "64", "--layers", "1"],
        ["transformers"],
        r"the curves are at most (0|\S+e-(0[5-9]|1\d)) apart",
    ),
    "jax_transformer": (["--steps", "20", "--batch", "4"], ["tqdm"], r"loss [34]\.\d+ to [0-3]\."),
    "profile_block": (["--rows", "32", "--width", "32"], [], r"with the work awaited"),
    "load_inline": ([], ["ninja"], r"the extension's result is right"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, tmp_path):
    arguments, needs, expected = EXAMPLES[name]
    script = FOLDER / f"{name}.py"
    if not script.is_file():
        pytest.skip("only in a source tree")
    framework = "jax" if name.startswith("jax") else "torch"
    for module in (framework, *needs):
        pytest.importorskip(module)
    if name == "load_inline" and not has_headers():
        pytest.skip("needs a C++ compiler and an installed package")
    if name == "finetune_llama" and importlib.util.find_spec("matplotlib"):
        arguments = [*arguments, "--plot", str(tmp_path / "loss.png")]
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    built_here = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=built_here
    )
    assert done.returncode == 0, done.stderr
    assert re.search(expected, done.stdout), done.stdout


def has_headers() -> bool:
    package = Path(membound.__file__).parent
    return shutil.which("c++") is not None and (package / "include" / "membound").is_dir()
