# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.torch's modules in place of torch.nn's, and the drop-in rotary functions."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
import pkgutil

import pytest

import membound

torch = pytest.importorskip("torch")
mt = pytest.importorskip("membound.torch")

pytestmark = [  # torch's own, in its tracing
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated"),
]
TWINS = {
    "RMSNorm": (mt.RMSNorm, torch.nn.RMSNorm),
    "LayerNorm": (mt.LayerNorm, torch.nn.LayerNorm),
}
MODULES = {
    "RMSNorm": lambda **k: mt.RMSNorm(8, **k),
    "RMSNorm, Gemma": lambda **k: mt.RMSNorm(8, weight_offset=1.0, **k),
    "LayerNorm": lambda **k: mt.LayerNorm(8, **k),
    "Embedding": lambda **k: mt.Embedding(8, 4, padding_idx=-1, scale=2.0, **k),
    "GatedRMSNorm": lambda **k: mt.GatedRMSNorm(8, **k),
    "RotaryEmbedding": lambda **k: mt.RotaryEmbedding(8, **k),
    "GatedActivation": lambda **_: mt.GatedActivation("silu", packing="interleaved"),
}


@pytest.mark.parametrize("name", sorted(m.name for m in pkgutil.iter_modules(mt.__path__)))
def test_examples_run(name):
    if name == "_causal_mask":  # imported with a model of transformers alone
        pytest.importorskip("transformers")
    module = importlib.import_module(f"membound.torch.{name}")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}, {"eps": 1e-2}])
@pytest.mark.parametrize("name", TWINS)
def test_as_torchs_module(name, options, seed):
    """Constructor, parameters, state dict both ways, values and gradients."""
    torch.manual_seed(seed % 2**31)
    ours, theirs = TWINS[name]
    options = {"eps": 1e-5, **options}
    mine, other = ours(16, **options), theirs(16, **options)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    assert mine.state_dict().keys() == other.state_dict().keys()
    mine.load_state_dict(other.state_dict())
    other.load_state_dict(mine.state_dict())
    x = torch.randn(3, 16, requires_grad=True)
    leaves = lambda m: [x, *m.parameters()]  # noqa: E731
    found, right = mine(x), other(x)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), leaves(mine)),
        torch.autograd.grad(right.square().sum(), leaves(other)),
    )
    residual = torch.randn(3, 16)
    y, total = mine(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, other(x + residual))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_eps_none_is_torchs_default(dtype):
    kind = getattr(torch, dtype)
    x = torch.full((2, 8), 1e-9 if dtype == "float64" else 1e-4, dtype=kind)
    right = torch.nn.RMSNorm(8, dtype=kind)(x)
    torch.testing.assert_close(mt.RMSNorm(8, eps=None, dtype=kind)(x), right)


def test_embedding_as_torchs_module(seed):
    torch.manual_seed(seed % 2**31)
    ours, theirs = mt.Embedding(9, 6, padding_idx=2), torch.nn.Embedding(9, 6, padding_idx=2)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(0, 9, (4, 5))
    found, right = ours(ids), theirs(ids)
    assert torch.equal(found, right)
    dy = torch.randn_like(right)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, m.weight, dy) for y, m in ((found, ours), (right, theirs)))
    )
    with pytest.raises(ValueError, match="embedding: argument 'ids'"):
        ours(torch.tensor([9]))


def test_embedding_of_a_table_that_is_there():
    table = torch.randn(5, 4)
    module = mt.Embedding.from_pretrained(table, padding_idx=-1, scale=2.0)
    theirs = torch.nn.Embedding.from_pretrained(table, padding_idx=-1)
    assert module.weight.data_ptr() == table.data_ptr()
    assert not module.weight.requires_grad
    assert (module.num_embeddings, module.padding_idx) == (5, theirs.padding_idx)
    assert torch.equal(module(torch.tensor([3])), 2 * theirs(torch.tensor([3])))
    assert mt.Embedding.from_pretrained(table, freeze=False).weight.requires_grad
    with pytest.raises(ValueError, match="'embeddings' must have two axes"):
        mt.Embedding.from_pretrained(table[0])


@pytest.mark.parametrize("name", MODULES)
def test_copies_pickles_and_the_meta_device(name):
    module = MODULES[name]()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(twin) == repr(module)
        for mine, other in zip(
            twin.state_dict().values(), module.state_dict().values(), strict=True
        ):
            assert torch.equal(mine, other)
            assert mine.data_ptr() != other.data_ptr()
    on_meta = MODULES[name](device="meta")
    assert all(p.device.type == "meta" for p in on_meta.parameters())
    if hasattr(module, "reset_parameters") and not isinstance(module, torch.nn.Embedding):
        filled = on_meta.to_empty(device="cpu")
        filled.reset_parameters()
        for mine, other in zip(filled.parameters(), module.parameters(), strict=True):
            assert torch.equal(mine, other)


