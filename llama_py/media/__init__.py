"""Pictures and sounds before a model sees them: files, addresses, and what may be read.

* ``files.py``: which format a file has, by its first bytes.
* ``arrays.py``: pixels and samples.
* ``decoding.py``: files to pixels and samples, by Pillow and libsndfile.
* ``limits.py``: what may be read, and what it may cost.
* ``reading.py``: the pictures and sounds of one request together.
* ``sources.py``: data URLs, paths and addresses, within what is allowed.
* ``objects.py``: ``Image`` and ``Audio``, for programs.

What an encoder makes of them is in ``core.projector``.
"""
