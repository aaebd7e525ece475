FROM python:3.13-slim AS build
RUN pip install --no-cache-dir uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /srv/turnkeeper
# The dependencies first: they change less often than the code.
COPY pyproject.toml uv.lock README.md ./
RUN uv sync --locked --no-dev --no-install-project
COPY app app
COPY migrations migrations
RUN uv sync --locked --no-dev --no-editable

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /srv/turnkeeper turnkeeper
COPY --from=build /srv/turnkeeper/.venv /srv/turnkeeper/.venv
ENV PATH=/srv/turnkeeper/.venv/bin:$PATH PYTHONUNBUFFERED=1 TURNKEEPER_HOST=0.0.0.0
USER turnkeeper
WORKDIR /srv/turnkeeper
EXPOSE 8088
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('TURNKEEPER_PORT', '8088')}/readyz\", timeout=2)"]
CMD ["turnkeeper", "serve"]
