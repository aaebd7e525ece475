"""Tool calls of a whole log, however long ago they were made: for telling what is wrong with a result."""

from sqlalchemy import text

from app.storage.database import Connection

_KNOWN = text("""
SELECT call.value ->> 'id' AS id, bool_or(EXISTS (
    SELECT FROM events r
    WHERE r.session_key = e.session_key AND r.seq > e.seq AND r.type = 'tool'
      AND r.message ->> 'tool_call_id' = call.value ->> 'id'
)) AS answered
FROM events e, json_array_elements(e.tool_calls) AS call (value)
WHERE e.session_key = :session_key AND e.tool_calls IS NOT NULL
  AND call.value ->> 'id' = ANY(CAST(:ids AS text[]))
GROUP BY 1
""")


async def known_calls(connection: Connection, session_key: int, ids: list[str]) -> dict[str, bool]:
    """Which of these calls the log holds, and whether each has a result."""
    usable = [call_id for call_id in ids if "\0" not in call_id]
    found = await connection.execute(_KNOWN, {"session_key": session_key, "ids": usable})
    return {row.id: row.answered for row in found}
