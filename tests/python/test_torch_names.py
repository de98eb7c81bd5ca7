# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries: each of peer_names.toml exists with its original signature."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

for _cases in sorted(Path(__file__).parent.glob("peer_cases_*.py")):
    importlib.import_module(_cases.stem)
from peer_formulas import CASES  # noqa: E402

TABLE = tomllib.loads(Path(__file__).with_name("peer_names.toml").read_text())
NAMES = {f"{peer}.{name}": entry for peer in TABLE for name, entry in TABLE[peer]["names"].items()}
IGNORED = [(name, arg) for name, entry in NAMES.items() for arg in entry.get("ignored", ())]
VALUES, LABELS = torch.linspace(-2, 2, 24).view(3, 8).sin(), torch.tensor([1, 0, 5])
REFUSED = [(name, arg) for name, entry in NAMES.items() for arg in entry.get("refused", ())]


def found(name):
    peer, own = name.split(".")
    there = getattr(importlib.import_module(f"membound.torch.{peer}"), own)
    return there.apply if own == "SoftmaxCrossEntropyLoss" else there


def signature(text):
    """The signature of a definition with these arguments."""
    scope = {"torch": torch, "F": torch.nn.functional}
    return inspect.signature(eval(f"lambda {text[1:-1]}: None", scope))


def arguments(function, *, bound=False):
    if inspect.isclass(function) and function.__init__ is torch.nn.Module.__init__:
        return []
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    return [p.replace(annotation=p.empty) for p in parameters]


def value(name, kind, argument):
    return eval(NAMES[name][kind][argument], {"torch": torch})


def check(pairs):
    count = 0
    for got, expected in pairs:
        tolerance = 1e-10 if got.dtype == torch.float64 else 2e-5
        torch.testing.assert_close(
            got.detach().double(), expected.double(), rtol=tolerance, atol=tolerance
        )
        count += 1
    assert count


