"""States that outlive a sequence: its state outside of the context, in RAM, on disk or as one file.

A ``StoredState`` (``state``) has the tokens, their text, the cells, the checkpoints, and the
fingerprint of what it depends on. A store (``store.StateStore``) is where states are. Its protocol:

* ``find(tokens, fingerprint)``: the entries that begin like a prompt, each with its key;
  ``find_text`` and ``find_session`` look for them by their text and their conversation.
* ``get(key)``: the state, marked as just used.
* ``put(state, replaces=key)``: a new entry; what was not used for longest makes room.
  ``put_soon`` writes it beside the caller. ``keep``, ``holds`` and ``release`` are for segments:
  cells that a long conversation has handed over before the rest of it, and that entries share.
* ``discard(key)``: forget an entry.
* ``wait()``: until everything is where other processes find it.

``ram`` and ``disk`` are the stores; ``whole`` is a state as one file, and ``named`` has snapshots,
which need none.
``store.Catalog`` finds an entry, in the trees of ``prefix``. On disk, ``database`` is the one of a
directory: ``ledger`` lists the entries in it, and ``names`` what is called by a name; ``payload``
is the file of one entry, ``segments`` are files that entries share, and ``writer`` writes beside
the threads that ask for it. Nothing here knows of a context or a model.
"""
