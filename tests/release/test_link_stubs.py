# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries linked against the stubs of manylinux_2_28, which run on this machine too."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".github/scripts/link_stubs.py"
LIMITS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
# What has newer versions since, libraries that were apart, and what newer_symbols.cpp defines.
USER = """
#include <cmath>
#include <dlfcn.h>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

extern "C" double numbers(double x) { return std::pow(std::exp(x), 2.0) + std::hypot(x, x); }
extern "C" bool finds(const char* name) { return dlsym(RTLD_DEFAULT, name) != nullptr; }
extern "C" long copies_of_errors(int count) {
  std::shared_ptr<int> seen = std::make_shared<int>(0);
  std::once_flag once;
  std::exception_ptr first;
  std::thread([&] {
    std::call_once(once, [&] { first = std::make_exception_ptr(seen); });
  }).join();
  for (int i = 0; i < count; ++i) {
    std::exception_ptr copy = first;
    try { std::rethrow_exception(copy); } catch (const std::shared_ptr<int>& held) { ++*held; }
  }
  int calls = *seen;
  first = nullptr;
  return calls * 10 + seen.use_count();  // destroyed with its last copy, and no sooner
}
extern "C" bool refuses_a_length(long length) {
  try { std::allocator<double>().allocate(length); } catch (const std::bad_array_new_length&) {
    return true;
  } catch (const std::bad_alloc&) { return false; }
  return false;
}
"""


def link(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(SCRIPT), str(folder / "stubs"))
    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    (folder / "user.cpp").write_text(source)
    options = ["-shared", "-fPIC", "-O2", "-std=c++17", "-Wl,--no-undefined", *flags]
    build = ["c++", *options, str(folder / "user.cpp"), "-o", str(folder / "user.so")]
    return subprocess.run(build, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    linked = link(folder, USER)
    assert linked.returncode == 0, linked.stderr
    return folder / "user.so"


def test_a_library_asks_for_no_version_that_manylinux_2_28_lacks(library):
    command = ("readelf", "-W", "--version-info", str(library))
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"Name: (\w+)_([\d.]+)  Flags", listed))
    assert {family for family, _ in needed} >= {"GLIBC", "GLIBCXX", "CXXABI"}
    for family, number in needed:
        assert tuple(map(int, number.split("."))) <= LIMITS.get(family, (99,)), (family, number)


def test_a_library_names_those_that_were_apart(library):
    command = ("readelf", "-W", "--dynamic", str(library))
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", listed))
    assert needed >= {"libpthread.so.0", "libdl.so.2", "librt.so.1", "libc.so.6", "libstdc++.so.6"}


def test_a_library_runs_with_the_real_ones(library):
    loaded = ctypes.CDLL(str(library))
    loaded.numbers.restype = ctypes.c_double
    assert loaded.numbers(ctypes.c_double(0.0)) == 1.0
    assert loaded.finds(b"dlopen")
    assert loaded.copies_of_errors(3) == 31
    assert loaded.refuses_a_length(ctypes.c_long(2**62))
    assert not loaded.refuses_a_length(ctypes.c_long(2**59))


def test_a_symbol_that_is_newer_and_has_no_substitute_fails_the_link(tmp_path):
    source = 'extern "C" unsigned arc4random(); extern "C" unsigned draw() { return arc4random(); }'
    linked = link(tmp_path, source)
    assert linked.returncode != 0
    assert "undefined reference to `arc4random'" in linked.stderr
