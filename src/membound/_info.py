# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `python -m membound info` prints."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import membound
from membound import _core, _frameworks

FLOATS = ("float16", "bfloat16", "float32", "float64")


def package_folder() -> Path:
    """The folder of the built files; in an editable install it is not the folder of this source."""
    return Path(_core.__file__).resolve().parent


def cuda_version_text(encoded: int) -> str:
    """13000 -> "13.0": CUDA's own encoding of versions."""
    return f"{encoded // 1000}.{encoded % 1000 // 10}" if encoded else "none"


def gpus() -> list[dict[str, Any]]:
    """Name, compute capability, SMs, memory and L2 of each usable GPU."""
    found = []
    for index in range(membound.cuda_status().device_count):
        device = membound.device_properties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": device.name,
                "compute_capability": f"{device.compute_major}.{device.compute_minor}",
                "multiprocessors": device.multiprocessors,
                "memory_bytes": device.memory_bytes,
                "l2_bytes": device.l2_bytes,
            }
        )
    return found


def plan(op: str, rows: int, cols: int, dtype: str) -> str:
    """The kernel and the launch of a norm on the first GPU, or on an H200 where there is none."""
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(FLOATS)}, got {dtype}")
    if rows * cols >= 2**48:  # no address space holds them; products stay in 64 bits
        raise ValueError(f"rows * cols must be below 2**48, got {rows} x {cols}")
    compute, multiprocessors, name = 90, 132, "an H200"
    if found := gpus():
        compute = int(found[0]["compute_capability"].replace(".", ""))
        multiprocessors, name = found[0]["multiprocessors"], found[0]["name"]
    code = _core.DTYPE_CODES[dtype]
    text = _core.norm_plan_text(op, rows, cols, code, compute, multiprocessors)
    return f"{op} of {rows} x {cols} {dtype}, contiguous, without options, on {name}\n{text}"


def collect() -> dict[str, Any]:
    """The facts, as JSON-serialisable values."""
    status = membound.cuda_status()
    return {
        "version": membound.__version__,
        "package": str(package_folder()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"instruction_set": membound.cpu_isa(), "threads": membound.cpu_threads()},
        "cuda": {
            "built": status.built_with_cuda,
            "architectures": status.architectures.split(),
            "runtime": cuda_version_text(status.runtime_version),
            "driver": cuda_version_text(status.driver_version),
            "message": status.message,
        },
        "gpus": gpus(),
        "frameworks": {
            name: _frameworks.installed_version(name) for name in (*_frameworks.NAMES, "ml_dtypes")
        },
    }


def _gpu_line(gpu: dict[str, Any]) -> str:
    gib = gpu["memory_bytes"] / 2**30
    return (
        f"{gpu['device']} {gpu['name']}, compute capability {gpu['compute_capability']}, "
        f"{gpu['multiprocessors']} SMs, {gib:.0f} GiB, L2 {gpu['l2_bytes'] / 2**20:.0f} MiB"
    )


def lines(facts: dict[str, Any]) -> list[str]:
    cpu, cuda = facts["cpu"], facts["cuda"]
    build = "without CUDA (CPU only)"
    if cuda["built"]:
        build = f"with CUDA {cuda['runtime']} for compute capabilities "
        build += " ".join(cuda["architectures"])
    gpu_lines = [_gpu_line(gpu) for gpu in facts["gpus"]] or [f"none: {cuda['message']}"]
    rows = [
        ("membound", f"{facts['version']}, Python {facts['python']}, {facts['platform']}"),
        ("package", facts["package"]),
        ("build", build),
        ("CPU", f"{cpu['instruction_set']}, up to {cpu['threads']} threads"),
        ("driver", f"CUDA {cuda['driver']}" if cuda["driver"] != "none" else "none"),
        *(("GPU", line) for line in gpu_lines),
        *((name, version or "not installed") for name, version in facts["frameworks"].items()),
    ]
    return [f"{name:<10} {text}" for name, text in rows]


def run(as_json: bool) -> int:
    facts = collect()
    if as_json:
        import json

        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(lines(facts)))
    return 0
