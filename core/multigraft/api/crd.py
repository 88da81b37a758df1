"""Generate the CustomResourceDefinitions: `python -m multigraft.api.crd [--check] [FOLDER]`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

from multigraft.api.resources import CATEGORY, RESOURCES, Column, Resource
from multigraft.api.rules import JsonObject
from multigraft.api.schema import GROUP, VERSION
from multigraft.api.structural_schema import build_schema
from multigraft.manifests.yaml_writer import write_yaml

HEADER = "# Generated from multigraft.api by `make generate`; do not edit.\n"

_TYPE_FIELDS: JsonObject = {
    "apiVersion": {"type": "string", "description": f"Version of the schema: `{GROUP}/{VERSION}`."},
    "kind": {"type": "string", "description": "Kind of the object."},
    "metadata": {"type": "object"},
}


def build_crd(resource: Resource) -> JsonObject:
    """Build the CustomResourceDefinition of one kind."""
    schema = {
        "type": "object",
        "description": inspect.getdoc(resource.model),
        "properties": {**_TYPE_FIELDS, "spec": build_schema(resource.spec), "status": build_schema(resource.status)},
        "required": ["spec"],
    }
    subresources: JsonObject = {"status": {}}
    if resource.scale:
        subresources["scale"] = {
            "specReplicasPath": resource.scale.spec_replicas,
            "statusReplicasPath": resource.scale.status_replicas,
            "labelSelectorPath": resource.scale.label_selector,
        }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [_build_column(column) for column in resource.columns],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": [resource.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _build_column(column: Column) -> JsonObject:
    found: JsonObject = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.json_path,
        "description": column.description,
    }
    if column.wide:
        found["priority"] = 1
    return found


def render_crds() -> dict[str, str]:
    """Render every CRD, by file name."""
    return {f"{GROUP}_{resource.plural}.yaml": HEADER + write_yaml(build_crd(resource)) for resource in RESOURCES}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not up to date.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("crds"))
def main(*, check: bool, folder: Path) -> None:
    """Write the CRDs into FOLDER."""
    stale = []
    for name, text in render_crds().items():
        path = folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        click.echo(f"{path}: {'not up to date; run `make generate`' if check else 'written'}")
    if check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
