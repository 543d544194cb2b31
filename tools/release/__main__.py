"""The command: builds a release, or describes the files of one that lie in a folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from llama_py.version import __version__
from tools import plugin_wheel
from tools.release import build, provenance, sbom, sources

CHECKSUMS, BILL, ORIGIN = "SHA256SUMS", "sbom.cdx.json", "provenance.json"
DESCRIPTIONS = (CHECKSUMS, BILL, ORIGIN)


def describe(folder: Path) -> list[Path]:
    """Write checksums, SBOM and provenance of the distributions in a folder; returns all files."""
    files = sorted((*folder.glob("*.whl"), *folder.glob("*.tar.gz")))
    if not files:
        raise SystemExit(f"{folder} has neither wheels nor a source distribution")
    tree = sources.pinned_tree()
    (folder / BILL).write_text(sbom.document(tree) + "\n", encoding="utf-8")
    statement = json.dumps(provenance.statement(files, tree), indent=1)
    (folder / ORIGIN).write_text(statement + "\n", encoding="utf-8")
    files += [folder / BILL, folder / ORIGIN]
    lines = [f"{sources.digest(path)}  {path.name}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    return [*files, folder / CHECKSUMS]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--outdir", type=Path, default=build.ROOT / "dist", help="default: dist/")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        choices=sorted(plugin_wheel.backends()),
        help="build the wheel of this backend as well; may be given several times",
    )
    compiled = build.ROOT / "build" / "portable"
    parser.add_argument("--build-dir", type=Path, default=compiled, help="default: build/portable")
    parser.add_argument("--describe", type=Path, metavar="DIR", help="build nothing")
    parser.add_argument("--draft", action="store_true", help="whatever tree and changelog say")
    parsed = parser.parse_args()
    if parsed.describe is None:
        objection = build.check_version(__version__)
        if objection and not parsed.draft:
            parser.exit(1, f"no release of {__version__}: {objection} (--draft builds anyway)\n")
        build.build(parsed.outdir, parsed.plugin, parsed.build_dir)
    for path in describe(parsed.describe or parsed.outdir):
        print(f"{path.stat().st_size:12,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
