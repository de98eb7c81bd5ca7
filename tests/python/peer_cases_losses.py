# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries' softmax, losses and embeddings, paired with the formula."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peer_formulas import case, losses, probabilities, reduced, unbound, values

LOGITS, CLASSES = 3 * values(8, 11), values(11).abs()
LABELS = torch.tensor([0, 10, 3, -100, 5, 5, 7, 1])
ROWS, WEIGHT, BIAS = values(8, 6), values(11, 6), values(11, seed=4)
OF_ROWS = ROWS @ WEIGHT.T
SCORES, MASK = values(2, 3, 4, 6), values(2, 1, 4, 6) > 1
ACROSS = torch.ones(4, 4, dtype=torch.bool).triu(1)


# --- softmax ---


@case("flashinfer.softmax")
def flashinfer_softmax(f):
    yield f(LOGITS), probabilities(LOGITS)
    yield f(LOGITS, 2.0), probabilities(LOGITS / 2)
    heat = values(8).abs() + 0.5
    yield f(LOGITS, heat), probabilities(LOGITS / heat[:, None])
    assert f(LOGITS.bfloat16(), 2.0).dtype == torch.float32


@case("liger.liger_softmax", "quack.softmax", "quack.softmax_fwd")
def softmax(f):
    yield f(LOGITS), probabilities(LOGITS)


@case("liger.LigerSoftmax")
def softmax_module(f):
    yield f()(LOGITS), probabilities(LOGITS)


@case("quack.softmax_bwd")
def softmax_bwd(f):
    leaf, dy = LOGITS.clone().requires_grad_(), values(8, 11, seed=2)
    y = probabilities(leaf)
    yield f(dy, y.detach()), torch.autograd.grad(y, leaf, dy)[0]


@case("functional.softmax")
def torch_softmax(f):
    yield f(LOGITS, -1), probabilities(LOGITS)
    yield f(LOGITS, 0), probabilities(LOGITS.mT).mT
    yield f(LOGITS.float(), dim=1, dtype=torch.float64), probabilities(LOGITS.float().double())


@case("apex.scaled_masked_softmax", "apex.generic_scaled_masked_softmax")
def scaled_masked_softmax(f):
    yield f(SCORES, MASK, 0.5), probabilities((0.5 * SCORES).masked_fill(MASK, -torch.inf))
    yield f(SCORES, None, 0.5), probabilities(0.5 * SCORES)


@case("apex.scaled_upper_triang_masked_softmax")
def causal_softmax(f):
    x = SCORES[..., :4]
    yield f(x, None, 0.5), probabilities((0.5 * x).masked_fill(ACROSS, -torch.inf))


@case("apex.FusedScaleMaskSoftmax")
def apex_softmax_module(f):
    given = unbound(f, input_in_fp16=False, input_in_bf16=False, scaled_masked_softmax_fusion=True,
                    mask_func=None, softmax_in_fp32=True)  # fmt: skip
    padding = f(attn_mask_type=SimpleNamespace(name="padding"), scale=0.5, **given)
    yield padding(SCORES, MASK), probabilities((0.5 * SCORES).masked_fill(MASK, -torch.inf))
    causal = f(attn_mask_type="causal", scale=None, **given)
    x = SCORES[..., :4]
    yield causal(x, None), probabilities(x.masked_fill(ACROSS, -torch.inf))


@case("apex.GenericFusedScaleMaskSoftmax")
def apex_generic_softmax_module(f):
    given = unbound(f, input_in_fp16=False, input_in_bf16=False, scaled_masked_softmax_fusion=True,
                    mask_func=None, softmax_in_fp32=True)  # fmt: skip
    yield f(scale=None, **given)(SCORES, MASK), probabilities(SCORES.masked_fill(MASK, -torch.inf))


