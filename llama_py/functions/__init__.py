"""Python functions as tools: their schemas, their arguments, and the loop of calls and results.

``types``: annotations to JSON schemas and values; ``docstrings``: what functions say of themselves;
``tool``: one function; ``rounds``: the loop, for threads and for coroutines.
"""
