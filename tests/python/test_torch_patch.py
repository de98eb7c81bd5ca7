# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Patched models of transformers, built from small configurations with random weights."""

from __future__ import annotations

import importlib
import inspect
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
TEXT = {**SIZES, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {**SIZES, "image_size": 32, "patch_size": 8}
# The number of replaced norms, gated MLPs, attentions, embeddings, losses and masks.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama": (GROUPED, 5 + 2 + 2 + 1 + 1 + 1),
    "Mistral": (GROUPED, 5 + 2 + 2 + 1 + 1 + 1),
    "Qwen2": (GROUPED, 5 + 2 + 2 + 1 + 1 + 1),
    "Qwen3": ({**GROUPED, "head_dim": 16}, 9 + 2 + 2 + 1 + 1 + 1),
    "Gemma2": ({**GROUPED, "head_dim": 16}, 9 + 2 + 2 + 1 + 1 + 1),
    "Gemma3Text": ({**GROUPED, "head_dim": 16}, 13 + 2 + 2 + 1 + 1 + 1),
    "Phi3": (GROUPED, 5 + 2 + 2 + 1 + 1 + 1),
    "Olmo2": (GROUPED, 9 + 2 + 2 + 1 + 1 + 1),
    "GPTNeoX": (TEXT, 5 + 0 + 2 + 1 + 1 + 1),
    "ModernBert": ({**TEXT, "cls_token_id": 1, "sep_token_id": 2}, 5 + 2 + 2 + 1),
    "ViT": (IMAGE, 5 + 0 + 0),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what transformers warns about is not ours
    pytest.mark.filterwarnings("error:membound"),
]


def build(name: str, dtype: Any, seed: int, **others: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed % 2**31)
    sizes, _ = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**{**sizes, **others})
    headless = name in ("ModernBert", "ViT")
    auto = transformers.AutoModel if headless else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # weights of 1 and 0 hide where a result is rounded
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.to(dtype).eval()


def inputs(name: str, dtype: Any) -> dict[str, Any]:
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, dtype=dtype)}
    return {"input_ids": torch.randint(0, 128, (2, 9))}