@case("transformer_engine.FusedScaleMaskSoftmax")
def te_softmax_module(f):
    module = f(**unbound(f, mask_func=None))
    yield module(SCORES, None, "no_mask", 0.5), probabilities(0.5 * SCORES)
    masked = SCORES.masked_fill(MASK, -torch.inf)
    yield module(SCORES, MASK, "padding"), probabilities(masked)
    later = torch.ones(4, 6, dtype=torch.bool)
    for kind, first in (("causal", 1), ("causal_bottom_right", 3)):
        yield (
            module(SCORES, None, kind),
            probabilities(SCORES.masked_fill(later.triu(first), -torch.inf)),
        )


# --- losses ---


@case("functional.cross_entropy")
def torch_cross_entropy(f):
    yield f(LOGITS, LABELS), reduced(losses(LOGITS, LABELS))
    yield f(LOGITS, LABELS, CLASSES), reduced(losses(LOGITS, LABELS, weight=CLASSES))
    counted = LABELS.clamp(min=0)
    found = losses(LOGITS, counted, 5, 0.1)
    yield f(LOGITS, counted, None, None, 5, None, "sum", 0.1), reduced(found, "sum")
    with pytest.warns(UserWarning, match="size_average and reduce"):
        yield f(LOGITS, LABELS, size_average=False), losses(LOGITS, LABELS)[0].sum()
    image = LOGITS.view(2, 4, 11).movedim(-1, 1)
    yield f(image, LABELS.view(2, 4)), reduced(losses(LOGITS, LABELS))
    yield f(LOGITS[0], LABELS[0]), losses(LOGITS[0], LABELS[0])[0]


@case("liger.liger_cross_entropy")
def liger_cross_entropy(f):
    yield f(LOGITS, LABELS), reduced(losses(LOGITS, LABELS))
    yield f(LOGITS, LABELS, CLASSES), reduced(losses(LOGITS, LABELS, weight=CLASSES))
    options = {"label_smoothing": 0.1, "lse_square_scale": 1e-3, "softcap": 5.0}
    ignoring = torch.where(LABELS < 0, 5, LABELS)
    found = losses(LOGITS, ignoring, 5, 0.1, 1e-3, 5.0)
    for reduction in ("mean", "sum", "none"):
        got = f(LOGITS, ignoring, ignore_index=5, reduction=reduction, **options)
        yield got, reduced(found, reduction)
    smooth = losses(LOGITS, LABELS, smoothing=0.1, weight=CLASSES)
    yield f(LOGITS, LABELS, CLASSES, label_smoothing=0.1), reduced(smooth)
    assert f(LOGITS.bfloat16(), LABELS).dtype == torch.bfloat16


@case("liger.LigerCrossEntropyLoss")
def liger_cross_entropy_module(f):
    yield f()(LOGITS, LABELS), reduced(losses(LOGITS, LABELS))
    found = reduced(losses(LOGITS, LABELS, -100, 0.1, 1e-3, 5.0), "sum")
    yield f(None, -100, 1e-3, 0.1, "sum", 5.0)(LOGITS, LABELS), found
    with pytest.raises(ValueError, match="argument 'weight' must be None"):
        f(CLASSES, lse_square_scale=1e-3)(LOGITS, LABELS)


@case("liger.liger_fused_linear_cross_entropy")
def liger_linear(f):
    yield f(ROWS, WEIGHT, LABELS), reduced(losses(OF_ROWS, LABELS))
    logits, options = OF_ROWS + BIAS, {"label_smoothing": 0.1, "lse_square_scale": 1e-3}
    found = losses(logits, LABELS, -100, 0.1, 1e-3, 5.0)
    for reduction in ("mean", "sum", "none"):
        got = f(ROWS, WEIGHT, LABELS, BIAS, reduction=reduction, softcap=5.0, **options)
        yield got, reduced(found, reduction)
        got = f(ROWS, WEIGHT, LABELS, BIAS, CLASSES, reduction=reduction)
        yield got, reduced(losses(logits, LABELS, weight=CLASSES), reduction)
    with pytest.raises(ValueError, match="argument 'ce_weight' must be None"):
        f(ROWS, WEIGHT, LABELS, ce_weight=CLASSES, lse_square_scale=1e-3)


