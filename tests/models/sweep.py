# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`membound.torch.patch` on every model class of the installed transformers.

    python tests/models/sweep.py [--only REGEX] [--results FILE] [--table FILE] [--seconds 60]

Each class runs in a process of its own that is forked from one that has imported everything. The
results are lines of JSON, one a class; a class that has one already is not run again. The table is
made of all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import model_comparison
import small_models
import torch
import transformers

from membound.torch import patch

GIGABYTE = 2**30
PARTS = [name for name in inspect.signature(patch).parameters if name != "model"]


def in_child(module: str, name: str, seconds: int) -> dict[str, Any]:
    """The outcome of a class, from a child that may hang, crash or run out of memory."""
    read, write = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if not child:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (10 * GIGABYTE,) * 2)
        signal.alarm(seconds)
        outcome = model_comparison.Outcome(name)
        try:
            warnings.simplefilter("ignore")
            model_comparison.compare(outcome, small_models.load(module, name))
        except BaseException as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            if outcome.parts or outcome.left or outcome.cases:
                outcome.failed.append(text)
            else:
                outcome.built = outcome.built or f"does not build: {text}"
        if any("can't allocate memory" in fault for fault in outcome.failed):  # the limit above
            outcome = model_comparison.Outcome(name, built="not finished: it takes too much memory")
        outcome.seconds = round(time.monotonic() - start, 1)
        os.write(write, json.dumps(dataclasses.asdict(outcome)).encode()[:60000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        return json.loads(said)
    why = "it takes too long" if os.WTERMSIG(status) == signal.SIGALRM else f"signal {status}"
    return dataclasses.asdict(model_comparison.Outcome(name, built=f"not finished: {why}"))


def is_model(module: str, name: str) -> bool:
    cls = small_models.load(module, name)
    return (
        isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
        and getattr(cls, "config_class", None) is not None
    )  # fmt: skip


def parts_of(outcome: dict[str, Any], functions: dict[str, set[str]]) -> list[str]:
    """A cell for each part: what was replaced, by what where a part has several functions."""
    return [
        ", ".join(
            f"{count} {name}" if len(functions[part]) > 1 else str(count)
            for name, count in outcome["parts"].get(part, {}).items()
        )
        for part in functions
    ]


def table(outcomes: list[dict[str, Any]]) -> str:
    """The outcomes as a page of Markdown, totals first."""
    tried = [r for r in outcomes if not r["built"]]
    failed = [r for r in tried if r["failed"]]
    whole = [r for r in tried if not r["failed"] and not r["left"]]
    part = [r for r in tried if not r["failed"] and r["left"]]
    functions = {one: {name for r in tried for name in r["parts"].get(one, ())} for one in PARTS}
    lines = [
        "# `membound.torch.patch` on the model classes of transformers",
        "",
        f"Written by `nox -s models`; transformers {transformers.__version__}.",
        "",
        f"- names that transformers exports: {len(list(small_models.model_classes()))}",
        f"- classes of them that this run reached: {len(outcomes)}",
        f"- run before and after the patch: {len(tried)}",
        f"- patched fully: {len(whole)}; in part, with the reason: {len(part)}",
        f"- failed: {len(failed)}",
        f"- not run: no small configuration or input found in time: {len(outcomes) - len(tried)}",
        "",
        "| part | classes where it is replaced | where it is left | functions |",
        "|---|---|---|---|",
    ]
    for one, names in functions.items():
        replaced, left = (sum(one in r[what] for r in tried) for what in ("parts", "left"))
        lines.append(f"| {one} | {replaced} | {left} | {', '.join(sorted(names))} |")
    head = ("class", *PARTS, "left", "result")
    lines += ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in sorted(outcomes, key=lambda r: (r["module"], r["name"])):
        left = "; ".join(f"{n} {why}" for found in r["left"].values() for why, n in found.items())
        why = ": ".join(r["built"].split(": ")[:2])
        said = f"not run: {why}" if r["built"] else "; ".join(r["failed"]) or "same"
        cells = (r["name"], *parts_of(r, functions), left, said[:160])
        lines.append(
            "| " + " | ".join(c.replace("|", "/").replace("\n", " ") for c in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path, default=Path("build/models.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if options.results.exists():
        done = {(r["module"], r["name"]) for r in map(json.loads, options.results.open())}
    with options.results.open("a") as results:
        for module, name in small_models.model_classes():
            if not re.search(options.only, f"{module}.{name}") or (module, name) in done:
                continue
            try:
                if not is_model(module, name):
                    continue
                outcome = in_child(module, name, options.seconds)
            except ImportError as error:
                outcome = dataclasses.asdict(model_comparison.Outcome(name, built=str(error)[:200]))
            results.write(json.dumps({"module": module, **outcome}) + "\n")
            results.flush()
            said = outcome["built"] or "; ".join(outcome["failed"]) or "ok"
            print(f"{name} {outcome['seconds']} s {said}", flush=True)
    if options.table:
        options.table.write_text(table([json.loads(r) for r in options.results.open()]))


if __name__ == "__main__":
    main()
