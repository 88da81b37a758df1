"""The objects of all manifest files together, with what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as FilePath

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.manifests.config_map import ConfigMap
from multigraft.manifests.document import Document, Fault, format_path
from multigraft.manifests.problem import Problem


@dataclass(frozen=True)
class Origin:
    """Where an object was read."""

    file: FilePath
    document: Document
    object: str  # `AdapterJob team-a/support`

    def report(self, fault: Fault) -> Problem:
        """Say what is wrong with one field."""
        return self.report_field(
            format_path(fault.path), fault.message, fault.line or self.document.line_of(fault.path)
        )

    def report_field(self, field_name: str, message: str, line: int | None = None) -> Problem:
        """Say what is wrong with a field that is named as text."""
        return Problem(str(self.file), message, self.document.label, line, self.object, field_name)


@dataclass
class Manifests:
    """What the files hold. Use the objects only if there are no `problems`."""

    pools: list[BaseModelPool] = field(default_factory=list)
    jobs: list[AdapterJob] = field(default_factory=list)
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)  # by `namespace/name`
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)  # what was passed over, and why
    files: list[FilePath] = field(default_factory=list)  # all that were read
    origins: dict[tuple[str, str], Origin] = field(default_factory=dict)  # by kind and `namespace/name`
