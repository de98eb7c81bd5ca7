# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The header of a test run, and skips of tests that need other hardware."""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis
import pytest
from seeds import SEED

hypothesis.settings.register_profile("membound", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("membound")


def pytest_report_header() -> list[str]:
    try:
        import membound
        from membound._frameworks import NAMES, installed_version
    except Exception as error:  # noqa: BLE001 - an op that is half written; the rules need none
        return [f"membound cannot be imported: {error}"]
    status = membound.cuda_status()
    versions = [f"{name} {installed_version(name) or 'absent'}" for name in (*NAMES, "ml_dtypes")]
    devices = [membound.device_properties(i).name for i in range(status.device_count)]
    cpu = f"CPU {membound.cpu_isa()} x {membound.cpu_threads()}"
    return [
        f"membound {membound.__version__}: {cpu}, GPU {', '.join(devices) or status.message}",
        f"frameworks: {', '.join(versions)}",
        f"MEMBOUND_TEST_SEED={SEED}",
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, count in (("gpu", 1), ("multi_gpu", 2)):
        if item.get_closest_marker(marker) is None:
            continue
        import membound

        status = membound.cuda_status()
        if status.device_count < count:
            pytest.skip(f"needs {count} GPU(s), found {status.device_count}: {status.message}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed derived from the session's seed and the test's name."""
    return random.Random(f"{SEED} {request.node.nodeid}").randrange(2**32)


@pytest.fixture
def opcheck() -> Callable[..., object]:
    """torch's own check of an operator: schema, fake kernel, autograd."""
    pytest.importorskip("torch")
    from torch import library

    return library.opcheck
