.PHONY: serve demo test lint types cov openapi docs bench

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
