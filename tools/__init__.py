"""What developing the package needs, and the package itself does not."""
