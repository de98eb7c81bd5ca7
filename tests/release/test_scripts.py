# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The scripts of the workflows, on distributions that are made up."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / ".github/scripts"
NANOBIND = {"type": "library", "name": "nanobind", "version": "3.1.0"}


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_dist, package_index = script("check_dist"), script("package_index")
release_notes, sbom = script("release_notes"), script("sbom")


def make_wheel(folder: Path, name: str, size: int = 0, cuda: str = "OFF") -> Path:
    """Write a wheel that has what the scripts look at; size: bytes of its library."""
    version = name.split("-")[1]
    info = f"membound-{version}.dist-info"
    with ZipFile(folder / name, "w", ZIP_STORED) as archive:
        config = f"set(membound_WITH_CUDA {cuda})\n"
        archive.writestr("membound/lib/cmake/membound/membound-config.cmake", config)
        archive.writestr("membound/lib/libmembound.so", bytes(size))
        metadata = f"Metadata-Version: 2.4\nName: membound\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", f"{metadata}Requires-Python: >=3.11\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        bill = {"bomFormat": "CycloneDX", "components": [NANOBIND]}
        archive.writestr(f"{info}/sboms/membound.cdx.json", json.dumps(bill))
    return folder / name


def make_release(folder: Path, version: str) -> None:
    (folder / f"membound-{version}.tar.gz").write_bytes(b"sdist")
    for machine in check_dist.MACHINES:
        for python in check_dist.PYTHONS:
            tags = f"{python}-manylinux_2_27_{machine}.manylinux_2_28_{machine}"
            make_wheel(folder, f"membound-{version}-{tags}.whl")


def test_a_whole_release_is_listed_and_passes(tmp_path, capsys):
    make_release(tmp_path, "0.2.0")
    assert check_dist.check(tmp_path, "v0.2.0") == []
    printed = capsys.readouterr().out
    assert printed.count("would publish membound-0.2.0") == 7


def test_an_incomplete_or_mixed_release_is_refused(tmp_path):
    make_release(tmp_path, "0.2.0")
    (gone,) = tmp_path.glob("*cp312-abi3*aarch64.whl")
    gone.unlink()
    make_wheel(tmp_path, "membound-0.2.0-cp312-abi3-linux_aarch64.whl")
    make_wheel(tmp_path, "membound-0.1.9-cp311-cp311-manylinux_2_28_x86_64.whl")
    (tmp_path / "notes.txt").write_text("")
    assert check_dist.check(tmp_path, "v0.2.0") == [
        "missing: membound-0.2.0-cp312-abi3-manylinux_2_28_aarch64.whl",
        "not of this release: membound-0.1.9-cp311-cp311-manylinux_2_28_x86_64.whl",
        "not of this release: membound-0.2.0-cp312-abi3-linux_aarch64.whl",
        "not of this release: notes.txt",
    ]
    assert check_dist.check(tmp_path) == []  # a nightly build has what it has


@pytest.mark.parametrize("cuda", ["ON", "OFF"])
def test_a_wheel_may_grow_by_a_tenth(tmp_path, monkeypatch, cuda):
    wheel = make_wheel(
        tmp_path, "membound-1.0.0-cp312-abi3-manylinux_2_28_x86_64.whl", 50_000, cuda
    )
    size = wheel.stat().st_size
    kind = "cuda" if cuda == "ON" else "cpu"
    sizes = tmp_path.parent / f"{tmp_path.name}.toml"
    monkeypatch.setattr(check_dist, "SIZES", sizes)
    sizes.write_text(f"[{kind}]\nx86_64 = {int(size / 1.09)}\n")
    assert check_dist.check(tmp_path) == []
    sizes.write_text(f"[{kind}]\nx86_64 = {int(size / 1.11)}\n")
    assert "at most" in check_dist.check(tmp_path)[0]


def test_a_size_that_nobody_noted_is_printed(tmp_path, capsys):
    wheel = make_wheel(tmp_path, "membound-1.0.0-cp312-abi3-manylinux_2_28_riscv64.whl", cuda="ON")
    assert check_dist.check(tmp_path) == []
    assert f"note {wheel.stat().st_size}" in capsys.readouterr().out


def test_an_empty_folder_publishes_nothing(tmp_path):
    assert check_dist.check(tmp_path) == [f"{tmp_path} is empty"]
    with pytest.raises(SystemExit, match="no wheel"):
        package_index.write_index(tmp_path, tmp_path / "pages")
    with pytest.raises(SystemExit, match="no wheel"):
        sbom.of_release(tmp_path)


