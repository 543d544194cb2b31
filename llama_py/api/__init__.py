"""The public interface: ``Llama``, ``AsyncLlama``, ``ChatSession``, ``Embedder``, and their parts.

``runtime.load`` makes a ``Runtime``: the model with what runs it. ``llama.Llama`` and
``aio.AsyncLlama`` are faces over it: ``calls`` parses arguments, ``dispatch`` submits requests,
``rendering`` applies the template, ``lowlevel`` is ``eval``/``sample``/``generate``, ``overflow``
drops messages that do not fit, ``call`` and ``reply_stream`` are what a call returns. No part
refers to the ``Llama``, so that ``del`` frees everything at once.

* ``sessions/``: ``ChatSession``, which adds the history, its branches and its file.
* ``kept/``: ``llm.cache``, saved states, snapshots, and conversations for a server.
* ``embedding/``: ``Embedder``, ``AsyncEmbedder``. ``scoring/``: ``Llama.score``.
* ``tuning``: ``llama-py tune``. ``llama_cpp_names``: small functions of llama-cpp-python.
"""
