# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Everything a developer or CI runs: `nox -l` lists the sessions, `nox` runs the usual ones."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "cpp", "consumer", "tests"]
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")
BUILD = Path("build").absolute()
CMAKE = ("cmake>=3.26", "ninja>=1.11")
PROCESSES = str(min(8, len(os.sched_getaffinity(0))))  # of pytest, side by side
TORCH = "torch==2.13.0"  # as in pyproject.toml: what the tests run on
RELEASES = ("torch==2.10.0", "torch", "jax==0.4.38", "jax")  # oldest with all we promise, newest
# An index with a torch that has no libraries for GPUs (gigabytes); nothing else comes from it.
TORCH_INDEX = os.environ.get("MEMBOUND_TORCH_INDEX")

# Both CUDA and C++ units are compiled once per checkout where a compiler cache is installed.
if shutil.which("ccache"):
    os.environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    os.environ.setdefault("CMAKE_CUDA_COMPILER_LAUNCHER", "ccache")
    # One name for one compiler: it is part of the cache's key, and Python's own build may say g++.
    os.environ.setdefault("CC", "cc")
    os.environ.setdefault("CXX", "c++")


def groups(*names: str) -> list[str]:
    """Return the requirements of dependency groups of pyproject.toml."""
    return nox.project.dependency_groups(PROJECT, *names)


def built_wheel(folder: Path) -> str:
    """Return the one wheel that a build session left in a folder."""
    (wheel,) = folder.glob("membound-*.whl")
    return str(wheel)


def install_torch(session: nox.Session, requirement: str) -> None:
    """Install torch from its own index, where one is named; else from where all comes from."""
    session.install(requirement, *(["--index-url", TORCH_INDEX] if TORCH_INDEX else []))


@nox.session
def lint(session: nox.Session) -> None:
    """Run every formatter and checker, exactly the hooks of .pre-commit-config.yaml."""
    session.install(*groups("lint"))
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of this interpreter from the tree, as `pip install .` does."""
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    session.run("pip", "wheel", "--no-deps", "-v", "-w", str(BUILD / "wheel"), ".", silent=False)


@nox.session(requires=["build"])
def tests(session: nox.Session) -> None:
    """Run the Python tests on the wheel with NumPy, torch and JAX; arguments go to pytest."""
    install_torch(session, TORCH)
    session.install(*groups("test"))
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    # What times calls runs alone; the rest side by side, from one seed.
    session.run("pytest", "tests/python/test_overhead.py")
    seed = os.environ.get("MEMBOUND_TEST_SEED") or str(random.randrange(2**32))
    session.run("pytest", "-n", PROCESSES, env={"MEMBOUND_TEST_SEED": seed})


@nox.session(default=False, requires=["build"])
@nox.parametrize("release", [nox.param(release, id=release) for release in RELEASES])
def frameworks(session: nox.Session, release: str) -> None:
    """Run the tests of torch and those of JAX on their oldest and newest releases."""
    framework = release.partition("==")[0]
    session.install(*groups("numpy-tests"), "pytest-xdist>=3.6")
    if framework == "torch":
        install_torch(session, release)
    else:
        session.install(release)
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    session.run("python", "-c", f"import {framework}; print({framework}.__version__)")
    own = sorted(str(path) for path in Path("tests/python").glob(f"test_{framework}*.py"))
    shared = [f"tests/python/test_{part}.py" for part in ("exchange", "errors")]
    session.run("pytest", "-n", PROCESSES, *own, *shared)


@nox.session(default=False, requires=["build"])
def layer_package(session: nox.Session) -> None:
    """Let Hugging Face's `kernels`, of a version that transformers takes, load our layers."""
    install_torch(session, TORCH)
    session.install(*groups("numpy-tests"))
    session.install("kernels==0.17.2", "transformers==5.19.0")
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    session.run("pytest", "tests/python/test_torch_layer_package.py")


