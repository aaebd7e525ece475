"""Traces over OTLP/HTTP: a span for each request by its route, one for each attempt at the upstream; never content.

This module needs the extra `otel`: only `app.tracing` imports it.
"""

import asyncio
import os
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.rate_limits import UNLIMITED_PATHS
from app.api.routes import route_of
from app.domain.spans import CallSpan, Tracer

_PROPAGATOR = TraceContextTextMapPropagator()

# Asked for every few seconds by machines, and no part of anybody's trace.
_UNTRACED_PATHS = UNLIMITED_PATHS


class ServerSpans:
    """A span around each request, whose id the log has too. Pure ASGI."""

    def __init__(self, app: ASGIApp, *, tracing: "Tracing") -> None:
        self.app = app
        self.tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNTRACED_PATHS:
            await self.app(scope, receive, send)
            return
        with self.tracing.request(scope) as span:
            structlog.contextvars.bind_contextvars(trace_id=format_trace_id(span.get_span_context().trace_id))
            await self._within(span, scope, receive, send)

    async def _within(self, span: Span, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_status(span, message["status"], errors_from=500)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            _note_error(span, type(error).__qualname__)
            raise
        finally:
            route = route_of(scope)
            span.set_attribute("http.route", route)
            span.update_name(f"{scope['method']} {route}")


class Tracing(Tracer):
    """A provider of its own, with an exporter that the standard variables configure."""

    middleware = ServerSpans

    def __init__(self) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("turnkeeper")

    def upstream_call(self, method: str, url: str) -> CallSpan:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        span = self._tracer.start_span(
            method,
            kind=SpanKind.CLIENT,
            attributes={"http.request.method": method, "server.address": parts.hostname or "", "server.port": port},
        )
        return _UpstreamSpan(span)

    def request(self, scope: Scope) -> Any:
        """The current span while the block lasts."""
        return self._tracer.start_as_current_span(
            scope["method"],
            context=_PROPAGATOR.extract(dict(Headers(scope=scope))),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "turnkeeper.request_id": scope["state"]["request_id"],
            },
            # What an exception says may be what somebody wrote.
            record_exception=False,
            set_status_on_exception=False,
        )

    async def close(self) -> None:
        """Send what is left."""
        await asyncio.to_thread(self._provider.shutdown)


class _UpstreamSpan(CallSpan):
    def __init__(self, span: Span) -> None:
        self._span = span
        headers: MutableMapping[str, str] = {}
        _PROPAGATOR.inject(headers, context=set_span_in_context(span))
        self.headers = headers

    def answered(self, status: int) -> None:
        _note_status(self._span, status, errors_from=400)
        self._span.add_event("answered")

    def ended(self, outcome: str) -> None:
        if outcome != "ok":
            _note_error(self._span, outcome)
        self._span.end()


def _note_status(span: Span, status: int, *, errors_from: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= errors_from:
        _note_error(span, str(status))


def _note_error(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _resource() -> Resource:
    """As the standard variables name the service, or by its own name."""
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if named else {"service.name": "turnkeeper"})
