"""What a model keeps: ``llm.cache``, states, snapshots, conversations."""
