"""What a turn of chat costs does not grow with the log behind it: statements and pages, counted by PostgreSQL."""

import httpx
import pytest

from app.config import Settings
from app.main import create_app
from tests.conftest import cloned
from tests.storage.plans import Explained, buffers, connect, make_log
from tests.upstream import Answer, scripted_upstream

ARCHIVED = 100_000
TURNS = 10
# Targets of the specification: statements before the upstream's call and after it.
BEFORE, AFTER = 3, 2
# An index of 100,000 entries is a level or two deeper than one of none.
DEEPER = 1.25


@pytest.fixture
async def service(postgres, template):
    async with cloned(postgres, template) as url:
        connection = await connect(url)
        await make_log(connection, "long", events=ARCHIVED, archived=ARCHIVED)
        await make_log(connection, "empty", events=0)
        await connection.execute("ANALYZE")
        await connection.close()
        with scripted_upstream() as upstream:
            upstream.reset(Answer("An answer."))
            app = create_app(
                Settings(_env_file=None, upstream_url=upstream.url, upstream_model="small"), database_url=url
            )
            explained = Explained(app.state.services.db)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
            ):
                yield http, explained, upstream


async def turn(http, session, **fields):
    body = {"session_id": session, "messages": [{"role": "user", "content": "A question."}], **fields}
    response = await http.post("/v1/chat", json=body)
    assert response.status_code == 200, response.text


async def test_ten_turns_on_a_long_archive_cost_the_same_as_on_an_empty_log(service):
    http, explained, _ = service
    memory = {"compaction": {"trigger": {"turns": 1000}, "strategy": {"turn_window": {"max_turns": 1}}}}
    cost = {}
    for session in ("empty", "long"):
        await turn(http, session)
        plans = []
        for _ in range(TURNS):
            _, made = await explained.of(turn(http, session, memory=memory))
            plans.append(made)
        cost[session] = [len(made) for made in plans], [buffers(made) for made in plans]
    assert cost["long"][0] == cost["empty"][0] == [BEFORE + 1] * TURNS
    assert sum(cost["long"][1]) <= DEEPER * sum(cost["empty"][1])


async def test_a_turn_is_few_statements_before_the_call_and_after_it(service):
    http, explained, upstream = service
    await turn(http, "empty")
    counts = []
    upstream.behaviour = lambda _: counts.append(len(explained.logged)) or Answer("An answer.")
    _, plans = await explained.of(turn(http, "empty"))
    assert counts == [BEFORE]
    assert len(plans) - BEFORE <= AFTER
