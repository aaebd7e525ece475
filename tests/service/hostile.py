"""Requests that may be right in most places and are wrong in some, made from a seeded `random.Random`."""

import base64
import json
import random
from typing import NamedTuple
from urllib.parse import quote

# fmt: off
IDS = (
    "s", "alice", "m1", "", "%20", ".", "..", "%2E%2E", "%00", "%2F", "a%2Fb", "..%2F..%2Fhealthz", "%", "%G1",
    "%0d%0aX:y", "%ED%A0%80", "%FF%FE", "%C3%28", quote("é"), quote("e\u0301"), quote("日本"), quote("\u202eabc"),
    quote("\ufdd0"), "a" * 255, "a" * 256, "a" * 4096, quote("😀") * 255, quote("😀") * 256, "shared:x", "a;b", "a,b",
    "a:b", "~", "'--",
)
NUMBERS = (
    "-1", "0", "1", "2", "100", "500", "10000", "10001", "2147483647", "2147483648", "9007199254740991",
    "9007199254740992", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 5000,
    "1.0", "1.5", "1e3", "1e999", "0x10", "1_000", "+1", "-0", "null", "true",
)
TIMES = (
    "2026-01-01T00:00:00Z", "2026-01-01t00:00:00.123456789z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z",
    "0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59.999999Z", "2026-01-01", "2026-01-01T00:00:00", "10000-01-01T00:00:00Z",
    "2026-01-01T00:00:00+99:99", "now", "0", "-1",
    "2026-06-30T23:59:60Z",
)
TEXTS = (
    "", " ", "a", "user", "robot", "any", "openai", "%", "_", "\\", "'", '"', "\u0000", "é", "İ", "ß" * 500,
    "ﷺ" * 1000, "x" * 1000, "x" * 1001, ",", ",".join("abcdefghijklmnopqrstu"), "(", "(?P<", r"\C", "(a*)*",
    "a{1000}{1000}",
    "[[:no:]", "(?i)ﬀ", ".{0,1000}" * 90, r"\pZ", "x|" * 499, "a" * 100_000,
)
# What percent-encoding of a text does not make.
RAW = ("%00", "%FF", "%ED%A0%80", "%", "%zz", "&", "=", ";", "%26", "+", "[]", "#")
PLACES = (
    "", " ", "2026-01-01T00:00:00Z s", "0001-01-01T00:00:00+00:00 s", "2026-01-01T00:00:00Z a/b", "x y", "\ud800",
)
CURSORS = tuple(
    base64.urlsafe_b64encode(place.encode("utf-8", "surrogatepass")).decode().rstrip("=") for place in PLACES
)
# JSON, or nearly: put into bodies as it is.
FRAGMENTS = (
    "null", "true", "[]", "{}", '""', '"x"', "[null]", "[[]]", '{"a":1}', "NaN", "-Infinity", "nul", "'a'", "01",
    "1.",
    "+1", "-0", "1e400", "1e-400", "1e99999999999999999999", "1" * 5000, "1.1" + "1" * 5000, "9007199254740993",
    "1" * 30, r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'{"\u0000":1}', r'"\x"', '"\n"', '"\x7f"', '"a',
    '{"a":1,"a":2}', "{,}", "[" * 60 + "]" * 60, "[" * 65 + "]" * 65, "[" * 100_000, '{"a":' * 70 + "1" + "}" * 70,
    '{"a":' * 50_000, json.dumps("é😀\u2028"), '"' + "y" * 300 + '"', "[" + ",".join(["1"] * 1001) + "]", "1 2", "/*",
    "\ufeff{}", "-", *map(json.dumps, TIMES), *map(json.dumps, TEXTS), *NUMBERS,
)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = (
    {"role": "user", "content": "a word"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "result"}]},
)
EVENTS = [{"id": "m1", "timestamp": TIMES[0], "message": message, "metadata": {"a": 1}} for message in MESSAGES]
FILTER = {"from": TIMES[0], "types": ["user"], "last_n": 5, "keywords": ["word"], "match_mode": "all", "after_seq": 0}
BODIES = {
    "create_session": {"id": "s", "user_id": "alice", "ttl_seconds": 3217, "metadata": {"a": 1}, "ttl_sliding": True},
    "ensure_session": {"user_id": "alice", "expires_at": None, "metadata": {}},
    "update_session": {"metadata": {"a": None}, "ttl_seconds": 3217},
    "append_events": {"events": EVENTS, "user_id": "alice"},
    "query_events": FILTER,
    "query_user_events": FILTER | {"pattern": "w.rd"},
    "search_session": {"query": "word", "types": ["user"], "page": 0, "page_size": 10, "since": TIMES[0]},
    "search_user": {"terms": ["word"], "match_mode": "any", "page": 0, "until": TIMES[0]},
    "call_session_tool": {"innerThought": "", "query": "word", "page": 0},
    "call_user_tool": {"query": "word", "matchMode": "any", "since": TIMES[0], "page": 0},
    "compact_session": {"strategy": {"turn_window": {"max_turns": 3}}, "trigger": {"turns": 2}, "if_version": 1},
}
HEADERS = (
    "If-Match: 1", 'If-Match: "1"', 'If-Match: W/"1"', 'If-Match: "99999999999999999999"', "If-Match: *",
    'If-Match: "1", "2"', "Content-Type: text/plain", "Content-Type: application/json; charset=utf-16",
    "Content-Type:", "Content-Type: application/x+json", "Accept: text/html", "Accept: application/x-ndjson",
    "Accept: application/x-ndjson;q=0, */*", "X-Request-Id: \xff", "X-Request-Id: ", "Origin: http://[",
    "Origin: null", "Origin: http://127.0.0.1", "Authorization: Bearer \xe9", "Host: [::1", "Host: evil.example",
    "Expect: 100-continue", "Upgrade: websocket\r\nConnection: Upgrade", "Content-Encoding: gzip",
    "X-HTTP-Method-Override: DELETE", f"Cookie: {'c' * 8000}", "X-Forwarded-Host: evil.example",
)
# fmt: on


