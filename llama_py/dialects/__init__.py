"""Wire formats: keyword arguments or JSON bodies in, response dictionaries out. No HTTP, no I/O."""
