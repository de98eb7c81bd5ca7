# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""src/ops/generate.py reads a table as it is meant, and names what is malformed."""

from __future__ import annotations

import ast
import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parents[2] / "src/ops/generate.py"
if not GENERATOR.is_file():
    pytest.skip("no checkout around the tests", allow_module_level=True)

SCALE = """\
[scale]
constants = { inverse = false, origin = "Origin::kFirst", step = 2.0 }
fields = { x = "rows" }
parameters = '''
x: ArrayT,
factor: float = 1e-06,
*,
mode: Literal["up", "down"] = "up",
return_sum: bool = False,
'''
overloads = [
  "(return_sum: Literal[False] = False) -> ArrayT",
  "(return_sum: Literal[True]) -> tuple[ArrayT, ArrayT]",
]
docstring = '''
Scales an array.

Args:
    x: an array.
    {stream}
'''
"""
PLAIN = """\
[scale]
call = "call_norm"
parameters = "x: ArrayT, *, weight: Any = None"
returns = "ArrayT"
docstring = "Scales an array."
"""


ELEMENTWISE = (
    """\
[scale]
entry = "membound/ops/scale.hpp"
elementwise = "factor * tanh(abs(x))"
samples = { factor = [2.0] }
parameters = "x: ArrayT, factor: float, *, out: ArrayT | None = None, stream: Any = None"
returns = "ArrayT"
docstring = "Scales an array."

[scale_backward]
entry = "membound/ops/scale.hpp"
elementwise = "factor * dy"
samples = { factor = [2.0] }
parameters = """
    """\
"dy: ArrayT, x: ArrayT, factor: float = 1.0, *, dx: ArrayT | None = None, stream: Any = None"
returns = "ArrayT"
docstring = "Scales a gradient."
"""
)


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(GENERATOR.parent))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.pop(0)


@pytest.fixture
def written(generate, tmp_path):
    """Run the generator on one table of scale; returns what it wrote by name."""

    def run(table: str, name: str = "scale.toml") -> dict[str, str]:
        (tmp_path / name).write_text(table)
        generate.main(tmp_path / "out", [tmp_path / name])
        out = tmp_path / "out"
        files = [path for path in out.rglob("*") if path.is_file()]
        return {path.relative_to(out).as_posix(): path.read_text() for path in files}

    return run


def test_the_op_has_names_counts_and_text(written):
    op = written(SCALE)["ops.cpp"]
    assert '{"x", "factor", "mode", "return_sum"},\n    1,\n    2,\n' in op
    signature = (
        "scale($module, x, factor=1e-06, *, mode='up', return_sum=False)\n--\n\nScales an array."
    )
    assert f'R"text({signature}\n' in op
    assert "add_op<&kScale>(module);" in op


def test_the_op_fills_the_struct_and_calls(written):
    op = written(SCALE)["ops.cpp"]
    for field, value in {
        "inverse": "false",
        "origin": "Origin::kFirst",
        "step": "2.0",
        "rows": "values[0]",
        "return_sum": "values[3]",
    }.items():
        assert f"arguments.{field} = {value};\n" in op
    assert "arguments.op" not in op
    assert "return call_scale(arguments);" in op


def test_a_function_of_its_own_has_a_struct_of_its_own(written):
    header = written(SCALE)["op_arguments.hpp"]
    assert "struct ScaleArguments {\n  PyObject* x;\n  PyObject* factor;\n" in header
    assert "call_scale(const ScaleArguments& given);" in header


def test_a_shared_function_has_its_header_and_the_name_of_the_op(written):
    files = written(PLAIN)
    assert '#include "norm.hpp"\n' in files["ops.cpp"]
    assert 'NormCall arguments{};\n      arguments.op = "scale";\n' in files["ops.cpp"]
    assert "struct" not in files["op_arguments.hpp"]


