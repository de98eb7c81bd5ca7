# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The command `membound`, or `python -m membound`: info, check, bench, cmake-dir."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import membound
from membound import _spellings


def _sizes(text: str) -> list[tuple[int, int]]:
    """Turn 1x4096,16384x4096 into [(1, 4096), (16384, 4096)]."""
    try:
        sizes = [tuple(int(part) for part in size.split("x")) for size in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or any(len(size) != 2 or min(size) < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected ROWSxCOLS,ROWSxCOLS,... and got '{text}'")
    return sizes


def _device(text: str) -> str:
    if not re.fullmatch(r"(cpu|cuda(:\d+)?)?", text):
        raise argparse.ArgumentTypeError(f"expected cpu, cuda or cuda:N and got '{text}'")
    return text


def parser() -> argparse.ArgumentParser:
    module = Path(sys.argv[0]).stem != "membound"
    main = argparse.ArgumentParser(
        prog="python -m membound" if module else "membound",
        description="membound on this machine: what it is, whether it is right, how fast it is.",
    )
    version = f"membound {membound.__version__}"
    main.add_argument("--version", action="version", version=version)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="version, build, CPU, GPUs or why none, frameworks")
    info.add_argument("--json", action="store_true", help="print JSON instead of lines")
    info.add_argument(
        "--plan",
        nargs=3,
        metavar=("OP", "ROWSxCOLS", "DTYPE"),
        help="which kernel a norm or its gradient runs on this GPU, or on an H200 where there is "
        "none: --plan rms_norm 8192x2304 bfloat16",
    )

    check = commands.add_parser(
        "check",
        help="run every op against exact results on every device and framework here",
        description="Runs every op in every dtype, layout and option on every device and in every "
        "framework that is installed, against exact results. Exit code: 0 all right, 1 something "
        "is wrong, 2 nothing could be checked, 130 Ctrl-C.",
    )
    check.add_argument("--op", action="append", default=[], help="only this op (repeatable)")
    check.add_argument(
        "--framework",
        action="append",
        default=[],
        choices=["memoryview", "numpy", "torch", "jax", "cupy"],
        help="only this framework (repeatable); memoryview is the standard library alone",
    )
    check.add_argument(
        "--device", type=_device, default="", help="only devices that begin so: cpu, cuda, cuda:1"
    )
    amount = check.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="20 seconds, over all ops")
    amount.add_argument("--thorough", action="store_true", help="every combination; takes minutes")
    check.add_argument(
        "--verbose",
        action="store_true",
        help="a line for each op, framework, device and dtype; list every wrong case",
    )

    bench = commands.add_parser(
        "bench",
        help="time every op beside a copy of the same bytes and the frameworks here",
        description="Times every op beside a copy of the same bytes and beside the frameworks that "
        "are installed, over rotating buffers that do not fit the cache (--warm: the same buffers "
        "again and again). Ratio = time of the copy / time of the op: 1 means as fast as memory.",
    )
    bench.add_argument("--op", action="append", default=[], help="only this op (repeatable)")
    bench.add_argument(
        "--device", type=_device, default="", help="cpu, cuda or cuda:N (default: cuda if any)"
    )
    bench.add_argument(
        "--dtype",
        default="",
        choices=["float16", "bfloat16", "float32", "float64"],
        help="default: float32, on GPUs bfloat16 too",
    )
    bench.add_argument(
        "--sizes", type=_sizes, default=None, metavar="ROWSxCOLS,...", help="instead of the default"
    )
    bench.add_argument("--warm", action="store_true", help="buffers that stay in the cache")
    bench.add_argument("--json", default="", metavar="PATH", help="also write the figures as JSON")
    bench.add_argument(
        "--compare",
        default="",
        metavar="PATH",
        help="say what is faster or slower than in this file; exit code 1: something is slower",
    )
    bench.add_argument(
        "--plot", default="", metavar="PATH", help="also draw a picture (needs matplotlib)"
    )
    bench.add_argument(
        "--plot-kind",
        default="ratio",
        choices=["ratio", "time"],
        help="bars of the ratio to a copy (default), or curves of time and bandwidth",
    )

    commands.add_parser("cmake-dir", help="print the folder that find_package(membound) needs")
    return main


def _cmake_dir() -> int:
    from membound import _cmake

    try:
        print(_cmake.cmake_dir())
    except (FileNotFoundError, PackageNotFoundError) as error:
        print(f"membound: {error}", file=sys.stderr)
        return 2
    return 0


def _refuse_unknown_ops(asked: Sequence[str], known: Iterable[str]) -> None:
    unknown = sorted(set(asked) - set(known))
    if unknown:
        hint = _spellings.keyword_hint(unknown[0], known)
        parser().error(f"unknown op {', '.join(unknown)}{hint}; known: {', '.join(known)}")


def _plan(op: str, shape: str, dtype: str) -> int:
    from membound import _info

    sizes = re.fullmatch(r"([0-9]+)x([0-9]+)", shape)
    if sizes is None:
        parser().error(f"info --plan: expected ROWSxCOLS, such as 8192x2304, and got '{shape}'")
    try:
        print(_info.plan(op, int(sizes[1]), int(sizes[2]), dtype))
    except ValueError as error:
        parser().error(f"info --plan: {error}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    options = parser().parse_args(arguments)
    if options.command == "cmake-dir":
        return _cmake_dir()
    membound.cpu_isa()  # raises if MEMBOUND_CPU_ISA names no instruction set of this CPU
    if options.command == "info":
        from membound import _info

        if options.plan is not None:
            return _plan(*options.plan)
        return _info.run(options.json)
    if options.command == "check":
        from membound import check

        _refuse_unknown_ops(options.op, check.OPS)
        chosen = (options.op, options.framework, options.device)
        return check.run(*chosen, options.thorough, options.verbose, options.quick)
    from membound import bench

    _refuse_unknown_ops(options.op, bench.OPS)
    return bench.run(options)


def run_process() -> int:
    """Run the command of this process; errors that users meet end it without a traceback."""
    try:
        code = main()
        sys.stdout.flush()
    except ValueError as error:
        if not str(error).startswith("cpu_isa: "):
            raise
        print(f"membound: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # outside of what check and bench keep
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as in `info | head -1`
        # The flush at exit must find an open file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(run_process())
