"""The documents are true: the README's tree, paths in backticks, links, and commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "core/multigraft",
    "operator/multigraft_operator",
    "trainer_image/multigraft_trainer",
    "kernels/multigraft_kernels",
)
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
    if path.name != "modules.md"  # generated, and checked by `make check`
)


def read_tree() -> dict[str, str]:
    """Give the README's tree as path -> description; two spaces of indent are one level."""
    block = (ROOT / "README.md").read_text().split("## Where everything is\n```\n")[1].split("```")[0]
    tree: dict[str, str] = {}
    parents: list[str] = []
    for line in block.splitlines():
        match = re.fullmatch(r"( *)(\S+) +(\S.*)", line)
        assert match, f"a line of the tree is not `path  description`: {line!r}"
        depth = len(match[1]) // 2
        parents = [*parents[:depth], match[2]]
        tree["".join(parents)] = match[3]
    return tree


def list_tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"git does not know the files of this copy: {listed.stderr.strip()}")
    return listed.stdout.splitlines()


def test_every_path_of_the_tree_exists():
    assert [path for path in read_tree() if not (ROOT / path).exists()] == []


def test_the_tree_has_every_package_and_every_folder_of_the_first_levels():
    want = {f"{package}/" for package in PACKAGES}
    want |= {
        f"{parent}/{name}/" for parent in (*PACKAGES, "tests", "docs", "examples") for name in list_folders(parent)
    }
    tracked = list_tracked()
    top = {path.split("/")[0] for path in tracked}
    covered = {path.split("/")[0] for path in read_tree()} | {".gitignore", "README.md"}
    assert sorted(want - set(read_tree())) == []
    assert sorted(top - covered) == []


def list_folders(parent: str) -> list[str]:
    tracked = [path.removeprefix(f"{parent}/") for path in list_tracked() if path.startswith(f"{parent}/")]
    return sorted({path.split("/")[0] for path in tracked if "/" in path})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_files_named_in_backticks_exist(page):
    known = [str(path.relative_to(ROOT)) for path in ROOT.glob("[a-z]*/**/*.py")]
    named = re.findall(r"`([\w./-]+\.py)`", page.read_text())
    placeholders = {"utils.py", "helpers.py", "manager.py", ".py"}
    assert [n for n in named if n not in placeholders and not any(f"/{k}".endswith(f"/{n}") for k in known)] == []


def test_make_targets_named_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert sorted(named - targets) == []


def test_every_make_target_says_what_it_does():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    assert phony == set(re.findall(r"^([a-z-]+):.*## .+$", text, re.MULTILINE))
