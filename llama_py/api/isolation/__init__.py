"""Models in processes of their own: what crosses the border, and both of its sides.

What crosses is what crosses within a process: requests in, events out. ``codec`` writes it,
``connection`` carries it over an inherited socket, ``messages`` names it. In the process that
calls, ``process`` starts the other one and starts it again, ``requests`` has the requests in it,
``port`` stands in the place of the engine's driver, and ``isolated`` in that of the loaded model.
``child`` is that process: it loads a ``Llama`` as ever, and answers with it.
"""
