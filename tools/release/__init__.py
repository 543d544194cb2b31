"""``python -m tools.release``: what a release consists of, and what is said about it.

* ``build``: the source distribution, and the wheels that this machine can build
* ``sbom``: a CycloneDX document of what is inside
* ``provenance``: an in-toto statement of what it was made from
* ``__main__``: the command, checksums, and the table
"""
