"""Memory stores over HTTP: text files that a model curates, every version of them kept."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api import schemas
from app.api.access import requires
from app.api.conditions import Conditions
from app.api.dependencies import COMMON, Svc, problems
from app.api.wire import JsonResponse, JsonRoute
from app.domain import ids
from app.domain.errors import Fault, InvalidInput
from app.domain.memory_files import DeletedFile, Editor, MemoryFile

router = APIRouter(prefix="/v1/memories/{store}", tags=["memory"], route_class=JsonRoute, responses=COMMON)

_TEXT = "text/plain; charset=utf-8"
_PUT, _DELETE, _RESTORE, _ARCHIVE = (Editor(tool=tool) for tool in ("put", "delete", "restore", "archive"))

StoreId = Annotated[str, Path(description="A user's id, or `shared:NAME`.", examples=["alice"])]
FilePath = Annotated[
    str, Query(description="Path from the root of the store, `/`-separated.", examples=["user/preferences.md"])
]
Version = Annotated[
    int | None, Query(ge=1, le=schemas.MAX_SEQ, description="What it was at this version, as its history lists them.")
]

_CONTENT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_KNOWN: dict[str, Any] = {"description": "Not modified: who asks has it already, as `If-None-Match` says."}
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


@router.get("/files", response_model=schemas.MemoryFiles | schemas.DeletedFiles)
@requires("memory")
async def list_memory_files(
    store: StoreId,
    svc: Svc,
    prefix: Annotated[str, Query(description="Only what is at or below this path.")] = "",
    deleted: Annotated[bool, Query(description="Those that are gone instead: to be restored, or purged.")] = False,
) -> Response:
    """List the files of a memory store.

    Contents are left out; a store that nobody wrote to is empty. With `deleted`, the files that are gone are listed,
    as long as something of them is kept.
    """
    if deleted:
        gone = await svc.memories.list_deleted(_checked(store), prefix)
        return JsonResponse({"items": [_rendered_deleted(file) for file in gone]})
    found = await svc.memories.list_files(_checked(store), prefix)
    return JsonResponse({"items": [_rendered(file) for file in found]})


@router.get("/file", responses={200: _CONTENT, 304: _KNOWN, **problems(404, 412)}, response_class=Response)
@requires("memory")
async def get_memory_file(
    store: StoreId, path: FilePath, svc: Svc, condition: Conditions, version: Version = None
) -> Response:
    """Get a memory file.

    The answer is the content itself, as it is, or as it was at a version. Its `ETag` is that of no other state.
    """
    file = await svc.memories.get(_checked(store), path, version)
    condition.check_match(file)
    if condition.is_known(file):
        return Response(status_code=304, headers=_etag(file))
    return Response(file.content.encode(), media_type=_TEXT, headers=_etag(file))


@router.head(
    "/file",
    responses={200: {"description": "There is one."}, 304: _KNOWN, **problems(404, 412)},
    response_class=Response,
)
@requires("memory")
async def head_memory_file(
    store: StoreId, path: FilePath, svc: Svc, condition: Conditions, version: Version = None
) -> Response:
    """Get the head of a memory file.

    It is what GET answers, without the content.
    """
    answer = await get_memory_file(store, path, svc, condition, version)
    answer.body = b""
    return answer


@router.put(
    "/file",
    response_model=schemas.MemoryFileOut,
    responses={201: {"model": schemas.MemoryFileOut, "description": "A new file."}, **problems(412)},
    openapi_extra=_BODY,
)
@requires("memory")
async def put_memory_file(
    store: StoreId,
    path: FilePath,
    request: Request,
    svc: Svc,
    condition: Conditions,
) -> Response:
    """Create or replace a memory file.

    The body, raw, is its content. What it replaces stays in the history; what it holds already is no edit.
    """
    content = _text(await request.body())
    file, is_new = await svc.memories.put(_checked(store), path, content, condition, _PUT)
    return JsonResponse(_rendered(file), 201 if is_new else 200, _etag(file))


@router.delete("/file", status_code=204, responses=problems(404, 412))
@requires("memory")
async def delete_memory_file(
    store: StoreId,
    path: FilePath,
    svc: Svc,
    condition: Conditions,
    purge: Annotated[bool, Query(description="Forget all versions as well: they cannot be brought back.")] = False,
) -> Response:
    """Delete a memory file or directory.

    A directory goes with everything in it. The versions stay and can be restored, unless they are purged: then
    nothing is left of a file, also under its earlier names, nor of what was deleted there before. The empty path,
    purged, is the whole store with all that is known of it.
    """
    await svc.memories.remove(_checked(store), path, condition, _DELETE, purge=purge)
    return Response(status_code=204)


@router.get("/file/versions", response_model=schemas.FileVersions, responses=problems(404))
@requires("memory")
async def list_memory_file_versions(store: StoreId, path: FilePath, svc: Svc) -> Response:
    """List the versions of a memory file.

    They come newest first, also when the file is deleted by now, and from before it was renamed.
    """
    found = await svc.memories.versions(_checked(store), path)
    items = [
        {
            "path": one.path,
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
@requires("memory")
async def restore_memory_file(store: StoreId, path: FilePath, body: RestoreRequest, svc: Svc) -> Response:
    """Restore a version of a memory file.

    The file becomes what it was, as a new version; a deleted one is there again.
    """
    file = await svc.memories.restore(_checked(store), path, body.version, _RESTORE)
    return JsonResponse(_rendered(file), headers=_etag(file))


@router.get("/archive", responses={200: _ZIP}, response_class=Response)
@requires("memory")
async def get_memory_archive(store: StoreId, svc: Svc) -> Response:
    """Get a memory store as a zip.

    It holds the files as they are now, without their history.
    """
    return Response(await svc.memories.archive(_checked(store)), media_type="application/zip")


@router.put("/archive", response_model=schemas.MemoryFiles, openapi_extra=_ZIP_BODY)
@requires("memory")
async def put_memory_archive(store: StoreId, request: Request, svc: Svc) -> Response:
    """Replace a memory store by a zip.

    All its files are taken or none. What is replaced stays in the history.
    """
    found = await svc.memories.replace(_checked(store), await request.body(), _ARCHIVE)
    return JsonResponse({"items": [_rendered(file) for file in found]})


@router.get("/prompt", response_model=schemas.MemoryPrompt)
@requires("memory")
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


def _rendered_deleted(file: DeletedFile) -> Mapping[str, Any]:
    return {"path": file.path, "size": file.bytes, "version": file.version, "deleted_at": file.deleted_at}


def _etag(file: MemoryFile) -> dict[str, str]:
    return {"ETag": f'"{file.tag}"'}


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidInput(Fault(("body",), "A memory file is text in UTF-8.")) from None
