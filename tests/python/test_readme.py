"""The README's snippets: what stands there runs, and prints what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```\n```\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_snippets_print_what_they_promise():
    text = README.read_text(encoding="utf-8")
    snippets = SNIPPET.findall(text)
    assert len(snippets) == text.count("```python") >= 1
    for code, output in snippets:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == output, done.stderr


def test_pictures_are_there():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    assert pictures
    assert all((README.parent / picture).is_file() for picture in pictures)