def test_pip_finds_the_nightly_wheel_in_the_index(tmp_path, capsys):
    dist, pages = tmp_path / "dist", tmp_path / "pages"
    dist.mkdir()
    wheel = make_wheel(dist, "membound-0.2.0.dev7+g1a2b3c4-py3-none-any.whl")
    package_index.write_index(dist, pages)
    assert "would publish membound/membound-0.2.0.dev7" in capsys.readouterr().out
    page = (pages / "membound/index.html").read_text()
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in page
    assert 'data-requires-python="&gt;=3.11"' in page
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--pre", "--isolated"]
    command += ["--index-url", pages.as_uri(), "-d", str(tmp_path / "got"), "membound"]
    subprocess.run(command, capture_output=True, check=True)
    assert (tmp_path / "got" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_of_this_interpreter_is_chosen(tmp_path):
    """A local version has a plus sign, which pip's report writes as %2B."""
    make_wheel(tmp_path, "membound-0.2.0.dev7+g1a2b3c4-cp27-cp27mu-linux_x86_64.whl")
    wheel = make_wheel(tmp_path, "membound-0.2.0.dev7+g1a2b3c4-py3-none-any.whl")
    assert script("fitting_wheel").fitting_wheel(tmp_path) == str(wheel)


def test_the_bill_of_a_release_has_each_part_once_and_each_file(tmp_path):
    make_release(tmp_path, "0.2.0")
    parts = sbom.of_release(tmp_path)["components"]
    assert parts[0] == NANOBIND
    assert [part["type"] for part in parts[1:]] == ["file"] * 7
    assert all(len(part["hashes"][0]["content"]) == 64 for part in parts[1:])


def test_notes_are_the_section_of_the_tag():
    text = "# C\n\n## v0.2.0 (2026)\n\n- new\n\n## v0.1.0 (2025)\n\n- old\n\n## What\n"
    assert release_notes.notes(text, "v0.2.0") == "- new"
    assert release_notes.notes(text, "v0.1.0") == "- old"
    with pytest.raises(SystemExit, match=r"no section of v0\.3\.0"):
        release_notes.notes(text, "v0.3.0")


@pytest.fixture
def fake_commands(tmp_path, monkeypatch):
    """Stand-ins of gh and docker, which write down how they are called."""
    log = tmp_path / "log"
    for name in ("gh", "docker"):
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\necho "$ANSWER"\n')
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


@pytest.mark.parametrize(("answer", "verb"), [("", "create --title"), ("7", "comment 7")])
def test_a_failed_night_has_one_issue(fake_commands, monkeypatch, answer, verb):
    monkeypatch.setenv("ANSWER", answer)
    subprocess.run([SCRIPTS / "report_failure.sh", "https://r.example/9"], check=True)
    called = fake_commands.read_text().splitlines()
    assert called[1].startswith(f"gh issue {verb}")
    assert "https://r.example/9 failed on" in called[1]


@pytest.mark.parametrize("push", ["true", "false"])
def test_an_image_is_pushed_only_when_asked(fake_commands, monkeypatch, push):
    values = {"TAG": "v0.2.0", "PUSH": push, "REGISTRY": "r.example", "ANSWER": ""}
    for name, value in {**values, "REGISTRY_USER": "u", "REGISTRY_PASSWORD": "p"}.items():
        monkeypatch.setenv(name, value)
    subprocess.run([SCRIPTS / "push_image.sh", "r.example/Owner/membound"], check=True)
    called = fake_commands.read_text()
    assert "docker build --pull --tag r.example/owner/membound:0.2.0 ." in called
    assert ("docker push r.example/owner/membound:0.2.0" in called) == (push == "true")
    assert "-p p" not in called


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("-Wl,-z,relro,-z,now", ""),
        ("-Wl,-z,relro,-z,lazy", "RELRO is not full"),
        ("-Wl,-z,norelro,-z,now", "RELRO is not full"),
        ("-Wl,-z,relro,-z,now,-z,execstack", "an executable stack"),
        ("-Wl,-z,relro,-z,now,--no-as-needed -lresolv", "needs libresolv.so.2"),
    ],
)
def test_a_library_that_is_not_hardened_is_refused(tmp_path, capsys, flags, problem):
    check_binaries = script("check_binaries")
    library, wheel = tmp_path / "a.so", tmp_path / "a.whl"
    source = '#include <stdio.h>\nint f(void) { return puts(""); }\n'
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), *flags.split()]
    subprocess.run(command, input=source, text=True, check=True)
    with ZipFile(wheel, "w") as archive:
        archive.write(library, "membound/a.so")
    assert check_binaries.main(wheel) == bool(problem)
    assert problem in capsys.readouterr().out


def test_machine_code_is_counted_by_family():
    family = script("check_binaries").family
    mangled = ".text._ZN8membound4cuda12_GLOBAL__N_1{}IfEEvPT_"
    for kernel, name in [("15rms_norm_kernel", "norm"), ("19qk_norm_rope_kernel", "rope")]:
        assert family(mangled.format(kernel)) == name
    assert family(mangled.format("11copy_kernel")) == "other"
