# The service without a PostgreSQL of its own: it needs TURNKEEPER_DATABASE_URL and TURNKEEPER_API_KEYS (docs/deploy.md).
FROM python:3.13-slim-trixie AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --root-user-action=ignore uv==0.13.9
WORKDIR /srv/turnkeeper
# The dependencies first: they change less often than the code.
COPY pyproject.toml uv.lock README.md ./
RUN uv sync --locked --no-dev --extra otel --no-install-project
COPY app app
COPY migrations migrations
RUN uv sync --locked --no-dev --extra otel --no-editable

FROM python:3.13-slim-trixie
LABEL org.opencontainers.image.title="Turnkeeper" \
      org.opencontainers.image.description="Memory as a service for LLM agents"
COPY --from=build /srv/turnkeeper/.venv /srv/turnkeeper/.venv
WORKDIR /srv/turnkeeper
ENV PATH=/srv/turnkeeper/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TURNKEEPER_HOST=0.0.0.0 \
    TURNKEEPER_PORT=8088
# By number, so that whoever runs the image can tell that it is not root; nothing in it belongs to this user.
USER 10001:10001
EXPOSE 8088
# Whether the process answers, whatever it answers: a container is not started again because its database is away.
HEALTHCHECK --interval=15s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "-c", "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TURNKEEPER_PORT']), timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status >= 500)"]
# SIGTERM lets running answers end for TURNKEEPER_SHUTDOWN_GRACE_SECONDS (20): stop with more patience than that.
STOPSIGNAL SIGTERM
CMD ["turnkeeper", "serve"]
