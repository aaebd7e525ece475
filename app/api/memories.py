"""Memory stores over HTTP: text files that a model curates, every version of them kept."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api import schemas
from app.api.dependencies import COMMON, Svc, problems
from app.api.wire import JsonResponse, JsonRoute
from app.domain import ids
from app.domain.errors import Fault, InvalidInput
from app.domain.memory_files import Editor, MemoryFile
from app.services.memories import Condition

router = APIRouter(prefix="/v1/memories/{store}", tags=["memory"], route_class=JsonRoute, responses=COMMON)

_TEXT = "text/plain; charset=utf-8"
_REST = Editor(tool="rest")

StoreId = Annotated[str, Path(description="A user's id, or `shared:NAME`.", examples=["alice"])]
FilePath = Annotated[
    str, Query(description="Path from the root of the store, `/`-separated.", examples=["user/preferences.md"])
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description='The version that it must have, such as `"7"`.')]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="`*`: only when there is no such file.")
]

_CONTENT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_ZIP: dict[str, Any] = {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}
_ZIP_BODY = {"requestBody": {**_ZIP, "required": True, "description": "A zip of text files."}}
# The type of the body is not looked at; not every generated client can send text.
_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BODY = {
    "requestBody": {
        "content": {**_CONTENT["content"], **_BYTES},
        "required": True,
        "description": "What the file shall hold, in UTF-8.",
    }
}


class RestoreRequest(BaseModel):
    """Which version to bring back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=1, le=schemas.MAX_SEQ, description="A version of the file, as its history lists them.")


@router.get("/files", response_model=schemas.MemoryFiles)
async def list_memory_files(
    store: StoreId, svc: Svc, prefix: Annotated[str, Query(description="Only what is at or below this path.")] = ""
) -> Response:
    """List the files of a memory store.

    Contents are left out; a store that nobody wrote to is empty.
    """
    found = await svc.memories.list_files(_checked(store), prefix)
    return JsonResponse({"items": [_rendered(file) for file in found]})


@router.get("/file", responses={200: _CONTENT, **problems(404)}, response_class=Response)
async def get_memory_file(store: StoreId, path: FilePath, svc: Svc) -> Response:
    """Get a memory file.

    The answer is the content itself, its `ETag` the version.
    """
    file = await svc.memories.get(_checked(store), path)
    return Response(file.content.encode(), media_type=_TEXT, headers=_etag(file))


@router.put(
    "/file",
    response_model=schemas.MemoryFileOut,
    responses={201: {"model": schemas.MemoryFileOut, "description": "A new file."}, **problems(412)},
    openapi_extra=_BODY,
)
async def put_memory_file(
    store: StoreId,
    path: FilePath,
    request: Request,
    svc: Svc,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create or replace a memory file.

    The body, raw, is its content. What it replaces stays in the history.
    """
    condition = _condition(if_match, if_none_match)
    content = _text(await request.body())
    file, is_new = await svc.memories.put(_checked(store), path, content, condition, _REST)
    return JsonResponse(_rendered(file), 201 if is_new else 200, _etag(file))


@router.delete("/file", status_code=204, responses=problems(404, 412))
async def delete_memory_file(
    store: StoreId,
    path: FilePath,
    svc: Svc,
    if_match: IfMatch = None,
    purge: Annotated[bool, Query(description="Forget all versions as well: they cannot be brought back.")] = False,
) -> Response:
    """Delete a memory file or directory.

    A directory goes with everything in it. The versions stay and can be restored, unless they are purged.
    """
    await svc.memories.remove(_checked(store), path, _condition(if_match, None), _REST, purge=purge)
    return Response(status_code=204)


@router.get("/file/versions", response_model=schemas.FileVersions, responses=problems(404))
async def list_memory_file_versions(store: StoreId, path: FilePath, svc: Svc) -> Response:
    """List the versions of a memory file.

    They come newest first, also when the file is deleted by now.
    """
    found = await svc.memories.versions(_checked(store), path)
    items = [
        {
            "version": one.version,
            "size": one.bytes,
            "deleted": one.bytes is None,
            "edited_at": one.edited_at,
            "tool": one.tool,
            "session_id": one.session_id,
        }
        for one in found
    ]
    return JsonResponse({"items": items})


@router.post("/file/restore", response_model=schemas.MemoryFileOut, responses=problems(404, 415))
async def restore_memory_file(store: StoreId, path: FilePath, body: RestoreRequest, svc: Svc) -> Response:
    """Restore a version of a memory file.

    The file becomes what it was, as a new version; a deleted one is there again.
    """
    file = await svc.memories.restore(_checked(store), path, body.version, _REST)
    return JsonResponse(_rendered(file), headers=_etag(file))


@router.get("/archive", responses={200: _ZIP}, response_class=Response)
async def get_memory_archive(store: StoreId, svc: Svc) -> Response:
    """Get a memory store as a zip.

    It holds the files as they are now, without their history.
    """
    return Response(await svc.memories.archive(_checked(store)), media_type="application/zip")


@router.put("/archive", response_model=schemas.MemoryFiles, openapi_extra=_ZIP_BODY)
async def put_memory_archive(store: StoreId, request: Request, svc: Svc) -> Response:
    """Replace a memory store by a zip.

    All its files are taken or none. What is replaced stays in the history.
    """
    found = await svc.memories.replace(_checked(store), await request.body(), _REST)
    return JsonResponse({"items": [_rendered(file) for file in found]})


@router.get("/prompt", response_model=schemas.MemoryPrompt)
async def get_memory_prompt(
    store: StoreId,
    svc: Svc,
    preload_index: Annotated[bool, Query(description="With the beginning of the index MEMORY.md.")] = False,
) -> Response:
    """Get the memory prompt.

    It teaches a model its memory, for those who call their model themselves. It goes into the system message,
    with the six tools beside it. `reminder` is due with this request, or null: each request counts for the
    trigger.
    """
    store = _checked(store)
    return JsonResponse(
        {
            "prompt": "\n\n".join(await svc.memory_prompts.prompt(store, preload=preload_index)),
            "reminder": await svc.memory_prompts.reminder(store, consolidate=None),
        }
    )


def _checked(store: str) -> str:
    """The id of a store: a user's, or that of one that is nobody's own. Raises InvalidInput."""
    if fault := ids.fault_of_store_id(store):
        raise InvalidInput(Fault(("path", "store"), fault))
    return store


def _rendered(file: MemoryFile) -> Mapping[str, Any]:
    return {"path": file.path, "size": file.bytes, "version": file.version, "updated_at": file.updated_at}


def _etag(file: MemoryFile) -> dict[str, str]:
    return {"ETag": f'"{file.version}"'}


def _condition(if_match: str | None, if_none_match: str | None) -> Condition:
    if if_none_match is not None and if_none_match.strip() != "*":
        raise InvalidInput(Fault(("header", "If-None-Match"), "Only * is understood: when there is no such file."))
    if if_match is None:
        return Condition(absent=if_none_match is not None)
    match = re.fullmatch(r'\s*"(\d{1,18})"\s*', if_match, re.ASCII)
    if not match:
        raise InvalidInput(Fault(("header", "If-Match"), 'Send one version in quotes, such as If-Match: "7".'))
    return Condition(version=int(match[1]), absent=if_none_match is not None)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidInput(Fault(("body",), "A memory file is text in UTF-8.")) from None
