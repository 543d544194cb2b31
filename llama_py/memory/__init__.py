"""Decisions about reuse: pure Python, no ctypes.

A context is seen through the protocol ``kinds.SequenceMemory``: cut, copy, positions, get and set
state. ``cache.SequenceCache`` is the door that the engine uses. Its parts own one thing each:

* ``index``: what is in memory, live sequences and checkpoints, found by tokens or by text
  (``prefix``: a radix tree for each namespace);
* ``live``: the sequences of the context: who gets one, and which one is evicted;
* ``stores``: copies below the context, in RAM and on disk; ``pins``: beginnings that stay;
* ``resolve``: the tokens of a prompt; ``text_keys``: texts in which a special token differs from
  the same characters; ``prompt_tokens``: replies of the model keep the tokens that it sampled;
* ``planner`` and ``plan`` (pure): what of a prompt is held where, and how it is best begun;
  ``apply_plan`` does it;
* ``saving`` copies conversations out of the context in pieces, ``state_loader`` brings them back;
* ``by_label``: what there is of a conversation by its session, for those who manage them by name.

``sequences`` and ``state`` are the data; ``kinds`` says what a memory can do; ``positions`` tells
items from positions.
"""
