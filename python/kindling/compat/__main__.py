"""``python -m kindling.compat script.py [arguments]``: runs a script for the vendor's device here.

``-m module [arguments]`` runs a module in the same way.
"""

from __future__ import annotations

import os
import runpy
import sys

from kindling.compat import install

_USAGE = "usage: python -m kindling.compat (script.py | -m module) [arguments ...]"


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    is_module = arguments[:1] == ["-m"]
    command = arguments[1:] if is_module else arguments
    if not command or (not is_module and command[0].startswith("-")):
        print(_USAGE, file=sys.stderr)
        return 2
    if not is_module and not os.path.isfile(command[0]):
        print(f"script: expected a file, got {command[0]}", file=sys.stderr)
        return 2
    install()
    sys.argv = command
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
        runpy.run_path(command[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
