# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The tree keeps its rules, and each rule is able to fail: a small sound tree is broken for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_rules import BACK_END_LAYERS, FOLDERS, LAYERS, MAX_LINES, RULES

ROOT = Path(__file__).resolve().parents[2]
SPDX = "SPDX-FileCopyrightText: The membound authors\n{0} SPDX-License-Identifier: Apache-2.0\n"
CPP = "// " + SPDX.format("//")
PYTHON = "# " + SPDX.format("#")
TABLE = PYTHON + "[{}]\n"


def in_family(layer: str) -> str:
    """Return where the layer of a back end lies in the small tree."""
    return layer.replace("*", "norm")


def table(*ops: str) -> str:
    """Return a table of ops: the last one's row has several lines."""
    rows = [f'    Op("{op}"),\n' for op in ops[:-1]]
    return "".join(["OPS = (\n", *rows, f'    Op(\n        "{ops[-1]}",\n    ),\n', ")\n"])


# What to write where so that exactly one rule is broken. None: remove the file.
BREACHES: dict[str, list[tuple[str, str | None]]] = {
    "every_op_in_every_layer": [
        (layer.format(op=op), None) for op in ("scale", "add_scale") for layer in LAYERS
    ],
    "every_back_end_in_every_layer": [
        (in_family(layer.format(op="scale")), None) for layer in BACK_END_LAYERS
    ],
    "no_op_outside_the_list": [
        ("cpp/cuda/norm/shift.cu", CPP),
        ("cpp/cuda/norm/add_scale.cu", CPP),
        ("cpp/ops/shift.cpp", CPP),
        ("cpp/ops/add_scale.hpp", CPP + "#pragma once\n"),
        ("include/membound/ops/shift.hpp", CPP + "#pragma once\n"),
        ("src/ops/shift.toml", TABLE.format("shift")),
    ],
    "cuda_files_lie_in_families": [("cpp/cuda/scale.cuh", CPP + "#pragma once\n")],
    "every_op_bound_and_exported": [
        ("src/ops/scale.toml", TABLE.format("add_scale")),
        ("src/ops/scale.toml", TABLE.format("scale") + "[scale_silently]\n"),
        ("src/membound/__init__.py", PYTHON),
        ("src/membound/__init__.py", None),
    ],
    "every_op_checked_and_measured": [
        ("src/membound/check/__init__.py", PYTHON + table("scale")),
        ("src/membound/check/__init__.py", None),
        ("src/membound/bench/norms.py", PYTHON + table("add_scale")),
        ("src/membound/bench/rows.py", PYTHON + table("scale")),
    ],
    "one_place_launches_kernels": [
        ("cpp/cuda/norm/scale.cu", CPP + "void f() { scale_kernel<<<1, 1>>>(); }\n"),
        ("cpp/cuda/norm/scale_wide.cu", CPP + "void f() { cudaLaunchKernelExC(&c, k, a); }\n"),
    ],
    "no_python_in_the_library": [
        ("cpp/core/gil.cpp", CPP + "#include <Python.h>\n"),
        ("include/membound/a.hpp", CPP + "#pragma once\n#include <nanobind/nanobind.h>\n"),
    ],
    "no_cuda_in_public_headers": [
        ("include/membound/a.hpp", CPP + "#pragma once\n#include <cuda_runtime_api.h>\n"),
    ],
    "no_default_stream_below_include": [
        ("cpp/core/a.cpp", CPP + "auto s = StreamView::legacy_default();\n"),
        ("include/membound/a.hpp", CPP + "#pragma once\nvoid* s = cudaStreamPerThread;\n"),
    ],
    "one_dtype_switch": [
        ("cpp/cuda/norm/scale.cu", CPP + "switch (d) { case DType::kFloat16: f(); }\n"),
        ("cpp/cpu/scale.cpp", CPP + "switch (d) { case DType::kFloat16: f(); }\n"),
    ],
    "no_device_synchronize": [("cpp/cuda/norm/a.cpp", CPP + "auto e = cudaDeviceSynchronize();\n")],
    "no_std_in_cpu_kernels": [
        ("cpp/cpu/kernels/scale.cpp", CPP + "#include <cmath>\n"),
        ("cpp/core/shared.hpp", CPP + "#pragma once\n#include <algorithm>\n"),
    ],
    "kernels_are_named_kernel": [
        ("cpp/cuda/norm/scale.cu", CPP + "template <int N>\n__global__ void scale(float* x) {}\n"),
        (
            "cpp/cuda/norm/scale.cu",
            CPP + "__global__ void __launch_bounds__(256) scale(float* x);\n",
        ),
        (
            "cpp/cuda/norm/scale.cu",
            CPP + "__global__ void __launch_bounds__(f(2), 1) scale(int x);\n",
        ),
    ],
    "macros_carry_the_prefix": [("cpp/core/a.cpp", CPP + "#define CHECK(x) x\n")],
    "headers_are_guarded": [
        ("cpp/core/a.hpp", CPP),
        ("include/membound/a.hpp", CPP + "#pragma once\nusing namespace std;\n"),
    ],
    "frameworks_are_imported_late": [
        ("src/membound/a.py", PYTHON + "import numpy as np\n"),
        ("src/membound/a.py", PYTHON + "from torch.nn import Module\n"),
    ],
    "the_oracle_calls_no_op": [
        ("src/membound/oracle/a.py", PYTHON + "import membound\n"),
        ("src/membound/oracle/a.py", PYTHON + "from membound.check import cases\n"),
    ],
    "files_are_short": [("cpp/core/a.cpp", CPP + "\n" * MAX_LINES)],
    "names_say_the_idea": [
        ("cpp/core/fast_path.cpp", CPP),
        ("tests/python/utils.py", PYTHON),
        ("cpp/core/sum_v2.cpp", CPP),
    ],
    "documents_are_short": [("README.md", "word\n" * 201), ("CHANGELOG.md", "word\n" * 61)],
    "folders_do_not_grow": [
        ("src/membound/check/a.toml", PYTHON + "x = 1\n" * FOLDERS["src/membound/check"][1]),
    ],
    "words_are_the_fields": [
        ("cpp/cuda/norm/a.cuh", CPP + "#pragma once\nenum class Be{}side {{}};\n".format("")),
        ("tests/python/a.py", PYTHON + "# rows that start any{}\n".format("where")),
        ("README.md", "Every{} rows are fast.\n".format("day")),
    ],
    "comments_are_short": [
        ("cpp/core/a.cpp", CPP + "void f() {\n" + "  // word\n" * 3 + "}\n"),
        ("cpp/core/a.cpp", CPP + "int x;\n" + "// word\n" * 7 + "int y;\n"),
    ],
    "nothing_left_undone": [
        ("src/membound/a.py", PYTHON + "# T{}DO: later\n".format("O")),
        ("cpp/core/a.cpp", CPP + 'auto p = "/{}/me/x";\n'.format("home")),
    ],
    "every_source_names_its_licence": [
        ("cpp/core/a.cpp", "int x;\n"),
        ("src/membound/a.py", ""),
        ("src/ops/shared.toml", ""),
    ],
}


