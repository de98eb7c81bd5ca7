# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Everything a developer or CI runs: `nox -l` lists the sessions, `nox` runs the usual ones."""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "scripts", "cpp", "consumer", "tests"]
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")
BUILD = Path("build").absolute()
CMAKE = ("cmake>=3.26", "ninja>=1.11")
PROCESSES = str(min(8, len(os.sched_getaffinity(0))))  # of pytest, side by side
# 3.12 serves every later version, but for free-threaded interpreters, which have no stable ABI.
RELEASE_PYTHONS = ("3.11", "3.12", "3.14t")
TESTED_PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
# Code for 8.0 runs on 8.6 and 8.9 too; what gains there is added by cpp/CMakeLists.txt.
RELEASE_ARCHITECTURES = "75-real;80-real;90-real;100-real;120"
RELEASE_PLATFORM = f"manylinux_2_28_{platform.machine()}"
RELEASES = ("torch==2.10.0", "torch", "jax==0.4.38", "jax")  # oldest with all we promise, newest
# An index with a torch that has no libraries for GPUs (gigabytes); nothing else comes from it.
TORCH_INDEX = os.environ.get("MEMBOUND_TORCH_INDEX")

# Both CUDA and C++ units are compiled once per checkout where a compiler cache is installed.
if shutil.which("ccache"):
    os.environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    os.environ.setdefault("CMAKE_CUDA_COMPILER_LAUNCHER", "ccache")
    # Paths in the key start at the checkout, and build folders lie equally deep in it.
    os.environ.setdefault("CCACHE_BASEDIR", str(BUILD.parent))
    # One name for one compiler: it is part of the cache's key, and Python's own build may say g++.
    os.environ.setdefault("CC", "cc")
    os.environ.setdefault("CXX", "c++")


def groups(*names: str) -> list[str]:
    """Return the requirements of dependency groups of pyproject.toml."""
    return nox.project.dependency_groups(PROJECT, *names)


(TORCH,) = (one for one in groups("test") if one.startswith("torch=="))


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
    chosen = session.posargs or ["--all-files"]
    elsewhere = {"SKIP": "no-commit-to-branch"}  # a check of what is there, on whatever branch
    session.run("pre-commit", "run", *chosen, "--show-diff-on-failure", env=elsewhere)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel of this interpreter from the tree, as `pip install .` does."""
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    options = ["--no-deps", "-v", "-w", str(BUILD / "wheel"), f"-Cbuild-dir={BUILD / 'python'}"]
    session.run("pip", "wheel", *options, ".", silent=False)


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


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the site of docs/ into build/site and check its links; an argument names a wheel."""
    install_torch(session, TORCH)  # the reference is read from what is imported
    session.install(*groups("docs"))
    session.install("--force-reinstall", "--no-deps", *(session.posargs or ["."]))
    build = ("sphinx-build", "--fail-on-warning", "--fresh-env")
    session.run(*build, "-b", "html", "docs", str(BUILD / "site"))
    session.run(*build, "-b", "linkcheck", "-q", "docs", str(BUILD / "site-links"))


def interpreter(version: str) -> str | None:
    """Return the command of an interpreter, on the PATH or one of pyenv's, if it is here."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for command in (f"python{version}", *roots.glob(f"{version}.*/bin/python{version}")):
        found = shutil.which(command)
        if (
            found
            and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
        ):
            return found
    return None


def new_environment(session: nox.Session, python: str, folder: Path) -> str:
    """Make an empty environment of an interpreter; return its own."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run(python, "-m", "venv", str(folder), external=True)
    return str(folder / "bin/python")


def link_flags(session: nox.Session) -> str:
    """Return what the linker takes for RELEASE_PLATFORM: nothing in its image, stubs elsewhere."""
    if tuple(map(int, platform.libc_ver()[1].split("."))) <= (2, 28):
        return ""
    command = ("python", ".github/scripts/link_stubs.py", str(BUILD / "release-stubs"))
    return str(session.run(*command, silent=True)).strip()


