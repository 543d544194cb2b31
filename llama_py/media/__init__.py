"""Pictures and sounds before a model sees them: files, addresses, and what may be read.

* ``files.py``: which format a file has, and how large its picture is, from its first bytes.
* ``sources.py``: ``Image`` and ``Audio``, data URLs, paths and addresses, within what is allowed.

What an encoder makes of them is in ``core.projector``.
"""
