"""States of sequences outside of the context: in RAM and on disk.

``ram`` and ``disk`` are the stores, ``store`` has their public names. ``catalog`` finds an entry by
its tokens or its text; ``database`` is the one of a directory, in which ``ledger`` lists the
entries and ``names`` what is called by a name; ``payload`` is the file of one entry, ``segments``
are parts that entries share, ``whole`` is a state as one file without a store, ``writer`` writes
beside the threads that ask for it.
"""
