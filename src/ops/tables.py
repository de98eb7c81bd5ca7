# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of ops."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent

HERE = Path(__file__).parent
# The keys of a function, and their types.
REQUIRED = {"parameters": str, "docstring": str}
OPTIONAL = {"returns": str, "overloads": list, "call": str, "constants": dict, "fields": dict}
OPTIONAL |= {"entry": str, "elementwise": str, "samples": dict, "operator": dict, "jax": dict}
# Of an operator: what torch's registry and its autograd are told.
OPERATOR = {"inputs": list, "options": list, "results": dict, "statistics": dict, "saves": list}
OPERATOR |= {"gradients": dict, "rows": list}
# Of XLA's handler.
HANDLER = {"operands": list, "results": list, "shared": list, "options": list}
# Parameters that say which results there are, which XLA is told by these; JAX lacks some.
SAYS_RESULTS = r"(need|return)_\w+"
NOT_OF_JAX = r"accumulate|sparse"
PYTHON_ONLY = ("dtype", "normalized_shape")
OPTION = r"(float|int)( \| None)?|bool|str|Literal\[.*\]( \| None)?"
# The types of options in torch's schema language, by ours.
SCHEMA_TYPES = {"float": "float", "int": "int", "bool": "bool", "str": "str"}
SCHEMA_TYPES |= {"float | None": "float?", "int | None": "int?"}


class TableError(Exception):
    """A table is malformed; the text names its file and key."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its Python type and default as text."""

    name: str
    type: str
    default: str | None  # None: required
    keyword_only: bool

    def typed(self) -> str:
        """Return it as the stub has it."""
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")

    def untyped(self) -> str:
        """Return it as CPython's text signature has it, which spells values as repr does."""
        if self.default is None:
            return self.name
        return f"{self.name}={ast.unparse(ast.parse(self.default, mode='eval'))}"


@dataclass(frozen=True)
class Signature:
    """What type checkers see of a function, or of one of its overloads."""

    parameters: tuple[Parameter, ...]
    returns: str


@dataclass(frozen=True)
class Operator:
    """An operator of torch's, as membound.torch._operators registers it."""

    tensors: dict[str, str | None]  # the inputs and their gradients; "weight?" may be None
    options: dict[str, str]  # and their types in torch's schema language
    results: dict[str, bool]  # and whether gradients flow through them
    made: dict[str, str]  # the results, and what shape and dtype each has
    saves: tuple[str, ...]  # what the gradient reads
    gradients: dict[str, str]  # the gradients, and what shape and dtype each has
    rows: tuple[str, ...]  # inputs with batch axes


