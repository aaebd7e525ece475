"""The scripted upstream: a real HTTP server that speaks OpenAI's chat completions and says what it is told to."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from typing import Any

Call = tuple[str, str, str]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
MODELS = ("scripted-small", "scripted-large")

_CREATED = 1_767_225_600
_LONGEST_HOLD = 60.0
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass
class Answer:
    """One scripted answer: a completion, whole or as a stream (as the request asks), an error, or a body as it is.

    Chunks are counted from 0 and without the finish chunk, so that every count means a truncated answer.
    """

    text: str | None = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    # Bytes are sent whole; a list is sent piece by piece, whatever the request asked for.
    body: bytes | list[bytes] | None = None
    # The id, name and arguments of each tool call.
    calls: Sequence[Call] = ()
    reasoning: str | None = None
    reasoning_field: str = "reasoning_content"
    refusal: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(USAGE))
    # None: the model that was asked for, and a new id for each answer.
    model: str | None = None
    id: str | None = None
    # Seconds: before the first byte, and between chunks.
    delay: float = 0
    chunk_delay: float = 0
    # How text is split in a stream: every so many characters, or exactly so.
    pieces: int | Sequence[str] = 4
    # The socket is closed after so many chunks; a whole answer is cut in its middle.
    dies_after: int | None = None
    no_done: bool = False
    error_after: int | None = None
    hold: threading.Event | None = None
    hold_after: tuple[int, threading.Event] | None = None
    # Choices beyond the first say the same with " #1", " #2" behind the text.
    extra_choices: int = 0

    def choices(self) -> list["Answer"]:
        return [self, *(self._other(index) for index in range(1, self.extra_choices + 1))]

    def reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    def content(self) -> str | None:
        return None if (self.calls or self.refusal) and not self.text else self.text

    def _other(self, index: int) -> "Answer":
        suffix = f" #{index}"
        pieces = self.pieces if isinstance(self.pieces, int) else [*self.pieces, suffix]
        return replace(self, text=f"{self.text or ''}{suffix}", pieces=pieces)


@dataclass
class Script:
    """What is answered next, in turn (the last answer again and again), and what was asked."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    # Decides the answer from the parsed request, before `answers` do. What it raises, the test gets at its end.
    behaviour: Callable[[dict[str, Any]], Answer] | None = None
    # In order of arrival; the nth headers are those of the nth request.
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    # The headers of each GET /v1/models.
    listings: list[dict[str, str]] = field(default_factory=list)
    # Requests whose client went away before its answer was complete.
    cancelled: int = 0
    in_flight: int = 0
    failures: list[BaseException] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _answered: int = 0

    def reset(self, *answers: Answer) -> None:
        with self._changed:
            self.answers[:] = answers
            self.behaviour = None
            self.cancelled = 0
            for seen in (self.requests, self.headers, self.listings):
                seen.clear()

    def wait(self, condition: Callable[["Script"], bool], timeout: float = 10) -> None:
        """Blocks until the condition holds; for a test whose application runs in another thread or process."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                raise TimeoutError(
                    f"Not within {timeout} s: {len(self.requests)} requests, {self.in_flight} in flight."
                )

    async def eventually(self, condition: Callable[["Script"], bool], timeout: float = 10) -> None:  # noqa: ASYNC109
        """The same for a test that shares its event loop with the application."""
        await asyncio.to_thread(self.wait, condition, timeout)

    def wait_for_requests(self, count: int, timeout: float = 10) -> None:
        self.wait(lambda script: len(script.requests) >= count, timeout)

    def arrived(self, request: dict[str, Any], headers: Mapping[str, str]) -> None:
        with self._changed:
            self.requests.append(request)
            self.headers.append(dict(headers))
            self.in_flight += 1
            self._changed.notify_all()

    def left(self, *, cancelled: bool) -> None:
        with self._changed:
            self.in_flight -= 1
            self.cancelled += cancelled
            self._changed.notify_all()

    def answer_to(self, request: dict[str, Any]) -> Answer:
        answer = self.behaviour(request) if self.behaviour else self._next()
        with self._changed:
            self._answered += 1
            name = answer.id or f"chatcmpl-{self._answered}"
        return replace(answer, id=name, model=answer.model or request.get("model") or MODELS[0])

    def stop(self) -> None:
        self._stopped.set()

    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _next(self) -> Answer:
        with self._changed:
            if not self.answers:
                raise LookupError("The script has no answer for this request.")
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def scripted_upstream() -> Iterator[Script]:
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.script
    finally:
        server.script.stop()
        server.shutdown()
        thread.join()
        server.close_connections()
        server.server_close()
    if server.script.failures:
        raise server.script.failures[0]


class _Server(ThreadingHTTPServer):
    # server_close() joins the threads: close_connections() has ended those that wait for a next request.
    daemon_threads = False
    request_queue_size = 512

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.script = Script(url=f"http://127.0.0.1:{self.server_port}/v1")
        self._connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._connections):
            _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves between two requests is nobody's error, and answering records its own."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send_json(404, _error_body(404, f"No such path: {self.path}."))
        self.server.script.listings.append(dict(self.headers))
        return self._send_json(200, _model_list())

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            return self._send_json(404, _error_body(404, f"No such path: {self.path}."))
        request = json.loads(content)
        self.server.script.arrived(request, self.headers)
        cancelled = False
        try:
            self._answer(request)
        except ConnectionError:
            cancelled = self.close_connection = True
        finally:
            self.server.script.left(cancelled=cancelled)
        return None

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = self.server.script.answer_to(request)
        except Exception as error:  # noqa: BLE001  # it belongs to the test, which gets it at the end
            self.server.script.failures.append(error)
            return self._send_json(500, _error_body(500, f"The script failed: {error!r}"))
        self._wait(answer.hold)
        self._pause(answer.delay)
        if isinstance(answer.body, list):
            return self._send_stream(answer, answer.body, [])
        if answer.body is not None:
            return self._send(answer, answer.body)
        if answer.status >= 400:
            return self._send(answer, _encode(_error_body(answer.status, answer.text or "The script says no.")))
        if request.get("stream"):
            return self._send_stream(answer, *_events(answer, request))
        return self._send(answer, _encode(_completion(answer)))

    def _send_json(self, status: int, body: dict[str, Any]) -> None:
        self._send(Answer(status=status), _encode(body))

    def _send(self, answer: Answer, content: bytes) -> None:
        self._send_head(answer, {"Content-Type": "application/json", "Content-Length": str(len(content))})
        if answer.dies_after is None:
            self._write(content)
        else:
            self._write(content[: len(content) // 2])
            self._die()

    def _send_stream(self, answer: Answer, events: list[bytes], ending: list[bytes]) -> None:
        self._send_head(answer, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        last = None if answer.dies_after is None else min(answer.dies_after, len(events))
        for place, event in enumerate([*events, *ending, b""]):
            if place and event:
                self._pause(answer.chunk_delay)
            if answer.hold_after and place == answer.hold_after[0]:
                self._wait(answer.hold_after[1])
            if place == last:
                return self._die()
            self._write(b"%x\r\n%b\r\n" % (len(event), event))
        return None

    def _send_head(self, answer: Answer, headers: dict[str, str]) -> None:
        self._insist_on_a_client()
        self.send_response(answer.status)
        for name, value in {**headers, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, content: bytes) -> None:
        # The first write to a closed connection succeeds: only looking shows at once that nobody listens.
        self._insist_on_a_client()
        self.wfile.write(content)

    def _die(self) -> None:
        self.close_connection = True
        _cut(self.connection)

    def _pause(self, seconds: float) -> None:
        self._lapse(threading.Event(), seconds)

    def _wait(self, event: threading.Event | None) -> None:
        if event is not None and not self._lapse(event, _LONGEST_HOLD):
            self.server.script.failures.append(TimeoutError(f"A hold was not released within {_LONGEST_HOLD} s."))

    def _lapse(self, event: threading.Event, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not event.is_set() and (left := end - time.monotonic()) > 0:
            self._insist_on_a_client()
            event.wait(min(left, 0.02))
        return event.is_set()

    def _insist_on_a_client(self) -> None:
        if self.server.script.stopped():
            raise ConnectionAbortedError("The script is over.")
        with suppress(BlockingIOError):
            if self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                raise ConnectionAbortedError("The client went away.")


def _completion(answer: Answer) -> dict[str, Any]:
    choices = [
        {"index": index, "message": _message(choice), "logprobs": None, "finish_reason": choice.reason()}
        for index, choice in enumerate(answer.choices())
    ]
    usage = {} if answer.usage is None else {"usage": answer.usage}
    return {**_envelope(answer, "chat.completion"), "choices": choices, **usage}


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content(), "refusal": answer.refusal}
    if answer.reasoning is not None:
        message[answer.reasoning_field] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(*call) for call in answer.calls]
    return message


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _events(answer: Answer, request: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """The server-sent events up to the finish chunk, and those from there on (or an error in their place)."""
    wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))
    head = {**_envelope(answer, "chat.completion.chunk"), **({"usage": None} if wants_usage else {})}
    deltas = [_event({**head, "choices": [choice]}) for choice in _chunks(answer)]
    done = [] if answer.no_done else [b"data: [DONE]\n\n"]
    if answer.error_after is not None:
        error = _event(_error_body(500, "The script fails in the middle."))
        return deltas[: answer.error_after], [error, *done]
    finish = [
        _event({**head, "choices": [_chunk(index, {}, choice.reason())]})
        for index, choice in enumerate(answer.choices())
    ]
    usage = [_event({**head, "choices": [], "usage": answer.usage})] if wants_usage and answer.usage else []
    return deltas, [*finish, *usage, *done]


def _chunks(answer: Answer) -> list[dict[str, Any]]:
    """The choices take turns, one delta each."""
    deltas = [[_chunk(index, delta) for delta in _deltas(choice)] for index, choice in enumerate(answer.choices())]
    return _in_turns(deltas)


def _chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    # As OpenAI does: the first delta carries the role and an empty content, null when calls or a refusal follow.
    yield {"role": "assistant", "content": None if answer.content() is None else "", "refusal": None}
    yield from ({answer.reasoning_field: piece, "content": None} for piece in _cut_up(answer.reasoning, answer))
    yield from ({"content": piece} for piece in _text_pieces(answer))
    yield from ({"refusal": piece} for piece in _cut_up(answer.refusal, answer))
    yield from ({"tool_calls": [entry]} for entry in _in_turns([*_call_entries(answer)]))


def _call_entries(answer: Answer) -> Iterator[list[dict[str, Any]]]:
    """For each call: an entry with its id and name, then one for each fragment of its arguments, without either."""
    for index, (id_, name, arguments) in enumerate(answer.calls):
        fragments = [{"index": index, "function": {"arguments": piece}} for piece in _cut_up(arguments, answer)]
        yield [{"index": index, **_call(id_, name, "")}, *fragments]


def _text_pieces(answer: Answer) -> list[str]:
    return _cut_up(answer.text, answer) if isinstance(answer.pieces, int) else list(answer.pieces)


def _cut_up(text: str | None, answer: Answer) -> list[str]:
    size = answer.pieces if isinstance(answer.pieces, int) else 4
    return [text[start : start + size] for start in range(0, len(text), size)] if text else []


def _in_turns(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [entry for column in zip_longest(*rows) for entry in column if entry is not None]


def _envelope(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": _CREATED, "model": answer.model, "system_fingerprint": "fp_1"}


def _error_body(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "code": None, "param": None}}


def _model_list() -> dict[str, Any]:
    entries = [{"id": id_, "object": "model", "created": _CREATED, "owned_by": "script"} for id_ in MODELS]
    return {"object": "list", "data": entries}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def _encode(value: dict[str, Any]) -> bytes:
    # UTF-8 as providers send it; a lone surrogate has no UTF-8, and its backslash escape is JSON's too.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        connection.shutdown(socket.SHUT_RDWR)