class Operation(NamedTuple):
    id: str
    method: str
    path: str
    query: tuple[str, ...]


def hostile(chance: random.Random, operation: Operation) -> bytes:
    """The bytes of one request."""
    names = {"{session_id}": "s", "{user_id}": "alice", "{event_id}": "m1", "{name}": "conversation_search"}
    if operation.id == "call_user_tool":
        names["{name}"] = "cross_session_search"
    path = operation.path
    for name, usual in names.items():
        path = path.replace(name, chance.choice(IDS) if chance.random() < 0.2 else usual)
    query = "&".join(parameter(chance, operation) for _ in range(chance.choice((0, 0, 1, 1, 2, 4))))
    headers = ["Host: 127.0.0.1", "Connection: close"]
    if chance.random() < 0.3:
        headers.append(chance.choice(HEADERS))
        if headers[-1].startswith("Host"):
            del headers[0]
    elif operation.id == "append_events" and chance.random() < 0.3:
        headers.append('If-Match: "7"')
    content = body(chance, operation)
    if content is not None:
        headers.append(f"Content-Length: {len(content)}")
        if not any(header.startswith("Content-Type") for header in headers):
            headers.append("Content-Type: application/json")
    line = f"{operation.method} {path}{'?' + query if query else ''} HTTP/1.1"
    return "\r\n".join([line, *headers, "", ""]).encode("latin-1") + (content or b"")


def parameter(chance: random.Random, operation: Operation) -> str:
    name = chance.choice((*operation.query, "unknown")) if chance.random() < 0.95 else chance.choice(RAW)
    kind = {"from": TIMES, "to": TIMES, "cursor": CURSORS, "user_id": TEXTS}.get(name, TEXTS + NUMBERS)
    if chance.random() < 0.1:
        return f"{name}={chance.choice(RAW)}"
    return f"{name}={quote(chance.choice(kind)[:30_000], safe='')}"


def body(chance: random.Random, operation: Operation) -> bytes | None:
    if operation.method not in {"POST", "PUT", "PATCH"}:
        return b"{}" if chance.random() < 0.05 else None
    usual = json.loads(json.dumps(BODIES.get(operation.id, {})))
    if operation.id == "append_events":
        usual["events"] = [chance.choice(usual["events"]) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            usual["events"] = [{"message": event["message"]} for event in usual["events"]]
    if chance.random() < 0.1:
        return mangled(chance, chance.choice(FRAGMENTS).encode())
    fragments = {}
    for number in range(chance.choice((0, 1, 1, 1, 2))):
        fragments[f"put fragment {number} here"] = chance.choice(FRAGMENTS)
        put(chance, usual, f"put fragment {number} here")
    text = json.dumps(usual)
    for place, fragment in fragments.items():
        text = text.replace(json.dumps(place), fragment)
    return mangled(chance, text.encode())


def put(chance: random.Random, value, what: str) -> None:
    """Somewhere into a JSON value: in place of a part of it, or beside it."""
    while True:
        key = chance.choice([*value, "unknown"]) if isinstance(value, dict) else chance.randrange(len(value))
        inner = value.get(key) if isinstance(value, dict) else value[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            value[key] = what
            return
        value = inner


def mangled(chance: random.Random, content: bytes) -> bytes:
    if chance.random() < 0.9 or not content:
        return content
    place = chance.randrange(len(content))
    wrong = chance.choice((b"", b"\xff", b"\x00", b"\xed\xa0\x80", b"\xc3", b'"', b"\\"))
    return content[:place] + wrong + content[place + 1 :]