@dataclass(frozen=True)
class Handler:
    """What XLA hands over in a call of a function: arrays by field, and options."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    shared: tuple[str, ...]  # arrays that rows share
    options: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]  # of the function of membound.jax

    @property
    def arrays(self) -> dict[str, bool]:
        """All arrays, and whether rows share them."""
        return {name: name in self.shared for name in (*self.operands, *self.results)}


@dataclass(frozen=True)
class Function:
    """A public function, and the C++ function that it calls."""

    name: str
    parameters: tuple[Parameter, ...]
    overloads: tuple[Signature, ...]  # one where it has no others
    docstring: str
    call: str  # the C++ function
    arguments: str  # its struct of arguments
    header: str | None  # that declares both; None: they are the function's own
    fills: dict[str, str]  # the fields of the struct, and what fills them, in C++
    entry: str | None = None  # the public header of a function of the library: see shared.toml
    elementwise: str | None = None  # a result's element as a Python expression
    samples: dict[str, list[float]] = field(default_factory=dict)  # of each number, for tests
    operator: Operator | None = None
    handler: Handler | None = None
    constants: dict[str, object] = field(default_factory=dict)  # fields that are always the same
    fields: dict[str, str] = field(default_factory=dict)  # the fields of parameters of another name

    @property
    def inputs(self) -> list[str]:
        """The arrays that every call has; the result is like the last."""
        return [own.name for own in self.parameters if own.type == "ArrayT"]

    @property
    def optional_inputs(self) -> list[str]:
        return [o.name for o in self.parameters if o.type == "Any" and o.name != "stream"]

    @property
    def numbers(self) -> list[Parameter]:
        return [own for own in self.parameters if own.type in ("float", "int | None")]

    @property
    def result(self) -> str:
        """The parameter with which the caller says where to write."""
        return next(own.name for own in self.parameters if own.type == "ArrayT | None")

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return self.docstring.split("\n\n")[0].strip()


def pascal_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def expanded(text: str, snippets: dict[str, str], where: str) -> str:
    """Put the snippets of shared.toml in place of the lines {name}, as far indented."""

    def snippet(line: re.Match[str]) -> str:
        if line[2] not in snippets:
            raise TableError(f"{where}: shared.toml has no {{{line[2]}}}")
        return indent(snippets[line[2]].removesuffix("\n"), line[1])

    return re.sub(r"^( *)\{(\w+)\}$", snippet, text, flags=re.MULTILINE)


def parse(source: str, where: str) -> ast.stmt:
    """Parse one Python statement."""
    try:
        return ast.parse(source).body[0]
    except SyntaxError as error:
        raise TableError(f"{where}: {error.msg}: {(error.text or '').strip()!r}") from None


def read_parameters(text: str, where: str) -> tuple[Parameter, ...]:
    """Read Python text: the inside of a function's parentheses."""
    source = f"def function(\n{text}\n): ..."
    given = parse(source, where).args
    if given.posonlyargs or given.vararg or given.kwarg:
        raise TableError(f"{where}: must be plain and keyword-only parameters alone")
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    found: dict[str, Parameter] = {}
    for argument, value, keyword_only in (
        *zip(given.args, defaults, [False] * len(defaults), strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, [True] * len(given.kwonlyargs), strict=True),
    ):
        name = argument.arg
        if argument.annotation is None:
            raise TableError(f"{where}: {name} has no type")
        if name in found:
            raise TableError(f"{where}: {name} stands there twice")
        kind = ast.get_source_segment(source, argument.annotation)
        default = ast.get_source_segment(source, value) if value else None
        found[name] = Parameter(name, kind, default, keyword_only)
    return tuple(found.values())


def read_overload(text: str, base: tuple[Parameter, ...], where: str) -> Signature:
    """Read "(parameters that differ) -> type"; the others are those of the function."""
    match = re.fullmatch(r"\((.*)\) -> (.+)", text, re.DOTALL)
    if match is None:
        raise TableError(f"{where}: {text!r} is not '(parameters) -> type'")
    differing = {own.name: own for own in read_parameters(match[1], where)}
    check_names(differing, base, where)
    merged = [replace(differing.get(own.name, own), keyword_only=own.keyword_only) for own in base]
    parse(match[2], where)
    return Signature(tuple(merged), match[2])


def check_names(names: Iterable[str], parameters: tuple[Parameter, ...], where: str) -> None:
    if unknown := set(names) - {own.name for own in parameters}:
        raise TableError(f"{where}: there is no parameter {min(unknown)}")


def check_keys(table: object, where: str) -> None:
    """Raise TableError unless a function's table has the keys that it must, and no others."""
    if not isinstance(table, dict):
        raise TableError(f"{where}: must be a table")
    for key, value in table.items():
        kind = (REQUIRED | OPTIONAL).get(key)
        if kind is None:
            raise TableError(f"{where}.{key}: no such key")
        if not isinstance(value, kind):
            raise TableError(f"{where}.{key}: must be a {kind.__name__}, got {value!r}")
    for key in REQUIRED.keys() - table.keys():
        raise TableError(f"{where}.{key}: is missing")
    if ("returns" in table) == bool(table.get("overloads")):
        raise TableError(f"{where}.returns: must be there, or overloads in its place")


