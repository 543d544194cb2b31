"""Requests in, events out: a pure scheduler, one runner that decodes, one thread that owns both.

**One owner.** ``engine.Engine`` is single-threaded and has no locks: ``add``, ``cancel``, ``step``.
``driver.Driver`` is what callers hold; it owns the thread in which ``loop`` runs commands and
steps. A function that needs the context or the cache runs between two steps (``Driver.run``).
Signals reach the main thread only, which at most waits, so no change of the books is cut in half.

**A request.** ``request`` has the data that goes in and comes out: ``GenerationRequest``, events,
and the ``Record`` that usage and ``cache`` are made from. ``generation.prepare`` makes samplers and
tokens in the caller's thread, and ``generation.Generation`` is the engine's own record of a
request in flight, and ``in_flight`` has all of them, and ends them. A call has a ``mailbox``,
which ``events`` and ``async_events`` read for threads and event loops.

**A step.** ``admission`` gives sequences to waiting requests; ``step_planner`` plans the step, with
``scheduler`` (pure), which decides what is decoded together, and ``prefill_budget`` (pure), how
many tokens of prompts that is beside streams; ``runner`` is the only caller of ``llama_decode``;
``books`` enters the outcome, with ``sampling``, which turns rows of logits into tokens,
``generation.ReplyText`` tokens into text, ``logprobs`` rows into log-probabilities. Drafts, single
rows and several steps in C are numbers in the plan. ``metrics`` counts.

**Beside it.** ``drafts/`` guesses what follows (speculative decoding). ``thread_tuner`` (pure) and
``tuned_threads`` choose the number of threads. ``clock`` is the only module that knows the time,
and tests give their own.

**When memory runs out**, idle conversations are copied out in pieces between the steps of the
streams, and a request that needs their room waits meanwhile; then the youngest request starts again
later, with what it generated as a part of its prompt. A cancel, a timeout or Ctrl-C aborts the
decode that evaluates the request's prompt, except on recurrent memory, whose state could not be
taken back. With ``in_place=True``, or where no thread can be started, callers step the same engine
themselves.
"""
