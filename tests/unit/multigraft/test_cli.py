"""The command line: what it prints, its exit codes, and that it loads nothing before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from builders.manifest_text import job_text, pool_text
from multigraft import cli


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def offer(monkeypatch: pytest.MonkeyPatch, point: EntryPoint) -> None:
    """Let one entry point be the only one that is installed."""

    def find(*, group: str) -> list[EntryPoint]:
        return [point] if group == cli.COMMAND_GROUP else []

    monkeypatch.setattr(cli, "entry_points", find)


def test_version() -> None:
    assert call("--version").output == f"multigraft, version {version('multigraft')}\n"


def test_help_names_every_command_with_its_summary() -> None:
    done = call("--help")
    assert done.exit_code == 0
    assert "run       Train the jobs of a folder on this machine." in done.output
    assert "validate  Check manifests" in done.output


def test_help_and_validate_load_neither_torch_nor_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pool_text())
    code = (
        "import sys\nfrom multigraft.cli import main\n"
        f"for arguments in (['--help'], ['validate', {str(tmp_path)!r}]):\n"
        "    main(arguments, standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'kopf', 'multigraft_trainer', 'multigraft_operator'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_unknown_command_is_a_usage_error() -> None:
    done = call("trian")
    assert done.exit_code == 2
    assert "No such command 'trian'" in done.output


@pytest.mark.parametrize("module, extra", [("multigraft_trainer", "trainer"), ("multigraft_operator", "operator")])
def test_missing_extra_is_one_line_that_says_what_to_install(
    module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}_absent.py").write_text("import package_that_is_not_there.inner\n")
    point = EntryPoint("go", f"{module}_absent:go", cli.COMMAND_GROUP)
    monkeypatch.syspath_prepend(str(tmp_path))
    offer(monkeypatch, point)
    monkeypatch.setitem(cli._EXTRAS, f"{module}_absent", extra)
    done = call("go")
    assert done.exit_code == 2
    assert done.output == f"multigraft go needs package_that_is_not_there: install multigraft[{extra}]\n"


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("go", "multigraft_trainer.no_such_module:go", cli.COMMAND_GROUP)
    offer(monkeypatch, point)
    assert isinstance(call("go").exception, ModuleNotFoundError)


def test_a_command_of_an_entry_point_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "import click\n@click.command()\n@click.argument('name')\ndef go(name):\n    click.echo(f'went {name}')\n"
    (tmp_path / "module_with_command.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    offer(monkeypatch, EntryPoint("go", "module_with_command:go", cli.COMMAND_GROUP))
    assert call("go", "home").output == "went home\n"
    assert isinstance(cli.main.get_command(click.Context(cli.main), "go"), click.Command)


def test_validate_good_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pool_text() + "---\n" + job_text() + "---\n" + job_text(name="b"))
    done = call("validate", tmp_path)
    assert done.exit_code == 0
    assert done.output == f"{tmp_path}/a.yaml: ok (1 BaseModelPool, 2 AdapterJob)\nno problem in 1 file\n"


def test_validate_bad_files(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(job_text())
    bad.write_text(pool_text(base="revision: 1") + "---\n" + pool_text(name="q", more="replicas: -1"))
    done = call("validate", good, bad)
    assert done.exit_code == 1
    got = done.output.splitlines()
    assert got[0] == f"{good}: ok (1 AdapterJob)"
    assert got[1].endswith("pool team-a/tiny-pool is not in these files; not checked against it (note)")
    assert got[2].startswith(f"{bad}: document 1, line 9 (BaseModelPool team-a/tiny-pool): spec.baseModel.revision: ")
    assert got[3].startswith(f"{bad}: document 2, line 19 (BaseModelPool team-a/q): spec.replicas: got number -1")
    assert got[4] == "2 problems in 2 files"


def test_validate_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pool_text() + "---\n" + pool_text(name="q", more="replicas: -1"))
    done = call("validate", "--json", tmp_path)
    assert done.exit_code == 1
    got = json.loads(done.output)
    file = str(tmp_path / "a.yaml")
    assert got["ok"] is False
    assert got["files"] == [file]
    assert got["objects"] == [
        {"kind": "BaseModelPool", "name": "team-a/tiny-pool", "file": file, "document": "document 1"}
    ]
    assert got["problems"] == [
        {
            "file": file,
            "document": "document 2",
            "line": 18,
            "object": "BaseModelPool team-a/q",
            "field": "spec.replicas",
            "message": "got number -1, want a whole number from 0 to 64",
        }
    ]


@pytest.mark.parametrize("arguments", [["validate"], ["validate", "/no/such/file"], ["validate", "--no-such-option"]])
def test_validate_wrong_usage(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2