def read_function(name: str, table: dict, shared: dict, where: str) -> Function:
    """Read the table of a function."""
    check_keys(table, where)
    text = expanded(table["parameters"], shared["parameters"], f"{where}.parameters")
    parameters = read_parameters(text, f"{where}.parameters")
    required = [own.default is None for own in parameters]
    if required != sorted(required, reverse=True):
        raise TableError(f"{where}.parameters: one without a default follows one with it")
    key = "returns" if "returns" in table else "overloads"
    texts = table.get("overloads", [f"() -> {table.get('returns')}"])
    overloads = [read_overload(str(text), parameters, f"{where}.{key}") for text in texts]
    call, fields = table.get("call"), table.get("fields", {})
    check_names(fields, parameters, f"{where}.fields")
    if call is not None and call not in shared["calls"]:
        raise TableError(f"{where}.call: shared.toml has no {call!r} in calls")
    fills = [("op", f'"{name}"')] if call else []
    fills += [(field, in_cpp(value)) for field, value in table.get("constants", {}).items()]
    fills += [(fields.get(own.name, own.name), f"values[{i}]") for i, own in enumerate(parameters)]
    if len(dict(fills)) < len(fills):
        raise TableError(f"{where}.fields: two values fill one field")
    if "entry" in table:
        check_entry(table, parameters, where)
    operator = table.get("operator")
    if "elementwise" in table and not name.endswith("_backward"):
        operator = operator_of_element(parameters)
    if operator is not None:
        operator = read_operator(operator, parameters, f"{where}.operator")
    own_call = {"header": None, "arguments": pascal_case(name) + "Arguments"}
    return Function(
        name=name,
        parameters=parameters,
        overloads=tuple(overloads),
        docstring=expanded(table["docstring"], shared["docstrings"], f"{where}.docstring"),
        call=call or f"call_{name}",
        fills=dict(fills),
        operator=operator,
        handler=read_handler(table, parameters, operator, f"{where}.jax"),
        fields=fields,
        constants=({"op": f'"{name}"'} if call else {}) | table.get("constants", {}),
        **{key: table[key] for key in ("entry", "elementwise", "samples") if key in table},
        **(shared["calls"][call] if call else own_call),
    )


def check_entry(table: dict, parameters: tuple[Parameter, ...], where: str) -> None:
    """Raise TableError unless the binding of a function of the library can be written."""
    kinds = [own.type for own in parameters]
    wanted = r"(ArrayT )+(Any )*(float |int \| None )*ArrayT \| None Any "
    right = re.fullmatch(wanted, "".join(f"{kind} " for kind in kinds))
    if right is None or parameters[-1].name != "stream":
        raise TableError(f"{where}.entry: wants arrays, numbers, the result, then stream")
    if "elementwise" in table:
        if re.search(r"Any .*Any |int", " ".join(kinds) + " "):
            raise TableError(f"{where}.elementwise: wants arrays of one shape and floats")
        parse(table["elementwise"], f"{where}.elementwise")
        for own in parameters:
            if own.type == "float" and not table.get("samples", {}).get(own.name):
                raise TableError(f"{where}.samples: has no values of {own.name}")


def operator_of_element(parameters: tuple[Parameter, ...]) -> dict:
    """Return the operator's table of an element-wise op."""
    (x,) = (own.name for own in parameters if own.type == "ArrayT")
    options = [own.name for own in parameters if own.type == "float"]
    return {"inputs": [x], "options": options, "results": {"out": x}, "saves": [x],
            "gradients": {x: f"d{x}"}, "rows": [x]}  # fmt: skip


def read_operator(table: dict, parameters: tuple[Parameter, ...], where: str) -> Operator:
    """Read the table of an operator.

    A gradient has the shape and dtype of its input, or of the result like it, whichever is saved;
    else of that result's gradient.
    """
    for key, value in table.items():
        if not isinstance(value, OPERATOR.get(key, ())):
            raise TableError(f"{where}.{key}: no such key, or of another type")
    if missing := {"inputs", "options", "results"} - table.keys():
        raise TableError(f"{where}.{min(missing)}: is missing")
    by_name = {own.name: own for own in parameters}
    check_names(table["inputs"], parameters, f"{where}.inputs")
    results, statistics = table["results"], table.get("statistics", {})
    made, saves = results | statistics, table.get("saves", [])
    if unknown := set(saves) - made.keys() - set(table["inputs"]):
        raise TableError(f"{where}.saves: {min(unknown)} is neither an input nor a result")
    gradient_of, gradients = table.get("gradients", {}), {}
    for name, gradient in gradient_of.items():
        results_like = [result for result, kind in made.items() if kind == name]
        like = [one for one in (name, *results_like) if one in saves]
        like += [f"d{result}" for result in results_like]
        if gradient in gradients:  # of two inputs
            continue
        if not like:
            raise TableError(f"{where}.gradients: nothing that the gradient reads is like {name}")
        gradients[gradient] = like[0]
    tensors = {
        f"{name}?" if by_name[name].default else name: gradient_of.get(name)
        for name in table["inputs"]
    }
    options = dict(read_option(text, by_name, f"{where}.options") for text in table["options"])
    flows = dict.fromkeys(results, True) | dict.fromkeys(statistics, False)
    rows = tuple(table.get("rows", ()))
    return Operator(tensors, options, flows, made, tuple(saves), gradients, rows)


