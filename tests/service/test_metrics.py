"""`/metrics` of a running service: what is counted, and that no label tells of anybody."""

import httpx
import pytest

from tests.conftest import serving
from tests.service.process import service
from tests.service.scraping import scraped, until
from tests.upstream import USAGE, Answer, scripted_upstream

# What may be a label: words of the service's own, of which there are few.
LABELS = {"method", "route", "status", "operation", "outcome", "purpose", "kind", "source", "pool", "le"}
COMPACT = {"strategy": {"turn_window": {"max_turns": 1}}}


@pytest.fixture(scope="module")
def upstream():
    with scripted_upstream() as script:
        yield script


@pytest.fixture(scope="module")
def running(shared_database_url, upstream):
    settings = {"upstream_url": upstream.url, "upstream_model": "small"}
    with service(database_url=shared_database_url, **settings) as started:
        yield started


@pytest.fixture
async def http(running, upstream):
    upstream.reset(Answer("answer"))
    async with httpx.AsyncClient(base_url=running.url(), timeout=30) as client:
        yield client


@pytest.fixture
async def before(http):
    return await scraped(http)


def chat(http, session, text, **fields):
    body = {"session_id": session, "messages": [{"role": "user", "content": text}], **fields}
    return http.post("/v1/chat/completions", json=body)


async def store(http, session, *messages):
    body = {"user_id": "marta", "events": [{"message": message} for message in messages]}
    (await http.post(f"/v1/sessions/{session}/events", json=body)).raise_for_status()


async def test_requests_are_counted_by_route_and_nothing_else(http, before):
    for name in ("marta-1", "marta-2"):
        assert (await http.get(f"/v1/sessions/{name}")).status_code == 404
        assert (await http.get(f"/nowhere/{name}")).status_code == 404
        assert (await http.request("BREW", f"/v1/sessions/{name}")).status_code in {400, 405}
        assert (
            await http.get(f"/v1/sessions/{name}", headers={"Origin": "https://marta.example"})
        ).status_code == 403
    await store(http, "marta-1", {"role": "user", "content": "x"})
    figures = await scraped(http, before)
    assert figures.value("requests_total", route="/v1/sessions/{session_id}", method="GET", status="404") == 2
    assert figures.value("requests_total", route="/v1/sessions/{session_id}", method="GET", status="403") == 2
    assert figures.value("requests_total", route="unmatched", method="GET", status="404") == 2
    assert figures.value("requests_total", route="/v1/sessions/{session_id}/events", status="201") == 1
    assert figures.value("request_seconds_count", route="/v1/sessions/{session_id}", method="GET") == 4
    assert (await scraped(http)).value("requests_in_flight") == 1, "this one"
    texts = [text for sample in figures.samples() for text in sample.labels.values()]
    assert not any("marta" in text for text in texts)


async def test_no_label_but_the_known_ones_and_few_values_of_each(http, upstream, before):
    for number in range(30):
        await chat(http, f"s{number}", f"question {number}", user=f"u{number}", model=f"m{number}")
        await http.post(f"/v1/sessions/s{number}/compact", json=COMPACT)
        await http.put(f"/v1/memories/shared:{number}/file?path=a{number}.md", content="x")
    figures = await scraped(http, before)
    found = {}
    for sample in figures.samples():
        for name, value in sample.labels.items():
            found.setdefault(name, set()).add(value)
    assert set(found) <= LABELS
    assert all(len(values) < 20 for values in found.values()), found


