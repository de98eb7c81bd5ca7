# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax on arrays whose columns are sharded over eight devices; run by test_jax_sharding.py.

Its results are compared with membound's on whole rows in float64. JAX has its default dtypes,
without float64.
"""

from __future__ import annotations

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_devices import results_and_gradients

import membound
import membound.jax as mbj
from membound._ulps import ALLOWED, GATED_ALLOWED, SOFTMAX_ALLOWED, sum_slack, ulp

ROWS, COLS = (2, 8), 64
NORMS = {  # what each takes, its options, and what its gradient takes
    "rms_norm": (("x", "weight"), [{}, {"weight_offset": 1.0}, {"rounding": "before_weight"}],
                 ("dy", "x", "weight", "rstd")),
    "add_rms_norm": (("x", "residual", "weight"), [{}],
                     ("dy", "dsum", "total", "weight", "rstd")),
    "rms_norm_gated": (("x", "z", "weight"), [{}, {"norm_before_gate": False}],
                       ("dy", "x", "z", "weight", "rstd")),
    "layer_norm": (("x", "weight", "bias"), [{}], ("dy", "x", "weight", "mean", "rstd")),
    "add_layer_norm": (("x", "residual", "weight", "bias"), [{}],
                       ("dy", "dsum", "total", "weight", "mean", "rstd")),
}  # fmt: skip
CENTRED = ("layer_norm", "add_layer_norm")


def compiled_for(function, *placed):
    program = jax.jit(function).lower(*placed).compile()
    return program, program(*placed)


def collectives(compiled):
    """The collective instructions of a program: their name and the elements of their results."""
    found = re.findall(
        r"= (\(.*?\)|\S+) (all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(", compiled.as_text()
    )
    return [(name, shape) for shape, name in found]


def elements(shape):
    counts = re.findall(r"\[([\d,]*)\]", shape)
    return sum(int(np.prod([int(n) for n in one.split(",") if n])) for one in counts)


def check_no_gather(compiled, what, of_rows):
    """Require only all-reduces, of_rows of them of per-row statistics."""
    found = collectives(compiled)
    assert all(name == "all-reduce" for name, _ in found), (what, found)
    statistics = [shape for _, shape in found if shape.startswith("f64")]
    assert len(statistics) == of_rows, (what, found)
    rows = int(np.prod(ROWS))
    assert all(elements(shape) <= 2 * rows for shape in statistics), (what, found)


def check_close(found, right, dtype, terms, what):
    """By the bounds of whole rows; terms: the size of terms that may cancel."""
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    units = np.vectorize(functools.partial(ulp, dtype=dtype))(right)
    table = GATED_ALLOWED if "gated" in what[0] else ALLOWED
    allowed = table[dtype] * units + sum_slack(dtype) * terms
    assert found.shape == right.shape, what
    assert np.all(np.abs(found - right) <= allowed), (what, np.max(np.abs(found - right) / units))


def draw(rng, dtype):
    """Random NumPy arrays of the dtype; each statistic is random too, in float32."""
    shapes = dict.fromkeys(("x", "residual", "z", "dy", "dsum", "total"), (*ROWS, COLS))
    shapes |= {"weight": (COLS,), "bias": (COLS,)}
    arrays = {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    for name in ("mean", "rstd"):
        arrays[name] = rng.uniform(0.5, 1.5, ROWS).astype(np.float32)
    return arrays


def place(mesh, arrays, names, rows, cols, of_weight):
    def spec(array):
        if array.ndim == 1:
            return P(cols if of_weight else None)
        return P(rows, None, cols) if array.ndim == 3 else P(rows)

    return [jax.device_put(arrays[n], NamedSharding(mesh, spec(arrays[n]))) for n in names]


def wide(arrays, names):
    return [arrays[n].astype(np.float64) for n in names]


def check_forward(op, options, mesh, lies, arrays, dtype):
    names = NORMS[op][0]
    returns = {"return_stats" if op in CENTRED else "return_rstd": True}
    function = functools.partial(getattr(mbj, op), **options, **returns)
    placed, what = place(mesh, arrays, names, *lies), (op, options, dtype, lies)
    compiled = jax.jit(function).lower(*placed).compile()
    check_no_gather(compiled, what, 1)
    found = compiled(*placed)
    right = getattr(membound, op)(*wide(arrays, names), **options, **returns)
    out = found[0]
    assert out.sharding.is_equivalent_to(placed[0].sharding, out.ndim), (what, out.sharding)
    if "rounding" in options and dtype != "float32":  # the kernel's bits, except for the last one
        right = getattr(membound, op)(*(arrays[n] for n in names), **options, **returns)
        np.testing.assert_allclose(*(np.float64(one[0]) for one in (found, right)), rtol=2**-7)
        return
    for mine, theirs in zip(found, right, strict=True):
        terms = 4.0 if op in CENTRED else 0.0
        check_close(mine, theirs, str(mine.dtype), terms, what)


def check_backward(op, options, mesh, lies, arrays, dtype):
    """The gradient's own function, and what jax.vjp makes of the forward."""
    names = NORMS[op][2]
    function = functools.partial(getattr(mbj, f"{op}_backward"), **options)
    placed, what = place(mesh, arrays, names, *lies), (f"{op}_backward", options, dtype, lies)
    compiled = jax.jit(function).lower(*placed).compile()
    check_no_gather(compiled, what, 1)
    if "rounding" in options:
        return
    right = getattr(membound, f"{op}_backward")(*wide(arrays, names), **options)
    for mine, theirs in zip(compiled(*placed), right, strict=True):
        check_close(mine, theirs, str(mine.dtype), 64.0, what)
    if op.startswith("add"):
        return
    forward = NORMS[op][0]

    def pulled(dy, *inputs):
        return jax.vjp(functools.partial(getattr(mbj, op), **options), *inputs)[1](dy)

    placed = place(mesh, arrays, ("dy", *forward), *lies)
    compiled = jax.jit(pulled).lower(*placed).compile()
    check_no_gather(compiled, what, 2)
    flag = "return_stats" if op in CENTRED else "return_rstd"
    _, *statistics = getattr(membound, op)(*wide(arrays, forward), **options, **{flag: True})
    given = wide(arrays, ("dy", *(n for n in forward if n != "bias")))
    right = getattr(membound, f"{op}_backward")(*given, *statistics, **options)
    for mine, theirs in zip(compiled(*placed), right, strict=True):
        check_close(mine, theirs, str(mine.dtype), 64.0, what)