def build_core(session: nox.Session, version: str, link: str) -> Path:
    """Compile the library once, for the wheels of every interpreter; return its install prefix."""
    folder, prefix = BUILD / "release", BUILD / "release-core"
    shutil.rmtree(prefix, ignore_errors=True)
    numbers = version.partition(".dev")[0]
    options = [f"-DSKBUILD_PROJECT_VERSION={numbers}", f"-DSKBUILD_PROJECT_VERSION_FULL={version}"]
    options.append(f"-DMEMBOUND_CUDA={os.environ.get('MEMBOUND_CUDA', 'ON')}")
    options.append(f"-DCMAKE_SHARED_LINKER_FLAGS={link}")
    if os.environ.get("MEMBOUND_NVCC") == "pypi":
        session.install(*groups("nvcc"))
    architectures = {"CUDAARCHS": os.environ.get("CUDAARCHS", RELEASE_ARCHITECTURES)}
    session.run("cmake", "--preset", "default", "-B", str(folder), *options, env=architectures)
    session.run("cmake", "--build", str(folder))
    session.run("cmake", "--install", str(folder), "--prefix", str(prefix))
    return prefix


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Build sdist and wheels as a release does: one core for all interpreters; check and test them.

    MEMBOUND_CUDA=OFF builds them for the CPU alone. They are of RELEASE_PLATFORM wherever they are
    built; a release is built in its image, which wheels.yml names.
    """
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    dist, raw = BUILD / "dist", BUILD / "release-wheels"
    shutil.rmtree(raw, ignore_errors=True)
    session.install(*groups("release"), *CMAKE)
    session.run("python", "-m", "build", "--sdist", "--outdir", str(dist))
    (sdist,) = dist.glob("*.tar.gz")
    link = link_flags(session)
    core = build_core(session, sdist.name.removeprefix("membound-").removesuffix(".tar.gz"), link)
    for version in RELEASE_PYTHONS:
        python = interpreter(version)
        if python is None:
            session.warn(f"no Python {version} here, so no wheel of it")
            continue
        own = new_environment(session, python, BUILD / "release-env" / version)
        # Not isolated: an isolated build would not see the CMake of this session.
        needs = [*PROJECT["build-system"]["requires"], "setuptools-scm>=8"]
        session.run(own, "-m", "pip", "install", "--quiet", *needs, external=True)
        options = ["--no-build-isolation", "--no-deps", f"-Ccmake.define.MEMBOUND_CORE={core}"]
        options.append(f"-Ccmake.define.CMAKE_MODULE_LINKER_FLAGS={link}")
        where = ["-w", str(raw / version)]
        session.run(own, "-m", "pip", "wheel", *options, *where, ".", external=True)
        built = built_wheel(raw / version)
        repair = ("auditwheel", "repair", "--exclude", "libcuda.so.1", "--plat", RELEASE_PLATFORM)
        session.run(*repair, "-w", str(dist), built)
    wheels = [str(path) for path in sorted(dist.glob("*.whl"))]
    for wheel in wheels:
        session.run("auditwheel", "show", wheel)
        session.run("python", ".github/scripts/check_binaries.py", wheel)
        session.run("python", "tests/machine_code.py", wheel)
        if "-abi3-" in wheel:
            session.run("abi3audit", "--strict", "--report", wheel)
    session.run("twine", "check", "--strict", *wheels, str(sdist))
    session.run("check-wheel-contents", *wheels)
    session.run("python", ".github/scripts/check_dist.py", str(dist))
    for version in TESTED_PYTHONS:
        if python := interpreter(version):
            test_in_new_environment(session, python, version)


def test_in_new_environment(session: nox.Session, python: str, version: str) -> None:
    """Run `check` on the released wheel alone, then it and the NumPy tests with NumPy."""
    own = new_environment(session, python, BUILD / "release-tests" / version)
    install = [own, "-m", "pip", "install", "--quiet"]
    wheels = ["--no-index", "--no-deps", "--pre", "--find-links", str(BUILD / "dist"), "membound"]
    session.run(*install, *wheels, external=True)
    session.run(own, "-m", "membound", "check", external=True)
    session.run(*install, *groups("numpy-tests"), external=True)
    session.run(own, "-m", "membound", "check", external=True)
    session.run(own, "-m", "pytest", *(session.posargs or ["tests/python"]), external=True)


@nox.session(default=False)
def next_version(session: nox.Session) -> None:
    """Print the next version and its notes; `-- publish` commits the changelog, tags and pushes."""
    session.install(*groups("version"))
    publish = session.posargs == ["publish"]
    session.run(
        "semantic-release", *(["version", "--no-vcs-release"] if publish else ["--noop", "version"])
    )


@nox.session
def scripts(session: nox.Session) -> None:
    """Test what workflows run: the version of made-up histories, checks of what is published."""
    session.install(*groups("version"), "pytest>=8", "pyelftools>=0.30")
    session.run("pytest", "tests/release", *session.posargs)


@nox.session(default=False, requires=["build"])
def bench(session: nox.Session) -> None:
    """Measure every op beside a copy of the same bytes; arguments go to `membound bench`."""
    session.install(*groups("bench"))
    session.install("--force-reinstall", "--no-deps", built_wheel(BUILD / "wheel"))
    session.run("python", "-m", "membound", "bench", *session.posargs)
