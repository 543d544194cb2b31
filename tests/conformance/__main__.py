"""``python -m tests.conformance [-v] [FILE.py[::TEST] ...]``: llama.cpp's tests of its server."""

from __future__ import annotations

import argparse

from tests.conformance.suite import run, table


def main() -> int:
    """Print the table, and each test that is neither passed nor about text only."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("tests", nargs="*", help="test_basic.py, or test_basic.py::test_no_ui")
    parser.add_argument("-v", "--verbose", action="store_true", help="every test, with its seconds")
    parser.add_argument("-k", help="an expression of pytest's that chooses tests")
    given = parser.parse_args()
    outcomes = run(given.tests, more=["-k", given.k] if given.k else [])
    for each in outcomes:
        if given.verbose or each.kind not in ("passed", "text"):
            print(f"{each.kind:11} {each.seconds:6.1f} s  {each.test}  {each.row or each.why}")
    print("\n".join(table(outcomes)))
    return 1 if any(each.kind == "unexplained" for each in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
