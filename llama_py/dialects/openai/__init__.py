"""OpenAI's chat completions and completions, which are the form of calls in Python as well."""
