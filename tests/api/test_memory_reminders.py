"""A reminder to consolidate is given once the request that had it was answered."""

import asyncio

import pytest

from app.domain.memory_prompts import REMINDER
from tests.api.chatting import chatting
from tests.upstream import Answer

LONG_TERM = {"long_term": True}
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def chats(database_url):
    async with chatting(database_url, memory_consolidation={"every_requests": 2}) as chats:
        yield chats


def reminded(chats):
    return [REMINDER in str(request["messages"]) for request in chats.upstream.requests]


async def ask(chats, number, **options):
    return await chats.post(f"q{number}", session=f"s{number}", user_id="alice", memory=LONG_TERM, **options)


@BOTH
@pytest.mark.parametrize("failure", [Answer(status=400), Answer(status=500), Answer("cut off here", dies_after=0)])
async def test_a_reminder_that_was_not_answered_comes_again(chats, stream, failure):
    asked = {}

    def behaviour(request):
        question = request["messages"][-1]["content"]
        asked[question] = REMINDER in str(request["messages"])
        return failure if question in {"q1", "q2"} else Answer("answer")

    chats.upstream.behaviour = behaviour
    for number in range(5):
        await ask(chats, number, stream=stream)
    assert asked == {"q0": False, "q1": True, "q2": True, "q3": True, "q4": False}


async def test_a_request_that_is_refused_takes_no_reminder_with_it(chats):
    await ask(chats, 0)
    image = {"role": "tool", "tool_call_id": "no such call", "content": "x"}
    refused = await chats.post(image, session="s0", user_id="alice", memory=LONG_TERM)
    assert refused.status_code >= 400
    await ask(chats, 2)
    assert reminded(chats) == [False, True]


async def test_a_reminder_of_a_client_that_went_away_comes_again(chats):
    chats.upstream.reset(Answer("one"), Answer("slow", delay=30))
    await ask(chats, 0)
    waiting = asyncio.create_task(ask(chats, 1))
    await chats.upstream.eventually(lambda script: len(script.requests) == 2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    chats.upstream.answers[:] = [Answer("answer")]
    await ask(chats, 2)
    assert reminded(chats) == [False, True, True]


async def test_replicas_agree_on_what_is_owed(chats, database_url):
    async with chatting(database_url, upstream_of=chats, memory_consolidation={"every_requests": 2}) as other:
        chats.upstream.reset(Answer("one"), Answer(status=400), Answer("answer"))
        await ask(chats, 0)
        await ask(chats, 1)
        await ask(other, 2)
        await ask(chats, 3)
        await ask(other, 4)
        assert reminded(chats) == [False, True, True, True, False]


async def test_reminders_of_many_at_once_are_as_many_as_are_due(chats):
    await asyncio.gather(*(ask(chats, number) for number in range(8)))
    assert sum(reminded(chats)) == 4


async def test_nothing_is_owed_to_a_user_who_was_erased(chats):
    loop = asyncio.get_running_loop()
    await ask(chats, 0)

    def behaviour(_):
        asyncio.run_coroutine_threadsafe(chats.http.delete("/v1/users/alice"), loop).result(10)
        return Answer(status=400)

    chats.upstream.behaviour = behaviour
    await ask(chats, 1)
    chats.upstream.behaviour = None
    chats.upstream.answers[:] = [Answer("answer")]
    await ask(chats, 2)
    assert reminded(chats) == [False, True, False]
