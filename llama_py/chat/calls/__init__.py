"""How replies call tools: the grammar of calls, and finding them in text."""