def test_compiled_training_step_of_modules():
    model = torch.nn.Sequential(
        mt.RMSNorm(8), torch.nn.Linear(8, 16), mt.GatedActivation(), mt.LayerNorm(8)
    )
    x = torch.randn(4, 8)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for one in (model, compiled):
        model.zero_grad()
        one(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads)


def test_rotary_module_is_rope(seed):
    generator = torch.Generator().manual_seed(seed % 2**31)
    q, k = (torch.randn(1, 5, heads, 8, generator=generator) for heads in (4, 2))
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    module = mt.RotaryEmbedding(8, parameters, 64)
    assert not module.state_dict()
    assert module.reset_parameters() is None
    freqs, scaling = membound.rope_frequencies(parameters, 8, 64)
    right = membound.rope(q, k, freqs=torch.tensor(freqs, dtype=torch.float32),
                          attention_scaling=scaling)  # fmt: skip
    assert all(map(torch.equal, module(q, k), right))
    nested = {"full_attention": parameters, "sliding_attention": {"rope_theta": 7.0}}
    module = mt.RotaryEmbedding(8, nested, layer_type="full_attention")
    assert all(map(torch.equal, module(q, k), right))
    with pytest.raises(ValueError, match=r"'layer_type'.*'full_attention', 'sliding_attention'"):
        mt.RotaryEmbedding(8, nested)


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.bfloat16(),
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16).float(),
        lambda m: torch.nn.Sequential(m).to("cpu", torch.float16)[0],
        copy.deepcopy,
    ],
)
def test_rotary_frequencies_stay_exact(cast):
    q, k = torch.randn(1, 5, 4, 8).bfloat16(), torch.randn(1, 5, 2, 8).bfloat16()
    right = mt.RotaryEmbedding(8)(q, k)
    module = cast(mt.RotaryEmbedding(8))
    assert module.inv_freq.dtype == torch.float32
    assert all(map(torch.equal, module(q, k), right))


