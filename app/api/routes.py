"""The route of a request by its template: what logs and figures may tell of a URL."""

from collections.abc import MutableMapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path

UNMATCHED = "unmatched"


def route_of(scope: MutableMapping[str, Any]) -> str:
    """The template that a request was routed by, or would have been had it not been refused before."""
    if (route := scope.get("route")) is not None:
        return str(route.path)
    path = scope["path"]
    return next((template for pattern, template in _patterns(scope["app"]) if pattern.fullmatch(path)), UNMATCHED)


def _patterns(app: FastAPI) -> list[tuple[Any, str]]:
    if not hasattr(app.state, "patterns"):
        # The document knows them too, and takes half a second to be made.
        templates = dict.fromkeys(route.path for route in iter_route_contexts(app.routes) if route.path is not None)
        app.state.patterns = [(compile_path(template)[0], template) for template in templates]
    patterns: list[tuple[Any, str]] = app.state.patterns
    return patterns
