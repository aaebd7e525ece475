"""Users over HTTP: what is held about one, out or gone."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Response
from starlette.responses import StreamingResponse

from app.api import schemas
from app.api.access import requires
from app.api.dependencies import COMMON, OwnerId, Svc
from app.api.wire import NDJSON, JsonResponse, JsonRoute, ndjson
from app.domain.exports import ExportRecord, line_of
from app.storage import credentials, memories, sessions, transfer

router = APIRouter(prefix="/v1", tags=["users"], route_class=JsonRoute, responses=COMMON)

_EXPORT = {
    "description": "One record a line, told apart by `kind`: each `session`, followed by each `event` of its log.",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}


@router.get("/users/{user_id}/export", response_class=StreamingResponse, responses={200: _EXPORT})
@requires("read")
async def export_user(user_id: OwnerId, svc: Svc) -> Response:
    """Export a user.

    The answer is everything that is held about the user, as NDJSON; nothing for an unknown one. `turnkeeper
    import` reads it back without loss. A stream that breaks off is not the whole: ask again.
    """
    return await ndjson(_lines(transfer.export(svc.db, user_id=user_id)))


@router.delete("/users/{user_id}", response_model=schemas.Erased)
@requires("service_key")
async def erase_user(user_id: OwnerId, svc: Svc) -> Response:
    """Erase a user.

    Every session goes with its log, and the memory store with its history; tokens made before are void. Counts are
    zero for an unknown user.
    """
    async with svc.db.transaction() as connection:
        # First, as edits do: one that is under way ends before, and is erased.
        await memories.lock(connection, user_id)
        erased_sessions, erased_events = await sessions.delete_of_user(connection, user_id)
        erased_files = await memories.erase(connection, user_id)
        await credentials.note_erasure(connection, user_id)
    svc.sweeping.wake()
    return JsonResponse({"sessions": erased_sessions, "events": erased_events, "memory_files": erased_files})


async def _lines(batches: AsyncIterator[list[ExportRecord]]) -> AsyncIterator[list[Mapping[str, Any]]]:
    async for batch in batches:
        yield [line_of(record) for record in batch]