def run(model: Any, given: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The result, and the gradients of all parameters."""
    model.zero_grad()
    output = model(**given)
    values = output.logits if hasattr(output, "logits") else output.last_hidden_state
    values.float().square().mean().backward()
    return values.detach(), [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_same_numbers(name, dtype, seed):
    kind = getattr(torch, dtype)
    model, given = build(name, kind, seed), inputs(name, kind)
    before, slopes = run(model, given)
    keys = list(model.state_dict())
    report = mt.patch(model)
    assert report.replaced == MODELS[name][1], str(report)
    assert not any(row.why_left for row in report.rows), str(report)
    assert list(model.state_dict()) == keys
    after, patched_slopes = run(model, given)
    unit = torch.finfo(kind).eps
    scale = before.abs().max().item()
    assert (after - before).abs().max().item() <= 16 * unit * scale
    largest = max(g.abs().max().item() for g in slopes)
    for mine, theirs in zip(patched_slopes, slopes, strict=True):
        bound = 32 * unit * max(theirs.abs().max().item(), 1e-2 * largest)
        assert (mine - theirs).abs().max().item() <= bound
    assert mt.unpatch(model) == MODELS[name][1]
    again, _ = run(model, given)
    assert torch.equal(again, before)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Llama", "rms_norm, rounding='before_weight'"),
        ("Gemma2", "rms_norm, weight_offset=1, rounding='once'"),
        ("Olmo2", "rms_norm, rounding='once'"),
    ],
)
def test_norms_round_alike_whatever_the_weights_are(name, form, seed):
    """The form is found with random weights, so it stays right during training."""
    model = build(name, torch.bfloat16, seed)
    norms = [(m, type(m).forward) for m in model.modules() if "RMSNorm" in type(m).__name__]
    x = torch.randn(7, 64, dtype=torch.bfloat16)
    for norm, _ in norms:
        torch.nn.init.ones_(norm.weight)
    report = mt.patch(model)
    assert form in [row.replaced_by for row in report.rows]
    for norm, forward in norms:
        torch.nn.init.normal_(norm.weight)
        cols = norm.weight.shape[0]
        mine, theirs = norm(x[:, :cols]), forward(norm, x[:, :cols])
        # torch sums in another order: in one of 300,000 elements that changes the result by a unit.
        # Another rounding changes one in five.
        units = mine.view(torch.int16).int() - theirs.view(torch.int16).int()
        assert units.abs().max() <= 1
        assert units.count_nonzero() <= 2


def test_generation_and_compile(seed):
    model = build("Llama", torch.float32, seed)
    ids = torch.randint(3, 128, (1, 5))
    mask = torch.ones_like(ids)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    before = model.generate(ids, **options)
    mt.patch(model)
    assert torch.equal(model.generate(ids, **options), before)
    torch.compiler.reset()
    eager = model(ids).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids).logits, eager)
    torch.compiler.reset()


def masks_in_graphs(model: Any, **given: Any) -> list[bool]:
    """Whether each attention of the compiled model gets a mask; without one it must be causal."""
    found = []

    def look(graph: Any, _: Any) -> Any:
        for node in graph.graph.nodes:
            if node.target is torch.nn.functional.scaled_dot_product_attention:
                masked = node.kwargs.get("attn_mask") is not None
                assert masked or node.kwargs["is_causal"]
                found.append(masked)
        return graph.forward

    torch.compiler.reset()
    torch.compile(model, backend=look, fullgraph=True)(**given)
    torch.compiler.reset()
    return found


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
PACKED = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]]).expand(2, 9)


@pytest.mark.parametrize(
    ("name", "sizes", "masked"),
    [
        ("Llama", {}, [False, False]),
        ("Qwen3", {}, [False, False]),
        ("Mistral", {"sliding_window": None}, [False, False]),
        ("Mistral", {"sliding_window": 16}, [False, False]),
        ("Mistral", {"sliding_window": 9}, [True, True]),
        ("Gemma3Text", {"sliding_window": 4}, [True, False]),
    ],
)
def test_compiled_models_have_no_mask_that_is_causal_says(name, sizes, masked, seed):
    if "Gemma" in name:
        sizes = {**sizes, "layer_types": ["sliding_attention", "full_attention"]}
    model = build(name, torch.float32, seed, **sizes)
    given = inputs(name, torch.float32)
    given["use_cache"] = False  # with a cache positions are not inspected
    packed = {**given, "position_ids": PACKED}
    padded = {**given, "attention_mask": PADDING}
    cases = (given, packed, padded)
    before = [model(**case).logits for case in cases]
    mt.patch(model)
    assert masks_in_graphs(model, **given) == masked
    for case in (packed, padded):
        assert all(masks_in_graphs(model, **case))
    for case, wanted in zip(cases, before, strict=True):
        torch.testing.assert_close(model(**case).logits, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before[0], before[1], rtol=1e-2, atol=1e-2)


def create_causal_mask() -> None:
    """A foreign function of that name."""


class OfAnother(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None):
        del input_ids, attention_mask, position_ids, past_key_values
        return create_causal_mask()


class OfAnotherSince524(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None, position_ids=None, cache=None):
        del input_ids, attention_mask, position_ids, cache
        return create_causal_mask()


class WithoutCache(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None, position_ids=None):
        del input_ids, attention_mask, position_ids
        return create_causal_mask()


@pytest.mark.parametrize(
    ("model", "why_left"),
    [
        (OfAnother, "it makes its masks with functions that are not transformers' own"),
        (OfAnotherSince524, "it makes its masks with functions that are not transformers' own"),
        (
            WithoutCache,
            "its forward takes others than tokens, attention_mask, position_ids and a cache",
        ),
    ],
)
def test_masks_of_others_are_left(model, why_left):
    pytest.importorskip("transformers")  # the function of that name that ours is compared with
    (row,) = mt.patch(model()).rows
    assert row.why_left == why_left


def test_attention_that_looks_both_ways_keeps_its_mask(seed):
    model = build("Llama", torch.float32, seed)
    given = inputs("Llama", torch.float32)
    mt.patch(model)
    for change in ({"is_causal": False}, {"_attn_implementation": "eager"}):
        for name, value in change.items():
            setattr(model.config, name, value)
        patched = model(**given).logits
        mt.unpatch(model)
        torch.testing.assert_close(patched, model(**given).logits, rtol=1e-4, atol=1e-4)
        mt.patch(model)


def test_a_patched_model_is_pickled(seed):
    model = build("Llama", torch.float32, seed)
    mt.patch(model)
    ids = torch.randint(3, 128, (1, 5))
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert mt.unpatch(loaded) == MODELS["Llama"][1]


def test_calls_of_norms_and_mlps_search_for_no_attribute_in_vain(seed, monkeypatch):
    """nn.Module takes two microseconds to find that it lacks one, as long as the norm itself."""
    model, missed = build("Llama", torch.float32, seed), []
    mt.patch(model)
    search = torch.nn.Module.__getattr__

    def watched(module, name):
        try:
            return search(module, name)
        except AttributeError:
            missed.append(name)
            raise

    monkeypatch.setattr(torch.nn.Module, "__getattr__", watched)
    layer, x = model.model.layers[0], torch.ones(1, 3, 64)
    with pytest.raises(AttributeError):
        _ = layer.missing
    assert missed == ["missing"]
    layer.mlp(layer.input_layernorm(x))
    assert missed == ["missing"]


def test_forwards_keep_their_parameters(seed):
    """Trainers drop the columns of a data set that a forward does not name."""
    model = build("Llama", torch.float32, seed)
    parts = [model.model, model.model.layers[0].self_attn]
    before = [inspect.signature(part.forward) for part in parts]
    mt.patch(model)
    assert all("forward" in vars(type(part)) for part in parts)
    assert [inspect.signature(part.forward) for part in parts] == before


def test_only_that_model_changes(seed):
    one, other = (build("Llama", torch.float32, seed) for _ in range(2))
    modeling = importlib.import_module(type(one).__module__)
    function, classes = modeling.apply_rotary_pos_emb, [type(m) for m in other.modules()]
    mt.patch(one)
    assert modeling.apply_rotary_pos_emb is function
    assert [type(m) for m in other.modules()] == classes
    assert mt.unpatch(other) == 0
    again = mt.patch(one)
    assert again.replaced == 0
    assert {row.why_left for row in again.rows} == {
        "its forward is replaced already", "its loss_function is replaced already"
    }  # fmt: skip


def loss_and_slopes(model: Any, **given: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "ModernBert"])
def test_the_loss(name, dtype, seed):
    transformers = pytest.importorskip("transformers")
    kind = getattr(torch, dtype)
    model = build(name, kind, seed)
    if name == "ModernBert":
        model = transformers.AutoModelForMaskedLM.from_config(model.config).to(kind).eval()
    ids, labels = (torch.randint(3, 128, (2, 9)) for _ in range(2))
    labels[0, 3:6] = -100
    given = [{}, {"num_items_in_batch": torch.tensor(5)}]
    if name == "Llama":
        given += [{"shift_labels": labels.roll(-1, 1)}, {"num_items_in_batch": 7}]
    right = [loss_and_slopes(model, input_ids=ids, labels=labels, **more) for more in given]
    report = mt.patch(model)
    form = "cross_entropy" + (" of masked tokens" if name == "ModernBert" else "")
    assert form in [row.replaced_by for row in report.rows], str(report)
    unit = torch.finfo(kind).eps
    for more, (loss, slopes) in zip(given, right, strict=True):
        got, mine = loss_and_slopes(model, input_ids=ids, labels=labels, **more)
        assert got.dtype == loss.dtype
        torch.testing.assert_close(got, loss, rtol=32 * unit, atol=0)
        largest = max(g.abs().max().item() for g in slopes)
        for ours, theirs in zip(mine, slopes, strict=True):
            assert (ours - theirs).abs().max().item() <= 32 * unit * largest
    nothing = torch.full_like(labels, -100)
    assert model(input_ids=ids, labels=nothing).loss.isnan()  # as torch's mean of no rows


def test_a_loss_of_another_kind_is_left(seed):
    transformers = pytest.importorskip("transformers")
    model = build("Llama", torch.float32, seed)
    model.loss_function = lambda *_, **__: torch.zeros(())
    report = mt.patch(model)
    assert "its loss_function is replaced already" in str(report)
    classes = transformers.LlamaForSequenceClassification(model.config)
    assert "its loss is ForSequenceClassificationLoss; only" in str(mt.patch(classes))


class ComputesItsLoss(torch.nn.Module):
    config = None

    def forward(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits, labels)


def test_a_loss_that_a_forward_computes_itself_is_told():
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**TEXT))
    models = {"CrossEntropyLoss": bert, "cross_entropy": ComputesItsLoss()}
    for name, model in models.items():
        (row,) = [r for r in mt.patch(model).rows if r.module == type(model).__name__]
        assert row.replaced_by is None
        assert row.why_left.startswith(f"its forward computes its loss with {name} itself; only")


def test_what_computes_something_else_is_left():
    class OddRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.eps = 1e-6

        def forward(self, x):
            return x * self.weight

    class OddMLP(torch.nn.Module):
        def __init__(self, act):
            super().__init__()
            for name in ("gate_proj", "up_proj", "down_proj"):
                setattr(self, name, torch.nn.Linear(8, 8))
            self.act_fn = act

        def forward(self, x):
            return self.down_proj(self.gate_proj(x) + self.act_fn(self.up_proj(x)))

    model = torch.nn.Sequential(OddRMSNorm(), OddMLP(torch.nn.SiLU()), torch.nn.LayerNorm((2, 8)))
    report = mt.patch(model)
    assert report.replaced == 0
    assert [row.why_left for row in report.rows] == [
        "it computes something else than our norms",
        "it has no product of the form act(gate) * up",
        "it normalises over several axes",
    ]
