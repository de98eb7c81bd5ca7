# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Models patched before or after conversion, compilation, adapters of PEFT, and accelerate."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
mt = pytest.importorskip("membound.torch")
from test_torch_patch import MODELS, build  # noqa: E402 - it needs torch
from test_torch_patch_compiled import Graphs  # noqa: E402 - it needs torch

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours
IDS = torch.arange(18).reshape(2, 9)
ADAPTED = ["q_proj", "v_proj", "gate_proj", "down_proj", "embed_tokens"]


def compiled(model, backend="aot_eager"):
    torch.compiler.reset()
    return torch.compile(model, backend=backend, fullgraph=True)


def compiled_in_place(model):
    torch.compiler.reset()
    model.compile(backend="aot_eager", fullgraph=True)
    return model


def compiled_by_layer(model):
    torch.compiler.reset()
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    return model


def compiled_and_run(model):
    model = compiled(model)
    run(model)
    return model


def checkpointed(model):
    model.gradient_checkpointing_enable()
    return model.train()


def adapted(model, **options):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = {"r": 4, "target_modules": ADAPTED, "init_lora_weights": False, **options}
    return peft.get_peft_model(model, peft.LoraConfig(**config))


def prepared(model, precision="no"):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return accelerate.Accelerator(cpu=True, mixed_precision=precision).prepare(model)


def run(model):
    model.zero_grad()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    slopes = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), slopes


WRAPPERS = {
    "to": lambda model: model.to(torch.bfloat16),
    "compile": compiled,
    "compile in place": compiled_in_place,
    "compile by layer": compiled_by_layer,
    "compile and run": compiled_and_run,
    "checkpointing": checkpointed,
    "LoRA": adapted,
    "DoRA": functools.partial(adapted, use_dora=True),
    "LoRA with whole norms": functools.partial(adapted, modules_to_save=["norm", "lm_head"]),
    "accelerate": prepared,
    "accelerate in 16 bits": functools.partial(prepared, precision="bf16"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_patched_before_or_after(wrapper, seed):
    wrap = WRAPPERS[wrapper]
    plain = build("Llama", torch.float32, seed)
    loss, slopes = run(wrap(copy.deepcopy(plain)))
    assert slopes
    inside, outside = copy.deepcopy(plain), wrap(copy.deepcopy(plain))
    reports = [mt.patch(inside), mt.patch(outside)]
    assert reports[0].replaced == MODELS["Llama"][1]
    assert reports[1].replaced >= MODELS["Llama"][1]  # PEFT copies the modules that it saves
    assert not any(row.why_left for report in reports for row in report.rows)
    inside = wrap(inside)
    exact = wrapper not in ("to", "accelerate in 16 bits")
    unit = torch.finfo(torch.float32 if exact else torch.bfloat16).eps
    for model in (inside, outside):
        got, mine = run(model)
        torch.testing.assert_close(got, loss, rtol=8 * unit, atol=0)
        assert mine.keys() == slopes.keys()
        largest = max(g.abs().max().item() for g in slopes.values())
        for key, right in slopes.items():
            bound = 32 * unit * max(right.abs().max().item(), 1e-2 * largest)
            assert (mine[key] - right).abs().max().item() <= bound, key
        assert mt.unpatch(model) >= MODELS["Llama"][1]
        assert mt.unpatch(model) == 0


def test_a_graph_from_before_is_compiled_anew(seed):
    model, graphs = build("Llama", torch.float32, seed), Graphs()
    step = compiled(model, graphs.backend)
    run(step)
    assert graphs.counts
    assert not graphs.ours()
    mt.patch(model)
    run(step)
    assert {"rope", "rms_norm", "embedding"} <= graphs.ours()


@pytest.mark.parametrize("when", ["before", "after"])
def test_adapters_are_merged_into_a_patched_model(when, seed):
    plain = build("Llama", torch.float32, seed)
    right = adapted(copy.deepcopy(plain))(input_ids=IDS).logits
    if when == "before":
        mt.patch(plain)
    model = adapted(plain)
    if when == "after":
        mt.patch(model)
    with model.disable_adapter():
        unadapted = model(input_ids=IDS).logits
    assert not torch.allclose(unadapted, right, rtol=1e-2, atol=1e-2)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=IDS).logits, right, rtol=1e-4, atol=1e-4)
    assert mt.unpatch(merged) == MODELS["Llama"][1]
    assert type(merged.model.layers[0].mlp) is transformers.models.llama.modeling_llama.LlamaMLP


@pytest.mark.parametrize("when", ["before", "after"])
def test_adapters_of_the_weights_of_experts(when, seed):
    """PEFT makes the experts a parametrized module in each call."""
    sizes = {"num_local_experts": 4, "intermediate_size": 32, "hidden_size": 32}
    few = {"vocab_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    few["num_key_value_heads"] = 2
    torch.manual_seed(seed % 2**31)
    plain = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **few))
    wrap = functools.partial(
        adapted, target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        target_modules=["q_proj"],
    )  # fmt: skip
    loss, slopes = run(wrap(copy.deepcopy(plain)))
    model = copy.deepcopy(plain) if when == "before" else wrap(copy.deepcopy(plain))
    report = mt.patch(model)
    assert [r.module for r in report.rows if r.part == "mlp" and r.replaced_by] == [
        "MixtralExperts"
    ]
    if when == "before":
        model = wrap(model)
    got, mine = run(model)
    torch.testing.assert_close(got, loss)
    assert any("experts" in key for key in slopes)
    torch.testing.assert_close(mine, slopes, rtol=1e-4, atol=1e-6)


def test_what_accelerate_offloads_is_patched_before(seed):
    """Its hooks store a forward in each module with weights."""
    accelerate = pytest.importorskip("accelerate")
    plain = build("Llama", torch.float32, seed)
    wanted = plain(input_ids=IDS).logits
    hooked = accelerate.cpu_offload(copy.deepcopy(plain), execution_device="cpu")
    left = {row.part: row.why_left for row in mt.patch(hooked).rows if row.why_left}
    assert left == dict.fromkeys(("embedding", "norms"), "its forward is replaced already")
    mt.patch(plain)
    model = accelerate.cpu_offload(plain, execution_device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=IDS).logits, wanted)
    with pytest.raises(RuntimeError, match="was wrapped after patch"):
        mt.unpatch(model)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert mt.unpatch(model) == MODELS["Llama"][1]