def test_rotary_frequencies_are_made_with_their_memory():
    on_meta = torch.nn.Sequential(mt.RotaryEmbedding(8, device="meta")).bfloat16()
    assert on_meta[0].inv_freq.is_meta
    filled = on_meta.to_empty(device="cpu")[0]
    assert torch.equal(filled.inv_freq, mt.RotaryEmbedding(8).inv_freq)
    filled.inv_freq.zero_()
    filled.reset_parameters()
    assert torch.equal(filled.inv_freq, mt.RotaryEmbedding(8).inv_freq)


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_neighbours(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


class TestDropIns:
    """Each in float32 against its original library's formula, bit for bit."""

    @pytest.mark.parametrize("unsqueeze_dim", [1, 2, -3, -2])
    @pytest.mark.parametrize("rotary_dim", [8, 4])
    def test_hugging_face(self, unsqueeze_dim, rotary_dim, seed):
        """Results have the memory order of q and k, so attention and projections copy nothing."""
        huggingface = importlib.import_module("membound.torch.huggingface")
        generator = torch.Generator().manual_seed(seed % 2**31)
        q, k = (torch.randn(2, 3, heads, 8, generator=generator) for heads in (4, 2))
        if unsqueeze_dim in (1, -3):
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        half = torch.randn(2, 2, 3, rotary_dim // 2, generator=generator)
        cos, sin = torch.cat((half, half), -1)
        got = huggingface.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
        for x, found in zip((q, k), got, strict=True):
            c, s = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            rotated, rest = x[..., :rotary_dim], x[..., rotary_dim:]
            right = torch.cat((rotated * c + rotate_half(rotated) * s, rest), -1)
            assert torch.equal(found, right)
            assert found.stride() == x.stride()
        with pytest.raises(ValueError, match="'unsqueeze_dim' must name an axis of heads"):
            huggingface.apply_rotary_pos_emb(q, k, cos, sin, 3)

    @pytest.mark.parametrize(
        ("q", "k", "cos", "unsqueeze_dim"),
        [
            ((2, 4, 3, 8), (2, 2, 3, 8), (3, 8), 0),  # as Pixtral calls it
            ((2, 3, 4, 8), (2, 3, 2, 8), (3, 8), 1),
            ((3, 4, 8), (3, 2, 8), (3, 8), 1),
            ((4, 3, 8), (2, 3, 8), (3, 8), 0),
            ((2, 4, 3, 8), (2, 2, 3, 8), (2, 1, 8), 1),
        ],
    )
    def test_hugging_face_of_other_axes(self, q, k, cos, unsqueeze_dim, seed):
        """Tables are broadcast against q by torch's rule."""
        huggingface = importlib.import_module("membound.torch.huggingface")
        torch.manual_seed(seed % 2**31)
        cos, sin = (torch.randn(*cos[:-1], 4).repeat(*[1] * (len(cos) - 1), 2) for _ in range(2))
        given = torch.randn(q), torch.randn(k)
        got = huggingface.apply_rotary_pos_emb(*given, cos, sin, unsqueeze_dim)
        for x, found in zip(given, got, strict=True):
            c, s = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            assert torch.equal(found, x * c + rotate_half(x) * s)

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("tensor_format", ["sbhd", "bshd", "thd"])
    def test_transformer_engine(self, tensor_format, interleaved, seed):
        engine = importlib.import_module("membound.torch.transformer_engine")
        generator = torch.Generator().manual_seed(seed % 2**31)
        angles = torch.randn(6, 1, 1, 4, generator=generator)
        both = (angles, angles)
        freqs = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
        shape = {"sbhd": (5, 2, 3, 8), "bshd": (2, 5, 3, 8), "thd": (7, 3, 8)}[tensor_format]
        t = torch.randn(shape, generator=generator, requires_grad=True)
        turn = rotate_neighbours if interleaved else rotate_half
        options = {"tensor_format": tensor_format, "interleaved": interleaved}
        if tensor_format == "thd":
            options["cu_seqlens"] = torch.tensor([0, 3, 7], dtype=torch.int32)
            used = torch.cat((freqs[:3], freqs[:4]))[:, 0]
        else:
            used = freqs[:5] if tensor_format == "sbhd" else freqs[:5].transpose(0, 1)
        right = t * used.cos() + turn(t) * used.sin()
        found = engine.apply_rotary_pos_emb(t, freqs, **options)
        assert torch.equal(found, right)
        dy = torch.randn(shape, generator=generator)
        torch.testing.assert_close(*(torch.autograd.grad(y, t, dy) for y in (found, right)))

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("offsets", [0, 2, "each"])
    def test_flash_attention(self, interleaved, offsets, seed):
        flash = importlib.import_module("membound.torch.flash_attention")
        generator = torch.Generator().manual_seed(seed % 2**31)
        x = torch.randn(2, 4, 3, 10, generator=generator)
        cos, sin = torch.randn(2, 9, 4, generator=generator)
        given = torch.tensor([1, 3], dtype=torch.int32) if offsets == "each" else offsets
        starts = [1, 3] if offsets == "each" else [offsets] * 2
        expand = (lambda t: t.repeat_interleave(2, -1)) if interleaved else lambda t: t.repeat(1, 2)
        turn = rotate_neighbours if interleaved else rotate_half
        right = x.clone()
        for at, start in enumerate(starts):
            c, s = (expand(t[start : start + 4])[:, None] for t in (cos, sin))
            rotated = x[at, ..., :8]
            right[at, ..., :8] = rotated * c + turn(rotated) * s
        assert torch.equal(flash.apply_rotary_emb(x, cos, sin, interleaved, False, given), right)
        assert flash.apply_rotary_emb(x, cos, sin, interleaved, True, given) is x
        assert torch.equal(x, right)

    @pytest.mark.parametrize("is_neox", [True, False])
    @pytest.mark.parametrize("batched", [False, True])
    def test_vllm(self, is_neox, batched, seed):
        vllm = importlib.import_module("membound.torch.vllm")
        generator = torch.Generator().manual_seed(seed % 2**31)
        tokens = (2, 3) if batched else (6,)
        qkv = torch.randn(*tokens, (4 + 2 + 2) * 8, generator=generator)
        query, key, value = qkv.split([32, 16, 16], -1)
        if batched:
            query, key = query.contiguous(), key.contiguous()
        before, kept = (query.clone(), key.clone()), value.clone()
        cache = torch.randn(10, 6, generator=generator)
        positions = torch.randint(0, 10, tokens, generator=generator)
        assert vllm.rotary_embedding(positions, query, key, 8, cache, is_neox) is None
        cos, sin = cache[positions].chunk(2, -1)
        expand = (lambda t: t.repeat(*[1] * len(tokens), 2)) if is_neox else (
            lambda t: t.repeat_interleave(2, -1))  # fmt: skip
        turn = rotate_half if is_neox else rotate_neighbours
        for old, new in zip(before, (query, key), strict=True):
            heads = old.unflatten(-1, (-1, 8))
            rotated = heads[..., :6]
            c, s = expand(cos)[..., None, :], expand(sin)[..., None, :]
            right = torch.cat((rotated * c + turn(rotated) * s, heads[..., 6:]), -1)
            assert torch.equal(new, right.flatten(-2))
        assert torch.equal(value, kept)