def check_wide_range(mesh, rng):
    """Squares beyond float32, and means of many standard deviations."""
    lies = NamedSharding(mesh, P(None, "a"))
    normal = rng.standard_normal((4, COLS)).astype(np.float32)
    for x, terms in ((normal * 1e30, 1.0), (normal * 1e-30, 1.0), (normal + 1e5, 1e5)):
        for op in ("rms_norm", "layer_norm"):
            found = getattr(mbj, op)(jax.device_put(x.astype(np.float32), lies), eps=0.0)
            right = getattr(membound, op)(x.astype(np.float32).astype(np.float64), eps=0.0)
            check_close(found, right, "float32", terms, (op, terms))


def check_heads(mesh, rng):
    """Weights of heads: heads or columns are sharded, and the weight with them or not."""
    x, weight = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((4, 8, 16), (8, 16)))
    norm = functools.partial(mbj.rms_norm, normalized_shape=16)
    gradients = jax.grad(lambda x, w: (norm(x, w) ** 2).sum(), (0, 1))
    right = gradients(x, weight)
    for cut, of_weight, reduces in (
        (P(None, "a"), P("a"), 0), (P(None, "a"), P(), 0), (P(None, None, "a"), P(None, "a"), 2),
    ):  # fmt: skip
        spread = zip((x, weight), (cut, of_weight), strict=True)
        placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in spread]
        program, found = compiled_for(gradients, *placed)
        assert [name for name, _ in collectives(program)] == ["all-reduce"] * reduces, cut
        for mine, theirs in zip(found, right, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


def check_uneven(mesh, rng):
    """Uneven shards: XLA's padding must not enter results."""
    x, weight = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((16, COLS), (COLS,)))
    for spec, rows, cols in ((P("a"), 15, COLS), (P(None, "a"), 16, COLS - 4)):

        def loss(x, weight, rows=rows, cols=cols):
            return (mbj.rms_norm(x[:rows, :cols], weight[:cols]) ** 2).sum()

        gradients = jax.jit(jax.grad(loss, (0, 1)))
        found = gradients(jax.device_put(x, NamedSharding(mesh, spec)), weight)
        for mine, theirs in zip(found, gradients(x, weight), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4, err_msg=str(spec))