def read_handler(
    table: dict, parameters: tuple[Parameter, ...], operator: Operator | None, where: str
) -> Handler | None:
    """Read what XLA is given; of an entry it follows from the parameters."""
    given, fields = table.get("jax"), table.get("fields", {})
    if "entry" in table:
        arrays = [own.name for own in parameters if own.type in ("ArrayT", "Any")]
        result = next(own.name for own in parameters if own.type == "ArrayT | None")
        given = {"operands": arrays[:-1], "results": [result], "shared": []}
    if given is None:
        return None
    for key, value in given.items():
        if not isinstance(value, HANDLER.get(key, ())):
            raise TableError(f"{where}.{key}: no such key, or of another type")
    inputs = [name.strip("?") for name in operator.tensors] if operator else []
    operands = given.get("operands", inputs)
    check_names(operands, parameters, f"{where}.operands")
    arrays = set(operands)
    operands = tuple(fields.get(name, name) for name in operands)
    results = tuple(given.get("results", operator.made if operator else ()))
    shared = tuple(given.get("shared", operands + results))
    if unknown := set(shared) - {*operands, *results}:
        raise TableError(f"{where}.shared: {min(unknown)} is neither an operand nor a result")
    scalars = [
        own
        for own in parameters
        if re.fullmatch(OPTION, own.type) and not re.fullmatch(NOT_OF_JAX, own.name)
    ]
    options = [own for own in scalars if not re.fullmatch(SAYS_RESULTS, own.name)]
    options += read_parameters(",\n".join(given.get("options", ())), f"{where}.options")
    known = {own.name for own in (*scalars, *options)} | arrays | set(PYTHON_ONLY)
    return Handler(
        operands,
        results,
        shared,
        tuple(options),
        tuple(own for own in parameters if own.name in known),
    )


def read_option(text: str, parameters: dict[str, Parameter], where: str) -> tuple[str, str]:
    """Read "name", whose type is that of the parameter, or "name: type of torch's"."""
    name, _, kind = text.partition(": ")
    if kind:
        return name, kind
    if name not in parameters:
        raise TableError(f"{where}: there is no parameter {name}")
    own = parameters[name].type
    kind = "str" if own.startswith('Literal["') else SCHEMA_TYPES.get(own, "")
    if not kind:
        raise TableError(f"{where}: {name} is {own}, for which torch has no type")
    return name, kind


def in_cpp(value: object) -> str:
    """Return a constant in C++: text stands there as it is."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def load(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.name}: {error}") from None


def read_tables(paths: list[Path]) -> list[Function]:
    """Return the functions of all tables in order; the first of a table is the op of its name."""
    shared = load(HERE / "shared.toml")
    found: dict[str, Function] = {}
    for path in paths:
        tables = load(path)
        if next(iter(tables), None) != path.stem:
            raise TableError(f"{path.name}: must begin with [{path.stem}]")
        for name, table in tables.items():
            if name in found:
                raise TableError(f"{path.name}: {name}: another table has it too")
            found[name] = read_function(name, table, shared, f"{path.name}: {name}")
    return list(found.values())


def listed(parameters: tuple[Parameter, ...], spelt: Callable[[Parameter], str]) -> list[str]:
    """Spell parameters, with the star before those that are keyword-only."""
    named = [own.keyword_only for own in parameters]
    texts = [spelt(own) for own in parameters]
    if True in named:
        texts.insert(named.index(True), "*")
    return texts
