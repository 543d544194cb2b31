"""JSON schemas: their limits, what fits them, and how models write what fits."""
