"""Chat: requests, templates, the parsing of replies, and grammars for them. No provider's form.

* ``conversation`` and ``messages`` are the data; ``checks`` validates what comes with them.
* ``templates/`` renders a conversation (``rendered.RenderedChat``). A template comes with a model
  and is not trusted: ``trial_load`` renders it within limits before llama.cpp does. ``quick``
  renders shapes that it has seen before, ten times as fast. ``probes`` and ``system`` find a place
  for system messages that a template does not take. ``general_tools`` declares tools where a
  template has no form for them. ``formats/`` has named formats.
* ``constraints`` decides what enforces a schema: llguidance, where it is installed and can, else
  llama.cpp's grammar sampler. **A constraint never changes a reply that fits.** ``schemas/`` says
  what fits (``bounds`` and ``satisfiable`` check a schema before native code sees it,
  ``json_forms`` knows how models write JSON), ``grammars/`` writes it down: ``lark`` and
  ``guidance`` for llguidance, ``gbnf``, ``order`` and ``converter`` for llama.cpp, ``layout`` for
  white space.
* ``calls/``: the grammar of replies that call tools, made from llama.cpp's description of the
  format (``peg``), the texts around the marks that begin one (``call_triggers``), and calls that
  a model writes as plain JSON.
* ``vocab`` is a vocabulary, as chats and dialects see it.
* ``reasoning`` knows where the reasoning of a reply ends, for constraints, grammars and budgets
  alike; ``answer_marks`` the marks that a family writes around its answers.
* ``stream`` turns the text of a reply into content, reasoning and tool calls.
* ``content`` keeps markup in what users and tools say from being read as special tokens.
"""
