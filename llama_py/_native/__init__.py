"""The C declarations, and the loader of the libraries behind them.

``llama_h``, ``ggml_h``, ``gguf_h``, ``mtmd_h`` and ``chat_h`` are generated; importing them
loads nothing. The first use of a function loads its library (see ``loader``) and binds it.
``buffers`` tells where the bytes of a Python object lie. ``backends`` loads those of plug-in
wheels, and finds the variant of the CPU's that is in use.
"""