def test_each_name_has_a_case():
    assert CASES.keys() == NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_that_of_the_origin(name):
    there = found(name)
    assert arguments(there) == list(signature(NAMES[name]["signature"]).parameters.values())
    if "forward" in NAMES[name]:
        forward = signature(NAMES[name]["forward"])
        assert arguments(there.forward, bound=True) == list(forward.parameters.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_call_of_the_origin_gives_the_formula(name):
    check(CASES[name](found(name)))


@pytest.mark.parametrize(("name", "argument"), IGNORED)
def test_an_argument_that_chooses_no_result_is_taken(name, argument):
    check(CASES[name](partial(found(name), **{argument: value(name, "ignored", argument)})))


@pytest.mark.parametrize(("name", "argument"), REFUSED)
def test_an_argument_that_is_refused_names_itself(name, argument):
    given = {argument: value(name, "refused", argument)}
    expected = rf"^{re.escape(name.split('.')[1])}: argument '{argument}' must be "
    with pytest.raises((ValueError, TypeError), match=expected):
        check(CASES[name](partial(found(name), **given)))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_says_what_it_does(name):
    assert found(name).__doc__


@pytest.mark.parametrize(
    ("name", "argument", "other"),
    [
        ("vllm.GeluAndMul", "approximate", "tanh"),
        ("liger.LigerCrossEntropyLoss", "reduction", "sum"),
        ("flash_attention.CrossEntropyLoss", "reduction", "sum"),
        ("transformer_engine.SwiGLU", "glu_interleave_size", 1),
    ],
)
def test_modules_of_one_function(name, argument, other):
    """A wrong choice raises in the constructor; an attribute may be set later; copies work."""
    module = found(name)
    with pytest.raises(ValueError, match=rf"^{module.__name__}: argument '{argument}' must be one"):
        module(**{argument: "nothing"})
    given = (VALUES, LABELS) if "Loss" in name else (VALUES,)
    one, later = module(**{argument: other}), module()
    setattr(later, argument, other)
    for same in (later, pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert torch.equal(same(*given), one(*given))
    assert not torch.equal(module()(*given), one(*given))


def test_errors_name_the_function_and_arguments_of_the_origin():
    """Errors name the original arguments; ours are x, q, cos and so on."""
    x, weight = torch.ones(2, 8), torch.ones(8)
    wanting = x.clone().requires_grad_()
    heads, freqs = torch.ones(2, 4, 1, 4), torch.zeros(4, 1, 1, 4)
    flashinfer, engine = (importlib.import_module(f"membound.torch.{n}") for n in (
        "flashinfer", "transformer_engine"))  # fmt: skip
    for call, expected in (
        (
            lambda: flashinfer.rmsnorm(None, weight),
            "rmsnorm: argument 'input' must be a torch.Tensor, got NoneType",
        ),
        (
            lambda: flashinfer.rmsnorm(x, weight, out=x[:1]),
            "rmsnorm: argument 'out' must have shape",
        ),
        (
            lambda: flashinfer.fused_add_rmsnorm(wanting, x, weight),
            "fused_add_rmsnorm: argument 'input' requires grad, .* or pass input.detach()",
        ),
        (lambda: flashinfer.softmax(x.numpy()), "softmax: argument 'logits' must be a torch.Ten"),
        (
            lambda: engine.apply_rotary_pos_emb(heads, freqs.numpy()),
            "apply_rotary_pos_emb: argument 'freqs' must be a torch.Tensor",
        ),
        (lambda: flashinfer.silu_and_mul(x[:, :7]), "silu_and_mul: argument 'input' must have"),
        (
            lambda: engine.apply_rotary_pos_emb(heads[0], freqs, "bshd"),
            "apply_rotary_pos_emb: argument 't' must have 4 axes for layout 'bshd'",
        ),
        (lambda: engine.RMSNorm(4)(x), "RMSNorm: argument 'weight' must have shape"),
        (lambda: engine.SwiGLU()(x[:, :7]), "SwiGLU: argument 'input' must have"),
        (
            lambda: engine.apply_rotary_pos_emb(heads, freqs, "bshd", cp_size=2, cp_rank=2),
            "apply_rotary_pos_emb: argument 'cp_rank' must be from 0 to 1, got 2",
        ),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
            call()
        assert re.match(expected.replace("()", r"\(\)"), str(caught.value)), caught.value


@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
def test_angles_of_positions_that_are_not_there_are_not_looked_at(layout):
    """A long table costs no more than its first rows."""
    engine = importlib.import_module("membound.torch.transformer_engine")
    shapes = {"sbhd": (3, 1, 1, 4), "bshd": (1, 3, 1, 4), "thd": (3, 1, 4)}
    t = torch.ones(shapes[layout])
    freqs = torch.zeros(9, 1, 1, 4)
    seen = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.cos:
                seen.append(args[0].shape)
            return function(*args, **(kwargs or {}))

    starts = torch.tensor([0, 3], dtype=torch.int32) if layout == "thd" else None
    with Watched():
        engine.apply_rotary_pos_emb(t, freqs, layout, cu_seqlens=starts)
    assert seen == [(3, 4)]


COMPILED = [
    "flashinfer.rmsnorm", "flashinfer.fused_add_rmsnorm", "flashinfer.apply_llama31_rope_inplace",
    "flashinfer.softmax", "vllm.rotary_embedding", "vllm.rms_norm_per_block_quant",
    "liger.liger_cross_entropy", "apex.fused_layer_norm_affine",
    "transformer_engine.apply_rotary_pos_emb", "flash_attention.apply_rotary_emb_kv_",
    "flash_attention.rms_norm_fn", "quack.rmsnorm", "unsloth.fast_rope_embedding",
    "functional.embedding",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_adapters_compile_without_a_graph_break(name):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=32):
        check(CASES[name](torch.compile(found(name), fullgraph=True, backend="eager")))
