"""The public interface: ``Llama``, ``AsyncLlama``, ``ChatSession``, ``Embedder``, and their parts.

``runtime.Runtime`` is the inside of a model, which ``llama.Llama``, ``aio.AsyncLlama`` and the
server hold: it submits requests and answers calls. Its parts: ``port`` is the model, wherever it
computes, which ``loading`` makes; ``runtime.Calls`` parses arguments, ``rendering`` applies the
template, ``lowlevel`` is ``eval``, ``sample`` and ``generate``; ``overflow`` drops messages that do
not fit, ``call`` is what a call returns, whole or as a stream. No part refers to the ``Llama``, so
that ``del`` frees everything at once.

* ``sessions/``: ``ChatSession``, which adds the history, its branches and its file.
* ``isolation/``: a model in a process of its own (``isolate=True``).
* ``kept/``: ``llm.states``, ``llm.cache``, and conversations for a server.
* ``embedding/``: ``Embedder``, ``AsyncEmbedder``. ``scoring/``: ``Llama.score``.
* ``llama_cpp_names``: what ``Llama`` has for code that was written for llama-cpp-python.
"""
