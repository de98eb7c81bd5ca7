# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree. Each takes its root and returns one line per breach."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE_FOLDERS = ("include", "cpp", "src", "tests", "examples", "benchmarks")
CPP_SUFFIXES = (".hpp", ".cpp", ".cuh", ".cu")
MAX_LINES = 800

# One op has one stem; these files carry it.
LAYERS = (
    "include/membound/ops/{op}.hpp",
    "cpp/ops/{op}.cpp",
    "src/ops/{op}.toml",
    "tests/cpp/test_{op}.cpp",
    "tests/python/test_{op}.py",
)
# So has a back end: of the op of its name, and of those that are it with one more array. Kernels
# may be split further as <op>_<part>.cu and <op>_<part>.cpp; those of CUDA lie in the folder of
# their family.
BACK_END_LAYERS = (
    "cpp/ops/{op}.hpp",
    "cpp/cpu/{op}.cpp",
    "cpp/cpu/kernels/{op}.cpp",
    "cpp/cuda/*/{op}.cu",
    "cpp/cuda/*/{op}_config.hpp",
)
SHARED_TABLE = "shared"
LAUNCHER = "cpp/cuda/launch/launch.cpp"
DISPATCH = "cpp/core/dispatch.hpp"
CUDA_HEADER = "include/membound/cuda_check.hpp"
# The type that names the legacy default stream, the constructor whose host memory needs none, and
# the staging slot of a machine without a GPU.
DEFAULT_STREAM = (
    "include/membound/stream.hpp",
    "include/membound/device_buffer.hpp",
    "cpp/core/staging_slot.cpp",
)
# Headers without inline functions: a kernel unit may see them, see no_std_in_cpu_kernels.
HARMLESS_STD = ("cstdint", "cstddef")
FRAMEWORKS = ("torch", "jax", "jaxlib", "numpy", "cupy", "ml_dtypes", "matplotlib")

Rule = Callable[[Path], list[str]]
RULES: dict[str, Rule] = {}


def rule(check: Rule) -> Rule:
    """Register a rule under its own name."""
    RULES[check.__name__] = check
    return check


def ops(root: Path, name: str = "MEMBOUND_OPS") -> list[str]:
    """Return the stems of one of THE lists of cpp/ops.cmake."""
    listed = re.search(rf"set\(\s*{name}\b([^)]*)\)", (root / "cpp/ops.cmake").read_text())
    return listed.group(1).split() if listed else []


def back_ends(root: Path) -> list[str]:
    return ops(root, "MEMBOUND_BACK_ENDS")


def sources(root: Path, *folders: str, suffixes: tuple[str, ...] = CPP_SUFFIXES) -> Iterator[Path]:
    """Walk the source files below some folders of the tree."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number the lines of a C++ file, with its comments blanked."""
    blank = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
    text = blank.sub(lambda found: "\n" * found.group().count("\n"), path.read_text())
    yield from enumerate(text.splitlines(), 1)


def breaches(
    root: Path, pattern: str, message: str, *folders: str, allowed: tuple[str, ...] = ()
) -> list[str]:
    """Report every code line that matches, outside the allowed files."""
    found = []
    for path in sources(root, *folders):
        name = path.relative_to(root).as_posix()
        if name in allowed:
            continue
        found += [
            f"{name}:{number}: {message}"
            for number, line in code_lines(path)
            if re.search(pattern, line)
        ]
    return found


def is_elementwise(root: Path, op: str) -> bool:
    table = root / f"src/ops/{op}.toml"
    return table.is_file() and "elementwise" in tomllib.loads(table.read_text()).get(op, {})


def chosen_elsewhere(root: Path, back_end: str) -> bool:
    """Element-wise ops have one launch configuration; a family with a plan has that."""
    folders = [path.parent for path in root.glob(f"cpp/cuda/*/{back_end}.cu")]
    planned = any((folder / "plan.hpp").is_file() for folder in folders)
    return planned or is_elementwise(root, back_end)


@rule
def every_op_in_every_layer(root: Path) -> list[str]:
    """An op is complete, or the build of it is not merged."""
    files = [layer.format(op=op) for op in ops(root) for layer in LAYERS]
    missing = [f"{name} is missing" for name in files if not (root / name).is_file()]
    return missing or ([] if ops(root) else ["cpp/ops.cmake lists no op"])


