"""Test an installed smoothcert in its environment, as ``make package`` does: the core, and with ``--extras`` the demo.

python tests/installed.py README.md [--extras]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

COMMAND = Path(sys.prefix) / "bin" / "smoothcert"


def run(*command: object) -> str:
    """Run a command in a new folder, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(readme: Path, extras: bool) -> None:
    place = Path(run(sys.executable, "-c", "import smoothcert; print(smoothcert.__file__)").strip())
    if not place.is_relative_to(sys.prefix):
        sys.exit(f"{place} is not in {sys.prefix}")
    shown = run(COMMAND, "--version").strip()
    if version("smoothcert") not in shown:
        sys.exit(f"smoothcert --version prints {shown!r}, but {version('smoothcert')} is installed")
    block = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    if block is None:
        sys.exit(f"{readme} has no Python")
    print(run(sys.executable, "-c", block[1]))
    if extras:
        print(run(COMMAND, "demo", "--n", 200, "--every", 10))
    print(f"smoothcert {version('smoothcert')} works in {sys.prefix}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), "--extras" in sys.argv[2:])
