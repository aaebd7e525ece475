"""What logs, traces and figures tell of a service that is used, and what they never tell."""

import json
import sys

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from app.tracing import configured_tracing
from tests.service.otlp import attributes, collecting
from tests.service.process import service
from tests.upstream import Answer, scripted_upstream

# In everything that people write, are called, or keep secret.
MARK = "mellow"
KEYS = {"key": "mellow-service-key", "upstream": "mellow-upstream-key"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def told(shared_database_url):
    """A service was used in many ways, and stopped: its log, its spans, its figures and the upstream's requests."""
    environment = pytest.MonkeyPatch()
    with collecting() as collector, scripted_upstream() as upstream, environment.context() as changed:
        changed.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        settings = {"api_keys": KEYS["key"], "upstream_url": upstream.url, "upstream_api_key": KEYS["upstream"]}
        with service(database_url=shared_database_url, upstream_model="small", **settings) as running:
            with httpx.Client(base_url=running.url(), timeout=60) as http:
                http.headers["Authorization"] = f"Bearer {KEYS['key']}"
                use(http, upstream)
                figures = http.get("/metrics").text
        yield running.lines, collector, figures, upstream.headers


def use(http, upstream):
    """Requests that succeed and fail, with marks wherever a client can write."""
    event = {"id": f"{MARK}-1", "message": {"role": "user", "content": f"{MARK} words"}}
    path = f"/v1/sessions/{MARK}-s"
    http.post(f"{path}/events", json={"user_id": MARK, "events": [event]}, headers={"X-Request-Id": "trace-7"})
    http.post(f"{path}/events", json={"user_id": MARK, "events": [event | {"message": {"role": MARK}}]})
    http.post(
        f"{path}/events", json={"user_id": MARK, "events": [event | {"message": {"role": "user", "content": MARK}}]}
    )
    http.post(f"{path}/events", content=f"{{{MARK}")
    http.get(f"{path}/events", params={"keyword": MARK})
    http.get(f"{path}/events", params={MARK: MARK})
    http.post(f"/v1/users/{MARK}/search", json={"query": MARK})
    http.post(f"/v1/users/{MARK}/tools/cross_session_search", json={"query": MARK, MARK: 1})
    http.put(f"/v1/memories/{MARK}/file?path={MARK}.md", content=MARK)
    http.get(f"/{MARK}", headers={"Host": f"{MARK}.example"})
    http.get(path, headers={"Authorization": f"Bearer {MARK}-wrong"})
    http.get(f"/v1/sessions/%ff{MARK}")
    chat(http, upstream, Answer(f"{MARK} answer"), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    chat(http, upstream, Answer(f"{MARK} answer"), stream=True)
    chat(http, upstream, Answer(status=400, body=json.dumps({"error": {"message": MARK}}).encode()))
    chat(http, upstream, Answer(f"{MARK} cut off" * 9, dies_after=2), stream=True)
    chat(http, upstream, Answer(body=MARK.encode(), headers={"Content-Type": "text/plain"}))
    chat(http, upstream, Answer(MARK), model=MARK, user=MARK, tools=MARK)


def chat(http, upstream, answer, headers=None, **fields):
    upstream.answers[:] = [answer]
    body = {"session_id": f"{MARK}-chat", "messages": [{"role": "user", "content": f"{MARK} question"}], **fields}
    return http.post("/v1/chat/completions", json=body, headers=headers)


def test_logs_are_json_by_route_with_status_and_time(told):
    lines = [json.loads(line) for line in told[0] if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) > 15
    for line in requests:
        assert line["request_id"]
        assert line["ms"] > 0
        assert line["status"] >= 200
    first = requests[0]
    assert (first["request_id"], first["method"], first["status"]) == ("trace-7", "POST", 201)
    assert first["route"] == "/v1/sessions/{session_id}/events"
    assert all(line["trace_id"] for line in requests if line["route"] != "/metrics")


def test_nothing_that_people_wrote_or_keep_secret_is_told_anywhere(told):
    lines, collector, figures, _ = told
    # The first lines tell where it listens.
    assert not [line for line in lines if MARK in line]
    assert MARK not in figures
    assert collector.raw
    assert not [body for body in collector.raw if MARK.encode() in body]


def test_every_request_is_a_span_by_its_route(told):
    _, collector, _, _ = told
    assert collector.service_names == {"turnkeeper"}
    spans = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    names = {span.name for span in spans}
    assert {"POST /v1/chat/completions", "POST /v1/sessions/{session_id}/events", "GET unmatched"} <= names
    assert not any("/metrics" in name for name in names)
    appended = next(span for span in spans if attributes(span.attributes)["turnkeeper.request_id"] == "trace-7")
    assert attributes(appended.attributes)["http.response.status_code"] == 201
    failed = [span for span in spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert {attributes(span.attributes)["http.response.status_code"] for span in failed} == {502}


def test_a_trace_goes_on_through_the_service_to_the_upstream(told):
    _, collector, _, sent = told
    ours = {span.kind: span for span in collector.spans if span.trace_id.hex() == TRACE}
    server, client = ours[Span.SPAN_KIND_SERVER], ours[Span.SPAN_KIND_CLIENT]
    assert server.parent_span_id.hex() == PARENT
    assert client.parent_span_id == server.span_id
    assert server.start_time_unix_nano <= client.start_time_unix_nano < client.end_time_unix_nano
    assert attributes(client.attributes)["http.response.status_code"] == 200
    assert [event.name for event in client.events] == ["answered"]
    clients = [span for span in collector.spans if span.kind == Span.SPAN_KIND_CLIENT]
    assert {attributes(span.attributes).get("error.type") for span in clients} >= {None, "refused", "broke_off"}
    assert f"00-{TRACE}-{client.span_id.hex()}-01" in {headers.get("traceparent") for headers in sent}


def test_without_the_extra_the_log_says_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.") or name == "app.otel"]:
        monkeypatch.delitem(sys.modules, name)
    with capture_logs() as logs:
        assert configured_tracing() is None
    assert logs[0]["event"] == "tracing_not_installed"
    assert "turnkeeper[otel]" in logs[0]["reason"]


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {}])
def test_tracing_is_off_unless_an_endpoint_is_named(monkeypatch, off):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    if off:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    assert configured_tracing() is None
