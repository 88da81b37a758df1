"""The control port: the desired set in, the state out, probes; JSON, bearer token, every error typed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.control import (
    ASSIGNMENTS_PATH,
    STATE_PATH,
    Assignments,
    ControlError,
    ControlReason,
    TrainerState,
)
from multigraft.api.reasons import RefusalError
from multigraft_trainer.service.bearer_token import BearerToken
from multigraft_trainer.service.desired_set import FencedError
from multigraft_trainer.service.json_log import EventLog
from multigraft_trainer.service.service_metrics import ServiceMetrics
from multigraft_trainer.service.trainer import Trainer

HEALTH_PATH, READY_PATH = "/healthz", "/readyz"
OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH})  # the kubelet's probes have no token, and learn nothing
KNOWN_PATHS = frozenset({ASSIGNMENTS_PATH, STATE_PATH, *OPEN_PATHS})

_MEBIBYTE = 1 << 20
_SHOWN_ERRORS = 5

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = EventLog(__name__)

_HTTP_REASONS = {
    404: ControlReason.NOT_FOUND,
    405: ControlReason.METHOD_NOT_ALLOWED,
    413: ControlReason.TOO_LARGE,
}


def limit_body_bytes(pool: BaseModelPool) -> int:
    """Give the largest body of a desired set: a ConfigMap in base64 and a spec for each slot, twice over."""
    return 4 * _MEBIBYTE * (1 + pool.spec.slots.max)


def build_app(trainer: Trainer, token: BearerToken, metrics: ServiceMetrics, *, max_body_bytes: int) -> web.Application:
    """Build the application of the control port."""
    server = ControlServer(trainer, token, metrics)
    app = web.Application(client_max_size=max_body_bytes, middlewares=[server.count, server.answer_errors, server.ask])
    app.router.add_put(ASSIGNMENTS_PATH, server.put_assignments)
    app.router.add_get(STATE_PATH, server.get_state, allow_head=False)
    app.router.add_get(HEALTH_PATH, server.get_health)
    app.router.add_get(READY_PATH, server.get_readiness)
    return app


class ControlServer:
    """Handlers of the control port."""

    def __init__(self, trainer: Trainer, token: BearerToken, metrics: ServiceMetrics) -> None:
        self._trainer = trainer
        self._token = token
        self._metrics = metrics

    async def put_assignments(self, request: web.Request) -> web.Response:
        """Take the full desired set; answers with the state."""
        body = await request.read()
        return _answer(await asyncio.to_thread(self._assign, body))

    async def get_state(self, _: web.Request) -> web.Response:
        """Tell what is true."""
        return _answer(await asyncio.to_thread(self._trainer.read_state))

    async def get_health(self, _: web.Request) -> web.Response:
        """Tell the kubelet whether a restart would help."""
        return web.Response(status=200 if self._trainer.is_alive else 500)

    async def get_readiness(self, _: web.Request) -> web.Response:
        """Tell whether jobs can train."""
        return web.Response(status=200 if self._trainer.is_ready else 503)

    def _assign(self, body: bytes) -> TrainerState:
        return self._trainer.assign(Assignments.model_validate_json(body))

    @web.middleware
    async def count(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count every answer."""
        response = await handler(request)
        path = request.path if request.path in KNOWN_PATHS else "other"
        self._metrics.on_request(path, response.status)
        return response

    @web.middleware
    async def answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer whatever goes wrong with a typed error."""
        try:
            return await handler(request)
        except FencedError as error:
            status = 503 if error.reason is ControlReason.STOPPING else 409
            _log.warning("desired set refused", reason=error.reason.value, message=error.message)
            return _refuse(status, error.reason, error.message, current_epoch=error.current_epoch)
        except ValidationError as error:
            return _refuse(422, ControlReason.INVALID_REQUEST, _describe(error))
        except RefusalError as error:
            _log.error("desired set not kept", reason=error.reason.value, message=error.message)
            return _refuse(500, ControlReason.INTERNAL_ERROR, error.message)
        except web.HTTPException as error:
            reason = _HTTP_REASONS.get(error.status, ControlReason.INVALID_REQUEST)
            return _refuse(error.status, reason, error.text or error.reason, allow=error.headers.get("Allow"))
        except Exception as error:  # noqa: BLE001 (a caller's fault or ours, training goes on)
            _log.crash("a call failed", path=request.path)
            return _refuse(500, ControlReason.INTERNAL_ERROR, type(error).__name__)

    @web.middleware
    async def ask(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Ask for the token before anything else is looked at, the path included."""
        if request.path in OPEN_PATHS or self._token.admits(request.headers.get("Authorization")):
            return await handler(request)
        response = _refuse(401, ControlReason.UNAUTHENTICATED, "want Authorization: Bearer with the pool's token")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response


def _answer(state: TrainerState) -> web.Response:
    return web.Response(body=state.model_dump_json(by_alias=True).encode(), content_type="application/json")


def _refuse(
    status: int, reason: ControlReason, message: str, *, current_epoch: int | None = None, allow: str | None = None
) -> web.Response:
    error = ControlError(reason=reason, message=message[:4096], current_epoch=current_epoch)
    body = error.model_dump_json(by_alias=True, exclude_none=True).encode()
    headers = {"Allow": allow} if allow else None
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _describe(error: ValidationError) -> str:
    """Name the first wrong fields; never shows what was sent, which may hold a tenant's rows."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in found[:_SHOWN_ERRORS]]
    more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
    return "; ".join(shown) + more
