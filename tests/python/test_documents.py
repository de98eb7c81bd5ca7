# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The examples of the README and of docs/ run as they stand, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import membound

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / ".github/CONTRIBUTING.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / ".github/CONTRIBUTING.md"]
DOCUMENTS += [ROOT / "examples/README.md"]
DOCUMENTS += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
PYTHON = re.compile(r"```python\n((?:import|from) (\w+).*?)```", re.DOTALL)
BLOCKS = [
    (path.relative_to(ROOT).as_posix(), *found)
    for path in DOCUMENTS
    for found in PYTHON.findall(path.read_text())
]


def script(path: str) -> Any:
    """Import a script that no package holds."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_readme = script(".github/scripts/run_readme.py")


def is_normalised(row: Any, near: float = 1e-2) -> bool:
    return abs(float((row * row).mean()) - 1.0) < near


def check_norm(names: dict[str, Any]) -> None:
    result = names.get("y", names.get("x"))
    if "norm" in names:
        assert names["x"].grad.shape == (2048, 4096)
        assert float(names["norm"].weight.grad.abs().max()) > 0
        result = result.detach()
    assert result.shape == (2048, 4096)
    assert is_normalised(result[0])


def check_step(names: dict[str, Any]) -> None:
    """The norm's gradient has no part along the normalised row."""
    along = (names["dx"] * names["total"]).mean(-1).abs().max()
    assert float(along) < 1e-3
    assert names["dweight"].shape == (4096,)


def check_activation(names: dict[str, Any]) -> None:
    gate, up = names["gate_up"].chunk(2, -1)
    assert names["torch"].allclose(names["y"], gate * gate.sigmoid() * up, atol=1e-5)
    assert names["dgate_up"].shape == names["gate_up"].shape


def check_rope(names: dict[str, Any]) -> None:
    """A table of yarn's scales all that it rotates by its factor."""
    size = float(names["rotated"].norm() / names["q"].norm())
    assert abs(size / names["scaling"] - 1) < 1e-3


def check_cache(names: dict[str, Any]) -> None:
    """Two of the tokens have a slot."""
    keys, values = (names[name].flatten(0, 1) for name in ("keys", "values"))
    squares = keys.float().pow(2).mean((1, 2))
    assert squares.nonzero().flatten().tolist() == [23, 1004]
    assert ((squares[[23, 1004]] - 1).abs() < 2e-2).all()
    assert names["torch"].equal(values[[23, 1004]], names["v"][:2])


def check_qk_norm(names: dict[str, Any]) -> None:
    """Rotation leaves the mean of squares, which the norm made one."""
    squares = names["qkv"][:, :, :40].float().pow(2).mean(-1)
    assert names["torch"].allclose(squares, names["torch"].ones_like(squares), atol=2e-2)


def check_embedding(names: dict[str, Any]) -> None:
    last = names["weight"][names["ids"][:, -1]]
    shift = names["hidden"][:, -1] - last  # the position's row, whatever the id
    assert names["hidden"].shape == (4, 512, 768)
    assert names["dweight"].shape == (50257, 768)
    assert names["torch"].allclose(shift, shift[:1].expand_as(shift), atol=1e-5)


def check_patch(names: dict[str, Any]) -> None:
    assert "LayerNorm" in str(names["report"])
    assert type(names["model"][0]) is names["torch"].nn.LayerNorm  # undone


def check_jax(names: dict[str, Any]) -> None:
    import jax.numpy as jnp

    def plain(weight: Any, x: Any) -> Any:
        rstd = 1 / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        return jnp.square(x * rstd * weight - 1.0).mean()

    right = names["jax"].grad(plain)(jnp.ones(1024), names["x"])
    assert float(jnp.abs(names["dweight"] - right).max()) < 1e-6


def check_ndarray(names: dict[str, Any]) -> None:
    rows = names["rows"].tolist()
    assert rows == [[8.0, 0.0, 0.0, 0.0], [0.0, 1.5, 2.0, 3.0]]
    assert abs(float(names["nd"].sum(names["y"])) - 2) < 1e-6


# Documents whose examples are checked by what they compute; those of others print it.
CHECKED = {"README.md", *(f"docs/{name}.md" for name in ("jax", "ndarray", "ops", "torch"))}


def check_autograd(names: dict[str, Any]) -> None:
    assert names["loss"].item() < 0.1
    assert all(x.grad is not None for x in names["model"].parameters())


def check_sharded_loss(names: dict[str, Any]) -> None:
    """Logits are all 0: each row's gradient of weight is x less what the others share."""
    _, dweight = names["slopes"]
    assert dweight.shape == (1024, 64)
    assert abs(float(dweight[0, 0]) + (1 / 8 - 1 / 1024)) < 1e-6


# A name that only this example has, and what must hold after it; the first that fits.
CHECKS: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("slopes", check_sharded_loss),
    ("ag", check_autograd),
    ("nd", check_ndarray),
    ("rotated", check_rope),
    ("gate_up", check_activation),
    ("keys", check_cache),
    ("qkv", check_qk_norm),
    ("hidden", check_embedding),
    ("report", check_patch),
    ("loss", check_jax),
    ("dtotal", check_step),
    ("y", check_norm),
    ("x", check_norm),
]


