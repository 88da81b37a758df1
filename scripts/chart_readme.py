"""Write the chart's README from its values.yaml: one table row for each value that has a `# -- ` comment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "helm" / "multigraft"

_HEAD = """\
# multigraft: the chart

{description}

```
helm install multigraft helm/multigraft --namespace multigraft-system --create-namespace
helm test multigraft --namespace multigraft-system
```

How to install, upgrade, roll back and uninstall: [docs/install.md](../../docs/install.md). Unknown values are refused.

| value | default | |
| --- | --- | --- |
"""


def read_descriptions(text: str) -> dict[str, str]:
    """Read the `# -- ` comments of a values file: path of the value -> description.

    Raises:
        ValueError: If such a comment is not followed by a value.
    """
    found: dict[str, str] = {}
    path: list[str] = []
    waiting = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            waiting = stripped.removeprefix("# -- ")
        elif stripped and not stripped.startswith("#") and line[: len(line) - len(line.lstrip())].count(" ") % 2 == 0:
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], stripped.partition(":")[0]]
            if waiting:
                found[".".join(path)], waiting = waiting, ""
    if waiting:
        raise ValueError(f"values.yaml: no value after the comment {waiting!r}")
    return found


def find_undescribed(values: dict[str, Any], described: set[str], prefix: str = "") -> list[str]:
    """List the values that neither have a description nor lie below or above one that has."""
    missing = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path in described:
            continue
        if isinstance(value, dict) and value:
            missing += find_undescribed(value, described, f"{path}.")
        else:
            missing.append(path)
    return missing


def look_up(values: Any, path: str) -> Any:
    """Return the default of a value."""
    for name in path.split("."):
        values = values[name]
    return values


def build_files() -> dict[Path, str]:
    """Build the README, by path.

    Raises:
        ValueError: If a value has no description.
    """
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    descriptions = read_descriptions(text)
    if missing := find_undescribed(values, set(descriptions)):
        raise ValueError(f"values.yaml: no `# -- ` comment above {', '.join(missing)}")
    rows = [
        f"| `{path}` | `{json.dumps(look_up(values, path))}` | {description} |"
        for path, description in descriptions.items()
    ]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return {CHART / "README.md": _HEAD.format(**chart) + "\n".join(rows) + "\n"}