@rule
def every_back_end_in_every_layer(root: Path) -> list[str]:
    """A back end exists on the CPU and on CUDA, behind one problem struct, and is an op's own."""
    files = [
        layer.format(op=name)
        for name in back_ends(root)
        for layer in BACK_END_LAYERS
        if not (layer.endswith("_config.hpp") and chosen_elsewhere(root, name))
    ]
    missing = [f"{name} is missing" for name in files if not any(root.glob(name))]
    missing += [
        f"cpp/ops.cmake: the back end {name} has no op of its name"
        for name in back_ends(root)
        if name not in ops(root)
    ]
    return missing or ([] if back_ends(root) else ["cpp/ops.cmake lists no back end"])


@rule
def no_op_outside_the_list(root: Path) -> list[str]:
    """A file in an op's place belongs to an op of cpp/ops.cmake, a kernel to a back end.

    But for device.cu, whose kernel tells what the others were compiled for, for the table of what
    the tables of ops have in common, and for arrays, which are no op.
    """
    places = {
        "include/membound/ops/*.hpp": ops(root),
        "cpp/ops/*.cpp": ops(root),
        "cpp/ops/*.hpp": back_ends(root),
        "cpp/cuda/*/*.cu": [*back_ends(root), "device"],
        "src/ops/*.toml": [*ops(root), SHARED_TABLE],
    }
    return [
        f"{path.relative_to(root).as_posix()} belongs to nothing in cpp/ops.cmake"
        for place, known in places.items()
        for path in sorted(root.glob(place))
        if path.parent.name != "array"
        and not any(path.stem == op or path.stem.startswith(op + "_") for op in known)
    ]


@rule
def cuda_files_lie_in_families(root: Path) -> list[str]:
    """A family of kernels has a folder; what several of them use lies in launch/ or row/."""
    return [
        f"{path.relative_to(root).as_posix()} lies in no folder"
        for path in sorted((root / "cpp/cuda").iterdir())
        if path.is_file()
    ]


@rule
def every_op_bound_and_exported(root: Path) -> list[str]:
    """Python sees every op, whose table begins with it, and every function of the tables."""
    exports = root / "src/membound/__init__.py"
    text = exports.read_text() if exports.is_file() else ""
    missing = []
    for op in ops(root):
        table = root / f"src/ops/{op}.toml"
        functions = list(tomllib.loads(table.read_text())) if table.is_file() else [op]
        if functions[:1] != [op]:
            missing.append(f"src/ops/{op}.toml does not begin with [{op}]")
        missing += [
            f"src/membound/__init__.py does not export {function}"
            for function in functions
            if f'    "{function}",\n' not in text
        ]
    return missing


@rule
def every_op_checked_and_measured(root: Path) -> list[str]:
    """`check` and `bench` have a table of ops in their package; each op is in one row of it.

    Element-wise ops are in the row that reads their tables.
    """
    missing = []
    for name in ("check", "bench"):
        files = sources(root, f"src/membound/{name}", suffixes=(".py",))
        text = "\n".join(path.read_text() for path in files)
        rows = re.findall(r'^    \w+\(\s*"(\w+)"[,)]', text, re.MULTILINE)
        missing += [
            f"src/membound/{name} has {rows.count(op)} rows of {op}, not one"
            for op in ops(root)
            if rows.count(op) != 1 and not is_elementwise(root, op)
        ]
    return missing


@rule
def one_place_launches_kernels(root: Path) -> list[str]:
    """Error check, cluster and overlap attributes are decided once."""
    pattern = r"<<<|\bcudaLaunchKernel|\bcuLaunchKernel"
    return breaches(
        root, pattern, f"launches a kernel; only {LAUNCHER} does", "cpp", "include", "src",
        allowed=(LAUNCHER,),
    )  # fmt: skip


@rule
def no_python_in_the_library(root: Path) -> list[str]:
    """The C++ library builds, tests and installs without Python."""
    pattern = r"#\s*include\s*[<\"](Python\.h|nanobind/|pybind11/)"
    return breaches(root, pattern, "includes Python; bindings live in src/", "cpp", "include")


@rule
def no_cuda_in_public_headers(root: Path) -> list[str]:
    """Users of the library need no CUDA toolkit."""
    pattern = r"#\s*include\s*[<\"](cuda|cub/|thrust/|nv/|cooperative_groups)"
    message = f"includes CUDA; only {CUDA_HEADER} may"
    return breaches(root, pattern, message, "include", allowed=(CUDA_HEADER,))