@nox.session(default=False, requires=["build"])
def models(session: nox.Session) -> None:
    """Patch every model class of transformers, compare, and renew the table of the outcomes."""
    install_torch(session, TORCH)
    session.install(*groups("test"), "pillow", "scipy")
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    (BUILD / "models.jsonl").unlink(missing_ok=True)
    table = ("--table", "tests/models/table.md")
    session.run("python", "tests/models/sweep.py", *table, *session.posargs)


@nox.session
def cpp(session: nox.Session) -> None:
    """Build the C++ library without Python and run its tests; an argument names the preset."""
    (preset,) = session.posargs or ["default"]
    session.install(*CMAKE)
    session.run("cmake", "--preset", preset, "-DMEMBOUND_TESTS=ON")
    session.run("cmake", "--build", "--preset", preset)
    session.run("ctest", "--preset", preset)


@nox.session(requires=["build", "cpp"])
def consumer(session: nox.Session) -> None:
    """Let another CMake project find membound in an install prefix and in the installed wheel."""
    session.install(*CMAKE)
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    prefix = BUILD / "prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    session.run("cmake", "--install", str(BUILD / "default"), "--prefix", str(prefix))
    wheel_dir = session.run("python", "-m", "membound", "cmake-dir", silent=True).strip()
    no_toolkit = "-DCMAKE_CUDA_COMPILER=NOTFOUND"  # linking the library needs none
    for name, where in {
        "prefix": [f"-DCMAKE_PREFIX_PATH={prefix}", no_toolkit],
        "wheel": [f"-Dmembound_DIR={wheel_dir}", no_toolkit],
        "toolkit": [f"-Dmembound_DIR={wheel_dir}"],  # vector_add with its kernel, if there is nvcc
    }.items():
        folder = BUILD / f"consumer-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        session.run("cmake", "-S", "tests/consumer", "-B", str(folder), "-G", "Ninja", *where)
        session.run("cmake", "--build", str(folder))
        session.run("ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=error")


@nox.session(default=False, requires=["build"])
def readme(session: nox.Session) -> None:
    """Run README's blocks from top to bottom in an empty environment, from the built wheel."""
    built = built_wheel(BUILD / "wheel")
    if TORCH_INDEX:
        install_torch(session, "torch")
    session.run("python", ".github/scripts/run_readme.py", built)
    session.install("twine>=6")  # renders the README as the page of an index does
    session.run("twine", "check", "--strict", built)


@nox.session(default=False, python=["3.11", "3.12"])
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel as a release does, check the wheel, and test it on its interpreters."""
    dist = BUILD / "dist" / session.python
    shutil.rmtree(dist, ignore_errors=True)
    session.install(*groups("wheel"))
    session.run("python", "-m", "build", "--outdir", str(dist))
    built = built_wheel(dist)
    session.run("auditwheel", "show", built)
    # Invalid instructions that nvcc made, of any architecture.
    session.install("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm")
    session.run("python", "tests/machine_code.py", built)
    if "-abi3-" in built:
        session.run("abi3audit", "--strict", "--report", built)
    # 3.11 has a wheel of its own; that of 3.12 serves every later version.
    for version in ["3.12", "3.13"] if session.python == "3.12" else ["3.11"]:
        session.notify(f"wheel_tests-{version}")


@nox.session(default=False, python=["3.11", "3.12", "3.13"])
def wheel_tests(session: nox.Session) -> None:
    """Run `check` and the NumPy tests on the wheel that the session `wheel` built."""
    dist = BUILD / "dist" / ("3.11" if session.python == "3.11" else "3.12")
    session.install(*groups("numpy-tests"))
    session.install("--force-reinstall", "--no-deps", built_wheel(dist))
    session.run("python", "-m", "membound", "check")
    session.run("pytest", *session.posargs)


@nox.session(default=False, requires=["build"])
def bench(session: nox.Session) -> None:
    """Measure every op beside a copy of the same bytes; arguments go to `membound bench`."""
    session.install(*groups("bench"))
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    session.run("python", "-m", "membound", "bench", *session.posargs)
