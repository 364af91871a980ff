"""The HTTP API: OpenAI's chat completions and models, and Baton's own endpoints."""
