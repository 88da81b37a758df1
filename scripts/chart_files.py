"""Write what is generated in helm/multigraft, or with `--check` tell what is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

import chart_crds
import chart_dashboard
import chart_readme

ROOT = Path(__file__).resolve().parents[1]


def build_files() -> dict[Path, str]:
    """Build all generated files of the chart, by path."""
    return chart_crds.build_files() | chart_dashboard.build_files() | chart_readme.build_files()


def find_stale(files: dict[Path, str]) -> list[Path]:
    """List the files that differ from what would be written, and CRD templates that belong to no CRD."""
    differing = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    return differing + [path for path in chart_crds.TEMPLATES.glob("crd-*") if path not in files]


def main() -> None:
    """Run from the command line."""
    files = build_files()
    stale = find_stale(files)
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"out of date, run `make generate`: {', '.join(str(path.relative_to(ROOT)) for path in stale)}")
        return
    for path in stale:
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
        else:
            path.unlink()


if __name__ == "__main__":
    main()
