# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of every type: float64 truth, and transformers' own where it is installed."""

from __future__ import annotations

import math

import arrays
import numpy as np
import pytest

import membound
from membound.arrays import numpy_dtype

SHORT, LONG = [1.0 + 0.03 * i for i in range(32)], [2.0 + 0.1 * i for i in range(32)]
TRAINED = {"original_max_position_embeddings": 4096}
# name: parameters, head_dim, max_position
CASES = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, 64, 4096),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, 64, 9000),
    "dynamic, short": ({"rope_type": "dynamic", "factor": 4.0}, 64, 100),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, **TRAINED}, 128, 16384),
    "yarn, DeepSeek": ({
        "rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707,
        "beta_fast": 16, "truncate": False, **TRAINED,
    }, 64, 16384),
    "yarn, factor given": ({
        "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25, **TRAINED
    }, 64, 16384),
    "llama3": ({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "rope_theta": 5e5, **TRAINED,
    }, 128, 16384),
    "longrope": ({
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **TRAINED
    }, 64, 16384),
    "longrope, short": ({
        "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **TRAINED
    }, 64, 4096),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, 256, 4096),
    "partial": ({"rope_type": "linear", "factor": 1.0, "partial_rotary_factor": 0.5}, 128, 64),
}  # fmt: skip


def parameters_of(case):
    given, head_dim, max_position = CASES[case]
    longest = 4096 if "dynamic" in case else 16384
    return (
        {"rope_theta": 1e4, "max_position_embeddings": longest, **given},
        head_dim,
        max_position,
    )


