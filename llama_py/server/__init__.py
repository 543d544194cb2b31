"""The HTTP server: OpenAI's and Anthropic's dialects, sessions, several models.

It needs the extra ``server`` (``pip install 'llama-py[server]'``). ``app.create_app`` makes the
ASGI application.
"""
