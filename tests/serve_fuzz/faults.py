"""Faults that are planted on purpose in a copy of the package: hostile requests have to find each."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.serving import ROOT

Change = tuple[str, str, str]  # a file, what stands there once, and what stands there then

FAULTS: dict[str, tuple[Change, ...]] = {
    "500 for what is no JSON": (
        (
            "serve/problems.py",
            'return Refusal(400, f"the body is no JSON',
            'return Refusal(500, f"the body is no JSON',
        ),
    ),
    "pages of who left are kept": (
        (
            "runtime/engine/engine.py",
            "                self.allocator.retire(row, 0)\n",
            "                pass\n",
        ),
    ),
    "no time-out": (("serve/door.py", "limits.request_s, limits.body_s)", "3600.0, 3600.0)"),),
    "a process is left behind": (
        (
            "backends/local/compiling.py",
            "            self._process.kill()\n            self._process.wait()\n",
            "",
        ),
        (
            "runtime/engine/compile_server.py",
            "                return 0  #",
            "                signal.pause()  #",
        ),
    ),
    "constraints are compiled where the model runs": (
        ("backends/local/compiling.py", "and hash(form) not in self._known", "and False"),
    ),
    "stop patterns are looked for by `re` alone": (
        ("ir/grammar/stops.py", "if bound is not None and _ways(tree, bound) <= _MOST_WAYS:", "if True:"),
    ),
    "plans are not looked at": (
        (
            "serve/plan_bounds.py",
            "                _check_node(node, samples, vocabulary)\n",
            "                pass\n",
        ),
    ),
    "a stream has no end": (
        ("serve/sending.py", '_end = b"data: %b\\n\\n", _DONE', '_end = b"data: %b\\n\\n", b""'),
    ),
}

# An exception inside the runtime wherever it is when the signal comes.
RAISES: tuple[Change, ...] = (
    (
        "runtime/engine/worker.py",
        "    parent = os.getppid()\n",
        "    parent = os.getppid()\n"
        "    def raises(*_):\n        raise RuntimeError('planted')\n"
        "    signal.signal(signal.SIGUSR1, raises)\n",
    ),
)


def changed_copy(changes: tuple[Change, ...], folder: Path) -> Path:
    """The package with these changes, in a folder that Python can run it from."""
    shutil.copytree(ROOT / "sglc", folder / "sglc")  # with what is compiled of it: that takes seconds
    for file, old, new in changes:
        path = folder / "sglc" / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
        path.write_text(text.replace(old, new))
    return folder
