"""deploy/: what its files name exists. No image is built here; their commands are read, and its steps run."""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglc.cli.serve import add_serve
from tests.serving import ROOT
from tests.waiting import until

DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The Dockerfile's instructions by stage, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", "")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found[rest.rpartition(" AS ")[2]] = []
        list(found.values())[-1].append((name, rest))
    return found


def served(words: list[str]) -> argparse.Namespace:
    """The options of a command line `sglc serve ...`, as the command reads them."""
    program, *rest = words
    assert Path(program).name in PROJECT["scripts"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serve(parser.add_subparsers())
    return parser.parse_args(rest)


@pytest.mark.parametrize(("stage", "device"), [("cpu", "auto"), ("cuda", "cuda")])
def test_an_image_starts_a_server(stage: str, device: str) -> None:
    told = dict(stages()[stage])
    options = served(json.loads(told["ENTRYPOINT"]) + json.loads(told["CMD"]))
    assert (options.host, options.port, options.device, options.model) == ("0.0.0.0", 8000, device, "smollm2")
    assert told["EXPOSE"] == "8000"
    health = json.loads(told["HEALTHCHECK"].partition(" CMD ")[2])
    assert ":8000/health" in health[-1]
    compile(health[-1], "HEALTHCHECK", "exec")
    assert told["USER"] == "sglc"


def test_an_image_installs_what_there_is() -> None:
    """Files that are copied, extras, and the versions that the project is tested with."""
    base = stages()["base"]
    copied = {name for kind, rest in base if kind == "COPY" for name in rest.split()[:-1]}
    assert {"pyproject.toml", "constraints.txt", "sglc", PROJECT["readme"], *PROJECT["license-files"]} == copied
    assert all((ROOT / name).exists() for name in copied)
    assert any(
        "apt-get install" in rest and " g++ " in rest for kind, rest in base if kind == "RUN"
    )  # kernels'
    for stage in ("cpu", "cuda"):
        runs = [shlex.split(rest) for kind, rest in stages()[stage] if kind == "RUN"]
        (install,) = [words for words in runs if words[:2] == ["pip", "install"]]
        assert install[install.index("--constraint") + 1] == "constraints.txt"
        extras = re.fullmatch(r"\.\[(.*)\]", install[-1])
        assert extras is not None
        assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
        assert "server" in extras[1]
        image = next(rest for kind, rest in base if kind == "FROM")
        assert "python:3.11" in image
        assert PROJECT["requires-python"] == ">=3.11"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_steps_of_an_image_run_in_a_bare_environment(tmp_path: Path, smollm2: Path) -> None:
    """All but the system's own packages and users: what is installed of what is copied serves."""
    base, told = stages()["base"], dict(stages()["cpu"])
    assert shutil.which("g++")
    source, python = tmp_path / "src", tmp_path / "env" / "bin" / "python"
    for kind, rest in base:
        if kind == "COPY":
            *names, to = rest.split()
            (source / to).mkdir(parents=True, exist_ok=True)
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / to, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / name, source / to)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean.setdefault("PIP_RETRIES", "1")  # of two indexes, one may be out of reach
    clean["PATH"] = f"{python.parent}:{clean['PATH']}"
    subprocess.run(shlex.split(told["RUN"]), check=True, cwd=source, env=clean)
    shutil.rmtree(source)
    words = json.loads(told["ENTRYPOINT"]) + json.loads(told["CMD"])
    words[words.index("--port") + 1] = "0"
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(words, cwd=tmp_path, env=clean, stderr=log) as server,
    ):
        try:
            until(lambda: " at http" in (tmp_path / "log").read_text(), "it does not serve")
            port = re.search(r"http://[\d.]+:(\d+)", (tmp_path / "log").read_text())
            assert port is not None
            program, *health = json.loads(told["HEALTHCHECK"].partition(" CMD ")[2])
            asked = [part.replace(":8000", f":{port[1]}") for part in health]
            subprocess.run([program, *asked], check=True, cwd=tmp_path, env=clean)
        finally:
            server.terminate()
    assert server.returncode == 0


def test_the_unit_starts_a_server() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "sglc.service")
    service = unit["Service"]
    options = served(shlex.split(service["ExecStart"]))
    assert options.access_log
    assert options.api_key_file == ["${CREDENTIALS_DIRECTORY}/keys"]
    assert service["LoadCredential"].startswith("keys:")
    assert int(service["TimeoutStopSec"]) > options.drain_timeout


def test_variables_are_known() -> None:
    from sglc import knobs

    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    named = set(re.findall(r"\bSGLC_[A-Z_]+", text))
    assert named
    assert named <= set(re.findall(r"\bSGLC_[A-Z_]+", Path(knobs.__file__).read_text()))


def test_compose_names_what_there_is() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    build = services["sglc"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    entry = json.loads(dict(stages()[build["target"]])["ENTRYPOINT"])
    served(entry + services["sglc"]["command"])
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith("./") else source in compose["volumes"]
        # Nobody but this machine is let in by default.
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["metrics_path"] == "/metrics"
    (target,) = scraped["static_configs"][0]["targets"]
    assert target.partition(":")[0] in services
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"].removeprefix("http://").partition(":")[0] in services
    boards = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/sglc.yaml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    assert any(folder in volume for volume in services["grafana"]["volumes"])


@pytest.mark.slow
def test_a_source_archive_has_no_tests(tmp_path: Path) -> None:
    """setuptools would add `tests/test*.py` and nothing that these import."""
    for name in ("pyproject.toml", "MANIFEST.in", PROJECT["readme"], *PROJECT["license-files"]):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("sglc/__init__.py", "tests/test_a.py", "tests/helper.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    code = "from setuptools.build_meta import build_sdist; build_sdist('.')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "sglc/__init__.py" in names
    assert [name for name in names if name.startswith("tests")] == []
