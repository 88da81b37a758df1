"""The repository's own rules: source roots, the `operator` trap, and what each entry point may need."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = {
    "core": "multigraft",
    "operator": "multigraft_operator",
    "trainer_image": "multigraft_trainer",
    "kernels": "multigraft_kernels",
}


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_holds_packages_and_no_loose_module(root):
    # `operator/__init__.py` or `operator/x.py` on sys.path would hide the standard library's `operator`.
    assert [path.name for path in (ROOT / root).glob("*.py")] == []


@pytest.mark.parametrize(("root", "package"), SOURCE_ROOTS.items())
def test_every_folder_of_a_package_has_its_init_file(root, package):
    folders = {path.parent for path in (ROOT / root / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("folder", [".", *SOURCE_ROOTS])
def test_the_operator_of_the_standard_library_is_imported_from_anywhere(folder):
    code = "import operator; assert operator.itemgetter(0)('ab') == 'a', operator"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in SOURCE_ROOTS)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / folder, env=environment, check=True)


def test_every_module_says_what_it_is():
    modules = [path for root, package in SOURCE_ROOTS.items() for path in (ROOT / root / package).rglob("*.py")]
    written = [path for path in modules if path.stat().st_size > 0]
    silent = [path.relative_to(ROOT) for path in written if not ast.get_docstring(ast.parse(path.read_bytes()))]
    assert silent == []


def test_no_file_name_says_nothing():
    modules = [path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py")]
    assert [path for path in modules if re.search(r"(^|_)(utils?|helpers?|manager|misc|common)\.py$", path.name)] == []


def test_K10_no_pickle_is_read_and_torch_is_new_enough_to_refuse_them_itself():
    called = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for root, package in SOURCE_ROOTS.items()
        for path in (ROOT / root / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if _reads_pickles(node)
    }
    assert called == set()
    (locked,) = re.findall(r"^torch==([0-9.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert Version(locked) >= Version("2.6")  # from 2.6 on torch.load reads weights only, unless told otherwise
    (floor,) = [
        Requirement(text)
        for text in importlib.metadata.requires("multigraft") or []
        if re.match(r"torch\b", text) and "trainer" in text
    ]
    assert not floor.specifier.contains("2.5.1")


def _reads_pickles(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in {"pickle", "dill", "cloudpickle", "joblib"} for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in {"pickle", "dill", "cloudpickle", "joblib"}
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {"torch.load", "np.load", "numpy.load"}


# What is started with only this extra installed: (extra, modules to import, command line that must work).
ENTRY_POINTS = [
    pytest.param(None, ["multigraft.cli"], ["multigraft", "--help"], id="the core alone"),
    pytest.param(
        None,
        ["multigraft.cli"],
        ["multigraft", "validate", "examples/01-quickstart"],
        id="validate with the core alone",
    ),
    pytest.param("trainer", ["multigraft_trainer"], ["multigraft", "run", "--help"], id="run with the trainer extra"),
    pytest.param("operator", ["multigraft_operator"], ["multigraft", "--help"], id="the operator extra"),
]


@pytest.mark.parametrize(("extra", "modules", "command"), ENTRY_POINTS)
def test_an_entry_point_starts_with_only_its_extra(extra, modules, command):
    call = {"blocked": sorted(find_other_modules(extra)), "modules": modules, "argv": command}
    done = subprocess.run(
        [sys.executable, "-c", START_WITH_BLOCKED_MODULES, json.dumps(call)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Every module of the named packages is imported, not only what the entry point touches at start.
START_WITH_BLOCKED_MODULES = """
import importlib, json, pkgutil, sys
from importlib.machinery import PathFinder

call = json.loads(sys.argv[1])

class OnlyThisExtra(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in call["blocked"] else super().find_spec(name, path, target)

sys.meta_path = [OnlyThisExtra if finder is PathFinder else finder for finder in sys.meta_path]
for name in call["modules"]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        if not found.name.endswith(".__main__"):  # a script: importing it is running it
            importlib.import_module(found.name)
sys.argv = call["argv"]
from multigraft.cli import main
main()
"""


def find_other_modules(extra: str | None) -> set[str]:
    """Give the top-level modules of all installed distributions that `multigraft[extra]` does not ask for."""
    wanted = find_distributions("multigraft", extra)
    modules = importlib.metadata.packages_distributions()
    other = {name for name, dists in modules.items() if not wanted & {canonicalize_name(dist) for dist in dists}}
    return {name for name in other if name.isidentifier() and name not in sys.stdlib_module_names}


def find_distributions(name: str, extra: str | None) -> set[str]:
    """Give a distribution and all that it asks for with this extra, and so on."""
    seen: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(name), extra or "")]
    while todo:
        dist, dist_extra = todo.pop()
        if (dist, dist_extra) in seen:
            continue
        seen.add((dist, dist_extra))
        try:
            requirements = importlib.metadata.requires(dist) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of another platform
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": dist_extra}):
                todo += [(canonicalize_name(requirement.name), asked) for asked in ("", *requirement.extras)]
    return {dist for dist, _ in seen}
