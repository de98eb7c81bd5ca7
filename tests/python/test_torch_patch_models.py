# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Patched models of each kind: a few of the classes that `nox -s models` runs."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
model_comparison = pytest.importorskip("model_comparison")
small_models = pytest.importorskip("small_models")
patch = pytest.importorskip("membound.torch").patch

CLASSES = [
    "llama.LlamaForCausalLM",
    "qwen3.Qwen3ForCausalLM",
    "gpt_neox.GPTNeoXForCausalLM",
    "phi3.Phi3ForCausalLM",  # part of a head is rotated
    "glm.GlmForCausalLM",  # adjacent pairs are rotated
    "helium.HeliumForCausalLM",
    "ernie4_5.Ernie4_5ForCausalLM",
    "deepseek_v3.DeepseekV3ForCausalLM",  # pairs are de-interleaved
    "gpt_oss.GptOssForCausalLM",  # the table has each angle once
    "gptj.GPTJForCausalLM",  # sines come first
    "nanochat.NanoChatForCausalLM",  # inverse rotation
    "mistral_large4.MistralLarge4ForConditionalGeneration",  # the tables are learned
    "mixtral.MixtralForCausalLM",
    "deepseek_v4.DeepseekV4ForCausalLM",  # experts with a limit
    "llama4.Llama4ForCausalLM",  # experts in one batched product
    "jetmoe.JetMoeForCausalLM",  # experts within layers
    "minimax_m3_vl.MiniMaxM3VLForCausalLM",  # gpt-oss's gate in halves
    "pixtral.PixtralVisionModel",  # tables without an axis of sequences
    "mistral3.Mistral3ForConditionalGeneration",
    "t5.T5ForConditionalGeneration",
    "bert.BertForMaskedLM",
    "modernbert.ModernBertForMaskedLM",
    "vit.ViTForImageClassification",
]
# What each must have replaced.
ROTARY = ("Glm", "Helium", "Ernie", "Deepseek", "GptOss", "GPTJ", "NanoChat", "Pixtral", "Mistral3")
EAGER = ", unless experts_implementation='eager', which gates in its forward"
SILU = "gated_activation, kind='silu'"
EXPERTS = {
    "mixtral.MixtralExperts": SILU + EAGER,
    "olmoe.OlmoeExperts": SILU + EAGER,
    "qwen3_moe.Qwen3MoeExperts": SILU + EAGER,
    "deepseek_v3.DeepseekV3Experts": SILU + EAGER,
    "deepseek_v4.DeepseekV4Experts": SILU,
    "llama4.Llama4TextExperts": SILU,
    "jetmoe.JetMoeMoE": SILU,
    "gpt_oss.GptOssExperts": (
        "gated_activation, packing='interleaved', alpha=1.702, limit=7.0, up_offset=1.0"
    ),
    "minimax_m3_vl.MiniMaxM3VLExperts": (
        "gated_activation, packing='halves', alpha=1.702, limit=7.0, up_offset=1.0"
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours


@pytest.mark.parametrize("path", CLASSES)
def test_a_patched_model_computes_the_same(path):
    family, name = path.split(".")
    outcome = model_comparison.Outcome(name)
    cls = small_models.load(f"transformers.models.{family}.modeling_{family}", name)
    model_comparison.compare(outcome, cls)
    assert not outcome.built
    assert not outcome.failed
    assert outcome.parts
    if name.startswith(ROTARY):
        assert outcome.parts["rope"]["rope"] >= 2
    if "ConditionalGeneration" in name and family == "mistral3":
        assert "image" in outcome.cases


def model_of(experts):
    family, name = experts.split(".")
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    (cls,) = [getattr(module, n) for n in module.__all__ if n.endswith("ForCausalLM")]
    return *small_models.build(cls), name


def ours_called(model, given):
    with torch.profiler.profile() as profile:
        model(**given)
    return sum(e.count for e in profile.key_averages() if "gated_activation" in e.key)


@pytest.mark.parametrize("experts", EXPERTS)
def test_experts_gate_with_ours(experts):
    model, given, name = model_of(experts)
    report = patch(model, norms=False, rope=False, embedding=False, loss=False, mask=False)
    (row,) = [row for row in report.rows if row.module == name]
    assert row.replaced_by == EXPERTS[experts]
    layers = [m for m in model.modules() if type(m).__name__ == name]
    assert len(layers) == row.count
    calls = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    assert ours_called(model, given) >= len(calls) > 0
    if EAGER in row.replaced_by:
        before = ours_called(model, given)
        model.config._experts_implementation = "eager"
        assert ours_called(model, given) < before
