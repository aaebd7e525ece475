"""Errors where MCP clients call: JSON-RPC's, with the problem document as their data."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from app.domain import json_values

PATH = "/mcp"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


def wants(scope: Mapping[str, Any]) -> bool:
    """Whether a request is one of MCP."""
    return bool(scope.get("path") == PATH)


def error(problem: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """What is no answer to a message yet, and so has its HTTP status and no id."""
    status: int = problem["status"]
    code = INTERNAL_ERROR if status >= 500 else INVALID_REQUEST
    return _error(status, code, problem["detail"], problem, headers)


def no_message(scope: Mapping[str, Any], code: int, detail: str) -> Response:
    data = {"request_id": scope.get("state", {}).get("request_id", "")}
    return _error(400, code, detail, data, None)


def _error(
    status: int, code: int, message: str, data: Mapping[str, Any], headers: Mapping[str, str] | None
) -> Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}
    return Response(json_values.encode(body), status, headers, "application/json")
