"""The generator of the ctypes declarations (development only; see ``generate``).

``parse`` reads the C headers with libclang into the plain data of ``model``;
``spell`` says how each C type is written in Python, at run time and in a stub;
``render`` writes the ``*_h.py`` modules and their ``*_h.pyi`` stubs;
``abi`` imports what was rendered and writes the compile-time checks from the finished classes.
"""