def test_an_entry_is_bound_to_python_torch_and_xla(written):
    files = written(ELEMENTWISE)
    bound = files["entries.cpp"]
    assert '#include "membound/ops/scale.hpp"\n' in bound
    assert 'number_from_python(given.factor, {"scale", "factor"})' in bound
    assert 'number_or(given.factor, 1.0, {"scale_backward", "factor"})' in bound
    assert "membound::scale_backward(dy.view, x.view, factor, dx.view, stream);" in bound
    assert 'kernel<&scale_forward>("scale_forward")' in bound
    assert "operator()<&read_scale_backward<Call>>" in files["jax_handlers.hpp"]
    assert "run(const ScaleBackward& given, StreamView stream) {\n  membound::scale" in bound


def test_an_entry_that_is_not_element_wise_has_no_operator(written):
    table = "\n".join(line for line in ELEMENTWISE.splitlines() if "elementwise" not in line)
    files = written(table)
    assert "Tensor scale" not in files["entries.cpp"]
    assert "def scale" not in files["jax/_elementwise.py"]


def test_a_formula_is_evaluated_by_any_module(written):
    scope: dict = {}
    exec(written(ELEMENTWISE)["_elementwise.py"], scope)  # noqa: S102 - our own
    op = scope["OPS"]["scale"]
    assert op.formula(math, -3.0, 2.0) == 2.0 * math.tanh(3.0)
    assert (op.inputs, op.samples, op.result) == (("x",), {"factor": [2.0]}, "out")


def test_element_wise_ops_have_functions_of_torch_and_jax(written):
    files = written(ELEMENTWISE)
    torch, jax = (ast.parse(files[f"{name}/_elementwise.py"]) for name in ("torch", "jax"))
    signatures = [
        {
            node.name: ast.unparse(node.args)
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        }
        for tree in (torch, jax)
    ]
    assert signatures[0] == {"scale": "x, factor"}
    assert signatures[1] == {"scale": "x, factor", "scale_backward": "dy, x, factor=1.0"}


OPERATOR = """
[scale.operator]
inputs = ["x", "weight"]
options = ["eps: float", "mode", "shift"]
results = { out = "x" }
statistics = { rstd = "rows of x" }
saves = ["out", "weight", "rstd"]
gradients = { x = "dx", weight = "dweight" }
rows = ["x"]
"""
OPTIONS = 'weight: Any = None, eps: float | None = 0.0, mode: Literal["a"] = "a", shift: int | None'
SAYS = "need_sum: bool = False, sparse: bool = False, stream: Any = None"


def with_operator(operator: str = OPERATOR) -> str:
    plain = '"x: ArrayT, *, weight: Any = None"'
    return PLAIN.replace(plain, f"'x: ArrayT, *, {OPTIONS} = None, {SAYS}'") + operator


def test_an_operator_has_types_and_what_gradients_are_like(written):
    scope: dict = {}
    exec(written(with_operator())["torch/_schemas.py"], scope)  # noqa: S102 - our own
    schema = scope["SCHEMAS"]["scale"]
    assert schema["tensors"] == {"x": "dx", "weight?": "dweight"}
    assert schema["options"] == {"eps": "float", "mode": "str", "shift": "int?"}
    assert schema["results"] == {"out": True, "rstd": False}
    assert schema["made"] == {"out": "x", "rstd": "rows of x"}
    assert schema["gradients"] == {"dx": "out", "dweight": "weight"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("inputs", "input", "operator.input: no such key"),
        ('rows = ["x"]', 'rows = "x"', "operator.rows: no such key, or of another type"),
        ("results = {", "gradients2 = {", "operator.gradients2: no such key"),
        ('results = { out = "x" }', "", "operator.results: is missing"),
        ('"weight"]\noptions', '"z"]\noptions', "operator.inputs: there is no parameter z"),
        ('["out", ', '["y", ', "operator.saves: y is neither an input nor a result"),
        ('["out", "weight"', '["out"', "operator.gradients: nothing that the gradient reads"),
        ('"mode"', '"modes"', "operator.options: there is no parameter modes"),
        ('"mode"', '"weight"', "operator.options: weight is Any, for which torch has no type"),
    ],
)
def test_a_malformed_operator_is_named(generate, written, old, new, message):
    with pytest.raises(generate.TableError) as raised:
        written(with_operator(OPERATOR.replace(old, new, 1)))
    assert str(raised.value).startswith(f"scale.toml: scale.{message}")