def test_every_framework_has_an_example_in_the_readme():
    found = [framework for name, _, framework in BLOCKS if name == "README.md"]
    assert found == ["numpy", "torch", "jax", "cupy", "torch"]


RUN = [
    pytest.param(name, code, framework, id=f"{name} {at}")
    for at, (name, code, framework) in enumerate(BLOCKS)
    if framework != "kernels"  # its examples need a model
    and not name.startswith("docs/porting/")  # test_porting.py runs them
]


@pytest.mark.parametrize(("document", "code", "framework"), RUN)
def test_example_runs(document, code, framework, tmp_path, capsys):
    pytest.importorskip(framework)
    if framework == "cupy" and membound.cuda_status().device_count == 0:
        pytest.skip("CuPy needs a GPU")
    script = tmp_path / f"document_{framework}.py"
    script.write_text(code)
    names = runpy.run_path(str(script))
    printed = capsys.readouterr().out.splitlines()
    promised = run_readme.promised_output(code)
    assert [line for line in promised if line not in printed] == []
    if document in CHECKED:
        check = next(check for name, check in CHECKS if name in names)
        check(names)
    else:
        assert promised


picture = script("benchmarks/picture.py")


def drawn(name: str) -> str:
    return (ROOT / "docs/images" / name).read_text()


def test_the_picture_shows_the_table():
    text = (ROOT / "README.md").read_text()
    table = picture.ops(text)
    assert len(table) == len(re.findall(r"\) \| [\d.]+ \w+ \|$", text, re.MULTILINE)) > 5
    for _, ours, peer, who in table:
        assert f">{ours:.2f} membound<" in drawn("ops.svg")
        assert f">{peer:.2f} {who}<" in drawn("ops.svg")


def test_pictures_show_the_committed_results():
    cases = picture.cases((picture.RESULTS / "model-h200.md").read_text())
    assert {"eager", "membound", "torch.compile"} < set(cases)
    figures = [figure for panel in zip(*cases.values(), strict=True) for figure in panel]
    assert re.findall(r">(\d+\.\d)<", drawn("model.svg")) == [f"{one:.1f}" for one in figures]
    lengths = picture.rope((picture.RESULTS / "rope-h200.md").read_text())
    assert len(lengths) > 5
    ratios = [f"{copy / ours:.2f}" for _, ours, copy in lengths]
    assert re.findall(r">(\d\.\d\d)<", drawn("rope.svg")) == ratios


@pytest.mark.parametrize("name", ["ops.svg", "model.svg", "rope.svg"])
def test_pictures_have_a_dark_theme_for_every_colour(name):
    style, shapes = drawn(name).split("</style>", 1)
    assert "@media (prefers-color-scheme: dark)" in style
    assert all(f"fill: {light}" in style for light in picture.DARK)
    colours = set(re.findall(r"#[0-9a-f]{6}", shapes))
    assert picture.INK in colours
    assert colours <= {*picture.DARK, picture.ON_OURS}


def test_a_block_that_prints_something_else_stops_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(run_readme, "run", lambda *_: "(3, 2) 1.0\n")
    code = "import numpy\nprint(numpy.shape)  # {} 1.0\n"
    run_readme.run_python(tmp_path, code.format("(3, 2)"), "membound.whl")
    with pytest.raises(SystemExit, match="promises other output"):
        run_readme.run_python(tmp_path, code.format("(2, 3)"), "membound.whl")


def test_every_block_of_the_readme_is_run():
    text = (ROOT / "README.md").read_text()
    languages = [language for language, _ in run_readme.blocks(text)]
    assert len(languages) == text.count("```") / 2 > 7
    assert languages.index("cpp") + 1 == languages.index("cmake")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(extras) == {*run_readme.EXTRAS, "plot"}


def test_the_page_of_an_index_links_to_the_repository():
    absolute = script("cpp/cmake/readme_of_index.py").with_absolute_links
    text = "![a b](docs/c.svg) [d](docs/e.md#f) [g](https://h.example) [i](#j)"
    assert absolute(text, "https://r.example/m") == (
        "![a b](https://r.example/m/raw/main/docs/c.svg) "
        "[d](https://r.example/m/blob/main/docs/e.md#f) [g](https://h.example) [i](#j)"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", path.read_text())
    here = [link for link in links if not link.startswith(("http:", "https:"))]
    missing = [link for link in here if not (path.parent / link).exists()]
    assert not missing


def test_the_worked_example_of_contributing_is_there():
    text = CONTRIBUTING.read_text()
    walk = text[text.index("## Add an op") : text.index("To add an op of your own")]
    rows = [line.split("|")[1] for line in walk.splitlines() if line.startswith("| `")]
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    new = [path for path in paths if "soft_cap" in path or path == ".cpp"]
    assert (len(new), len(paths) - len(new)) == (10, 7)
    assert [path for path in paths if "/" in path and not (ROOT / path).is_file()] == []
