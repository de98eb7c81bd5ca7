# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The walk through the graph of membound.autograd, its errors, and the tensor as an object."""

from __future__ import annotations

import copy
import doctest
import gc
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import membound
import membound.autograd as ag
import membound.ndarray as nd
from membound.autograd import _graph, _tensor


@pytest.fixture
def without_collector():
    """It would look through a hundred thousand nodes again and again, and hide cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_deep_graphs_need_no_recursion(without_collector):
    x = ag.Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    y.backward()
    assert x.grad.tolist() == [1]
    node = _graph.Node("last")
    for _ in range(100_000):
        node = _graph.Node("one", ((node, 0),), lambda _, dy: (dy,))
    del node  # a graph that nobody walks through goes, too


def test_a_diamond_is_walked_once():
    """2**200 paths."""
    x = y = ag.Tensor([1.0], requires_grad=True)
    for _ in range(200):
        y = (y + y) * 0.5
    y.backward()
    assert x.grad.tolist() == [1]


def test_gradients_add_up_in_leaves():
    x = ag.Tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        ag.sum(x * x).backward()
    assert x.grad.tolist() == [6, 12]
    first = x.grad
    ag.sum(x).backward()
    assert first.tolist() == [6, 12]
    assert x.grad.tolist() == [7, 13]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_leaf_has_its_own_gradient(copied):
    x = ag.Tensor([1.0, 2.0], requires_grad=True)
    ag.sum(x).backward()
    y = copied(x)
    (+ag.sum(y * 3)).backward()
    assert y.grad.tolist() == [4, 4]
    assert x.grad.tolist() == [1, 1]
    assert not copied(x.detach()).requires_grad
    with pytest.raises(TypeError, match="Tensor: only a leaf can be copied or pickled"):
        copied(x * 2)


def test_gradients_share_no_memory():
    """In-place arithmetic on one gradient changes no other."""
    x, y, z = (ag.Tensor([1.0, 2.0], requires_grad=True) for _ in range(3))
    dy = nd.asarray([1.0, 10.0])
    (x + y + z.reshape((2, 1)).mT[0] + x[:]).backward(dy)
    found = [x.grad, y.grad, z.grad, *ag.grad(x + y, [x, y], dy)]
    arrays = [*found, dy]
    assert not any(
        one.shares_buffer(other) for at, one in enumerate(arrays) for other in arrays[:at]
    )
    assert [dx.tolist() for dx in found] == [[2, 20], *[[1, 10]] * 4]
    for dx in found:
        dx *= 2.0


def test_a_gradient_that_two_share_is_not_added_to():
    x, w = (ag.Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    square = x * x
    (square + (x + w) * 1.0).backward(nd.ones(2))  # x and w have that of their sum, then x more
    assert (x.grad.tolist(), w.grad.tolist()) == ([3, 5], [1, 1])


@pytest.mark.parametrize("function", [ag.sum, ag.mean, lambda x: ag.sum(ag.matmul(x, x))])
def test_gradients_are_arrays_of_their_own_elements(function):
    """Not one number that is broadcast: it could not be added to."""
    x = ag.Tensor([1.0, 2.0], requires_grad=True)
    function(x).backward()
    assert x.grad.is_contiguous
    right = [2 * number for number in x.grad.tolist()]
    x.grad += x.grad
    assert x.grad.tolist() == right
    found = ag.grad(function(x) + function(x) + x[0] * 0.0, x)
    assert found.tolist() == right


def test_grad_of_intermediates():
    x = ag.Tensor([3.0], requires_grad=True)
    y = x * x
    z = y * y
    dx, dy, dz = ag.grad(ag.sum(z), (x, y, z))
    assert (dx.tolist(), dy.tolist(), dz.tolist()) == ([108], [18], [1])
    assert x.grad is None
    y, w = x * x, ag.Tensor([5.0], requires_grad=True)
    assert ag.grad([y * w, y], y, [nd.ones(1), nd.ones(1)]).tolist() == [6]
    assert w.grad is None


def test_grad_computes_only_what_lies_between():
    x, w = (ag.Tensor([3.0], requires_grad=True) for _ in range(2))

    def never(*_):
        raise AssertionError("was computed")

    y = _tensor.record("never", w.data, (w,), never) * x
    assert ag.grad(y, x).tolist() == [3]
    y = _tensor.from_rules("product", x.data * w.data, (x, lambda dy: dy * w.data), (w, never))
    assert ag.grad(y, x).tolist() == [3]


def test_arrays_are_freed_as_soon_as_they_were_used():
    x = ag.Tensor(nd.ones(10), requires_grad=True)
    alive, found = [], []

    def living():
        return sum(one() is not None for one in alive)

    def probe(y):
        """An identity that counts living arrays on the way back."""

        def backward(_, dy):
            found.append(living())
            alive.append(weakref.ref(dy))
            return (dy * 1.0,)

        return _tensor.record("probe", y.data, (y,), backward)

    y = probe(x)
    for _ in range(20):
        y = ag.exp(y * 0.5)  # saves its result
        alive.append(weakref.ref(y.data))
        y = probe(y)
    saved = living()
    assert saved == 20
    ag.sum(y).backward()
    del y
    # Of 20 results one is left before each step back, of gradients the one that is passed on.
    assert len(found) == 21
    assert all(count <= saved + 2 - at for at, count in enumerate(found)), found
    assert living() == 0


def test_what_needs_no_gradient_is_not_kept():
    x, constant = ag.Tensor(nd.ones(3), requires_grad=True), nd.ones(3)
    product = ag.Tensor(nd.ones(3)) * 1.0
    kept, gone = weakref.ref(constant), weakref.ref(product.data)
    y = x + product  # a sum needs neither
    assert y.requires_grad
    del product
    assert gone() is None
    z = x * constant
    del constant
    assert kept() is not None
    del z
    assert kept() is None
    hidden = x + 1.0
    gone, y = weakref.ref(hidden.data), hidden * ag.Tensor(nd.ones(3))  # a factor without gradient
    del hidden
    assert gone() is None
    assert y.requires_grad


def test_graphs_are_no_cycles(without_collector):
    x = ag.Tensor(nd.ones(3), requires_grad=True)
    y = ag.sum(ag.rms_norm(x * x))
    refs = [weakref.ref(x), weakref.ref(y), weakref.ref(x.data)]
    del x, y
    assert [ref() for ref in refs] == [None] * 3


def test_a_leaf_that_is_gone_takes_no_gradient():
    x = ag.Tensor([2.0], requires_grad=True)
    y = ag.Tensor([3.0], requires_grad=True) * x
    y.backward()
    assert x.grad.tolist() == [3]


def test_no_grad():
    x = ag.Tensor([1.0], requires_grad=True)
    with ag.no_grad():
        y = x * 2
        with ag.no_grad():
            pass
        assert not (x * 2).requires_grad
    assert not y.requires_grad
    assert (x * 2).requires_grad

    @ag.no_grad()
    def evaluate():
        return x * 2

    assert not evaluate().requires_grad
    with pytest.raises(KeyError), ag.no_grad():
        raise KeyError
    assert (x * 2).requires_grad
    found = []
    with ag.no_grad():
        thread = threading.Thread(target=lambda: found.append((x * 2).requires_grad))
        thread.start()
        thread.join()
    assert found == [True] or hasattr(sys.flags, "thread_inherit_context")


def test_threads_share_parameters():
    """Each walks its own graph; what they add to one leaf is all there."""
    x = ag.Tensor(nd.ones(100_000), requires_grad=True)  # so many that others run meanwhile
    found = []

    def work():
        for _ in range(50):
            found.append(ag.grad(ag.sum(x[:4] * x[:4]), x)[3].item())
            ag.sum(x).backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 200
    assert nd.all(x.grad == 200)


# Errors.


def freed():
    x = ag.Tensor([1.0], requires_grad=True)
    y = ag.exp(x)
    z = y * y
    z.backward()
    return x, y, z


ERRORS = {
    "several elements": (
        lambda: ag.Tensor([1.0, 2.0], requires_grad=True).backward(),
        ValueError,
        r"backward: argument 'gradient' must be given .* shape \(2,\)",
    ),
    "shape of the gradient": (
        lambda: ag.Tensor([1.0, 2.0], requires_grad=True).backward(nd.ones(3)),
        ValueError,
        r"backward: argument 'gradient' must have shape \(2,\) on cpu, got \(3,\) on cpu",
    ),
    "dtype of the gradient": (
        lambda: ag.Tensor([1.0], requires_grad=True).backward(nd.ones(1, dtype="float32")),
        TypeError,
        "backward: argument 'gradient' must be an NDArray of float64, got float32",
    ),
    "type of the gradient": (
        lambda: ag.Tensor([1.0], requires_grad=True).backward(np.ones(1)),
        TypeError,
        "backward: argument 'gradient' must be an NDArray of float64, got numpy.ndarray",
    ),
    "no grad": (
        lambda: ag.Tensor([1.0]).backward(),
        ValueError,
        "backward: expected a tensor that requires grad",
    ),
    "second backward": (
        lambda: freed()[2].backward(),
        RuntimeError,
        "backward: the graph was freed from 'multiply' on by an earlier backward or grad; compute",
    ),
    "backward of a part": (
        lambda: (freed()[1] * 2).backward(),
        RuntimeError,
        "backward: the graph was freed from 'exp' on",
    ),
    "grad of a freed graph": (
        lambda: ag.grad(freed()[1], ag.Tensor(1.0, requires_grad=True)),
        RuntimeError,
        "grad: the graph was freed from 'exp' on",
    ),
    "gradients of several outputs": (
        lambda: ag.grad([x := ag.Tensor(1.0, requires_grad=True), x * x], x, [None]),
        ValueError,
        "grad: argument 'gradients' must have one for each of 2 outputs, got 1",
    ),
    "an output": (
        lambda: ag.grad([nd.ones(1)], ag.Tensor(1.0, requires_grad=True)),
        TypeError,
        "grad: argument 'outputs' must be Tensors, got .*NDArray",
    ),
    "an input of something else": (
        lambda: ag.grad(
            (x := ag.Tensor(1.0, requires_grad=True)) * 2, [x, ag.Tensor(1.0, requires_grad=True)]
        ),
        ValueError,
        "grad: argument 'inputs' .* got one at 1",
    ),
    "integers": (
        lambda: ag.Tensor([1], requires_grad=True),
        TypeError,
        "Tensor: argument 'data' must be of floats to require grad, got int64",
    ),
    "an operand": (
        lambda: ag.Tensor([1.0]) + "1",
        TypeError,
        "add: argument 'x2' must be a Tensor, an NDArray or a number, got str",
    ),
    "an array of NumPy": (
        lambda: np.ones(1) * ag.Tensor([1.0]),
        TypeError,
        "multiply: argument 'x1' must be a Tensor, an NDArray or a number, got numpy.ndarray",
    ),
    "an argument": (lambda: ag.exp(1.0), TypeError, "exp: argument 'x' must be .* got float"),
    "a table": (
        lambda: ag.rope(
            ag.Tensor(nd.ones((1, 1, 1, 2))), None, ag.Tensor([[1.0]], requires_grad=True)
        ),
        ValueError,
        "rope: argument 'cos' must not require grad",
    ),
    "a result": (
        lambda: ag.rope(ag.Tensor(nd.ones((1, 1, 1, 2))), out=nd.ones((1, 1, 1, 2))),
        TypeError,
        "rope: argument 'out' is not taken",
    ),
    "parameters": (lambda: ag.SGD([]), ValueError, "SGD: argument 'parameters' .* got 0"),
    "a parameter twice": (
        lambda: ag.AdamW([x := ag.Tensor([1.0], requires_grad=True), x]),
        ValueError,
        "AdamW: argument 'parameters' must have one Tensor or more, each once",
    ),
    "no parameter": (
        lambda: ag.SGD([ag.Tensor([1.0])]),
        TypeError,
        "SGD: argument 'parameters' must have leaves that require grad, got another Tensor",
    ),
    "a number": (
        lambda: ag.AdamW([ag.Tensor([1.0], requires_grad=True)], lr=-1.0),
        ValueError,
        "AdamW: argument 'lr' must not be negative, got -1.0",
    ),
    "betas": (
        lambda: ag.AdamW([ag.Tensor([1.0], requires_grad=True)], betas=(0.9, 1.0)),
        ValueError,
        "AdamW: argument 'betas' must be below 1",
    ),
    "nesterov": (
        lambda: ag.SGD([ag.Tensor([1.0], requires_grad=True)], nesterov=True),
        ValueError,
        "SGD: argument 'nesterov'",
    ),
    "another device": (
        lambda: ag.Tensor([1.0], device="tpu"),
        ValueError,
        "tpu",
    ),
    "a name": (lambda: ag.cross_entrpy, AttributeError, "cross_entropy"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        call()


def test_a_failed_backward_writes_no_gradient():
    x = ag.Tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    with pytest.raises(ValueError, match="gradient"):
        y.backward()
    y.backward(nd.ones(2))  # the graph is whole
    assert x.grad.tolist() == [2, 4]


# The tensor as an object.


def test_comparisons_give_arrays():
    x = ag.Tensor([1.0, 2.0, 3.0], requires_grad=True)
    other = ag.Tensor([2.0, 2.0, 2.0])
    pairs = [
        (x == other, [0, 1, 0]),
        (x != 2.0, [1, 0, 1]),
        (x < other, [1, 0, 0]),
        (x <= other, [1, 1, 0]),
        (x > other.data, [0, 0, 1]),
        (x >= 2, [0, 1, 1]),
        (x > 2.0, [0, 0, 1]),
    ]
    for found, right in pairs:
        assert isinstance(found, nd.NDArray)
        assert found.tolist() == list(map(bool, right))
    assert len({x: 0, other: 1}) == 2


def test_arrays_and_tensors_mix():
    x, array = ag.Tensor([1.0, 2.0], requires_grad=True), nd.asarray([3.0, 4.0])
    y = array + x - array * x / array + array @ x
    assert isinstance(y, ag.Tensor)
    assert y.tolist() == [14, 15]
    y.backward(nd.ones(2))
    assert x.grad.tolist() == [6, 8]


def test_attributes():
    array = nd.ones((2, 3), dtype="float32")
    x = ag.Tensor(array, requires_grad=True)
    assert x.data is array
    assert (x.shape, x.dtype, x.ndim, x.size, str(x.device)) == ((2, 3), "float32", 2, 6, "cpu")
    assert (x.requires_grad, x.is_leaf, x.grad) == (True, True, None)
    y = x * 2
    assert (y.requires_grad, y.is_leaf) == (True, False)
    assert y.detach().data is y.data
    assert not ag.astype(x, "int64").requires_grad
    assert not y.detach().requires_grad
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 1, 1]] * 2
    with pytest.raises(TypeError):
        iter(x[0, 0])
    assert (float(x[0, 0]), int(x[0, 0]), bool(x[0, 0]), x[0, 0].item()) == (1, 1, True, 1)
    assert repr(ag.Tensor([1.0])) == "Tensor(array([1.]))"
    assert repr(x[0]) == "Tensor(array([1., 1., 1.], dtype=float32), requires_grad=True)"
    assert not x.T.data.is_contiguous


def test_a_table_of_no_axes_is_refused_by_the_op():
    with pytest.raises(ValueError, match="embedding: argument 'weight' must have 2 axes"):
        ag.embedding(nd.asarray([0]), ag.Tensor(1.0))


@pytest.mark.parametrize("name", ag.__all__)
def test_docstring_examples(name):
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(getattr(ag, name), name, globs={"ag": ag, "nd": nd}):
        runner.run(test)
    assert runner.summarize().attempted >= 1
    assert runner.summarize().failed == 0


def test_it_is_imported_when_asked_for_and_needs_no_numpy():
    code = (
        "import sys, membound; assert 'membound.autograd' not in sys.modules;"
        "ag = membound.autograd; x = ag.Tensor(2.0, requires_grad=True); (x * x).backward();"
        "print(x.grad); assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4.0\n"
    assert membound.autograd is ag
    assert _graph.is_recording()


def test_numpy_takes_no_tensor():
    with pytest.raises(TypeError, match=r"numpy.asarray\(tensor.data\)"):
        np.asarray(ag.Tensor([1.0], requires_grad=True))


@pytest.mark.parametrize("function", [ag.max, ag.min])
def test_nans_share_the_gradient_of_an_extreme(function):
    x = ag.Tensor([[1.0, float("nan"), float("nan")], [1.0, 1.0, 1.0]], requires_grad=True)
    ag.sum(function(x, axis=1)).backward()
    expected = [[0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    assert x.grad.tolist() == expected