async def test_the_upstream_its_time_and_its_tokens(http, upstream, before):
    upstream.reset(Answer("whole"))
    assert (await chat(http, "s-3", "one")).status_code == 200
    figures = await scraped(http, before)
    assert figures.value("upstream_attempts_total", operation="chat", outcome="ok") == 1
    assert figures.value("upstream_first_byte_seconds_count", operation="chat") == 1
    assert figures.value("upstream_seconds_count", operation="chat") == 1
    assert figures.value("tokens_total", kind="prompt", source="reported") == USAGE["prompt_tokens"]
    assert figures.value("tokens_total", kind="completion", source="reported") == USAGE["completion_tokens"]
    assert figures.value("tokens_total", source="counted") == 0

    upstream.reset(Answer("streamed", usage=None))
    assert (await chat(http, "s-3", "two", stream=True)).text.endswith("data: [DONE]\n\n")
    figures = await scraped(http, before)
    assert figures.value("upstream_attempts_total", outcome="ok") == 2
    stored = (await http.get("/v1/sessions/s-3")).json()["active_token_count"]
    assert figures.value("tokens_total", purpose="chat", source="counted") == stored

    upstream.reset(Answer(status=400))
    await chat(http, "s-3", "three")
    upstream.reset(Answer(text="long " * 50, dies_after=1))
    await chat(http, "s-3", "three", stream=True)
    upstream.reset(Answer(body=b"no", headers={"Content-Type": "text/plain"}))
    await chat(http, "s-3", "three", stream=True)
    await http.get("/v1/models")
    figures = await scraped(http, before)
    assert figures.value("upstream_attempts_total", outcome="refused") == 1
    assert figures.value("upstream_attempts_total", outcome="broke_off") == 1
    assert figures.value("upstream_attempts_total", outcome="failed") == 1
    assert figures.value("upstream_attempts_total", operation="models", outcome="ok") == 1


async def test_what_is_retried_counts_each_time(http, upstream, before):
    upstream.reset(Answer(status=503), Answer("at last"))
    assert (await chat(http, "s-4", "one")).status_code == 200
    figures = await scraped(http, before)
    assert figures.value("upstream_attempts_total", outcome="failed") == 1
    assert figures.value("upstream_attempts_total", outcome="ok") == 1


async def test_an_answer_that_nobody_waits_for_is_abandoned(http, upstream, before):
    upstream.reset(Answer(text="slowly " * 50, chunk_delay=0.1))
    body = {"session_id": "s-5", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        await anext(response.aiter_bytes())
    await until(http, lambda figures: figures.value("upstream_attempts_total", outcome="abandoned") == 1, before)


async def test_compactions_by_outcome(http, upstream, before):
    for number in range(3):
        await store(http, "s-6", {"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a"})
    never = {"trigger": {"tokens": 1_000_000}}
    for body in (never, {}, {}):
        (await http.post("/v1/sessions/s-6/compact", json=COMPACT | body)).raise_for_status()
    upstream.reset(Answer(status=400))
    await store(http, "s-6", {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
    summarize = {"strategy": {"summarize": {"max_events": 2, "overlap": 0}}}
    failed = await http.post("/v1/sessions/s-6/compact", json=summarize)
    assert failed.status_code == 502, failed.text
    upstream.reset(Answer("summary"))
    (await http.post("/v1/sessions/s-6/compact", json=summarize)).raise_for_status()
    figures = await scraped(http, before)
    expected = {"trigger": 1, "compacted": 2, "fits": 1, "failed": 1}
    assert {name: figures.value("compactions_total", outcome=name) for name in expected} == expected
    assert figures.value("tokens_total", purpose="summary", source="reported") == USAGE["total_tokens"]


async def test_orphans_that_a_prompt_leaves_out(http, before):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await store(
        http,
        "s-7",
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "never mind"},
        {"role": "assistant", "content": "a"},
    )
    assert (await chat(http, "s-7", "and now", user="marta")).status_code == 200
    assert (await scraped(http, before)).value("orphans_left_out_total") == 1


async def test_sweeps(http, before):
    await store(http, "s-8", {"role": "user", "content": "x"})
    assert (await http.delete("/v1/sessions/s-8")).status_code == 204
    figures = await until(http, lambda figures: figures.value("sweeps_total", outcome="done"), before)
    assert figures.value("swept_rows_total") > 0


async def test_a_key_is_needed_unless_it_is_set_open(database_url):
    with_key = {"Authorization": "Bearer one"}
    async with serving(database_url, api_keys="one") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=with_key)).status_code == 200
    async with serving(database_url, api_keys="one", metrics_open=True) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/v1/sessions")).status_code == 401


async def test_text_or_openmetrics(shared_client):
    plain = await shared_client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    accepted = {"Accept": "application/openmetrics-text; version=1.0.0"}
    modern = await shared_client.get("/metrics", headers=accepted)
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
