"""Users over HTTP: what is held about one, out or gone."""

from fastapi import APIRouter, Response

from app.api import schemas
from app.api.dependencies import COMMON, OwnerId, Svc
from app.api.wire import JsonResponse, JsonRoute
from app.storage import sessions

router = APIRouter(prefix="/v1", tags=["users"], route_class=JsonRoute, responses=COMMON)


@router.delete("/users/{user_id}", response_model=schemas.Erased)
async def erase_user(user_id: OwnerId, svc: Svc) -> Response:
    """Erase a user: every session with its log. Counts are zero for an unknown one."""
    async with svc.db.autocommit() as connection:
        erased_sessions, erased_events = await sessions.delete_of_user(connection, user_id)
    svc.sweeping.wake()
    return JsonResponse({"sessions": erased_sessions, "events": erased_events})
