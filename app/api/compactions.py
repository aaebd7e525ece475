"""Compaction over HTTP."""

from fastapi import APIRouter, Response
from pydantic import Field

from app.api import render, schemas
from app.api.access import requires
from app.api.dependencies import COMMON, Services, SessionId, Svc, problems
from app.api.strategies import Figures, Strategy, Trigger
from app.api.wire import JsonResponse, JsonRoute
from app.domain import compaction
from app.domain.errors import Fault, InvalidInput

router = APIRouter(prefix="/v1", tags=["compaction"], route_class=JsonRoute, responses=COMMON)


class CompactRequest(Figures):
    """How to compact, and on what condition."""

    strategy: Strategy | None = Field(
        None,
        description="By default that of the chats, if there is one.",
        examples=[{"turn_window": {"max_turns": 10}}],
    )
    trigger: Trigger | None = Field(None, description="Only when it fires; without: always.")
    if_version: int | None = Field(None, ge=0, le=schemas.MAX_SEQ, description="Only at this event version.")


@router.post(
    "/sessions/{session_id}/compact",
    response_model=schemas.CompactedOut,
    responses=problems(404, 409, 415, 502),
)
@requires("chat")
async def compact_session(session_id: SessionId, body: CompactRequest, svc: Svc) -> Response:
    """Compact a session.

    What the strategy does not keep is archived. The log loses nothing: archived events stay searchable. When
    nothing was to archive, `reason` says why: `trigger`, `fits`, `no_turn_start`, `conflict` (another compaction
    came first, or `if_version` does not hold) or `blank_summary`.
    """
    done = await svc.compactor.compact(
        session_id,
        _strategy(body, svc),
        trigger=None if body.trigger is None else body.trigger.to_domain(),
        if_version=body.if_version,
    )
    return JsonResponse(
        {
            "compacted": done.reason is None,
            "reason": done.reason,
            "archived": done.archived,
            "kept": done.kept,
            "summary": [render.event(event) for event in done.summary],
            "tokens_saved": done.tokens_saved,
            "event_version": done.event_version,
        }
    )


def _strategy(body: CompactRequest, svc: Services) -> compaction.Strategy:
    if body.strategy is None:
        if svc.chat_defaults.options.compaction is None:
            fault = "Name a strategy: TURNKEEPER_CHAT_COMPACTION sets none that could be taken instead."
            raise InvalidInput(Fault(("body", "strategy"), fault))
        return svc.chat_defaults.options.compaction.strategy
    try:
        return body.strategy.to_domain()
    except InvalidInput as error:
        place = ("body", "strategy", next(iter(body.strategy.model_fields_set)))
        raise InvalidInput(*(Fault((*place, *fault.loc), fault.msg) for fault in error.faults)) from None
