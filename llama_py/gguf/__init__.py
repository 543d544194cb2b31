"""Reading and checking GGUF files, in pure Python, before llama.cpp opens them.

Some broken files would end the process. ``check``, ``rules`` and ``templates`` refuse those;
``reader`` reads the metadata and the list of tensors.
"""
