"""Tool-call integrity: no prompt holds a call without its results, or a result without its call.

Providers refuse both (OpenAI: "An assistant message with 'tool_calls' must be followed by tool messages
responding to each 'tool_call_id'").
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.messages import ToolCall, tool_calls_of, type_of


def intact(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """For each message, whether a prompt may hold it.

    A call stays only when the run of tool messages directly after it answers every call, a tool message only
    in such a run; of a half-answered call nothing stays. Blank ids pair with results by position.
    """
    keep = [type_of(message) != "tool" for message in messages]
    for index, message in enumerate(messages):
        if type_of(message) != "assistant" or not (calls := tool_calls_of(message)):
            continue
        run = _run_of_results(messages, index + 1)
        if pairs := _pair(calls, messages[run.start : run.stop]):
            for offset in pairs:
                keep[run.start + offset] = True
        else:
            keep[index] = False
    return keep


def _run_of_results(messages: Sequence[Mapping[str, Any]], start: int) -> range:
    stop = start
    while stop < len(messages) and type_of(messages[stop]) == "tool":
        stop += 1
    return range(start, stop)


def _pair(calls: Sequence[ToolCall], results: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """The offset of each call's result, or None when a call has none. A second result for a call is nobody's."""
    free = list(range(len(results)))
    chosen: list[int] = []
    for call in calls:
        wanted = call.id if call.id.strip() else ""
        match = next((offset for offset in free if _answered_id(results[offset]) == wanted), None)
        if match is None:
            return None
        free.remove(match)
        chosen.append(match)
    return chosen


def _answered_id(result: Mapping[str, Any]) -> str:
    call_id: str = result["tool_call_id"]
    return call_id if call_id.strip() else ""
