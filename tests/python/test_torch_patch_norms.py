# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms and embeddings of transformers, patched: the same numbers and gradients."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import membound.torch as mt  # noqa: E402

BEFORE, ONCE = "rounding='before_weight'", "rounding='once'"
# model, class, its arguments, the columns of a row, what it becomes
NORMS = [
    ("llama", "LlamaRMSNorm", (64,), (64,), f"rms_norm, {BEFORE}"),
    ("gemma", "GemmaRMSNorm", (64,), (64,), f"rms_norm, weight_offset=1, {ONCE}"),
    ("llama4", "Llama4TextL2Norm", (), (64,), f"rms_norm, {BEFORE}"),
    ("falcon_mamba", "FalconMambaWeightlessRMSNorm", (8,), (64,), f"rms_norm, {BEFORE}"),
    ("t5", "T5LayerNorm", (64,), (64,), f"rms_norm, {BEFORE}"),
    ("cohere", "CohereLayerNorm", (64,), (64,), "layer_norm"),
    ("cohere", "CohereLayerNorm", ((4, 16),), (4, 16), "layer_norm"),
    ("olmo", "OlmoLayerNorm", (64,), (64,), "layer_norm"),
    ("nemotron", "NemotronLayerNorm1P", (64,), (64,), "layer_norm, weight_offset=1"),
    ("mamba2", "MambaRMSNormGated", (64, 64), (64,),
     f"rms_norm_gated, norm_before_gate=False, {BEFORE}"),
    ("zamba2", "Zamba2RMSNormGated", (64, 16), (64,),
     f"rms_norm_gated, norm_before_gate=False, {BEFORE}"),
    ("nemotron_h", "NemotronHRMSNormGated", (64, 32), (64,),
     f"rms_norm_gated, norm_before_gate=False, {BEFORE}"),
    ("falcon_h1", "FalconH1RMSNormGated", (64, 1e-6, 4), (64,),
     f"rms_norm_gated, norm_before_gate=True, {ONCE}"),
    ("falcon_h1", "FalconH1RMSNormGated", (64, 1e-6, 1, False), (64,),
     f"rms_norm_gated, norm_before_gate=False, {ONCE}"),
    ("qwen3_next", "Qwen3NextRMSNormGated", (64,), (64,),
     f"rms_norm_gated, norm_before_gate=True, {BEFORE}"),
    ("gpt_oss", "GptOssRMSNorm", (64,), (64,), f"rms_norm, {ONCE}"),
    ("gemma3n", "Gemma3nRMSNorm", (64,), (64,), f"rms_norm, {ONCE}"),
    ("gemma3n", "Gemma3nRMSNorm", (64, 1e-6, False), (64,), f"rms_norm, {BEFORE}"),
    ("qwen4_exp", "Qwen4ExpTextRMSNorm", (64, 16), (64,), f"rms_norm, weight_offset=1, {ONCE}"),
    ("falcon_mamba", "FalconMambaWeightlessRMSNorm", (64,), (64,), f"rms_norm, {BEFORE}"),
    ("imagegpt", "ImageGPTLayerNorm", (64,), (64,), f"rms_norm, {BEFORE}"),
    ("convnext", "ConvNextLayerNorm", (64,), (64,), "layer_norm"),
    ("deberta", "DebertaLayerNorm", (64,), (64,), "layer_norm"),
    ("chameleon", "ChameleonLayerNorm", ((64,),), (64,), "layer_norm"),
    ("videoprism", "VideoPrismLayerNorm", (64,), (64,), "layer_norm, weight_offset=1"),
]  # fmt: skip
# These modules round between steps, ours do not, so 16-bit results differ by a unit.
ROUND_MORE = ("ImageGPT", "Deberta", "Chameleon", "VideoPrism", "Nemotron")
LEFT = [
    ("pocket_tts", "PocketTTSTimestepNorm", (64,)),  # unbiased variance
    ("hy_v4", "HYV4UnweightedRMSNorm", ()),  # the factor, not the product
    ("dory", "DoryL2Norm", ()),  # the sum, not the mean
    ("mobilebert", "NoNorm", (64,)),
    ("squeezebert", "SqueezeBertLayerNorm", (64,)),  # over another axis
    ("vitdet", "VitDetLayerNorm", (64,)),
    ("muse_spark", "MuseSparkTextInputScaledRMSNorm", (64,)),
]


