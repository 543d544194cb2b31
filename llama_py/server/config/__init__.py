"""What can be set about the server, and where it is read from."""
