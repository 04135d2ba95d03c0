"""`sglc doctor` says what runs take here: the kernels, their products as measured, and why there are none."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from sglc.cli import doctor, main
from sglc.runtime.kernels import cpu_build


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["doctor"]) == 0
    return dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())


@pytest.mark.model
@pytest.mark.parametrize("faster", ["integers", "floats"])
def test_what_was_chosen(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], faster: str
) -> None:
    from sglc.runtime.executor import cpu_choice
    from sglc.runtime.executor.cpu_executor import free_cores
    from sglc.runtime.model.packed_weights import read_packed

    library = cpu_build.library()
    if library is None:
        pytest.skip("there is no compiler")
    monkeypatch.setenv("SGLC_MODEL", str(smollm2))
    seconds = {"floats": [2.0, 2.0, 2.0], "integers": [2.0, 2.0, 2.0], faster: [1.0, 1.0, 1.0]}
    monkeypatch.setattr(cpu_choice, "_read", lambda file: seconds)
    found = said(capsys)
    ratios = "2.00, 2.00, 2.00" if faster == "integers" else "0.50, 0.50, 0.50"
    kept = Path(library._name).with_suffix(f".{free_cores()}.json")
    assert found["products"] == (
        f"codes by {faster}; integers are {ratios} times as fast at 1, 16, 128 rows (kept in {kept})"
    )
    assert (found["torch"], found["kernels"]) == (version("torch"), library._name)
    assert found["cores"].startswith(f"{free_cores()} of ")
    assert found["model"] == f"{smollm2}, in {smollm2}"
    kinds = [matrix.kind.name for matrix in read_packed(smollm2).values()]
    assert found["matrices"].startswith(f"{kinds.count('Q4')} Q4, {kinds.count('Q8')} Q8; ")


def test_a_model_that_is_not_there_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path))
    monkeypatch.setenv("SGLC_CPU_KERNELS", "off")
    found = said(capsys)
    assert found["kernels"] == "none, as `SGLC_CPU_KERNELS=off` asks: torch computes"
    assert found["model"] == "smollm2: `smollm2` is not on this machine yet"
    assert not list(tmp_path.iterdir())


def test_why_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "")
    found = said(capsys)
    assert found["kernels"].startswith("none, torch computes: there is no C++ compiler")
    assert not {"compiler", "products", "matrices"} & found.keys()


def test_a_compiler_that_is_not_here_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "c++"
    found.write_text("#!/bin/sh\nexit 1\n")
    found.chmod(0o755)
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "nosuch")
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert f"compiler: {found} (`CXX` names `nosuch`, which is not here)\n" in out
    assert (
        err
        == f"sglc: `CXX` names `nosuch`, which is not here, so `{found}` compiles the kernels for this CPU\n"
    )


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    found = said(capsys)
    assert found["torch"].endswith("models cannot run here (`pip install sglc[local]`)")
    assert list(found) == ["processor", "instructions", "torch"]
