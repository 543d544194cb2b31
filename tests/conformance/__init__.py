"""Test suites of others, run against our server.

``python -m tests.conformance`` runs llama.cpp's own tests of its server, and prints what came of
them.
"""
