"""`multigraft validate`: say what the API server and the operator would say to manifests, before they see them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import click

from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests

PROBLEMS_FOUND = 1


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of lines.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def validate(*, as_json: bool, paths: tuple[Path, ...]) -> None:
    """Check manifests: files, or folders of *.yaml, *.yml and *.json.

    Exit code 0: all good; 1: problems found; 2: wrong usage.
    """
    found = load_manifests(paths)
    click.echo(json.dumps(_as_json(found), indent=2) if as_json else "\n".join(_as_lines(found)))
    if found.problems:
        sys.exit(PROBLEMS_FOUND)


def _as_lines(found: Manifests) -> list[str]:
    bad_files = {problem.file for problem in found.problems}
    good = [f"{file}: ok ({_count_kinds(found, file)})" for file in found.files if str(file) not in bad_files]
    notes = [f"{note} (note)" for note in found.notes]
    total = f"{len(found.problems)} problem{'s' * (len(found.problems) != 1)}" if found.problems else "no problem"
    return [
        *good,
        *notes,
        *map(str, found.problems),
        f"{total} in {len(found.files)} file{'s' * (len(found.files) != 1)}",
    ]


def _count_kinds(found: Manifests, file: Path) -> str:
    kinds = Counter(kind for (kind, _), origin in found.origins.items() if origin.file == file)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing for multigraft"


def _as_json(found: Manifests) -> dict[str, object]:
    objects = [
        {"kind": kind, "name": key, "file": str(origin.file), "document": origin.document.label}
        for (kind, key), origin in found.origins.items()
    ]
    return {
        "ok": not found.problems,
        "files": [str(file) for file in found.files],
        "objects": objects,
        "problems": [problem.as_json() for problem in found.problems],
        "notes": [note.as_json() for note in found.notes],
    }
