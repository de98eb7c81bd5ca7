# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of `patch` that may be left out."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
create_causal_mask = pytest.importorskip("transformers.masking_utils").create_causal_mask
mt = pytest.importorskip("membound.torch")
from test_torch_patch import build  # noqa: E402 - it needs torch

PARTS = {"norms": 5, "rope": 2, "mlp": 2, "embedding": 1, "loss": 1, "mask": 1}  # of a small Llama
pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns about is not ours


def replaced(report):
    return {row.part: row.count for row in report.rows if row.replaced_by}


def test_every_part_has_a_switch():
    _, *switches = inspect.signature(mt.patch).parameters.values()
    assert {one.name: one.default for one in switches} == dict.fromkeys(PARTS, True)
    assert {one.kind for one in switches} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("part", PARTS)
def test_one_part_alone_and_all_others(part, seed):
    model = build("Llama", torch.float32, seed)
    ids = torch.randint(3, 128, (2, 9))
    before = model(ids, labels=ids).loss
    others = {name: count for name, count in PARTS.items() if name != part}
    alone = mt.patch(model, **dict.fromkeys(others, False))
    assert replaced(alone) == {part: PARTS[part]}
    assert {row.part for row in alone.rows} == {part}  # what was left out is not told of
    torch.testing.assert_close(model(ids, labels=ids).loss, before)
    assert mt.unpatch(model) == PARTS[part]
    assert replaced(mt.patch(model, **{part: False})) == others
    torch.testing.assert_close(model(ids, labels=ids).loss, before)
    assert replaced(mt.patch(model)) == {part: PARTS[part]}  # the part that was left out
    torch.testing.assert_close(model(ids, labels=ids).loss, before)
    assert mt.unpatch(model) == sum(PARTS.values())
    assert torch.equal(model(ids, labels=ids).loss, before)


class MasksAndLoss(transformers.LlamaForCausalLM):
    """A language model without a model inside."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None):
        if position_ids is not None:
            create_causal_mask(self.config, input_ids, attention_mask, past_key_values)
        return self.loss_function(input_ids.float(), input_ids, vocab_size=9)


@pytest.mark.parametrize(("first", "second"), [("mask", "loss"), ("loss", "mask")])
def test_parts_of_one_module_are_added(first, second, seed):
    model = MasksAndLoss(build("Llama", torch.float32, seed).config)
    mt.patch(model, **dict.fromkeys(PARTS.keys() - {first}, False))
    rows = [row for row in mt.patch(model).rows if row.module == "MasksAndLoss"]
    assert {row.part: bool(row.replaced_by) for row in rows} == {first: False, second: True}
    assert {"forward", "_loss_function"} <= vars(type(model)).keys()
    mt.unpatch(model)
    assert type(model) is MasksAndLoss


@pytest.mark.parametrize("value", [1, None, "no"])
def test_switches_are_bools(value):
    got = type(value).__name__
    with pytest.raises(TypeError, match=f"^patch: argument 'mlp' must be a bool, got {got}$"):
        mt.patch(torch.nn.LayerNorm(8), mlp=value)
