"""The server's settings, and their sources."""
