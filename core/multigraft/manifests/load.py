"""Load manifests: files and folders of BaseModelPools, AdapterJobs and ConfigMaps, with every problem at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.resources import Resource
from multigraft.manifests.collection import Manifests, Origin
from multigraft.manifests.config_map import ConfigMap, read_config_map
from multigraft.manifests.cross_check import check_together
from multigraft.manifests.document import Document, Fault
from multigraft.manifests.field_errors import check_object
from multigraft.manifests.file_reader import read_documents
from multigraft.manifests.kind_of import Other, kind_of
from multigraft.manifests.problem import Problem

SUFFIXES = (".yaml", ".yml", ".json")


def load_manifests(paths: Iterable[FilePath]) -> Manifests:
    """Load files, and of folders the files *.yaml, *.yml and *.json directly in them, in order of name."""
    found = Manifests()
    for path in paths:
        if path.is_dir():
            _load_folder(path, found)
        else:
            _load_file(path, found, is_named=True)
    check_together(found)
    return found


def _load_folder(folder: FilePath, found: Manifests) -> None:
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not files:
        found.problems.append(Problem(str(folder), f"no file named {', '.join('*' + suffix for suffix in SUFFIXES)}"))
    for file in files:
        _load_file(file, found, is_named=False)


def _load_file(file: FilePath, found: Manifests, *, is_named: bool) -> None:
    """Load one file; one that was found in a folder may hold something else than manifests."""
    if file in found.files:
        return
    documents = read_documents(file)
    if not is_named and documents and not any(map(_may_be_meant, documents)):
        found.notes.append(Problem(str(file), "passed over: no Kubernetes object in it"))
        return
    found.files.append(file)
    if not documents:
        found.problems.append(Problem(str(file), "no object in it"))
    for document in documents:
        _load_document(Origin(file, document, _name_object(document.value)), found)


def _may_be_meant(document: Document) -> bool:
    """Say whether a document is an object, or might be one if it could be read."""
    return bool(document.faults) or kind_of(document.value) is not Other.NOT_AN_OBJECT


def _load_document(origin: Origin, found: Manifests) -> None:
    document = origin.document
    kind = kind_of(document.value)
    faults = list(document.faults)
    if document.value is None and faults:
        pass  # the text could not be read: nothing more to say
    elif isinstance(kind, Fault):
        faults.append(kind)
    elif kind is Other.NOT_AN_OBJECT:
        faults.append(Fault((), "no Kubernetes object: want apiVersion, kind, metadata and spec"))
    elif kind is Other.FOREIGN:
        found.notes.append(origin.report_field("", "passed over: not a kind that multigraft reads"))
    else:
        faults += _take_object(origin, kind, found)
    in_order = sorted(faults, key=lambda fault: fault.line or document.line_of(fault.path))
    found.problems += [origin.report(fault) for fault in in_order]


def _take_object(origin: Origin, kind: Resource | Other, found: Manifests) -> list[Fault]:
    """Add the object to `found`, or give its faults."""
    document = origin.document
    if isinstance(kind, Resource) and document.value.get("status"):
        found.notes.append(origin.report_field("status", "passed over: the operator writes it"))
    checked = check_object(document, kind) if isinstance(kind, Resource) else read_config_map(document)
    if isinstance(checked, tuple):
        return list(checked)
    if document.faults:
        return []
    return _add(checked, origin, found)


def _add(item: AdapterJob | BaseModelPool | ConfigMap, origin: Origin, found: Manifests) -> list[Fault]:
    identity = (type(item).__name__, item.key)
    if earlier := found.origins.get(identity):
        place = f"{earlier.file}: {earlier.document.label}"
        return [Fault(("metadata", "name"), f"{item.key} is also in {place}")]
    found.origins[identity] = origin
    match item:
        case AdapterJob():
            found.jobs.append(item)
        case BaseModelPool():
            found.pools.append(item)
        case ConfigMap():
            found.config_maps[item.key] = item
    return []


def _name_object(value: Any) -> str:
    """Name the object as far as it names itself: `AdapterJob team-a/support`."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return ""
    metadata = value["metadata"] if isinstance(value.get("metadata"), dict) else {}
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str):
        return str(value["kind"])
    return f"{value['kind']} {namespace if isinstance(namespace, str) else 'default'}/{name}"
