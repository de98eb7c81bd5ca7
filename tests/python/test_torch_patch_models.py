# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Patched models of each kind: a few of the classes that `nox -s models` runs."""

from __future__ import annotations

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
    "pixtral.PixtralVisionModel",  # tables without an axis of sequences
    "mistral3.Mistral3ForConditionalGeneration",
    "t5.T5ForConditionalGeneration",
    "bert.BertForMaskedLM",
    "modernbert.ModernBertForMaskedLM",
    "vit.ViTForImageClassification",
]
# What each must have replaced.
ROTARY = ("Glm", "Helium", "Ernie", "Deepseek", "GptOss", "GPTJ", "NanoChat", "Pixtral", "Mistral3")
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


def test_the_report_says_which_experts_gate_with_ours():
    cls = small_models.load("transformers.models.mixtral.modeling_mixtral", "MixtralModel")
    model, given = small_models.build(cls)
    (row,) = [row for row in patch(model).rows if row.module == "MixtralExperts"]
    assert "unless experts_implementation='eager'" in row.replaced_by
    for implementation, calls in (("grouped_mm", True), ("eager", False)):
        model.config._experts_implementation = implementation
        with torch.profiler.profile() as profile:
            model(**given)
        assert ("gated_activation_packed" in {e.key for e in profile.key_averages()}) is calls
