# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How calls act on sharded arrays.

Under automatic sharding XLA would gather the operands of a foreign call. A partitioning rule tells
it that rows are independent: each device calls the handler on its own shard, and sums over rows
take one all-reduce. Under shard_map the caller has sharded the arrays already; types then record
along which mesh axes values vary.
"""

import functools
import inspect
import math
from typing import NamedTuple

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

COLUMNS = "c"  # the name of a row's own axis

_KNOWS_SHARDY = "sharding_rule" in inspect.signature(custom_partitioning.def_partition).parameters


class Result(NamedTuple):
    """A result of :func:`cut`: names of its leading axes, and of the axes it is summed over."""

    axes: tuple
    summed: tuple = ()


def rows_of(x):
    """The names of all axes of x but the last."""
    return tuple(f"r{at}" for at in range(x.ndim - 1))


def cut(function, operands, operand_axes, results, on_columns=None):
    """``function(*operands)``, a tuple of results, sharded along the axes that have a name.

    operand_axes: the names of each operand's leading axes; axes of one name are sharded alike, and
    an axis named None (or after the named ones) is replicated. results: one Result for each.
    on_columns: ``on_columns(over, *operands)`` replaces the function if the mesh axes `over` shard
    the axis named COLUMNS; without it columns are independent.
    """
    operand_axes = [a for o, a in zip(operands, operand_axes, strict=True) if o is not None]
    present = [at for at, o in enumerate(operands) if o is not None]

    def run_on(over, *given):
        filled = [None] * len(operands)
        for at, array in zip(present, given, strict=True):
            filled[at] = array
        return tuple(on_columns(over, *filled) if on_columns and over else function(*filled))

    run = functools.partial(run_on, ())
    given = [o for o in operands if o is not None]
    # On one device nothing is sharded, and a rule costs a third of the tracing time. Inside
    # shard_map arrays are local already.
    if jax.device_count() == 1 or any(map(varying_axes, given)):
        return run(*given)
    return _batchable(run, _partitioned(run_on, given, operand_axes, results))(*given)


def _batchable(run, partitioned):
    """Use the rule unless vmap maps the call: a rule cannot shard batch axes, so XLA decides."""
    mapped = custom_vmap(partitioned)

    @mapped.def_vmap
    def _(_, is_mapped, *given):
        axes = [0 if batched else None for batched in is_mapped]
        results = jax.vmap(run, axes)(*given)
        return results, tuple(True for _ in results)

    return mapped


def _partitioned(run_on, operands, operand_axes, results):
    def named(mesh, layout, axes):
        spec = [layout.get(name) for name in axes]
        return NamedSharding(mesh, PartitionSpec(*spec))

    def of_results(mesh, layout):
        return tuple(named(mesh, layout, result.axes) for result in results)

    def where(mesh, shapes):
        return _mesh_axes(mesh, shapes, operand_axes, results)

    def partition(mesh, shapes, _):
        layout = where(mesh, shapes)

        def on_one_device(*own):
            found = []
            over = layout.get(COLUMNS, ())
            for result, one in zip(results, run_on(over, *own), strict=True):
                summed = dict.fromkeys(n for name in result.summed for n in layout.get(name, ()))
                found.append(jax.lax.psum(one, tuple(summed)) if summed else one)
            return tuple(found)

        operands_placed = tuple(named(mesh, layout, axes) for axes in operand_axes)
        return mesh, on_one_device, of_results(mesh, layout), operands_placed

    def infer(mesh, shapes, _):
        return of_results(mesh, where(mesh, shapes))

    run = functools.partial(run_on, ())
    function = custom_partitioning(run)
    shardy = _shardy_rule(run, operands, operand_axes, results) if _KNOWS_SHARDY else {}
    function.def_partition(partition=partition, infer_sharding_from_operands=infer, **shardy)
    return function


def _mesh_axes(mesh, shapes, operand_axes, results):
    """Return the mesh axes that shard each named axis, as the first operand sharded by it has them.

    A mesh axis shards an array once, so the names of one array get distinct mesh axes. XLA pads
    uneven shards; a summed axis is replicated instead, as the padding would be added.
    """
    layout = {}
    arrays = (*operand_axes, *(result.axes for result in results))
    added = {COLUMNS, *(name for result in results for name in result.summed)}
    for shape, axes in zip(shapes, operand_axes, strict=True):
        spec = tuple(getattr(shape.sharding, "spec", ()))
        for name, part, size in zip(axes, spec, shape.shape, strict=False):
            if name is None or part is None or name in layout:
                continue
            neighbours = {n for some in arrays if name in some for n in some}
            taken = {one for other in neighbours for one in layout.get(other, ())}
            parts = part if isinstance(part, tuple) else (part,)
            parts = tuple(one for one in parts if one not in taken)
            if name not in added or size % math.prod(mesh.shape[one] for one in parts) == 0:
                layout[name] = parts
    return {name: parts for name, parts in layout.items() if parts}


def _shardy_rule(run, operands, operand_axes, results):
    """The same rule for Shardy: equal axes share a name, and only our named axes may be sharded."""
    others = {}  # in order of appearance, as Shardy requires

    def named(axes, shape):
        rest = [f"c{at}x{size}" for at, size in enumerate(shape[len(axes) :])]
        names = [
            f"w{at}x{size}" if name is None else name
            for at, (name, size) in enumerate(zip(axes, shape, strict=False))
        ]
        others.update(dict.fromkeys(n for n in (*names, *rest) if n not in axes))
        return " ".join(names + rest)

    shapes = [one.shape for one in jax.eval_shape(run, *operands)]
    left = [named(a, o.shape) for a, o in zip(operand_axes, operands, strict=True)]
    right = [named(result.axes, shape) for result, shape in zip(results, shapes, strict=True)]
    return {
        "sharding_rule": f"{', '.join(left)} -> {', '.join(right)}",
        "need_replication_factors": tuple(others),
    }


# --- inside shard_map ---


def varying_axes(x):
    """The mesh axes along which a value inside shard_map varies between devices."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    manual = getattr(kind, "manual_axis_type", None)
    if manual is not None:
        return frozenset(manual.varying)
    return frozenset(getattr(kind, "vma", ()) or ())


def vary_together(*arrays):
    """Make all arrays vary along the union of their varying mesh axes.

    This happens outside the custom gradient, so that its transpose is the sum over devices.
    """
    axes = frozenset().union(*(varying_axes(a) for a in arrays if a is not None))
    return [None if a is None else _vary(a, axes - varying_axes(a)) for a in arrays]


def _vary(x, axes):
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, tuple(sorted(axes)), to="varying")
    return jax.lax.pvary(x, tuple(sorted(axes)))


def shaped(shape, dtype, operands):
    """The type of a result that varies as the operands do."""
    axes = frozenset().union(*map(varying_axes, operands))
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = jax.typeof(operands[0])
    manual = getattr(kind, "manual_axis_type", None)
    if manual is None:
        return jax.ShapeDtypeStruct(shape, dtype, vma=axes)
    mesh = kind.sharding.mesh
    return jax.ShapeDtypeStruct(
        shape, dtype, manual_axis_type=type(manual)(varying=axes),
        sharding=NamedSharding(mesh, PartitionSpec()),
    )  # fmt: skip
