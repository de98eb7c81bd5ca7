# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled code that records gradients: a tensor given twice, sizes that change, whole models."""

import pytest

torch = pytest.importorskip("torch")

mt = pytest.importorskip("membound.torch")

SHAPES = {"x": (4, 8), "w": (8,), "q": (2, 3, 4, 8), "f": (4,)}
COS, SIN = torch.rand(3, 4).sub(0.5), torch.rand(3, 4)

# Each call takes the leaves that it names; one tensor is passed for several arguments.
TWICE = {
    "silu_and_mul": lambda x: mt.silu_and_mul(x, x),
    "layer_norm": lambda x, w: mt.layer_norm(x, w, w),
    "layer_norm of its weight": lambda w: mt.layer_norm(w, w, w),
    "add_rms_norm": lambda x, w: mt.add_rms_norm(x, x, w),
    "add_layer_norm": lambda x, w: mt.add_layer_norm(x, x, w, w),
    "rms_norm_gated": lambda x, w: mt.rms_norm_gated(x, x, w),
    "rope": lambda q: mt.rope(q, q, COS, SIN),
    "rope, one table": lambda q: mt.rope(q, q, COS, COS),
    "rope, learned": lambda q, f: mt.rope(q, q, freqs=f),
    "qk_norm_rope": lambda q, w: mt.qk_norm_rope(q, 2 * q, w, w, COS, SIN),
}


def total(results):
    results = results if isinstance(results, tuple) else (results,)
    return sum((at + 1) * (r * r).sum() for at, r in enumerate(results))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_one_tensor_given_twice(name, dynamic):
    function = TWICE[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    leaves = [torch.randn(SHAPES[n], dtype=torch.float64).requires_grad_() for n in names]
    apart = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    found, right = compiled(*leaves), function(*apart)
    torch.testing.assert_close(found, right, rtol=0, atol=0)
    gradients = torch.autograd.grad(total(found), leaves)
    torch.testing.assert_close(gradients, torch.autograd.grad(total(right), apart))


def test_gradients_are_sums_over_both_uses():
    """Of y = w x + w, where the rows of x are normalised already: dw is the sum of x + 1."""
    x = torch.tensor([[-1.0, 1.0], [1.0, -1.0], [1.0, -1.0]], dtype=torch.float64)
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    torch.compiler.reset()
    norm = torch.compile(
        lambda x, w: mt.layer_norm(x, w, w, eps=0.0), fullgraph=True, backend="aot_eager"
    )
    norm(x, w).sum().backward()
    torch.testing.assert_close(w.grad, torch.tensor([4.0, 2.0], dtype=torch.float64))


def test_a_patched_model_with_sizes_that_change():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    mt.patch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, dynamic=True, backend="aot_eager")
    for length in (7, 5):
        ids = torch.randint(0, 64, (2, length))
        gradients = []
        for run in (model, compiled):
            model.zero_grad()
            run(input_ids=ids, labels=ids).loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
