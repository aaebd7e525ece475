"""What holds of the rows whatever clients did, as queries that find where it does not."""

# Sessions whose counters or version differ from their rows; where summaries are written, versions say less.
WRONG_COUNTERS = """
SELECT s.id FROM sessions s LEFT JOIN LATERAL (
    SELECT count(*) AS events, count(a.seq) AS active, coalesce(sum(e.tokens) FILTER (WHERE a.seq IS NOT NULL), 0) AS
           tokens, count(a.seq) FILTER (WHERE e.type = 'user' AND NOT e.synthetic) AS turns, max(e.seq) AS last_seq
    FROM events e LEFT JOIN active_events a USING (session_key, seq) WHERE e.session_key = s.key
) found ON true
WHERE s.deleted_at IS NULL AND (
    (s.event_version, s.event_count) IS DISTINCT FROM (found.events + s.compaction_generation, found.events)
    OR (s.active_event_count, s.active_turn_count, s.active_token_count)
        IS DISTINCT FROM (found.active, found.turns, found.tokens)
    OR s.last_seq < found.last_seq
)
"""
# How many rows there are of no session that lives.
LEFT_OVER = """
SELECT (SELECT count(*) FROM sessions WHERE deleted_at IS NOT NULL)
    + (SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.key = e.session_key))
    + (SELECT count(*) FROM active_events a WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.key = a.session_key))
"""
