"""The endpoints. Each module has ``ROUTES``, which ``server.app`` puts together."""
