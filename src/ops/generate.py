# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Write what repeats the tables of ops: bindings, the stub of membound._core, element-wise ops.

    python generate.py FOLDER TABLE...

reads the tables, shared.toml and core.pyi beside this file, and writes into the folder

    op_arguments.hpp   the structs of arguments of functions that have one of their own
    ops.cpp            an Op for each function, and bind_ops, which adds them to the module
    entries.cpp        the bindings of functions with an entry, for Python, torch and XLA
    jax_handlers.hpp   what XLA's handlers read from a call
    _core.pyi          core.pyi and the functions
    _elementwise.py    the formulas of element-wise ops
    torch/_schemas.py  the schemas of torch's operators
    jax/_handlers.py   what JAX gives to these handlers
    jax/_signatures.py the parameters of functions of membound.jax
    torch/, jax/       _elementwise.py: public functions of element-wise ops
"""

from __future__ import annotations

import sys
from pathlib import Path

import write_cpp
import write_jax
import write_python
from tables import TableError, read_tables


def main(folder: Path, tables: list[Path]) -> None:
    """Write all files."""
    tables = [path for path in tables if path.name != "shared.toml"]
    functions = read_tables(tables)
    elementwise = [function for function in functions if function.elementwise is not None]
    written = {
        "op_arguments.hpp": write_cpp.op_arguments(functions),
        "ops.cpp": write_cpp.ops(functions),
        "entries.cpp": write_cpp.entries(functions),
        "jax_handlers.hpp": write_jax.header(functions),
        "_core.pyi": write_python.stub(functions),
        "_elementwise.py": write_python.formulas(elementwise),
        "torch/_schemas.py": write_python.schemas(functions),
        "torch/_elementwise.py": write_python.torch_functions(elementwise),
        "jax/_handlers.py": write_jax.module(functions),
        "jax/_signatures.py": write_jax.signatures(functions),
        "jax/_elementwise.py": write_python.jax_functions(elementwise),
    }
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(text))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except TableError as error:
        sys.exit(f"src/ops/{error}")
