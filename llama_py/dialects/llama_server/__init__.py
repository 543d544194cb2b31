"""llama-server's own ``/completion``, ``/infill`` and ``/tokenize``."""
