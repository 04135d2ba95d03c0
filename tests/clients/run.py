"""`make clients`: official clients, in environments of their own, ask real servers.

results.json says how it went, and docs/serving.md shows that as a table (`clients_table`).
`python -m tests.clients.run [NAME ...]` runs some of the environments and leaves the results of the others.
All that is in an environment has the version that its file beside this one says (`openai-3.txt`), so that no
upload of somebody else's changes it; `--renew` installs what is newest beside the packages named here, and
writes that file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sglc.ir.grammar.call_format import HERMES
from sglc.runtime.model.registry import prepare
from tests.serving import serving

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results.json"


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages that can be installed together, and the files of cases (`NAME_cases.py`) that need them.

    `shown` names the packages whose versions results.json has. With `torch` the environment sees the packages
    of this one behind its own. `unpacked` is a wheel that is only put on the path: what it needs is for a GPU.
    """

    packages: Sequence[str]
    cases: Sequence[str]
    torch: bool = False
    unpacked: str | None = None


TESTS = ("pytest==9.2.0", "pytest-timeout==2.4.0")  # of every environment
ENVIRONMENTS = {
    "openai 3": Environment(
        (
            "openai==3.54.0", "langchain-openai==1.7.3", "pydantic-ai-slim[openai]==2.68.0", "outlines==1.3.3",
            "ollama==0.6.3",
        ),
        ("openai", "langchain", "pydantic_ai", "outlines", "ollama"),
    ),
    "openai 2": Environment(
        (
            "openai==2.54.0", "litellm==1.106.2", "mcp==2.3.0", "dspy==3.4.1", "instructor==1.17.0",
            "jsonref==1.1.0",
        ),
        ("openai", "litellm", "dspy", "instructor"),
    ),
    "lm-eval": Environment(("lm_eval[api]==0.4.13",), ("lm_eval",), torch=True),
    "sglang": Environment(
        ("aiohttp", "ipython", "msgspec", "numpy", "pybase64", "pydantic", "requests", "tqdm"),
        ("sglang",),
        unpacked="sglang==0.5.23",
    ),
}  # fmt: skip
DISTRIBUTIONS = {"langchain": "langchain-openai", "pydantic_ai": "pydantic-ai-slim"}  # of cases named otherwise

# What the scripted server answers, by a pattern of the prompt; the first one that is there.
TOWN, ROME = {"name": "Paris", "large": True}, {"name": "Rome", "large": False}
WEATHER = HERMES.written("weather", {"city": "Köln", "unit": "C"})
ANSWERS = {
    "20 degrees": "It is 20 degrees.",
    "say plain<": "It is warm.",
    "say one<": WEATHER,
    "say text<": f"I look.\n{WEATHER}",
    "say two<": f"{WEATHER}\n{HERMES.written('now', {})}",
    r"say one\n": WEATHER,  # dspy goes on behind it
    "say town TOOLS<": HERMES.written("Town", TOWN),
    "say town ToolOutput<": HERMES.written("final_result", TOWN),
    "say town (JSON|PromptedOutput)": json.dumps(TOWN),
    "say town MD_JSON": f"Here it is.\n```json\n{json.dumps(TOWN)}\n```",
    "say towns<": f"{HERMES.written('Town', TOWN)}\n{HERMES.written('Town', ROME)}",
    "say fields": "[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]",
    "say json": '{"answer": "Paris"}',
    "say reasons": "[[ ## reasoning ## ]]\nIt is so.\n\n[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]",
}


