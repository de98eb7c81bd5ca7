# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Run README's blocks from top to bottom in the environment of this interpreter, an empty one.

    python .github/scripts/run_readme.py dist/membound-0.1.0-....whl

`pip install .` is carried out with the wheel; a block of a framework installs the extra of its name
first. A C++ and a CMake block become a small program, which is built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXTRAS = ("numpy", "torch", "jax")
MAIN = "int main() {}\n"
PROJECT = "cmake_minimum_required(VERSION 3.20)\nproject(app CXX)\nadd_executable(app app.cpp)\n"


def blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, code) of each fenced block."""
    return BLOCK.findall(text)


def promised_output(code: str) -> list[str]:
    """Return the lines that a block says it prints: `print(...)  # (2, 3) 1.0`."""
    remarks: list[str] = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    values = re.compile(r"[(\[\d-]|True|float|torch\.")
    return [line for line in remarks if values.match(line)]  # the others describe


def run(folder: Path, *command: str) -> str:
    """Run a command, show what it prints, and return that."""
    print("$", *command, flush=True)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"README: exit code {done.returncode}")
    return done.stdout


def run_python(folder: Path, code: str, wheel: str) -> None:
    """Run a block of Python with the extra of its first import, and compare what it prints."""
    (framework,) = re.findall(r"\A(?:import|from) (\w+)", code)
    if framework == "cupy" and not list(Path("/dev").glob("nvidia[0-9]*")):
        print("skipped, as there is no GPU: the block of CuPy")
        return
    needed = f"{wheel}[{framework}]" if framework in EXTRAS else "cupy-cuda13x"
    run(folder, sys.executable, "-m", "pip", "install", "-q", needed)
    (folder / "block.py").write_text(code, encoding="utf-8")
    printed = run(folder, sys.executable, "block.py").splitlines()
    missing = [line for line in promised_output(code) if line not in printed]
    if missing:
        sys.exit(f"README promises other output: {missing}")


def build_program(folder: Path, source: str, project: str) -> None:
    """Compile the block of C++ with the block of CMake that follows it."""
    run(folder, sys.executable, "-m", "pip", "install", "-q", "cmake", "ninja")
    (folder / "app.cpp").write_text(source + MAIN, encoding="utf-8")
    (folder / "CMakeLists.txt").write_text(PROJECT + project, encoding="utf-8")
    where = run(folder, sys.executable, "-m", "membound", "cmake-dir").strip()
    run(folder, "cmake", "-G", "Ninja", "-S", ".", "-B", "build", f"-Dmembound_DIR={where}")
    run(folder, "cmake", "--build", "build")
    run(folder, "build/app")


def main(wheel: str) -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    source = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for language, code in blocks(README.read_text(encoding="utf-8")):
            if language == "sh":
                run(folder, "bash", "-ec", code.replace("'.[", f"'{wheel}["))
            elif language == "python":
                run_python(folder, code, wheel)
            elif language == "cpp":
                source = code
            elif language == "cmake":
                build_program(folder, source, code)
            else:  # a list of commands with what they do
                for line in code.splitlines():
                    run(folder, *line.split("  ")[0].split(), "--help")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