HANDLER = """
[scale.jax]
results = ["out", "workspace"]
shared = ["weight", "workspace"]
options = ["sizes: Sequence[int] | None = None"]
"""


def test_a_handler_reads_arrays_and_options_by_name(written):
    header = written(with_operator() + HANDLER)["jax_handlers.hpp"]
    assert "struct Norm {\n  MaybeArray x, weight, out, workspace;\n" in header
    assert "  double eps = 0.0;\n" in header
    assert "  std::optional<std::int64_t> shift{};\n" in header
    assert "{&Norm::x, false}, {&Norm::weight, true}" in header
    for line in (
        "call.read({&given.x, &given.weight}, {&given.out, &given.workspace});",
        'given.mode = call.choice("mode");',
        'given.shift = call.maybe_integer("shift");',
        'given.sizes = call.maybe_integers("sizes");',
        'given.op = "scale";',
    ):
        assert f"  {line}\n" in header
    assert '&read_scale<Call>>("membound_scale");' in header


def test_jax_has_the_order_of_arrays_and_the_types_of_options(written):
    scope: dict = {}
    exec(written(with_operator() + HANDLER)["jax/_handlers.py"], scope)  # noqa: S102 - our own
    operands, results, kind, options = scope["HANDLERS"]["scale"]
    assert (operands, results) == (("x", "weight"), ("out", "workspace"))
    assert kind("scale")._asdict() == {
        "op": "scale", "eps": 0.0, "mode": "a", "shift": None, "need_sum": None, "sizes": None,
    }  # fmt: skip
    assert {name: (*own, kind and kind.__name__) for name, (*own, kind) in options.items()} == {
        "eps": ("eps", "number?", "float64"),
        "mode": ("mode", ("a",), "int32"),
        "shift": ("shift", "integer?", "int64"),
        "need_sum": ("need_sum", "flag", None),
        "sizes": (None, "integers?", "int64"),
    }


def test_functions_of_jax_have_the_parameters_of_the_table(written):
    text = written(with_operator() + HANDLER)["jax/_signatures.py"]
    given = "x, *, weight=None, eps=0.0, mode='a', shift=None, need_sum=False"
    assert f"    def scale({given}):\n" in text
    assert 'static("scale", resolve, eps, mode, shift, need_sum)\n' in text
    assert 'run({"x": x, "weight": weight}, options)\n' in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shared", "alike", "alike: no such key, or of another type"),
        ('["out", "workspace"]', '"out"', "results: no such key, or of another type"),
        ('"weight", "workspace"', '"z"', "shared: z is neither an operand nor a result"),
        ("results", 'operands = ["y"]\nresults', "operands: there is no parameter y"),
        ("sizes: Sequence", "sizes Sequence", "options: invalid syntax"),
    ],
)
def test_a_malformed_handler_is_named(generate, written, old, new, message):
    with pytest.raises(generate.TableError) as raised:
        written(with_operator() + HANDLER.replace(old, new, 1))
    assert str(raised.value).startswith(f"scale.toml: scale.jax.{message}")


def stub_of(files: dict[str, str]) -> list[ast.FunctionDef]:
    tree = ast.parse(files["_core.pyi"])
    return [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "scale"
    ]


def test_the_stub_has_an_overload_for_each(written):
    first, second = stub_of(written(SCALE))
    assert ast.unparse(first.args).endswith("return_sum: Literal[False]=False")
    assert ast.unparse(second.args).endswith("return_sum: Literal[True]")
    assert ast.unparse(second.returns) == "tuple[ArrayT, ArrayT]"
    assert ast.unparse(second.args).startswith("x: ArrayT, factor: float=1e-06, *, mode: Literal[")
    for overload in (first, second):
        assert [ast.unparse(own) for own in overload.decorator_list] == ["overload"]
    assert ast.get_docstring(second) is None


