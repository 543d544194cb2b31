"""Reading and checking GGUF files, before llama.cpp opens them.

Some broken files would end the process. ``check``, ``rules`` and ``templates`` refuse those;
``reader`` reads the metadata and the list of tensors, ``strings`` walks vocabularies in C.
"""