def numbers(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def check_softmax(mesh, rng):
    """The maxima and the sums of rows: two all-reduces."""
    x = numbers(rng, *ROWS, COLS)
    program, found = compiled_for(
        mbj.softmax, jax.device_put(x, NamedSharding(mesh, P(None, None, "a")))
    )
    assert [name for name, _ in collectives(program)] == ["all-reduce"] * 2
    right = membound.softmax(np.asarray(x, np.float64))
    slack = 2**-22 * np.abs(x).max(-1, keepdims=True) * right
    assert np.all(np.abs(found - right) <= slack + SOFTMAX_ALLOWED["float32"] * 2**-23 * right)


def check_others(mesh, rng):
    """Softmax with its options, and ops whose columns are independent."""
    x, ids = (*ROWS, COLS), jnp.asarray(rng.integers(0, 6, ROWS))
    reduced, apart = P(None, None, "a"), P(None, "a")
    causal = functools.partial(mbj.softmax, scale=0.3, causal_offset=3 * COLS // 4)
    cases = [  # the function, its arrays, and whether it needs an all-reduce
        (mbj.softmax, [(x, reduced), ((ROWS[1], COLS), P())], True),
        (mbj.softmax, [(x, reduced), ((*ROWS, 1), P())], True),
        (causal, [(x, reduced)], True),
        (functools.partial(mbj.softmax, causal_offset=-3), [(x, reduced)], True),
        (lambda x: mbj.softmax(x, jnp.abs(x) < 1), [(x, reduced)], True),
        (mbj.softmax, [(x, apart), ((ROWS[0], 1, COLS), P())], True),
        (mbj.gated_activation, [(x, reduced), (x, reduced)], False),
        (functools.partial(mbj.gated_activation, packing="gate"), [(x, reduced)], False),
        (lambda w: mbj.embedding(ids, w), [((6, COLS), apart)], False),
        (lambda w, p: mbj.embedding(ids, w, position_weight=p),
         [((6, COLS), apart), ((8, COLS), apart)], False),
    ]  # fmt: skip
    for at, (function, given, reduces) in enumerate(cases):
        arrays = [numbers(rng, *shape) for shape, _ in given]
        placed = [
            jax.device_put(one, NamedSharding(mesh, spec))
            for one, (_, spec) in zip(arrays, given, strict=True)
        ]
        both = results_and_gradients(function, len(arrays))
        program = both.lower(*placed).compile()
        sent = {name for name, _ in collectives(program)}
        assert sent == ({"all-reduce"} if reduces else set()), (at, sent)
        pairs = zip(*map(jax.tree.leaves, (program(*placed), both(*arrays))), strict=True)
        for mine, theirs in pairs:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=str(at))


def check_quantised(mesh, rng):
    """Rows are sharded, and heads with their weights."""
    x, weight = numbers(rng, 4, 8, COLS), numbers(rng, 8, COLS)
    norm = functools.partial(mbj.add_rms_norm_quant, dtype="int8", group_size=64)
    right = norm(x, x, weight)
    x, weight = (
        jax.device_put(one, NamedSharding(mesh, spec))
        for one, spec in ((x, P(None, "a")), (weight, P("a")))
    )
    program, found = compiled_for(norm, x, x, weight)
    assert collectives(program) == []
    for mine, theirs in zip(found, right, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def main():
    rng = np.random.default_rng(int(sys.argv[1]))
    devices = np.array(jax.devices())
    line, square = Mesh(devices, ("a",)), Mesh(devices.reshape(2, 4), ("a", "b"))
    shardings = [
        (line, (None, "a", True)), (line, (None, "a", False)),
        (square, ("a", "b", True)), (square, (None, ("a", "b"), False)),
    ]  # fmt: skip
    index = 0
    for op, (_, choices, _) in NORMS.items():
        for options in choices:
            dtype = "bfloat16" if "rounding" in options or op == "add_rms_norm" else "float32"
            mesh, lies = shardings[index % len(shardings)]
            arrays = draw(rng, jnp.dtype(dtype))
            check_forward(op, options, mesh, lies, arrays, dtype)
            check_backward(op, options, mesh, lies, arrays, dtype)
            index += 1
    check_wide_range(line, rng)
    check_heads(line, rng)
    check_uneven(line, rng)
    check_softmax(line, rng)
    check_others(line, rng)
    check_quantised(line, rng)
    print("all right")


if __name__ == "__main__":
    main()
