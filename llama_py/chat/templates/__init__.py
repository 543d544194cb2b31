"""Templates: rendered within limits, and what is known about them."""
