"""The folders where programs keep models, each as a list of ``StoredModel``; only read."""
