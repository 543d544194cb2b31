"""Reading and checking GGUF files, in pure Python, before llama.cpp opens them."""
