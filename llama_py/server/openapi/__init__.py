"""The description of the server's API: ``/openapi.json`` and the page ``/docs``.

Options come from their one declaration (``llama_py.options``), limits from the settings, errors
from ``dialects.failures``, OpenAI's responses from ``dialects.openai.types``. Written by hand is
what those do not know: which paths there are and what they do (``operations``), and the parts of
bodies that are not options (``bodies``, ``replies``).
"""
