"""Which models are in memory, who may use them, and which one makes room."""
