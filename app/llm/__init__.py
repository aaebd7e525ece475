"""The upstream: any endpoint that speaks OpenAI's chat completions."""