@case("liger.LigerFusedLinearCrossEntropyLoss")
def liger_linear_module(f):
    yield f()(WEIGHT, ROWS, LABELS, BIAS), reduced(losses(OF_ROWS + BIAS, LABELS))


@case("apex.SoftmaxCrossEntropyLoss")
def xentropy(f):
    labels = LABELS.clamp(min=0)
    yield f(LOGITS, labels), losses(LOGITS, labels, 0)[0]
    yield f(LOGITS, labels, 0.1, 5), losses(LOGITS, labels, 5, 0.1)[0]
    assert f(LOGITS.half(), labels).dtype == torch.float16
    assert f(LOGITS.half(), labels, half_to_float=True).dtype == torch.float32


@case("transformer_engine.parallel_cross_entropy")
def parallel_cross_entropy(f):
    logits, labels = LOGITS.view(2, 4, 11), LABELS.view(2, 4)
    yield f(logits, labels), losses(logits, labels)[0]
    yield f(logits, labels, 0.1, True), reduced(losses(logits, labels, smoothing=0.1))
    yield f(None, labels, ignore_idx=-100, _input=logits), losses(logits, labels)[0]


@case("flash_attention.cross_entropy_loss")
def flash_cross_entropy(f):
    loss, z = f(LOGITS, LABELS)
    yield loss, losses(LOGITS, LABELS)[0]
    yield z, torch.zeros(8)
    options = {"label_smoothing": 0.1, "logit_scale": 0.5, "lse_square_scale": 1e-3}
    loss, z = f(LOGITS, LABELS, **options)
    expected = losses(0.5 * LOGITS, LABELS, -100, 0.1, 1e-3)[0]
    yield loss, expected
    yield z, expected - losses(0.5 * LOGITS, LABELS, -100, 0.1)[0]


@case("flash_attention.CrossEntropyLoss")
def flash_cross_entropy_module(f):
    yield f()(LOGITS, LABELS), reduced(losses(LOGITS, LABELS))
    loss, z = f(-100, "sum", lse_square_scale=1e-3, return_z_loss=True)(LOGITS, LABELS)
    yield loss, losses(LOGITS, LABELS, z=1e-3)[0].sum()
    yield z, (losses(LOGITS, LABELS, z=1e-3)[0] - losses(LOGITS, LABELS)[0]).sum()


@case("quack.cross_entropy")
def quack_cross_entropy(f):
    yield f(LOGITS, LABELS), reduced(losses(LOGITS, LABELS))
    for reduction in ("mean", "sum", "none"):
        got = f(LOGITS, LABELS, weight=CLASSES, reduction=reduction)
        yield got, reduced(losses(LOGITS, LABELS, weight=CLASSES), reduction)


def _gradient(dloss, weight=None):
    leaf = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(losses(leaf, LABELS, weight=weight)[0], leaf, dloss)[0]


@case("quack.cross_entropy_fwd")
def quack_cross_entropy_fwd(f):
    yield f(LOGITS, LABELS), losses(LOGITS, LABELS)[0]
    loss, lse, dx = f(LOGITS, LABELS, return_lse=True, return_dx=True)
    counts = LABELS >= 0
    yield loss, losses(LOGITS, LABELS)[0]
    yield lse[counts], LOGITS.logsumexp(-1)[counts]
    yield dx, _gradient(torch.ones(8).double())
    weighted = f(LOGITS, LABELS, None, CLASSES, return_dx=True)
    yield weighted[0], losses(LOGITS, LABELS, weight=CLASSES)[0]
    yield weighted[1], _gradient(torch.ones(8).double(), CLASSES)
    x = LOGITS.clone()
    assert f(x, LABELS, return_dx=True, inplace_backward=True)[1] is x
    yield x, dx


