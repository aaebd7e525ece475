"""Figures for Prometheus."""

from fastapi import APIRouter, Request, Response

from app.api.access import requires
from app.api.dependencies import Svc, problems
from app.api.wire import JsonRoute

PATH = "/metrics"

router = APIRouter(tags=["health"], route_class=JsonRoute)

_EXPOSITION = {
    "description": "Counters, gauges and histograms, as text or OpenMetrics (`Accept`).",
    "content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")},
}


@router.get(PATH, response_class=Response, responses={200: _EXPOSITION, **problems(401, 403)})
@requires("service_key")
async def get_metrics(request: Request, svc: Svc) -> Response:
    """Get figures for Prometheus.

    They are those of all workers of this replica; no label holds an id.
    """
    body, media_type = svc.metrics.exposition(request.headers.get("accept", ""))
    return Response(body, media_type=media_type)
