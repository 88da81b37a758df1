"""ConfigMaps among the manifests: a local run takes datasets from them as the cluster would."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from multigraft.manifests.document import Document, Fault, Path
from multigraft.manifests.field_errors import check_metadata
from multigraft.manifests.wording import describe_got


@dataclass(frozen=True)
class ConfigMap:
    """A ConfigMap; `files` holds the bytes of each key."""

    namespace: str
    name: str
    files: dict[str, bytes]

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def read_config_map(document: Document) -> ConfigMap | tuple[Fault, ...]:
    """Read `data` and `binaryData`, or say what is wrong with them."""
    metadata = check_metadata(document)
    faults = list(metadata) if isinstance(metadata, tuple) else []
    files: dict[str, bytes] = {}
    for field, decode in (("data", str.encode), ("binaryData", _decode_base64)):
        entries = document.value.get(field) or {}
        if not isinstance(entries, dict):
            faults.append(Fault((field,), f"got {describe_got(entries, None, show_text=False)}, want an object"))
            continue
        for name, text in entries.items():
            path: Path = (field, name)
            if not isinstance(text, str):
                written = document.written_at(path)
                faults.append(Fault(path, f'got {describe_got(text, written)}, want text; quote it or use "|"'))
            elif (content := decode(text)) is None:
                faults.append(Fault(path, "not base64"))
            elif name in files:
                faults.append(Fault(path, "key is in data and in binaryData"))
            else:
                files[name] = content
    if faults or isinstance(metadata, tuple):
        return tuple(faults)
    return ConfigMap(metadata.namespace, metadata.name, files)


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
