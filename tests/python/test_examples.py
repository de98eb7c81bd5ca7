# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The Python examples run, small, and examples/README.md lists them all."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import membound

FOLDER = Path(__file__).parents[2] / "examples"
HELPERS = {"progress", "interleaved"}
# Arguments of a short run, packages besides torch, and what it must print.
EXAMPLES = {
    "rms_norm_layer": (["--rows", "64", "--cols", "128"], [], r"difference of dx.*: \S+e-0[67]"),
    "finetune_llama": (
        ["--steps", "4", "--hidden", "64", "--layers", "1", "--plot", "loss.png"],
        ["transformers", "matplotlib"],
        r"the curves are at most (0|\S+e-(0[5-9]|1\d)) apart",
    ),
    "finetune_with_trainer": (
        ["--steps", "3", "--hidden", "64", "--length", "32"],
        ["transformers", "accelerate"],
        r"the losses are at most (0|\S+e-0[6-8]) apart",
    ),
    "jax_transformer": (["--steps", "20", "--batch", "4"], ["jax"], r"loss [34]\.\d+ to [0-3]\."),
    "profile_block": (["--rows", "32", "--width", "32"], [], r"with the work awaited"),
    "load_inline": ([], ["ninja"], r"the extension's result is right"),
    "rope_against_reference": (
        ["--seq", "16", "--longest", "128", "--rounds", "3", "--plot", "rope.png"],
        ["matplotlib"],
        r"(?s)float32   bshd     32/64   adjacent  (exactly the same  ){2}.*cases that differ: 0",
    ),
    "serve_paged": (
        ["--sequences", "3", "--prompt", "15", "--new", "6"],
        [],
        r"tokens/s\n.*\nsequences with the same tokens: 3 of 3",
    ),
    "train_tiny": (
        ["--steps", "40", "--plot", "loss.png"],
        ["matplotlib"],
        r"loss 2\.\d\d to 1\.\d+ in 40 steps, .*\ntarget of 0.01 not reached",
    ),
    "quantised_linear": (
        ["--rows", "64", "--width", "256", "--rounds", "2"],
        [],
        r"(\n(float8_e4m3fn|int8) .* 0  .*\de-0[3-8]){4}",
    ),
}


@pytest.fixture(autouse=True)
def _source_tree():
    if not FOLDER.is_dir():
        pytest.skip("only in a source tree")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script of the folder in tmp_path and return what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))

    def run(name: str, *arguments: str) -> str:
        path = FOLDER / f"{name}.py"
        monkeypatch.syspath_prepend(path.parent)
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        before = set(sys.modules)
        with warnings.catch_warnings(action="ignore"):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                if end.code:
                    pytest.fail(f"{name} ends with {end.code}")
        for module in set(sys.modules) - before:  # two folders may use the same name
            if Path(getattr(sys.modules[module], "__file__", None) or "").is_relative_to(FOLDER):
                del sys.modules[module]
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, run, tmp_path):
    arguments, needs, expected = EXAMPLES[name]
    for module in needs if "jax" in needs else ("torch", *needs):
        pytest.importorskip(module)
    if name == "load_inline" and not has_headers():
        pytest.skip("needs a C++ compiler and an installed package")
    printed = run(name, *arguments)
    assert re.search(expected, printed), printed
    drawn = [argument for argument in arguments if argument.endswith(".png")]
    assert [path for path in drawn if not (tmp_path / path).is_file()] == []


def test_trl_trains_adapters_of_a_patched_model(run):
    for module in ("torch", "transformers", "datasets", "trl", "peft"):
        pytest.importorskip(module)
    options = ["--steps", "3", "--hidden", "64", "--length", "32", "--device", "cpu"]
    printed = run("finetune_with_trainer", "--trainer", "trl", "--lora", *options)
    apart = float(re.search(r"the losses are at most (\S+) apart", printed).group(1))
    assert apart < 1e-3  # it casts to bfloat16


def has_headers() -> bool:
    package = Path(membound.__file__).parent
    return shutil.which("c++") is not None and (package / "include" / "membound").is_dir()


@pytest.fixture
def sequences(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER / "protein_lm")
    return importlib.import_module("sequences")


def test_synthetic_proteins_have_the_residue_frequencies(sequences):
    proteins = sequences.synthetic(400)
    inside = "".join(protein[1:] for protein in proteins)  # the first is methionine
    assert {protein[0] for protein in proteins} == {"M"}
    shares = sequences.composition()
    assert set(inside) == set(shares) == set("ACDEFGHIKLMNPQRSTVWY")
    assert max(abs(inside.count(one) / len(inside) - shares[one]) for one in shares) < 0.005


def test_protein_model_learns_from_fasta_and_samples(sequences, run, tmp_path):
    for module in ("torch", "tokenizers", "tqdm"):
        pytest.importorskip(module)
    proteins = sequences.synthetic(300)
    records = (f">of ours\n{one[:60]}\n{one[60:].lower()}*\n" for one in proteins)
    (tmp_path / "own.fasta").write_text("\n".join(records))
    assert sequences.read_fasta(tmp_path / "own.fasta") == proteins
    options = ["--folder", "run", "--fasta", "own.fasta", "--steps", "25", "--length", "32"]
    printed = run("protein_lm/train", *options)
    before, after = map(float, re.search(r": (\S+) before, (\S+) after", printed).groups())
    assert after < before - 0.5
    grown = run("protein_lm/sample", "--folder", "run", "--start", "MKT", "--count", "2")
    assert re.fullmatch(r">sampled 1\nMKT[A-Z]*\n>sampled 2\nMKT[A-Z]*\n", grown)


def test_digits_are_classified(run):
    pytest.importorskip("sklearn")
    printed = run("train_tiny", "--task", "digits", "--steps", "300")
    assert float(re.search(r"new examples: ([\d.]+)%", printed).group(1)) > 90


def test_digits_say_what_they_need(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(pytest.fail.Exception, match="pip install scikit-learn"):
        run("train_tiny", "--task", "digits")


def test_the_progress_bar_needs_no_tqdm(tmp_path):
    code = (
        "import sys; sys.modules['tqdm'] = None\n"
        "import progress; progress.SECONDS_BETWEEN_LINES = -1\n"
        "bar = progress.progress(range(3), desc='steps')\n"
        "for at in bar: bar.set_postfix_str(f'loss {at}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )  # fmt: skip
    assert done.stderr.splitlines() == [
        "steps: 0 of 3", "steps: 1 of 3, loss 0", "steps: 2 of 3, loss 1",
    ]  # fmt: skip


def test_every_example_is_run_and_listed():
    scripts = {path.stem for path in FOLDER.glob("*.py")} - HELPERS
    texts = [(FOLDER / f"{name}.py").read_text() for name in scripts]
    assert all("ArgumentParser(description=__doc__" in text for text in texts)
    assert scripts == set(EXAMPLES)
    listed = set(re.findall(r"^\| \[`([^`]+)`\]", (FOLDER / "README.md").read_text(), re.MULTILINE))
    programs = {f"cpp/{path.name}" for path in (FOLDER / "cpp").glob("*.cpp")}
    folders = {path.parent.name + "/" for path in FOLDER.glob("*/train.py")}
    assert listed == {f"{name}.py" for name in scripts} | programs | folders


def test_pictures_are_small():
    pictures = sorted((FOLDER.parent / "docs/images").glob("*"))
    assert len(pictures) > 5
    assert [path.name for path in pictures if path.stat().st_size > 100_000] == []
