"""Whether the process lives, and whether it can serve."""

from fastapi import APIRouter, Response

from app.api import schemas
from app.api.access import requires
from app.api.dependencies import Svc, problems
from app.api.wire import JsonResponse, JsonRoute
from app.domain.errors import NotMigrated

router = APIRouter(tags=["health"], route_class=JsonRoute)


@router.get("/healthz", response_model=schemas.Health)
@requires("nothing")
async def get_health() -> Response:
    """Ask whether the process lives.

    No database is asked.
    """
    return JsonResponse({"status": "ok"})


@router.get("/readyz", response_model=schemas.Readiness, responses=problems(503))
@requires("nothing")
async def get_readiness(svc: Svc) -> Response:
    """Ask whether the service can serve.

    It can when the database answers and is migrated; the figures are those of the connection pools.
    """
    if not await svc.db.is_migrated():
        raise NotMigrated
    pools = {name: {"size": pool.size, "in_use": pool.in_use} for name, pool in svc.db.pools().items()}
    return JsonResponse({"status": "ready", "pools": pools})
