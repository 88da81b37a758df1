"""Write YAML that kubectl reads back as the same value."""

from __future__ import annotations

from typing import Any

import yaml

from multigraft.manifests.scalars import resolve_plain


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper leaves text such as `2e-4` or `y` plain; this one quotes what kubectl would misread."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the name is PyYAML's
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    misread = not isinstance(resolve_plain(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if misread else None)


_Dumper.add_representer(str, _represent_text)


def write_yaml(value: Any) -> str:
    """Write one document, keys in their given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
