"""A receiver of traces: OTLP over HTTP, as a collector takes it."""

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.raw = []
        self._resources = []

    def take(self, body):
        self.raw.append(body)
        self._resources += ExportTraceServiceRequest.FromString(body).resource_spans

    @property
    def service_names(self):
        resources = [attributes(one.resource.attributes) for one in self._resources]
        return {resource["service.name"] for resource in resources}

    @property
    def spans(self):
        return [span for one in self._resources for scope in one.scope_spans for span in scope.spans]


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