@rule
def no_default_stream_below_include(root: Path) -> list[str]:
    """The stream comes from the caller: nothing inside falls back on the default one."""
    pattern = r"\blegacy_default\b|\bcudaStreamLegacy\b|\bcudaStreamPerThread\b"
    message = "names a default stream; take the caller's"
    return breaches(root, pattern, message, "cpp", "include", allowed=DEFAULT_STREAM)


@rule
def one_dtype_switch(root: Path) -> list[str]:
    """Host code goes from a run-time dtype to a type in one place.

    Two kinds of unit cannot include that place and pick the weight's type themselves: device
    headers (.cuh), and the CPU kernel units with their headers, which see no std:: header.
    """
    apart = {DISPATCH} | {path.relative_to(root).as_posix() for path in kernel_unit_files(root)}
    apart |= {
        path.relative_to(root).as_posix() for path in sources(root, "cpp/cuda", suffixes=(".cuh",))
    }
    message = f"switches on a dtype; use {DISPATCH}"
    return breaches(root, r"\bcase\s+DType::", message, "cpp", allowed=tuple(apart))


@rule
def no_device_synchronize(root: Path) -> list[str]:
    """It stalls every stream of the process and breaks graph capture."""
    pattern = r"\b(cudaDeviceSynchronize|cudaThreadSynchronize|cuCtxSynchronize)\b"
    return breaches(root, pattern, "synchronises the device", "cpp", "include", "src", "examples")


@rule
def no_std_in_cpu_kernels(root: Path) -> list[str]:
    """Units compiled per instruction set share no inline function with the rest of the library.

    The linker keeps one copy of an inline function; were it the AVX-512 one, older CPUs would trap.
    """
    found = []
    for path in sorted(kernel_unit_files(root)):
        found += [
            f"{path.relative_to(root).as_posix()}:{number}: a kernel unit sees <{header.group(1)}>"
            for number, line in code_lines(path)
            if (header := re.search(r"#\s*include\s*<([a-z_]+)>", line))
            and header.group(1) not in HARMLESS_STD
        ]
    return found


def kernel_unit_files(root: Path) -> set[Path]:
    """Return the CPU kernel units and every header of this tree that they see."""
    seen: set[Path] = set()
    for unit in sources(root, "cpp/cpu/kernels"):
        included(root, unit, seen)
    return seen


def included(root: Path, path: Path, seen: set[Path]) -> set[Path]:
    """Return a file and all headers of this tree that it includes, directly or not."""
    if path in seen:
        return seen
    seen.add(path)
    for name in re.findall(r'#\s*include\s*"([^"]+)"', path.read_text()):
        for base in (root / "cpp", root / "include", path.parent):
            if (base / name).is_file():
                included(root, (base / name).resolve(), seen)
                break
    return seen


@rule
def kernels_are_named_kernel(root: Path) -> list[str]:
    """A profile reads better when every kernel says that it is one."""
    found = []
    bounds = r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)"
    pattern = re.compile(rf"__global__\b[^;{{]*?\bvoid\s+(?:{bounds}\s*)?(\w+)")
    for path in sources(root, "cpp", "examples"):
        code = "\n".join(line for _, line in code_lines(path))
        name = path.relative_to(root).as_posix()
        found += [
            f"{name}: kernel {kernel} must end in _kernel"
            for kernel in pattern.findall(code)
            if not kernel.endswith("_kernel")
        ]
    return found


@rule
def macros_carry_the_prefix(root: Path) -> list[str]:
    """Macros have no namespace. CUDA_CHECK is the one short name, and it never replaces another."""
    pattern = r"#\s*define\s+(?!MEMBOUND_)"
    found = breaches(root, pattern, "defines a macro without MEMBOUND_", "include", "cpp")
    return [line for line in found if not line.startswith(CUDA_HEADER + ":")]


@rule
def headers_are_guarded(root: Path) -> list[str]:
    """Each header is read once per unit, and brings no names into the units that include it."""
    found = []
    for path in sources(root, "include", "cpp", "src", suffixes=(".hpp", ".cuh")):
        name = path.relative_to(root).as_posix()
        if "#pragma once" not in path.read_text():
            found.append(f"{name} has no #pragma once")
        found += [
            f"{name}:{number}: using namespace in a header"
            for number, line in code_lines(path)
            if re.search(r"\busing\s+namespace\b", line)
        ]
    return found


