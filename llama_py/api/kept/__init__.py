"""Conversations of a model: ``llm.states``, ``llm.cache``, and a server's by name."""
