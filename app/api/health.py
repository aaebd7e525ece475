"""Whether the process lives, and whether it can serve."""

from fastapi import APIRouter, Request, Response

from app.api import schemas
from app.api.dependencies import Svc, problems
from app.api.problems import problem
from app.api.wire import JsonResponse

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=schemas.Health)
async def get_health() -> Response:
    """The process lives. No database is asked."""
    return JsonResponse({"status": "ok"})


@router.get("/readyz", response_model=schemas.Readiness, responses=problems(503))
async def get_readiness(request: Request, svc: Svc) -> Response:
    """The database answers and is migrated."""
    if not await svc.db.is_migrated():
        return problem(request.scope, 503, "not-migrated", "The database is not migrated: run `turnkeeper migrate`.")
    pools = {name: {"size": pool.size, "in_use": pool.in_use} for name, pool in svc.db.pools().items()}
    return JsonResponse({"status": "ready", "pools": pools})