@rule
def frameworks_are_imported_late(root: Path) -> list[str]:
    """`import membound` imports no framework; `check`, its oracle and a framework's folder may."""
    found = []
    for path in sources(root, "src/membound", suffixes=(".py",)):
        inside = path.relative_to(root / "src/membound").as_posix()
        if inside.startswith(("torch", "jax", "check/", "oracle/")):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [
                f"src/membound/{inside}:{node.lineno}: imports {name} when membound is imported"
                for name in names
                if name.split(".")[0] in FRAMEWORKS
            ]
    return found


@rule
def the_oracle_calls_no_op(root: Path) -> list[str]:
    """What is right is said without the ops that are tested: by NumPy or its stand-in."""
    allowed = ("membound._ulps", "membound.oracle", "membound._ndarray_as_numpy")
    found = []
    for path in sources(root, "src/membound/oracle", suffixes=(".py",)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            found += [
                f"{path.relative_to(root).as_posix()}:{node.lineno}: imports {name}"
                for name in names
                if name.startswith(("membound", ".")) and not name.startswith(allowed)
            ]
    return found


@rule
def files_are_short(root: Path) -> list[str]:
    """A file tells one story; beyond this it tells two."""
    found = []
    for path in sources(root, *SOURCE_FOLDERS, suffixes=(*CPP_SUFFIXES, ".py", ".pyi")):
        name = path.relative_to(root).as_posix()
        lines = len(path.read_text().splitlines())
        if lines > MAX_LINES:
            found.append(f"{name} has {lines} lines, at most {MAX_LINES} are allowed")
    return found


@rule
def names_say_the_idea(root: Path) -> list[str]:
    """A file is named after what it does, not after its age or its quality."""
    empty = re.compile(r"(^|_)(fast|faster|optimi[sz]ed|new|old|v\d+|utils?|helpers?|misc)(_|$)")
    return [
        f"{path.relative_to(root).as_posix()}: the name says nothing about the idea"
        for path in sources(root, *SOURCE_FOLDERS, suffixes=(*CPP_SUFFIXES, ".py"))
        if empty.search(path.stem)
    ]


# The most lines of a document, and the most files and lines of a folder. A change that needs more
# says why; one that makes a folder smaller lowers its figure.
DOCUMENT_LINES = {"README.md": 200, "CHANGELOG.md": 60}
FOLDERS = {
    "cpp/cuda": (166, 26_690),
    "cpp/cuda/norm": (36, 8_080),
    "cpp/cuda/row": (33, 4_450),
    "src": (274, 38_240),
    "src/bindings": (88, 10_085),
    "src/bindings/jax": (11, 680),
    "src/membound/jax": (23, 3_430),
    "src/membound/check": (12, 1_785),
    "src/membound/oracle": (7, 910),
    "src/membound/bench": (11, 1_480),
    "src/membound/autograd": (7, 1_640),
    "src/membound/ndarray": (19, 2_500),
    "src/membound/needle": (6, 720),
}


def hand_written(document: Path) -> list[str]:
    """Return the lines without the sections that releases wrote."""
    text = document.read_text()
    return re.sub(r"^## v\d.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()


@rule
def documents_are_short(root: Path) -> list[str]:
    """A newcomer reads the README in one go; the reference stands in docs/ and in docstrings."""
    return [
        f"{name} has {lines} lines, at most {most} are allowed"
        for name, most in DOCUMENT_LINES.items()
        if (root / name).is_file() and (lines := len(hand_written(root / name))) > most
    ]


@rule
def folders_do_not_grow(root: Path) -> list[str]:
    """Simplicity is a target with figures, as speed is."""
    found = []
    for folder, (most_files, most_lines) in FOLDERS.items():
        paths = [*sources(root, folder, suffixes=(*CPP_SUFFIXES, ".py", ".pyi", ".toml"))]
        lines = sum(len(path.read_text().splitlines()) for path in paths)
        if len(paths) > most_files or lines > most_lines:
            allowed = f"{most_files} files and {most_lines} lines are allowed"
            found.append(f"{folder} has {len(paths)} files and {lines} lines; {allowed}")
    return found


# Words that the field does not have, as patterns of identifiers and prose -> what it says instead.
PRIVATE_WORDS = {
    r"\bk?Beside(?!s)\w*|\bbeside_\w+|\bk?Third\b": "fused input",
    r"\b\w*[Ff]ramed\w*|\bFrame\b": "bulk pipeline, 16-byte-aligned span",
    r"\b\w*Teams?\b|\bteams?_?\b": "thread group",
    r"\bkFold\w*|\bfold_of\b|\b[Uu]nfolded\b": "items per thread",
    r"\b[Pp]arked\b|\bkPark\w*|\bunpark\w*": "staged in shared memory",
    r"\bspares_quarter\b|\bkSpares\b": "tile three quarters full",
    r"\bk?[Rr]oomy\w*": "low register pressure",
    r"\bk?[Cc]rowded\b": "has a bias or a gate",
    r"\bis_seldom\b|\bseldom met\b": "rare, uses the strided kernel",
    r"\b(k|is_)?[Ee]veryday\w*": "common",
    r"\bkAsked\b": "run time",
    r"\b(start|settle|wait_for)_arrivals\b": "mbarrier",
    r"\b(begin|start|wait)_overlapped\b": "pdl_wait, pdl_launch_dependents",
    r"\boutlasting\w*": "evict_last",
    r"\b\w*[Pp]ivot\w*": "variance shift",
    r"\b(Found|Even|Walked)Places\b": "row pointers",
    r"\bk?Roles\w*|\bin_roles\b|\broles_\w+": "block-specialised",
    r"\b[Uu]pright\w*": "transposed",
    r"\brun_by_memory\b|\bask_ahead\b|\b\w*around_(the_)?cache\b|\baround the cache\b": (
        "tiled transpose, prefetch, non-temporal"
    ),
    r"\bforget_numbers\b": "compiler barrier",
    r"\bHANDED_OVER\b|\bLaneTurns\b|\bNeighbourResult\b|\b(Ring|Register)Feed\b": (
        "dispatch table, rotations, realigned store, pipeline"
    ),
    r"\b(that|which) starts? anywhere\b|\bstarts? anywhere\b": "unaligned",
    r"\b(blocks|clusters) that stay\b": "persistent",
    r"\ba way back\b": "backward",
}
WORDED = ("cpp", "include", "src", "tests", "examples", "benchmarks", "docs", ".github")


@rule
def words_are_the_fields(root: Path) -> list[str]:
    """A CUDA engineer reads any file without learning a word first."""
    found = []
    suffixes = (*CPP_SUFFIXES, ".py", ".pyi", ".toml", ".md")
    paths = [*sources(root, *WORDED, suffixes=suffixes), *root.glob("*.md")]
    for path in paths:
        name = path.relative_to(root).as_posix()
        if name.startswith(("benchmarks/results/", "tests/python/architecture_rules.py")):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [
                f"{name}:{number}: {word.group()!r}; the field says {instead}"
                for pattern, instead in PRIVATE_WORDS.items()
                if (word := re.search(pattern, line))
            ]
    return found


# A comment inside a function or a class says why in two lines; one before a kernel or a type says
# what a block does, what sits in shared memory and what limits it. Public headers hold contracts.
COMMENT_LINES = {True: 2, False: 6}


@rule
def comments_are_short(root: Path) -> list[str]:
    """What takes longer to say is a document, or code that should say it."""
    found = []
    for path in sources(root, "cpp", "src"):
        start = length = 0
        for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
            if line.lstrip().startswith("//"):
                start = start if length else number
                length += 1
                indented = line.startswith(" ")
            elif length:
                if length > COMMENT_LINES[indented]:
                    name = path.relative_to(root).as_posix()
                    found.append(f"{name}:{start}: a comment of {length} lines")
                length = 0
    return found


@rule
def nothing_left_undone(root: Path) -> list[str]:
    """Work that is not done has an issue; the tree holds finished things and no machine's paths."""
    marks = re.compile(r"\b(T[O]DO|F[I]XME|XX[X]|H[A]CK)\b|(?<![\w.])/(root|home|work)/")
    found = []
    for path in sources(root, *SOURCE_FOLDERS, suffixes=(*CPP_SUFFIXES, ".py", ".txt", ".cmake")):
        name = path.relative_to(root).as_posix()
        found += [
            f"{name}:{number}: {mark.group().strip()}"
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if (mark := marks.search(line))
        ]
    return found


@rule
def every_source_names_its_licence(root: Path) -> list[str]:
    """Two lines, at the very top."""
    header = ["SPDX-FileCopyrightText: The membound authors", "SPDX-License-Identifier: Apache-2.0"]
    found = []
    for path in sources(root, *SOURCE_FOLDERS, suffixes=(*CPP_SUFFIXES, ".py", ".pyi", ".toml")):
        lines = path.read_text().splitlines()
        top = [line.strip("/# ") for line in lines[:3] if not line.startswith("#!")][:2]
        if top != header:
            found.append(f"{path.relative_to(root).as_posix()} lacks the two SPDX lines")
    return found
