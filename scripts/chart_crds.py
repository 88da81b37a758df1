"""Turn the CRDs of crds/ into templates of the chart, with a switch and Helm's keep policy."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "helm" / "multigraft" / "templates"

_METADATA = "metadata:\n  name: "
_ADDED = """\
  labels:
    {{- include "multigraft.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def build_template(crd: str) -> str:
    """Build the template of one CustomResourceDefinition from its YAML text.

    Raises:
        ValueError: If its metadata is not a name alone, as the generator of crds/ writes it.
    """
    head, found, rest = crd.replace("{{", '{{ "{{" }}').partition(_METADATA)
    name, _, body = rest.partition("\n")
    if not found or not body.startswith("spec:"):
        raise ValueError("a CRD whose metadata is not one line `name`: cannot be made a template")
    return f"{{{{- if .Values.crds.install }}}}\n{head}{_METADATA}{name}\n{_ADDED}{body}{{{{- end }}}}\n"


def build_files() -> dict[Path, str]:
    """Build all templates, by path."""
    return {TEMPLATES / f"crd-{path.name}": build_template(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")}