def environment(name: str, wanted: Environment, *, renew: bool = False) -> Path:
    """The Python of an environment, made if it is not there; with `renew` made anew, and its versions kept."""
    home = ROOT / ".cache" / "clients" / name.replace(" ", "-")
    python = home / "bin" / "python"
    made = home / "made.json"
    versions = HERE / f"{home.name}.txt"
    pinned = "" if renew else versions.read_text()
    told = [wanted.packages, wanted.unpacked, wanted.torch, pinned]
    if made.exists() and made.read_text() == json.dumps(told):
        return python
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    paths = []
    if wanted.torch:
        paths.append(sysconfig.get_paths()["purelib"])
    if wanted.unpacked is not None:
        wheel = home / "wheel"
        get = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
        subprocess.run([*get, "--dest", wheel, wanted.unpacked], check=True, stdout=sys.stderr)
        (file,) = wheel.glob("*.whl")
        shutil.unpack_archive(file, wheel, "zip")
        paths.append(str(wheel))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    (packages / "beside.pth").write_text("".join(f"{path}\n" for path in paths))
    install = [*pip, "install", *wanted.packages, *TESTS]
    if wanted.torch:
        install += ["--constraint", ROOT / "constraints.txt"]
    if not renew:
        install += ["--constraint", versions]
    subprocess.run(install, check=True, stdout=sys.stderr)
    if renew:
        frozen = [*pip, "freeze", "--path", packages]
        pinned = subprocess.run(frozen, check=True, capture_output=True, text=True).stdout
        versions.write_text(pinned, encoding="utf-8")
    made.write_text(json.dumps([*told[:-1], pinned]))
    return python


def version_of(python: Path, package: str) -> str:
    """Of an installed package."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def ran(python: Path, cases: str, variables: dict[str, str]) -> dict[str, Any]:
    """The outcomes of a file of cases: how many passed, which failed, and which cannot, and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        file = HERE / f"{cases}_cases.py"
        command = [python, "-m", "pytest", "-q", "-c", HERE / "pytest.ini", "--junitxml", report, file]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{file.name} was not run: pytest says {done.returncode}")
        found = list(ElementTree.parse(report).iter("testcase"))
    failed, cannot = [], {}
    for case in found:
        name = str(case.get("name"))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is not None:
            cannot[name] = str(skipped.get("message"))
    return {"passed": len(found) - len(failed) - len(cannot), "failed": failed, "cannot": cannot}


def clients_table() -> str:
    """results.json, as docs/serving.md shows it: a row for each client, with what fails or cannot be."""
    lines = ["| client | version | cases that pass | of | |", "|---|---|---|---|---|"]
    for its in json.loads(RESULTS.read_text()).values():
        for cases, of in its.items():
            count = of["passed"] + len(of["failed"]) + len(of["cannot"])
            why = "; ".join([f"`{each}` fails" for each in of["failed"]] + list(of["cannot"].values()))
            name = DISTRIBUTIONS.get(cases, cases)
            lines.append(f"| {name} | {of['version']} | {of['passed']} | {count} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--renew", action="store_true", help="take the newest versions, and keep them")
    asked = parser.parse_args()
    names = asked.names or list(ENVIRONMENTS)
    pythons = {name: environment(name, ENVIRONMENTS[name], renew=asked.renew) for name in names}
    folder = prepare("smollm2")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = {name: results[name] for name in ENVIRONMENTS if name in results}
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "script.json"
        rules = [{"prompt": prompt, "text": text} for prompt, text in ANSWERS.items()]
        script.write_text(json.dumps({"rules": rules, "word_s": 1e-9}))
        with (
            serving("--model", "smollm2", "--device", "cpu", "--dtype", "float32") as real,
            serving("--model", f"scripted:{script}", "--name", "smollm2") as scripted,
        ):
            for name in names:
                python, its = pythons[name], ENVIRONMENTS[name]
                variables = {
                    "CLIENTS_URL": real.url,
                    "CLIENTS_SCRIPTED_URL": scripted.url,
                    "CLIENTS_MODEL_FOLDER": str(folder),
                    "PYTHONPATH": "",
                }
                results[name] = {
                    cases: {
                        "version": version_of(python, DISTRIBUTIONS.get(cases, cases)),
                        **ran(python, cases, variables),
                    }
                    for cases in its.cases
                }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    failed = [
        f"{cases}: {each}" for its in results.values() for cases, of in its.items() for each in of["failed"]
    ]
    print("\n".join(failed) or f"-> {RESULTS.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
