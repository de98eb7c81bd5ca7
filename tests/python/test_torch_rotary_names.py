# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Side effects of functions named as in other libraries: writes in place, and unread rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from membound.torch import flash_attention, transformer_engine  # noqa: E402


def test_in_place_moves_the_version_and_keeps_the_gradient():
    base = torch.randn(2, 3, 2, 8, requires_grad=True)
    angles = torch.randn(3, 4)
    tables = angles.cos(), angles.sin()
    x = base * 1
    before = x._version
    y = flash_attention.apply_rotary_emb(x, *tables, inplace=True)
    assert y is x
    assert x._version > before
    (found,) = torch.autograd.grad(y.sin().sum(), base)
    right = flash_attention.apply_rotary_emb(base, *tables)
    assert torch.equal(y, right)
    assert torch.equal(found, torch.autograd.grad(right.sin().sum(), base)[0])
    x = base * 1
    squares = x * x  # its gradient needs the original x
    flash_attention.apply_rotary_emb(x, *tables, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.sum().backward()


def test_angles_of_other_positions_are_left_alone():
    """cos and sin of a table of 131,072 rows took 615 ms for one token."""
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    t = torch.randn(1, 2, 3, 8)
    freqs = torch.randn(64, 1, 1, 8)
    starts = torch.tensor([5, 63], dtype=torch.int32)
    with Watch():
        y = transformer_engine.apply_rotary_pos_emb(t, freqs, start_positions=starts)
    assert not {"aten::cos", "aten::sin"} & set(made)
    rows = freqs[starts.long(), 0]
    rotated = torch.cat((-t[..., 4:], t[..., :4]), -1)
    torch.testing.assert_close(y, t * rows.cos() + rotated * rows.sin())


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("cp_size", {"cp_size": 0}),
        ("cp_size", {"cp_size": -1}),
        ("cp_rank", {"cp_rank": 3}),
        ("cp_rank", {"cp_size": 2, "cp_rank": -1}),
    ],
)
def test_ranks_that_share_no_sequence_are_refused(argument, given):
    """cp_size=0 gave NaN; a rank without others was ignored."""
    t, freqs = torch.ones(2, 1, 1, 2), torch.zeros(8, 1, 1, 2)
    with pytest.raises(ValueError, match=f"^apply_rotary_pos_emb: argument '{argument}' must"):
        transformer_engine.apply_rotary_pos_emb(t, freqs, **given)
    packed = torch.ones(2, 1, 1, 6), freqs, freqs, [2, 2, 2]
    with pytest.raises(ValueError, match=f"^apply_fused_qkv_.*: argument '{argument}' must"):
        transformer_engine.apply_fused_qkv_rotary_pos_emb(*packed, **given)


def test_sequences_that_ranks_cannot_share_are_refused():
    """Chunks of unequal length gave wrong positions."""
    t, freqs = torch.ones(3, 1, 2), torch.zeros(8, 1, 1, 2)
    for ends in ([0, 6], [0, 2, 8], [0, 4, 7]):
        cu_seqlens = torch.tensor(ends, dtype=torch.int32)
        with pytest.raises(ValueError, match=r"^apply_rotary_pos_emb: argument 'cu_seqlens' must"):
            transformer_engine.apply_rotary_pos_emb(
                t, freqs, "thd", cu_seqlens=cu_seqlens, cp_size=2
            )
