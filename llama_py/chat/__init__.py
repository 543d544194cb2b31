"""Chat: requests, templates, the parsing of replies, and grammars for them."""
