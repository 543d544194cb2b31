"""One small class for each C handle. Nothing above this package imports ``ctypes``."""
