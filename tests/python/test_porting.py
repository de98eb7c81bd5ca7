# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The porting guides: programs run, names are there, and every adapter's name has its row."""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from peer_formulas import (  # noqa: E402
    angles,
    layer,
    losses,
    probabilities,
    reduced,
    rms,
    rotate,
    rotate_by,
    silu,
)

PAGES = Path(__file__).resolve().parents[2] / "docs/porting"
TABLE = tomllib.loads(Path(__file__).with_name("peer_names.toml").read_text())
GUIDES = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")
TABLES = {guide: TABLE["functional" if guide == "torch_nn" else guide]
          for guide in GUIDES if guide != "needle"}  # fmt: skip


def flashinfer(n):
    torch.manual_seed(0)
    x, residual = torch.randn(2, 6, 4096, dtype=torch.bfloat16).double()
    heads = rms(x + residual, eps=1e-5).view(6, 32, 128)
    return rotate_by(heads, angles(torch.arange(6), 128, theta=5e5))


def vllm(n):
    cos, sin = n["cache"].double()[:6].chunk(2, dim=-1)
    return rotate(rms(n["x"].double()).view(6, 32, 128), cos, sin).flatten(1)


def liger(n):
    logits = rms(n["x"].double(), eps=1e-5) @ n["head"].double().T
    return reduced(losses(logits, n["labels"]))


def transformer_engine(n):
    t = rms(n["t"].double(), eps=1e-5).transpose(0, 1)
    return rotate_by(t, angles(torch.arange(6), 64)).transpose(0, 1)


def flash_attention(n):
    torch.manual_seed(0)
    x, residual = torch.randn(2, 1, 6, 256)
    assert torch.equal(n["residual"], x + residual)
    return rotate_by(rms((x + residual).double()).view(1, 6, 4, 64), n["angles"].double())


def torch_nn(n):
    h = rms(n["x"].double())
    gate, up, down = (n[name].double() for name in ("gate", "up", "down"))
    return (silu(h @ gate) * (h @ up)) @ down.T


EXPECTED = {
    "apex": lambda n: layer(n["x"].double(), eps=1e-5),
    "flash_attention": flash_attention,
    "flashinfer": flashinfer,
    "liger": liger,
    "needle": lambda n: torch.from_numpy((n["x"].numpy().T @ n["x"].numpy()).sum(1)).double(),
    "quack": lambda n: probabilities(rms(n["x"].double())),
    "torch_nn": torch_nn,
    "transformer_engine": transformer_engine,
    "vllm": vllm,
}


def text(guide):
    return (PAGES / f"{guide}.md").read_text()


def programs(guide):
    blocks = re.findall(r"```python\n(.*?)```", text(guide), re.DOTALL)
    return dict(zip(("before", "after"), blocks, strict=True))


def run(guide, which, folder):
    script = folder / f"{which}.py"
    script.write_text(programs(guide)[which])
    return runpy.run_path(str(script))


def names(cell):
    return re.findall(r"`([\w.]+)`", cell)


def rows(guide, *, there):
    """The first and second cells of the table of names, or of what is not there."""
    part = text(guide).split("## Not there")[not there]
    cells = [line.split("|")[1:3] for line in part.splitlines() if line.startswith("| ")]
    return cells[1:]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_program_after_gives_what_the_formula_does(guide, tmp_path):
    found = run(guide, "after", tmp_path)
    if guide == "needle":
        found["y"] = torch.from_numpy(found["y"])
    tolerance = 2e-2 if found["y"].dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(
        found["y"].detach().double(), EXPECTED[guide](found), rtol=tolerance, atol=tolerance
    )
    x = found.get("x")
    assert not getattr(x, "requires_grad", False) or x.grad.abs().max() > 0


@pytest.mark.parametrize("guide", GUIDES)
def test_the_program_before_gives_the_same(guide, tmp_path):
    package = TABLES[guide]["package"] if guide in TABLES else guide
    pytest.importorskip(package, exc_type=ImportError)
    if guide not in ("needle", "torch_nn") and not torch.cuda.is_available():
        pytest.skip(f"{package} needs a GPU")
    before, after = (run(guide, which, tmp_path)["y"] for which in ("before", "after"))
    near = {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(torch.as_tensor(before), torch.as_tensor(after), **near)


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide != "torch_nn"])
def test_only_the_imports_change(guide):
    before, after = (
        [line for line in program.replace('"cuda"', "device").splitlines()
         if not line.startswith(("from ", "device ="))]
        for program in programs(guide).values()
    )  # fmt: skip
    assert before == after


@pytest.mark.parametrize("guide", TABLES)
def test_each_name_of_the_origin_has_a_row(guide):
    listed = {name for theirs, _ in rows(guide, there=True) for name in names(theirs)}
    listed -= {name for name in listed if "." in name}  # where it is
    assert TABLES[guide]["names"].keys() - listed == set()
    assert guide == "torch_nn" or listed - TABLES[guide]["names"].keys() == set()


def test_the_names_of_needle_are_there():
    package = importlib.import_module("membound.needle")
    listed = [name for theirs, _ in rows("needle", there=True) for name in names(theirs)]
    for name in listed:
        first, *rest = name.removeprefix("needle.").split(".")
        if not hasattr(package, first):
            assert importlib.util.find_spec(f"membound.needle.{first}"), name
        for part in rest:
            assert hasattr(getattr(package, first), part), name
    assert len(listed) > 20


@pytest.mark.parametrize("guide", TABLES)
def test_what_is_not_there_is_not(guide):
    own = importlib.import_module(
        f"membound.torch.{'functional' if guide == 'torch_nn' else guide}"
    )
    missing = [name for theirs, _ in rows(guide, there=False) for name in names(theirs)]
    assert missing
    assert [name for name in missing if hasattr(own, name.removeprefix("nn."))] == []


@pytest.mark.parametrize("guide", TABLES)
def test_what_is_named_instead_is_there(guide):
    """The second column's plain names are of membound.torch, or by their full name of membound."""
    here = importlib.import_module("membound.torch")
    package = importlib.import_module("membound")
    for there in (True, False):
        for _, ours in rows(guide, there=there):
            for name in re.findall(r"`((?:membound\.)?(?:torch\.)?[A-Za-z]\w+)[`(]", ours):
                *_, last = name.split(".")
                assert hasattr(here, last) or hasattr(package, last), name


def test_pages_have_two_screens_at_most():
    assert {guide: len(text(guide).splitlines()) for guide in GUIDES if
            len(text(guide).splitlines()) > 80} == {}  # fmt: skip
