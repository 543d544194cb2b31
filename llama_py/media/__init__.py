"""Pictures and sounds before a model sees them: files, addresses, and what may be read.

* ``files.py``: which format a file has, and how large its picture is, from its first bytes.
* ``limits.py``: what may be read.
* ``sources.py``: data URLs, paths, addresses and arrays, within what is allowed.
* ``objects.py``: ``Image`` and ``Audio``, for programs.

What an encoder makes of them is in ``core.projector``.
"""
