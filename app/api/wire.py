"""JSON on the wire: strict when read, exact when written, and NDJSON for what has no bound."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from app.api import access
from app.domain import json_values

NDJSON = "application/x-ndjson"


class JsonResponse(Response):
    """A body of plain values; `raw` puts JSON text in as it is."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_values.encode(content).encode()


def raw(json_text: str) -> msgspec.Raw:
    return msgspec.Raw(json_text.encode())


class JsonRoute(APIRoute):
    """A route that says who may call it, and whose body is strict JSON and nothing else."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.need = access.need_of(endpoint)
        self.creates_session = access.creates_session(endpoint)
        super().__init__(path, endpoint, **options)
        self.description = f"{self.description}\n\n{access.sentence_on(self.need)}"

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            db = request.app.state.services.db
            await access.check(request, self.need, db, may_create=self.creates_session)
            if self.body_field is not None:
                _require_json(request)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly


async def ndjson(batches: AsyncIterator[list[Mapping[str, Any]]]) -> StreamingResponse:
    """One object a line. What fails at the first batch fails before the answer begins."""
    ready: list[list[Mapping[str, Any]]] = [await anext(batches, [])]

    async def lines() -> AsyncIterator[bytes]:
        yield json_values.encode_lines(ready.pop())  # A variable would hold it until the stream ends.
        async for batch in batches:
            yield json_values.encode_lines(batch)

    return StreamingResponse(lines(), media_type=NDJSON)


def wants_ndjson(request: Request) -> bool:
    accepted = request.headers.get("accept", "").split(",")
    return any(part.split(";")[0].strip().lower() == NDJSON for part in accepted)


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return json_values.decode(await self.body())
        except json_values.InvalidJson as error:
            # What FastAPI turns into a validation error; anything else would become a 400.
            raise json.JSONDecodeError(str(error), "", 0) from None


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type")
    if content_type is None:
        return
    kind = content_type.split(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, f"Send JSON (Content-Type: application/json), not {kind or 'nothing'!r}.")