@case("quack.cross_entropy_bwd")
def quack_cross_entropy_bwd(f):
    dloss = values(8)
    yield f(LOGITS, LABELS, dloss, LOGITS.logsumexp(-1)), _gradient(dloss)
    weighted = f(LOGITS, LABELS, dloss, LOGITS.logsumexp(-1), CLASSES)
    yield weighted, _gradient(dloss, CLASSES)
    x = LOGITS.clone()
    f(x, LABELS, dloss, LOGITS.logsumexp(-1), inplace_backward=True)
    yield x, _gradient(dloss)


@case("quack.linear_cross_entropy_func")
def quack_linear(f):
    yield f(ROWS, WEIGHT, BIAS, LABELS), reduced(losses(OF_ROWS + BIAS, LABELS))
    counted = LABELS.clamp(min=0)
    yield f(ROWS, WEIGHT, None, counted, 5, "sum"), losses(OF_ROWS, counted, 5)[0].sum()


@case("quack.chunked_linear_cross_entropy")
def quack_chunked(f):
    yield f(ROWS, WEIGHT, LABELS), reduced(losses(OF_ROWS, LABELS))
    yield f(ROWS, WEIGHT, LABELS, 3, -100, "sum"), losses(OF_ROWS, LABELS)[0].sum()


@case("quack.LinearCrossEntropy")
def quack_linear_module(f):
    module = f(6, 11, True, chunk_size=3).double()
    logits = module(ROWS, LABELS), ROWS @ module.weight.T + module.bias
    yield logits[0], reduced(losses(logits[1].detach(), LABELS))


@case("unsloth.fast_cross_entropy_loss")
def fast_cross_entropy_loss(f):
    logits, labels = LOGITS.view(2, 4, 11), LABELS.view(2, 4)
    yield f(logits, labels), reduced(losses(LOGITS, LABELS))
    expected = losses(0.5 * LOGITS, LABELS, softcap=5.0)[0].sum() / 3
    yield f(logits, labels, 5.0, 0.5, 3), expected
    yield f(logits, labels, 5.0, 0.5, torch.tensor(3)), expected


# --- embeddings ---

IDS = torch.tensor([[0, 10, 3], [4, 4, 1]])


@case("functional.embedding")
def torch_embedding(f):
    yield f(IDS, WEIGHT), WEIGHT[IDS]
    leaf = WEIGHT.clone().requires_grad_()
    f(IDS, leaf, -1).sum().backward()
    expected = torch.zeros(11, 6).double()
    expected[[0, 3, 1]], expected[4] = 1, 2
    yield leaf.grad, expected


@case("liger.LigerEmbedding")
def liger_embedding(f):
    module = f(11, 6, 10).double()
    yield module(IDS), module.weight.detach()[IDS] * (IDS != 10)[..., None]


@case("vllm.vocab_parallel_embedding")
def vocab_parallel_embedding(f):
    inside = ((IDS >= 2) & (IDS < 11))[..., None]
    end = unbound(f, added_vocab_end_index=20)
    got = f(IDS.flatten(), WEIGHT, 2, 11, 2, 20, **end)
    yield got, (WEIGHT[(IDS - 2).clamp(min=0)] * inside).flatten(0, 1)


@case("flash_attention.GPT2Embeddings")
def gpt2_embeddings(f):
    module = f(6, 11, 7, 0).double()
    assert list(module.state_dict()) == ["word_embeddings.weight", "position_embeddings.weight"]
    words, places = (
        module.word_embeddings.weight.detach(),
        module.position_embeddings.weight.detach(),
    )
    yield module(IDS), words[IDS] + places[:3]
    at = torch.tensor([[6, 0, 1], [2, 2, 5]])
    yield module(IDS, at), words[IDS] + places[at]
    module = f(6, 11, 0).double()
    yield module(IDS), module.word_embeddings.weight.detach()[IDS]