def norm_of(model, name, arguments, dtype):
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    norm = getattr(module, name)(*arguments).to(dtype)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def gradients(norm, arrays, dy):
    leaves = [array.clone().requires_grad_() for array in arrays]
    y = norm(*leaves)
    return [y, *torch.autograd.grad(y, [*leaves, *norm.parameters()], dy)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("model", "name", "arguments", "cols", "now"), NORMS, ids=[f"{n[1]}{n[2]}" for n in NORMS]
)
def test_norms_are_found_by_what_they_compute(model, name, arguments, cols, now, dtype, seed):
    torch.manual_seed(seed % 2**31)
    theirs = norm_of(model, name, arguments, dtype)
    mine = copy.deepcopy(theirs)
    (row,) = mt.patch(mine).rows
    assert (row.replaced_by, row.why_left) == (now, "")
    mine = pickle.loads(pickle.dumps(mine))
    x, gate, dy = (torch.randn(2, 5, *cols, dtype=dtype) for _ in range(3))
    cases = [] if "Qwen3Next" in name else [[x], [x * 2**13]]
    if "gated" in now:
        cases += [[x, gate], [x * 2**13, gate]]
    unit = torch.finfo(dtype).eps
    for arrays in cases:
        pairs = zip(gradients(mine, arrays, dy), gradients(theirs, arrays, dy), strict=True)
        for at, (got, wanted) in enumerate(pairs):
            assert got.dtype == wanted.dtype
            if at == 0 and dtype == torch.bfloat16 and not name.startswith(ROUND_MORE):
                # torch sums in another order, which rarely changes a result by a unit.
                assert (got != wanted).sum() <= 2
            # Their gradients are rounded to 16 bits at each step, ours once.
            largest = float(wanted.detach().abs().max())
            allowed = 4 * unit * max(1.0, largest) if at == 0 else 64 * unit * largest
            torch.testing.assert_close(got, wanted, rtol=4 * unit, atol=allowed)


@pytest.mark.parametrize(("model", "name", "arguments"), LEFT, ids=[n[1] for n in LEFT])
def test_norms_of_another_kind_are_left_and_told(model, name, arguments):
    (row,) = mt.patch(norm_of(model, name, arguments, torch.float32)).rows
    assert (row.replaced_by, row.why_left) == (None, "it computes something else than our norms")


def test_a_weight_that_is_broadcast_is_left():
    norm = norm_of("llama", "LlamaRMSNorm", (1,), torch.float32)
    (row,) = mt.patch(norm).rows
    assert row.why_left.startswith("its weight has one element")
    assert norm(torch.randn(2, 8)).shape == (2, 8)


def test_a_gate_is_taken_by_name_and_one_of_another_dtype_is_left_to_the_class():
    norm = norm_of("mamba2", "MambaRMSNormGated", (64, 64), torch.bfloat16)
    theirs = copy.deepcopy(norm)
    mt.patch(norm)
    x, gate = torch.randn(3, 64).bfloat16(), torch.randn(3, 64)
    assert torch.equal(norm(x, gate=gate.bfloat16()), theirs(x, gate.bfloat16()))
    assert torch.equal(norm(hidden_states=x, gate=gate), theirs(x, gate))
    assert torch.equal(norm(x, gate=None), theirs(x))


def test_groups_compile_with_sizes_that_change():
    norm = norm_of("zamba2", "Zamba2RMSNormGated", (64, 16), torch.float32)
    mt.patch(norm)
    x, gate = torch.randn(2, 2, 5, 64)
    torch.compiler.reset()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, gate), norm(x, gate))
    torch.compiler.reset()


class NormWithResidual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.randn(8)), 1e-6

    def forward(self, x, residual=None):
        if residual is not None:
            x = x + residual
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return y if residual is None else (y, x)


def test_what_is_not_ours_is_told_and_left_to_the_class():
    norm = NormWithResidual()
    theirs = copy.deepcopy(norm)
    (row,) = mt.patch(norm).rows
    assert row.replaced_by.endswith("; its own forward where 'residual' is given")
    x, residual = torch.randn(2, 3, 8)
    torch.testing.assert_close(norm(x), theirs(x))
    for got, wanted in zip(norm(x, residual), theirs(x, residual), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", ["gemma3", "bart"])
def test_scaled_embeddings(model, dtype):
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    name = {"gemma3": "Gemma3TextScaledWordEmbedding", "bart": "BartScaledWordEmbedding"}[model]
    theirs = getattr(module, name)(11, 24, 3, embed_scale=24**0.5).to(dtype)
    mine = copy.deepcopy(theirs)
    assert [row.replaced_by for row in mt.patch(mine).rows] == ["embedding, scale"]
    ids, dy = torch.tensor([[1, 3, 5, 1], [10, 0, 3, 3]]), torch.randn(2, 4, 24, dtype=dtype)
    (y, *dweights), (right, *slopes) = (
        (found := one(ids), *torch.autograd.grad(found, one.weight, dy)) for one in (mine, theirs)
    )
    assert torch.equal(y, right)
    if model == "bart":
        mine.embed_scale = theirs.embed_scale = 3.0
        assert torch.equal(mine(ids), theirs(ids))
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(*dweights, *slopes, rtol=4 * unit, atol=64 * unit)


def test_embeddings_that_do_more_are_told():
    class Positions(torch.nn.Embedding):
        def forward(self, ids, offset=0):
            return super().forward(ids + offset)

    (row,) = mt.patch(Positions(8, 4)).rows
    assert (row.replaced_by, row.why_left) == (None, "its forward does more than look rows up")
