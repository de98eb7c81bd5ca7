# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of a language model of transformers, without float32 copies of its logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from membound.torch._cross_entropy import cross_entropy
from membound.torch._patch_class import Recipe
from membound.torch._patch_trial import LeftAloneError, default_settings, draw

Loss = Callable[..., torch.Tensor]


def makes_loss(module: nn.Module) -> bool:
    """Whether the module is a model whose forward computes a cross entropy."""
    return bool(_called_losses(module)) and hasattr(module, "config")


def _called_losses(module: nn.Module) -> list[str]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    names = getattr(code, "co_names", ())
    return [n for n in ("loss_function", "CrossEntropyLoss", "cross_entropy") if n in names]


def _causal(
    logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **_
):
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return _mean(logits, shift_labels, vocab_size, num_items_in_batch, ignore_index)


def _masked(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, **_):
    return _mean(logits, labels, vocab_size, num_items_in_batch, ignore_index)


# transformers' losses: of the next token, or of the token itself.
LOSSES: dict[str, Loss] = {"cross_entropy": _causal, "cross_entropy of masked tokens": _masked}


def _mean(logits, labels, vocab_size, num_items_in_batch, ignore_index):
    labels = labels.reshape(-1).to(logits.device)
    # For labels outside of the vocabulary torch raises, or aborts the context on a GPU.
    losses = cross_entropy(
        logits.reshape(-1, vocab_size), labels, ignore_index=ignore_index,
        validate=logits.device.type == "cpu",
    )  # fmt: skip
    if num_items_in_batch is None:
        num_items_in_batch = (labels != ignore_index).sum()
    elif isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(losses.device)
    return losses.sum() / num_items_in_batch


def replace_loss(module: nn.Module) -> tuple[str, Recipe]:
    called, *_ = _called_losses(module)
    if called != "loss_function":
        raise LeftAloneError(
            f"its forward computes its loss with {called} itself; only a loss_function is replaced"
        )
    for name, loss in LOSSES.items():
        if _same(module.loss_function, loss):
            return name, Recipe(staticmethod, (loss,))
    theirs = getattr(module.loss_function, "__name__", type(module.loss_function).__name__)
    raise LeftAloneError(
        f"its loss is {theirs}; only the cross entropy of a language model's tokens is replaced"
    )


def _same(theirs: Loss, ours: Loss) -> bool:
    """Whether both give the same loss on random logits, with and without a count of items."""
    with default_settings() as generator:
        logits = draw(generator, 2, 5, 8)
        labels = torch.tensor([[3, -100, 0, 7, 1], [2, 2, -100, 5, 4]])
        for count in (None, torch.tensor(3)):
            given = {"logits": logits, "labels": labels, "vocab_size": 8}
            given["num_items_in_batch"] = count
            try:
                wanted = theirs(**given)
            except (TypeError, ValueError, RuntimeError, AttributeError):  # other arguments
                return False
            if not torch.allclose(ours(**given), wanted, rtol=1e-5, atol=0):
                return False
    return True
