"""HTTP byte for byte: a request as it is, and what an answer has to be whatever was sent."""

import json
import socket
from http.client import HTTPResponse
from typing import NamedTuple

PATIENCE_SECONDS = 15


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def send(address: tuple[str, int], request: bytes, *, hang_up: bool = False) -> Answer | None:
    """The answer, None when there is none. Raises TimeoutError when the service keeps the caller waiting."""
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
        try:
            connection.sendall(request)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            response = HTTPResponse(connection, method=request.split(b" ")[0].decode(errors="replace"))
            response.begin()
            return Answer(response.status, response.headers.get("Content-Type", ""), response.read())
        except (ConnectionError, ValueError) as error:
            if hang_up:
                return None
            raise AssertionError("The service hung up.") from error


def check(answer: Answer) -> None:
    assert 200 <= answer.status < 300 or 400 <= answer.status < 500, answer
    if answer.status >= 400 and answer.body != b"Invalid HTTP request received.":
        if answer.content_type == "application/json":  # Where OpenAI's SDKs call.
            assert json.loads(answer.body)["error"]["message"]
            return
        assert answer.content_type == "application/problem+json"
        if answer.body:  # None with HEAD.
            problem = json.loads(answer.body.decode())
            assert set(problem) >= {"type", "title", "status", "detail", "request_id"}
            assert problem["status"] == answer.status
            assert answer.status != 422 or all(set(fault) == {"loc", "msg"} for fault in problem["errors"])
    elif answer.content_type == "application/json":
        json.loads(answer.body.decode())
