# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The README's examples run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import membound

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(import (\w+).*?)```", README.read_text(), re.DOTALL)


def test_every_framework_has_an_example():
    found = [framework for _, framework in BLOCKS]
    assert found == ["numpy", "torch", "jax", "cupy", *["torch"] * 8]


@pytest.mark.parametrize(
    ("code", "framework"), BLOCKS, ids=[f"{at} {name}" for at, (_, name) in enumerate(BLOCKS)]
)
def test_example_runs(code, framework, tmp_path):
    pytest.importorskip(framework)
    if framework == "cupy" and membound.cuda_status().device_count == 0:
        pytest.skip("CuPy needs a GPU")
    script = tmp_path / f"readme_{framework}.py"
    script.write_text(code)
    names = runpy.run_path(str(script))
    if "turned" in names:  # by the yarn table, whose factor scales all that it turns
        size = float(names["turned"].norm() / names["q"].norm())
        assert abs(size / names["scaling"] - 1) < 1e-3
        return
    if "gate_up" in names:
        gate, up = names["gate_up"].chunk(2, -1)
        assert names["torch"].allclose(names["y"], gate * gate.sigmoid() * up, atol=1e-5)
        assert names["dgate_up"].shape == names["gate_up"].shape
        return
    if "keys" in names:  # two tokens have a slot
        keys, values = (names[name].flatten(0, 1) for name in ("keys", "values"))
        squares = keys.float().pow(2).mean((1, 2))
        assert squares.nonzero().flatten().tolist() == [23, 1004]
        assert ((squares[[23, 1004]] - 1).abs() < 2e-2).all()
        assert names["torch"].equal(values[[23, 1004]], names["v"][:2])
        return
    if "qkv" in names:  # turning leaves the mean of squares, which the norm made one
        squares = names["qkv"][:, :, :40].float().pow(2).mean(-1)
        assert names["torch"].allclose(squares, names["torch"].ones_like(squares), atol=2e-2)
        return
    if "hidden" in names:
        last = names["weight"][names["ids"][:, -1]]
        shift = names["hidden"][:, -1] - last  # the position's row, whatever the id
        assert names["hidden"].shape == (4, 512, 768)
        assert names["dweight"].shape == (50257, 768)
        assert names["torch"].allclose(shift, shift[:1].expand_as(shift), atol=1e-5)
        return
    result = names.get("y", names.get("x"))
    if "norm" in names:
        assert names["x"].grad.shape == (2048, 4096)
        assert float(names["norm"].weight.grad.abs().max()) > 0
        result = result.detach()
    assert result.shape == (2048, 4096)
    mean_of_squares = (result[0] * result[0]).mean()
    assert abs(float(mean_of_squares) - 1.0) < 1e-2
    if "dx" in names:  # the norm's gradient has no part along the normalised row
        along = (names["dx"] * names["total"]).mean(-1).abs().max()
        assert float(along) < 1e-3
        assert names["dweight"].shape == (4096,)
