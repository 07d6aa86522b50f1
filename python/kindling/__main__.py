"""The command ``kindling``, also ``python -m kindling``: starts it, or names what it lacks.

The package itself needs NumPy alone; what only the command needs is the extra ``kindling[cli]``.
"""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich", "matplotlib", "safetensors")


def main() -> None:
    """Run the command line; without its packages, say how to get them and exit with 2."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"kindling: expected the packages of the command, got none named {', '.join(missing)}: "
            'pip install "kindling[cli]"',
            file=sys.stderr,
        )
        sys.exit(2)
    from kindling.cli import main as run

    run()


if __name__ == "__main__":
    main()
