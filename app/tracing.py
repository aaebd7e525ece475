"""Whether traces are wanted: the standard variables of OpenTelemetry say so, and where to."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from app.otel import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = structlog.get_logger()


def configured_tracing() -> "Tracing | None":
    """None where nobody asked for traces, or what makes them is not installed."""
    if not _is_wanted():
        return None
    try:
        otel = import_module("app.otel")
    except ImportError:
        log.warning("tracing_not_installed", reason="OTEL_EXPORTER_OTLP_… is set: install turnkeeper[otel]")
        return None
    tracing: Tracing = otel.Tracing()
    return tracing


def _is_wanted() -> bool:
    is_off = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)
