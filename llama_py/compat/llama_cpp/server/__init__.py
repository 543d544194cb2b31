"""The server of llama-cpp-python, by llama_py's: its settings and its command line."""
