# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How calls act on arrays that several devices share.

Under automatic sharding XLA would gather what a foreign call reads. A rule tells it that rows are
independent: each device calls the handler on its own, and sums over rows are one all-reduce. Under
shard_map the caller has cut the arrays already; types then say along which mesh axes values vary.
"""

import inspect

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

WHOLE = None  # of an operand that every device has all of
SUMMED = "summed"  # of a result that is a sum over rows

_KNOWS_SHARDY = "sharding_rule" in inspect.signature(custom_partitioning.def_partition).parameters


def call(function, operands, operand_axes, result_axes):
    """``function(*operands)``, a tuple of results, cut along rows wherever the rows are.

    operand_axes, result_axes: for each array how many of its last axes belong to a row (1 for a
    matrix, 0 for one number a row), or WHOLE, or SUMMED.
    """
    operand_axes = [a for o, a in zip(operands, operand_axes, strict=True) if o is not None]
    places = [at for at, o in enumerate(operands) if o is not None]

    def run(*given):
        filled = [None] * len(operands)
        for at, array in zip(places, given, strict=True):
            filled[at] = array
        return tuple(function(*filled))

    given = [o for o in operands if o is not None]
    # One device has nothing to share, and a rule costs a third of the tracing. Inside shard_map
    # arrays are every device's own.
    if jax.device_count() == 1 or any(map(varying_axes, given)):
        return run(*given)
    return _batchable(run, _partitioned(run, given, operand_axes, result_axes))(*given)


def _batchable(run, partitioned):
    """The rule has no say over batch axes; a call that is mapped is left to XLA."""
    mapped = custom_vmap(partitioned)

    @mapped.def_vmap
    def _(_, is_mapped, *given):
        axes = [0 if batched else None for batched in is_mapped]
        results = jax.vmap(run, axes)(*given)
        return results, tuple(True for _ in results)

    return mapped


def _partitioned(run, operands, operand_axes, result_axes):
    rows_of = next(at for at, axes in enumerate(operand_axes) if axes is not WHOLE)
    rank = operands[rows_of].ndim - operand_axes[rows_of]

    def row_spec(shapes):
        """Along which mesh axes the rows lie."""
        sharding = shapes[rows_of].sharding
        spec = tuple(getattr(sharding, "spec", ()))
        return (*spec, *[None] * rank)[:rank]

    def placed(mesh, rows, axes, ndim):
        whole = axes is WHOLE or axes == SUMMED
        spec = PartitionSpec() if whole else PartitionSpec(*rows, *[None] * (ndim - rank))
        return NamedSharding(mesh, spec)

    def of_results(mesh, rows, result_shapes):
        return tuple(
            placed(mesh, rows, axes, result.ndim)
            for axes, result in zip(result_axes, result_shapes, strict=True)
        )

    def partition(mesh, shapes, result_shapes):
        rows = row_spec(shapes)
        names = [n for part in rows if part for n in (part if isinstance(part, tuple) else (part,))]

        def on_one_device(*own):
            found = run(*own)
            return tuple(
                jax.lax.psum(result, tuple(names)) if axes == SUMMED and names else result
                for axes, result in zip(result_axes, found, strict=True)
            )

        operands_placed = tuple(
            placed(mesh, rows, axes, shape.ndim)
            for axes, shape in zip(operand_axes, shapes, strict=True)
        )
        return mesh, on_one_device, of_results(mesh, rows, result_shapes), operands_placed

    def infer(mesh, shapes, result_shapes):
        return of_results(mesh, row_spec(shapes), result_shapes)

    function = custom_partitioning(run)
    shardy = _shardy_rule(run, operands, operand_axes, result_axes, rank) if _KNOWS_SHARDY else {}
    function.def_partition(partition=partition, infer_sharding_from_operands=infer, **shardy)
    return function


def _shardy_rule(run, operands, operand_axes, result_axes, rank):
    """The same in Shardy's words: equal axes by one name; rows may be cut, the others may not."""
    rows = [f"r{at}" for at in range(rank)]
    others = {}  # in the order of their appearance, as Shardy wants them

    def named(axes, shape):
        whole = axes is WHOLE or axes == SUMMED
        last = [f"c{at}x{size}" for at, size in enumerate(shape if whole else shape[rank:])]
        others.update(dict.fromkeys(last))
        return " ".join(last if whole else rows + last)

    results = jax.eval_shape(run, *operands)
    left = [named(a, o.shape) for a, o in zip(operand_axes, operands, strict=True)]
    right = [named(a, r.shape) for a, r in zip(result_axes, results, strict=True)]
    return {
        "sharding_rule": f"{', '.join(left)} -> {', '.join(right)}",
        "need_replication_factors": tuple(others),
    }


# --- inside shard_map ---


def varying_axes(x):
    """The mesh axes along which a value inside shard_map differs from device to device."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    manual = getattr(kind, "manual_axis_type", None)
    if manual is not None:
        return frozenset(manual.varying)
    return frozenset(getattr(kind, "vma", ()) or ())


def alike(*arrays):
    """The same arrays, each varying along every axis that one of them varies along.

    Before the gradient is defined, so that the sum over devices is its transpose.
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
