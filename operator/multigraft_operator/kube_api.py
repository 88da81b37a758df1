"""The few calls to the API server that the operator makes, on the `kubernetes` asyncio client."""

from __future__ import annotations

import http
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import aiohttp
from kubernetes.aio import client, config

from multigraft_operator.metrics import OperatorMetrics

FIELD_MANAGER = "multigraft-operator"
PAGE_SIZE = 500
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=5)
JSON_PATCH, APPLY_PATCH, JSON = "application/json-patch+json", "application/apply-patch+yaml", "application/json"

PLURALS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Event": "events",
    "Pod": "pods",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "StatefulSet": "statefulsets",
    "Lease": "leases",
    "AdapterJob": "adapterjobs",
    "BaseModelPool": "basemodelpools",
}


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"API server: {status} {message}")
        self.status = status
        self.message = message

    @property
    def is_conflict(self) -> bool:
        """Tell whether the object is another one than was seen; a JSON patch whose test fails is a 422."""
        return self.status in {http.HTTPStatus.CONFLICT, http.HTTPStatus.UNPROCESSABLE_ENTITY}

    @property
    def is_gone(self) -> bool:
        return self.status == http.HTTPStatus.NOT_FOUND


def build_path(api_version: str, kind: str, namespace: str = "", name: str = "") -> str:
    """Build the path of a collection, or of an object."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    parts = [root, *(["namespaces", namespace] if namespace else []), PLURALS[kind], *([name] if name else [])]
    return "/".join(parts)


def path_of(manifest: Mapping[str, Any]) -> str:
    """Build the path of an object from its manifest."""
    metadata = manifest["metadata"]
    return build_path(manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])


class KubeApi:
    """Calls to the API server."""

    def __init__(self, api_client: Any, metrics: OperatorMetrics) -> None:
        self._client = api_client
        self._metrics = metrics

    async def close(self) -> None:
        await self._client.close()

    async def get(self, path: str) -> dict[str, Any]:
        """Read one object."""
        return await self._send("GET", path)

    async def list_pages(
        self, path: str, selector: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """Read a collection in pages; yields items and the version of the list.

        Args:
            selector: Label selector.
            fields: Field selector.
        """
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(PAGE_SIZE), **{name: value for name, value in selectors.items() if value}}
        while True:
            page = await self._send("GET", path, query)
            metadata = page["metadata"]
            yield page.get("items") or [], metadata["resourceVersion"]
            if not metadata.get("continue"):
                return
            query = {**query, "continue": metadata["continue"]}

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an object on the server's side: made if it is not there, ours where we say something."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._send("PATCH", path_of(manifest), query, manifest, APPLY_PATCH)

    async def patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Patch an object; begin with a `test` of its version, so that nothing newer is overwritten."""
        return await self._send("PATCH", path, {"fieldManager": FIELD_MANAGER}, list(operations), JSON_PATCH)

    async def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object; 409 if it is there."""
        return await self._send("POST", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def replace(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; 409 if its version is another one."""
        return await self._send("PUT", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete this very object."""
        await self._send("DELETE", path, {}, {"preconditions": {"uid": uid}, "propagationPolicy": "Background"})

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None, kind: str = JSON
    ) -> dict[str, Any]:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Content-Type": kind, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        verb = "APPLY" if kind == APPLY_PATCH else method
        try:
            response = await self._client.call_api(*request, _request_timeout=TIMEOUT)
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._metrics.count_request(verb, 0)
            raise ApiError(0, f"{method} {path}: {type(error).__name__}: {error}") from error
        self._metrics.count_request(verb, response.status)
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(response.status, f"{method} {path}: {_read_message(text)}")
        content: dict[str, Any] = json.loads(text)
        return content


def _read_message(text: bytes) -> str:
    try:
        return str(json.loads(text).get("message", ""))
    except (ValueError, AttributeError):
        return text[:200].decode(errors="replace")


async def open_kube_api(metrics: OperatorMetrics) -> KubeApi:
    """Open a client with the pod's own rights, or those of KUBECONFIG."""
    configuration, loader = client.Configuration(), cast("Any", config)  # its functions are not typed
    try:
        loader.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await loader.load_kube_config(client_configuration=configuration)
    return KubeApi(client.ApiClient(configuration), metrics)