@pytest.mark.parametrize("case", CASES)
def test_the_frequencies_of_transformers(case):
    """Their float32 arithmetic is worth 16 roundings; the factor on cos and sin has their bits."""
    pytest.importorskip("torch")
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    given, head_dim, max_position = parameters_of(case)
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
        max_position_embeddings=given["max_position_embeddings"],
        rope_parameters={k: v for k, v in given.items() if k != "max_position_embeddings"},
    )  # fmt: skip
    theirs, scaling = utilities.ROPE_INIT_FUNCTIONS[given["rope_type"]](
        config, None, seq_len=max_position
    )
    freqs, ours = membound.rope_frequencies(given, head_dim, max_position)
    assert ours == scaling
    np.testing.assert_allclose(freqs, theirs.double().numpy(), rtol=16 * 2.0**-24, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_tables_are_the_angles_of_the_frequencies_rounded_once(case):
    given, head_dim, max_position = parameters_of(case)
    freqs, scaling = membound.rope_frequencies(given, head_dim, max_position)
    cos, sin, factor = membound.rope_table(given, head_dim, max_position)
    assert factor == scaling
    assert cos.shape == sin.shape == (max_position, len(freqs))
    for position in (0, 1, max_position // 2, max_position - 1):
        for pair in (0, len(freqs) // 3, len(freqs) - 1):
            angle = position * freqs[pair]
            assert cos[position, pair] == np.float32(scaling * math.cos(angle))
            assert sin[position, pair] == np.float32(scaling * math.sin(angle))


def test_known_numbers():
    assert membound.rope_frequencies(None, 4, 8) == ([1.0, 0.01], 1.0)
    assert membound.rope_frequencies({"type": "mrope", "rope_theta": 16.0}, 4, 8)[0] == [1.0, 0.25]
    given = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "rope_theta": 5e5, **TRAINED}  # fmt: skip
    freqs, _ = membound.rope_frequencies(given, 128, 8)
    assert freqs[0] == 1.0
    assert freqs[-1] == pytest.approx(5e5 ** (-126 / 128) / 8, rel=1e-15)
    stretched, _ = membound.rope_frequencies(
        {"rope_type": "dynamic", "factor": 2.0, **TRAINED}, 64, 8192
    )
    assert stretched[1] == pytest.approx((1e4 * 3 ** (64 / 62)) ** (-2 / 64), rel=1e-15)


def test_tables_turn_as_frequencies_do():
    given, head_dim, length = parameters_of("yarn")
    x = np.random.default_rng(0).standard_normal((1, 20, 2, head_dim))
    freqs, scaling = membound.rope_frequencies(given, head_dim, length)
    cos, sin, _ = membound.rope_table(given, head_dim, 20, "float64")
    ours = membound.rope(x, None, cos, sin)
    made = membound.rope(x, freqs=np.array(freqs), attention_scaling=scaling)
    np.testing.assert_allclose(ours, made, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", arrays.FRAMEWORKS)
def test_in_the_framework_of_another_array(name, dtype):
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    like = one.array(np.ones(1, np.float32))
    cos, sin, _ = membound.rope_table(None, 8, 16, dtype, like=like)
    right = membound.rope_table(None, 8, 16, dtype)
    for table, wanted in zip((cos, sin), right, strict=False):
        found = one.numpy(table)
        assert found.dtype.name == dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rope_type": "nonsense"}, "'rope_type'"),
        ({"full_attention": {}, "rope_type": {}}, "'rope_type'"),
        ({"rope_type": "linear"}, "'factor'"),
        ({"rope_type": "linear", "factor": -1.0}, "'factor'"),
        ({"rope_type": "yarn", "factor": 2.0}, "'original_max_position_embeddings'"),
        ({"rope_type": "dynamic", "factor": 2.0}, "'max_position_embeddings'"),
        ({"rope_type": "longrope", **TRAINED}, "'short_factor'"),
        ({"rope_type": "longrope", "short_factor": [1.0], **TRAINED}, "'short_factor'"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
          **TRAINED}, "'high_freq_factor'"),
        ({"partial_rotary_factor": 0.05}, "'head_dim'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        membound.rope_frequencies(given, 64, 128)


def test_other_arguments_that_do_not_fit():
    with pytest.raises(TypeError, match="'dtype'"):
        membound.rope_table(None, 64, 128, "int8")
    for head_dim, max_position in ((1, 8), (64.0, 8), (64, -1), (64, "8")):
        for function in (membound.rope_table, membound.rope_frequencies):
            said = rf"^{function.__name__}: argument '(head_dim|max_position)' must be an integer"
            with pytest.raises(ValueError, match=said):
                function(None, head_dim, max_position)
    with pytest.raises(ValueError, match=r"^rope_frequencies: argument 'rope_parameters'"):
        membound.rope_frequencies("x", 64, 8)


NESTED = {
    "full_attention": {"rope_theta": 16.0}, "sliding_attention": {"rope_type": "linear"},
    "factor": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("function", [membound.rope_frequencies, membound.rope_table])
def test_parameters_of_each_layer_type(function):
    """As in Gemma 3, OLMo 3 and ModernBERT; read as one dictionary they would be the default."""
    both = "'layer_type' must be one of .* 'full_attention', 'sliding_attention', got "
    for wrong in (None, "chunked_attention", []):
        with pytest.raises(ValueError, match=f"^{function.__name__}: argument {both}"):
            function(NESTED, 4, 128, layer_type=wrong)
    with pytest.raises(ValueError, match="argument 'layer_type' must be None"):
        function(NESTED["full_attention"], 4, 128, layer_type="full_attention")
    for layer_type, flat in (
        ("full_attention", {"rope_theta": 16.0}),
        ("sliding_attention", {"rope_type": "linear", "factor": 2.0}),
    ):
        found, right = function(NESTED, 4, 128, layer_type=layer_type), function(flat, 4, 128)
        np.testing.assert_array_equal(found[0], right[0])
    assert membound.rope_frequencies(NESTED, 4, layer_type="full_attention")[0] == [1.0, 0.25]


def test_a_length_is_wanted_by_the_types_that_depend_on_it():
    for case in CASES:
        given, head_dim, max_position = parameters_of(case)
        if given["rope_type"] in ("dynamic", "longrope"):
            with pytest.raises(ValueError, match="'max_position' must be given for"):
                membound.rope_frequencies(given, head_dim)
        else:
            right = membound.rope_frequencies(given, head_dim, max_position)
            assert membound.rope_frequencies(given, head_dim) == right


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", arrays.FRAMEWORKS)
def test_frequencies_like_q_are_taken_by_rope(name, dtype):
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"it has no {dtype}")
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8)).astype(np.float32)
    q = one.array(x.astype(numpy_dtype(dtype)))
    freqs, _ = membound.rope_frequencies(None, 8, like=q)
    wide = "float64" if dtype == "float64" else "float32"
    right = np.array(membound.rope_frequencies(None, 8)[0]).astype(wide)
    np.testing.assert_array_equal(one.numpy(freqs), right)
    assert one.numpy(freqs).dtype.name == wide
    assert one.numpy(membound.rope(q, freqs=freqs)).shape == x.shape