@pytest.mark.parametrize("name", RULES)
def test_the_tree_keeps_the_rule(name):
    broken = RULES[name](ROOT)
    assert not broken, f"{name}: {RULES[name].__doc__}\n" + "\n".join(broken)


@pytest.fixture
def sound_tree(tmp_path):
    """Build the smallest tree that keeps every rule: scale, and add_scale with its back end."""
    layers = [layer.format(op=op) for op in ("scale", "add_scale") for layer in LAYERS]
    layers += [in_family(layer.format(op="scale")) for layer in BACK_END_LAYERS]
    files = dict.fromkeys(layers, CPP)
    for name in files:
        if name.endswith(".hpp"):
            files[name] += "#pragma once\n"
        elif name.endswith(".py"):
            files[name] = PYTHON
        elif name.endswith(".toml"):
            files[name] = TABLE.format(Path(name).stem)
    files["cpp/ops.cmake"] = (
        "set(MEMBOUND_OPS\n    scale\n    add_scale\n)\nset(MEMBOUND_BACK_ENDS scale)\n"
    )
    files["cpp/core/shared.hpp"] = CPP + "#pragma once\n#include <cstdint>\n"
    files["cpp/cpu/kernels/scale.cpp"] += '#include "core/shared.hpp"\n'
    files["cpp/cuda/norm/scale.cu"] += (
        "// a comment may say <<<1, 1>>> and cudaDeviceSynchronize\n"
        "__global__ void scale_kernel(float* x) {}\n"
    )
    files["src/ops/shared.toml"] = PYTHON
    files["src/membound/__init__.py"] = PYTHON + '__all__ = [\n    "add_scale",\n    "scale",\n]\n'
    for name in ("check/__init__.py", "bench/norms.py"):
        files[f"src/membound/{name}"] = PYTHON + table("scale", "add_scale")
    files["src/membound/lazy.py"] = PYTHON + "def scale(x):\n    import numpy\n"
    for name, text in files.items():
        write(tmp_path / name, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def broken_rules(root: Path) -> list[str]:
    return [name for name, check in RULES.items() if check(root)]


def test_a_sound_tree_breaks_nothing(sound_tree):
    assert broken_rules(sound_tree) == []


def test_every_rule_has_a_breach():
    assert BREACHES.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [(name, *case) for name, cases in BREACHES.items() for case in cases],
)
def test_the_rule_fails_by_name(sound_tree, name, path, text):
    if text is None:
        (sound_tree / path).unlink()
    else:
        write(sound_tree / path, text)
    assert broken_rules(sound_tree) == [name]


def test_an_empty_list_of_ops_is_a_breach(sound_tree):
    write(sound_tree / "cpp/ops.cmake", "set(MEMBOUND_OPS\n)\n")
    assert RULES["every_op_in_every_layer"](sound_tree) == ["cpp/ops.cmake lists no op"]
    assert RULES["every_back_end_in_every_layer"](sound_tree) == ["cpp/ops.cmake lists no back end"]


def test_a_back_end_of_no_op_is_a_breach(sound_tree):
    lists = "set(MEMBOUND_OPS add_scale)\nset(MEMBOUND_BACK_ENDS scale)\n"
    write(sound_tree / "cpp/ops.cmake", lists)
    found = RULES["every_back_end_in_every_layer"](sound_tree)
    assert found == ["cpp/ops.cmake: the back end scale has no op of its name"]
