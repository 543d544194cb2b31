"""``ChatSession``: one conversation, its replies, and the file it is saved in."""
