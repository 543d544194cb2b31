"""Models by name: references, the transport of the hub, and the folders where models are.

``resolve`` turns a name into a file; ``downloads`` fetches from a hub; ``stores`` finds the files
of other programs.
"""