def test_a_line_in_braces_stands_for_a_shared_text(written):
    first, _ = stub_of(written(SCALE))
    assert ast.get_docstring(first).endswith(
        "    x: an array.\n    stream: the CUDA stream to run on, as in :func:`rms_norm`."
    )


def test_one_signature_is_no_overload(written):
    (function,) = stub_of(written(PLAIN))
    assert function.decorator_list == []
    assert ast.get_docstring(function) == "Scales an array."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[scale]", "[scale", ""),
        ("[scale]", "[shift]", "must begin with [scale]"),
        ("[scale]", "text = 1\n[scale]", "must begin with [scale]"),
        ("[scale]", "[scale]\ncalls = 1", "scale.calls: no such key"),
        ('"call_norm"', "3", "scale.call: must be a str, got 3"),
        ('"call_norm"', '"call_scale"', "scale.call: shared.toml has no 'call_scale'"),
        ("docstring", "returning", "scale.returning: no such key"),
        ('docstring = "Scales an array."', "", "scale.docstring: is missing"),
        ('"Scales an array."', '"{stray}"', "scale.docstring: shared.toml has no {stray}"),
        ('returns = "ArrayT"', "", "scale.returns: must be there, or overloads"),
        ('returns = "ArrayT"', "overloads = []", "scale.returns: must be there"),
        ('"ArrayT"', '"tuple["', "scale.returns: '[' was never closed"),
        ("x: ArrayT", "x", "scale.parameters: x has no type"),
        ("x: ArrayT", "x: ", "scale.parameters: "),
        ("x: ArrayT", "weight: ArrayT", "scale.parameters: weight stands there twice"),
        ("*, ", "*rows, ", "scale.parameters: must be plain and keyword-only"),
        ("*, weight", "*, a: int = 0, b: int, weight", "scale.parameters: one without a default"),
        ("x: ArrayT", "{layout}", "scale.parameters: "),
        ("[scale]", '[scale]\nfields = { y = "x" }', "scale.fields: there is no parameter y"),
        ("[scale]", '[scale]\nfields = { x = "weight" }', "scale.fields: two values fill one"),
        ("[scale]", "[scale]\nconstants = { x = 1 }", "scale.fields: two values fill one field"),
        ("[scale]", '[scale]\nentry = "scale.hpp"', "scale.entry: wants arrays, numbers"),
        ('returns = "ArrayT"', 'overloads = ["ArrayT"]', "scale.overloads: 'ArrayT' is not '("),
        ('returns = "ArrayT"', 'overloads = ["(y: A) -> A"]', "scale.overloads: there is no"),
    ],
)
def test_a_malformed_table_is_named(generate, written, old, new, message):
    assert PLAIN.count(old) >= 1
    with pytest.raises(generate.TableError) as raised:
        written(PLAIN.replace(old, new, 1))
    assert str(raised.value).startswith(f"scale.toml: {message}")


def test_a_function_stands_in_one_table(generate, tmp_path):
    (tmp_path / "scale.toml").write_text(PLAIN)
    (tmp_path / "shift.toml").write_text(PLAIN.replace("[scale]", "[shift]") + PLAIN)
    with pytest.raises(generate.TableError, match=r"shift.toml: scale: another table has it too"):
        generate.main(tmp_path, [tmp_path / "scale.toml", tmp_path / "shift.toml"])


def test_the_command_fails_with_the_place_alone(tmp_path):
    table = tmp_path / "scale.toml"
    table.write_text(PLAIN.replace("x: ArrayT", "x"))
    command = [sys.executable, str(GENERATOR), str(tmp_path), str(table)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "src/ops/scale.toml: scale.parameters: x has no type\n"
    assert not (tmp_path / "ops.cpp").exists()
