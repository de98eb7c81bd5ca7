# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Which version a history leads to, and what the changelog then says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from semantic_release.cli.commands.main import main

ROOT = Path(__file__).resolve().parents[2]
AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.example"}
NOBODY = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.example", "CI": ""}
OLD = "Norms of 4,096 columns: 0.97"  # the subjects before conventional ones


class History:
    """A git repository with the settings of this one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.run("git", "init", "-q", "-b", "main")
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copy(ROOT / "CHANGELOG.md", folder)
        self.run("git", "add", ".")

    def run(self, *command: str) -> str:
        environment = {**os.environ, **AUTHOR, **NOBODY}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def commit(self, *subjects: str) -> None:
        for subject in subjects:
            self.run("git", "commit", "-q", "--allow-empty", "-m", subject)

    def semantic_release(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, arguments, env={"CI": ""})
        assert done.exit_code == 0, done.output
        return done.stdout.strip()


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return History(tmp_path)


@pytest.mark.parametrize(
    ("released", "subjects", "next_version"),
    [
        ("", [OLD, "feat: add rms_norm", "fix: zero rows"], "0.1.0"),
        ("v0.1.0", ["fix: zero rows"], "0.1.1"),
        ("v0.1.0", ["perf: two rows to a group"], "0.1.1"),
        ("v0.1.0", ["docs: words", "test: more", "ci: pins", OLD], "0.1.0"),
        ("v0.1.0", ["fix: zero rows", "feat(torch): patch more", "test: more"], "0.2.0"),
        ("v0.1.9", ["refactor!: one call struct"], "0.2.0"),
        ("v0.1.9", ["fix: bits\n\nBREAKING CHANGE: dweight has other bits"], "0.2.0"),
        ("v1.2.3", ["fix!: bits"], "2.0.0"),
        ("v1.2.3", ["feat: add softmax", "fix: it"], "1.3.0"),
    ],
)
def test_the_next_version_follows_from_the_subjects(history, released, subjects, next_version):
    history.commit(OLD)
    if released:
        history.run("git", "tag", released)
    history.commit(*subjects)
    assert history.semantic_release("version", "--print") == next_version


def test_a_release_is_a_commit_of_the_changelog_and_a_tag(history):
    before = (history.folder / "CHANGELOG.md").read_text()
    history.commit("feat: add rms_norm")
    history.run("git", "tag", "v0.1.0")
    history.commit("fix(jax): zero rows", "docs: words", "feat: add softmax")
    history.semantic_release("version", "--no-push", "--no-vcs-release")
    assert history.run("git", "describe", "--tags", "--exact-match") == "v0.2.0"
    assert history.run("git", "log", "-1", "--format=%s") == "chore: release 0.2.0"
    after = (history.folder / "CHANGELOG.md").read_text()
    above, below = before.split("<!-- version list -->")
    assert after.startswith(above)
    assert after.endswith(below.lstrip())
    section = after[len(above) : -len(below)]
    assert "## v0.2.0 (" in section
    assert "Add softmax" in section
    assert "**jax**: Zero rows" in section
    assert "ords" not in section


def test_nothing_is_published_by_the_command_that_shows(history):
    history.commit("feat: add rms_norm")
    head = history.run("git", "rev-parse", "HEAD")
    history.semantic_release("--noop", "version")
    assert history.run("git", "rev-parse", "HEAD") == head
    assert history.run("git", "tag") == ""
