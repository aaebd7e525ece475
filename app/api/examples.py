"""An example of a request and of its answer for each operation of the OpenAPI document. A test plays them in order.

`parameters` are beside those that all requests share; `again` is what the same request is answered when it is sent
twice, where that is another answer; `stream` what it is answered with another `Accept`, or with `"stream": true`.
"""

from collections.abc import Mapping
from typing import Any

Example = Mapping[str, Any]

_THEN = "2026-11-02T09:30:00Z"
_SESSION = {
    "id": "support-4711",
    "user_id": "alice",
    "created_at": _THEN,
    "expires_at": "2027-01-01T09:30:00Z",
    "ttl_sliding": False,
    "allow_system_messages": False,
    "metadata": {"channel": "web"},
    "event_version": 2,
    "event_count": 2,
    "active_event_count": 2,
    "active_turn_count": 1,
    "active_token_count": 21,
    "last_event_at": _THEN,
}
_QUESTION = {"role": "user", "content": "We decided to use PostgreSQL."}
_REPLY = {"role": "assistant", "content": "Noted: PostgreSQL."}


def _event(id_: str, seq: int, message: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    return {
        "id": id_,
        "session_id": "support-4711",
        "seq": seq,
        "timestamp": _THEN,
        "type": message["role"],
        "message": message,
        "text": message["content"],
        "synthetic": False,
        "archived": False,
        "tokens": tokens,
        "metadata": {},
    }


_EVENTS = [_event("msg-1", 1024, _QUESTION, 11), _event("msg-2", 2048, _REPLY, 10)]
_LINE = (
    '{"id":"msg-1","session_id":"support-4711","seq":1024,"timestamp":"2026-11-02T09:30:00Z","type":"user",'
    '"message":{"role":"user","content":"We decided to use PostgreSQL."},"text":"We decided to use PostgreSQL.",'
    '"synthetic":false,"archived":false,"tokens":11,"metadata":{}}\n'
)
_SESSION_PAGE = {"events": _EVENTS, "event_version": 2}
_FOUND = {
    "results": [
        {
            "event_id": "msg-1",
            "session_id": "support-4711",
            "timestamp": _THEN,
            "type": "user",
            "text": "We decided to use PostgreSQL.",
        }
    ],
    "page": 0,
    "page_size": 10,
    "has_more": False,
}
_CHAT = {
    "request": {
        "session_id": "support-4711",
        "user_id": "alice",
        "messages": [{"role": "user", "content": "What did we decide about the database?"}],
    },
    "response": {
        "id": "chatcmpl-123",
        "object": "chat.completion",
        "created": 1793611800,
        "model": "gpt-4.1-mini",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "You decided to use PostgreSQL."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 38, "completion_tokens": 7, "total_tokens": 45},
    },
    "stream": (
        'data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1793611800,"model":"gpt-4.1-mini",'
        '"choices":[{"index":0,"delta":{"role":"assistant","content":"You"},"finish_reason":null}]}\n\n'
        "data: [DONE]\n\n"
    ),
}
_FILE = {"path": "user/preferences.md", "size": 34, "version": 1, "updated_at": _THEN}
_TOOL = {
    "type": "function",
    "function": {
        "name": "conversation_search",
        "description": "Search everything that was said in this conversation.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
_TOOL_CALL = {
    "request": {"innerThought": "The user asks about the database again.", "query": "postgresql"},
    "response": {
        "content": f'[{{"timestamp":"{_THEN}","type":"user","text":"We decided to use PostgreSQL."}}]',
        "is_error": False,
    },
}

_FIGURE = 'turnkeeper_requests_total{method="GET",route="/v1/sessions/{session_id}",status="200"} 12.0\n'

# What the parameters are that every request needs.
PARAMETERS: Mapping[str, str] = {
    "session_id": "support-4711",
    "user_id": "alice",
    "event_id": "msg-1",
    "store": "alice",
    "path": "user/preferences.md",
}

EXAMPLES: Mapping[str, Example] = {
    "get_health": {"response": {"status": "ok"}},
    "get_readiness": {
        "response": {
            "status": "ready",
            "pools": {"log": {"size": 10, "in_use": 0}, "search": {"size": 5, "in_use": 0}},
        }
    },
    "get_metrics": {
        "response": (
            "# HELP turnkeeper_requests_total Requests that were answered.\n"
            "# TYPE turnkeeper_requests_total counter\n"
            f"{_FIGURE}"
        ),
        "stream": (
            "# HELP turnkeeper_requests Requests that were answered.\n"
            "# TYPE turnkeeper_requests counter\n"
            f"{_FIGURE}# EOF\n"
        ),
    },
    "create_session": {
        "request": {"id": "support-4711", "user_id": "alice", "metadata": {"channel": "web"}},
        "response": {
            **_SESSION,
            "event_version": 0,
            "event_count": 0,
            "active_event_count": 0,
            "active_turn_count": 0,
            "active_token_count": 0,
            "last_event_at": None,
        },
    },
    "ensure_session": {"request": {"user_id": "alice", "ttl_seconds": 86400}, "response": _SESSION},
    "append_events": {
        "request": {
            "user_id": "alice",
            "events": [{"id": "msg-1", "message": _QUESTION}, {"id": "msg-2", "message": _REPLY}],
        },
        "response": {"events": _EVENTS, "event_version": 2, "appended": 2, "replayed": 0},
        "again": {"events": _EVENTS, "event_version": 2, "appended": 0, "replayed": 2},
    },
    "get_session": {"response": _SESSION},
    "list_sessions": {"response": {"items": [_SESSION], "next_cursor": None}},
    "update_session": {
        "request": {"metadata": {"channel": "phone"}, "ttl_seconds": 86400},
        "response": {**_SESSION, "metadata": {"channel": "phone"}},
    },
    "list_events": {"response": _SESSION_PAGE, "stream": _LINE},
    "query_events": {
        "request": {"keyword": "postgresql", "exclude_archived": True},
        "response": _SESSION_PAGE,
        "stream": _LINE,
    },
    "get_event": {"response": _EVENTS[0]},
    "list_user_events": {"response": {"events": _EVENTS}, "stream": _LINE},
    "query_user_events": {
        "request": {"types": ["user", "assistant"], "last_n": 20},
        "response": {"events": _EVENTS},
        "stream": _LINE,
    },
    "get_context": {
        "response": {
            "messages": [_QUESTION, _REPLY],
            "event_ids": ["msg-1", "msg-2"],
            "event_version": 2,
            "tokens": 21,
            "total_tokens": 21,
        }
    },
    "search_session": {"request": {"query": "postgresql"}, "response": _FOUND},
    "search_user": {"request": {"terms": ["postgresql", "let's go with"]}, "response": _FOUND},
    "list_tools": {"response": {"tools": [_TOOL]}},
    "call_session_tool": {"parameters": {"name": "conversation_search"}, **_TOOL_CALL},
    "call_user_tool": {"parameters": {"name": "cross_session_search"}, **_TOOL_CALL},
    "chat": _CHAT,
    "chat_completions": _CHAT,
    "list_models": {
        "response": {
            "object": "list",
            "data": [{"id": "gpt-4.1-mini", "object": "model", "created": 1744316542, "owned_by": "system"}],
        }
    },
    "compact_session": {
        "request": {"strategy": {"turn_window": {"max_turns": 10}}},
        "response": {
            "compacted": False,
            "reason": "fits",
            "archived": 0,
            "kept": 2,
            "summary": [],
            "tokens_saved": 0,
            "event_version": 2,
        },
    },
    "put_memory_file": {"request": "Prefers short answers, in French.\n", "response": _FILE},
    "list_memory_files": {"response": {"items": [_FILE]}},
    "get_memory_file": {"response": "Prefers short answers, in French.\n"},
    "list_memory_file_versions": {
        "response": {
            "items": [
                {
                    "path": "user/preferences.md",
                    "version": 1,
                    "size": 34,
                    "deleted": False,
                    "edited_at": _THEN,
                    "tool": "put",
                    "session_id": None,
                }
            ]
        }
    },
    "restore_memory_file": {"request": {"version": 1}, "response": {**_FILE, "version": 2}},
    "put_memory_archive": {"response": {"items": [_FILE]}},
    "get_memory_prompt": {
        "response": {
            "prompt": "# Long-term memory\n\nYou have a memory that outlasts this conversation…",
            "reminder": None,
        }
    },
    "create_token": {
        "request": {"user_id": "alice", "scopes": ["read", "chat"], "ttl_seconds": 900},
        "response": {"token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbGljZSJ9.c2ln", "expires_at": _THEN},
    },
    "export_user": {"stream": '{"kind":"session","id":"support-4711","user_id":"alice"}\n'},
    "erase_user": {"response": {"sessions": 1, "events": 2, "memory_files": 1}},
}
