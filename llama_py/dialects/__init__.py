"""Wire formats: keyword arguments or JSON bodies in, response dictionaries and bytes out. No I/O.

``openai/``, ``anthropic/``, ``responses/`` and ``llama_server/`` each parse to the same
``chat.messages.ChatRequest`` and encode the same deltas; none is converted through another.
``openai/`` is the form of calls in Python as well. ``ollama/`` brings its bodies to that form.

All share: ``wire`` (a ``WireCall``, made of a body, and its ``WireReply``, which turns events into
bytes), ``failures`` (the table of errors, in every dialect's form), ``fields`` and ``limits``
(reading bodies), ``requests`` and ``chat_requests`` (options to engine requests),
``budget`` (of reasoning), ``logprobs``, ``usage``, ``session_ids``, ``embeddings``, ``reranking``.
"""
