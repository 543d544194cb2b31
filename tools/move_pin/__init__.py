"""Moves the pin to another llama.cpp, and prints a page that says what that means.

    python -m tools.move_pin ARCHIVE            what changed, and what a person has to decide
    python -m tools.move_pin ARCHIVE --apply    also move the pin, build, and run the checks
    python -m tools.move_pin --checks           only the checks, on the libraries that are there

``archives`` finds and verifies the two trees; ``surface`` compares headers, templates,
architectures, formats and llama-server; ``touched`` finds which functions changed in the files that
this project's rules, shim and comments name; ``checks`` says which rules are reached, which
workarounds are needed and which traps are still there; ``applying`` writes the pin and builds;
``page`` writes it all down.
"""
