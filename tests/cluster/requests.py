"""Send manifests to an API server as they are written, and read its answer field by field.

kubectl's client would refuse some before the server sees them; here the server's own word is wanted.
"""

import http
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import yaml

from cluster.access import ClusterAccess
from cluster.client import open_client

PLURALS = {"AdapterJob": "adapterjobs", "BaseModelPool": "basemodelpools"}
STRICT = {"fieldValidation": "Strict"}
APPLY = {"fieldManager": "multigraft-tests", **STRICT}


@dataclass(frozen=True)
class Answer:
    """What the API server says to a request.

    Attributes:
        accepted: Whether it would do it.
        message: Its text for people.
        fields: The fields that it names as causes.
        reached_fields: Whether it came to look at fields: not if the text made no object, or has no place to go.
    """

    accepted: bool
    message: str = ""
    fields: tuple[str, ...] = ()
    reached_fields: bool = True

    def names(self, field: str) -> bool:
        """Tell whether the answer points at `field`: as a cause, inside one, or by name in the text."""
        parent, _, last = field.rpartition(".")
        named = any(cause == field or cause.startswith((f"{field}[", f"{field}.")) for cause in self.fields)
        parent_named = any(cause in {parent, ""} for cause in self.fields) and last in self.message
        return named or parent_named or field in self.message


class Requests:
    """Requests to the API server of a cluster, with the admin's rights; a context manager."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._client: Any = open_client(cluster)  # its methods are not typed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create(self, manifest: str) -> Answer:
        """Ask what would become of a new object; nothing is stored."""
        return self._send("POST", _collection(manifest), {"dryRun": "All", **STRICT}, manifest)

    def apply(self, manifest: str) -> Answer:
        """Ask what would become of an object if this were applied in place of the last; nothing is stored."""
        return self._send("PATCH", _object(manifest), {"dryRun": "All", **APPLY}, manifest)

    @contextmanager
    def applied(self, manifest: str) -> Iterator[None]:
        """Have the object of a manifest while a block of code runs.

        Raises:
            ValueError: If the API server does not take it.
        """
        got = self._send("PATCH", _object(manifest), APPLY, manifest)
        if not got.accepted:
            raise ValueError(got.message)
        try:
            yield
        finally:
            self._send("DELETE", _object(manifest), {}, "")

    def _send(self, method: str, path: str, query: Mapping[str, str], body: str) -> Answer:
        content_type = "application/apply-patch+yaml" if method == "PATCH" else "application/yaml"
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        request = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = self._client.call_api(*request)
        text = response.read()
        if response.status < http.HTTPStatus.BAD_REQUEST:
            return Answer(True)
        status: dict[str, Any] = json.loads(text)
        causes = (status.get("details") or {}).get("causes") or ()
        message = status.get("message", "")
        reached = response.status == http.HTTPStatus.UNPROCESSABLE_ENTITY or "strict decoding error" in message
        return Answer(False, message, tuple(cause.get("field", "") for cause in causes), reached)


def _collection(manifest: str) -> str:
    content = yaml.safe_load(manifest)
    namespace = content["metadata"].get("namespace", "default")
    return f"/apis/multigraft.dev/v1alpha1/namespaces/{namespace}/{PLURALS[content['kind']]}"


def _object(manifest: str) -> str:
    return f"{_collection(manifest)}/{yaml.safe_load(manifest)['metadata']['name']}"
