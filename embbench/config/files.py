"""From YAML files and command-line overrides to a `RunConfig`, with errors that name the key.

In: a path or the name of a ready-made config, overrides, ``key=value`` settings. Out: a resolved
`RunConfig`, or a `ConfigError` of one line that says which key, in which file, and what to write.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from embbench.config.schema import RunConfig, TargetConfig
from embbench.errors import ConfigError

DEFAULT = "quick"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML in which a key that stands twice is an error, not a silent replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: '{key}' stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def ready_made() -> dict[str, Path]:
    """The configs that come with embbench, by name."""
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def read_config(
    source: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    only_targets: Sequence[str] = (),
) -> RunConfig:
    """The run that ``source`` describes: the path of a YAML file or the name of a ready-made one.

    ``overrides`` replace top-level keys, ``settings`` are ``dotted.key=value`` with YAML values,
    and ``only_targets`` keeps these targets, in this order.
    """
    path = _find(source)
    raw = {"name": path.stem, **_parse(path.read_text(), str(path))}
    return resolve(
        raw, str(path), overrides=overrides, settings=settings, only_targets=only_targets
    )


def resolve(
    raw: dict[str, Any],
    where: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    only_targets: Sequence[str] = (),
) -> RunConfig:
    """`read_config` on keys that were read already; ``where`` is named in errors."""
    raw = {**raw, **(overrides or {})}
    for setting in settings:
        _apply(raw, setting)
    if only_targets:
        raw["targets"] = _subset(raw, only_targets, where)
        for key in ("floor", "baseline"):
            if raw.get(key) not in raw["targets"]:
                raw.pop(key, None)
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as exc:
        raise ConfigError(f"{where}: {_describe(exc)}") from exc


def _find(source: str) -> Path:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"{path}: no such config file")
        return path
    known = ready_made()
    if source in known:
        return known[source]
    raise ConfigError(
        f"--config {source}: neither a .yaml file nor a ready-made config "
        f"({_nearest(source, known)})"
    )


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        raw = yaml.load(text, _UniqueKeyLoader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(exc).split())}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: a config is a mapping of keys; see configs/quick.yaml")
    return raw


def _apply(raw: dict[str, Any], setting: str) -> None:
    """Set ``a.b.0.c=value`` in ``raw``; what lies below is copied, not changed."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting}: write key=value, such as --set generator.processes=2")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ConfigError(f"--set {setting}: the value is not YAML") from exc
    parts = key.split(".")
    if len(parts) > 1:
        _fill_default(raw, parts[0])
    _set(raw, parts, value, setting)


def _set(node: Any, parts: list[str], value: Any, setting: str) -> None:
    """Set what ``parts`` lead to; ``*`` stands for every item of a list."""
    part, *rest = parts
    if isinstance(node, list):
        if part == "*":
            places = range(len(node))
        elif part.isdigit() and int(part) < len(node):
            places = range(int(part), int(part) + 1)
        else:
            raise ConfigError(f"--set {setting}: '{part}' is not one of 0 to {len(node) - 1} or *")
        for place in places:
            node[place] = _changed(node[place], rest, value, setting)
    elif isinstance(node, dict):
        node[part] = _changed(node.get(part, {}), rest, value, setting)
    else:
        key = ".".join(setting.partition("=")[0].split(".")[: -len(parts)])
        raise ConfigError(f"--set {setting}: '{key}' holds a value, not keys")


def _changed(old: Any, parts: list[str], value: Any, setting: str) -> Any:
    if not parts:
        return value
    copy = old.copy() if isinstance(old, dict | list) else old
    _set(copy, parts, value, setting)
    return copy


def _fill_default(raw: dict[str, Any], key: str) -> None:
    """Write out the default of a key that the file leaves out, so that a part of it can be set."""
    if key not in raw and key in RunConfig.model_fields:
        raw[key] = RunConfig().model_dump(mode="json")[key]


def _subset(raw: dict[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    _fill_default(raw, "targets")
    targets = raw["targets"]
    for name in names:
        if name not in targets:
            raise ConfigError(f"{where}: no target '{name}'; {_nearest(name, targets)}")
        if names.count(name) > 1:
            raise ConfigError(f"--targets names '{name}' twice")
    return {name: targets[name] for name in names}


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"


def _describe(error: ValidationError) -> str:
    """The first fault in one line: the key as a user writes it, what is wrong, what to write."""
    fault = error.errors()[0]
    path, model = _locate(fault["loc"])
    if fault["type"] == "extra_forbidden":
        unknown = str(fault["loc"][-1])
        return f"{path}: unknown key; {_nearest(unknown, model.model_fields)}"
    if fault["type"] == "union_tag_not_found":
        return f"{path}: key 'kind' is missing; kinds are: {', '.join(_kinds())}"
    if fault["type"] == "union_tag_invalid":
        return f"{path}.kind: {_nearest(fault['ctx']['tag'], _kinds())}"
    message = fault["msg"].removeprefix("Value error, ")
    value = fault.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) else f", not {value!r}"
    message = message[:1].lower() + message[1:]
    return f"{path}: {message}{shown}" if path else message


def _kinds() -> dict[str, type[BaseModel]]:
    return {m.model_fields["kind"].default: m for m in get_args(get_args(TargetConfig)[0])}


def _locate(location: tuple[int | str, ...]) -> tuple[str, type[BaseModel]]:
    """The dotted key of a fault, without pydantic's union tags, and the model that it lies in."""
    kinds = _kinds()
    model: type[BaseModel] = RunConfig
    path = ""
    for depth, part in enumerate(location):
        if depth == 2 and location[0] == "targets" and part in kinds:
            model = kinds[part]
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
        if isinstance(part, str) and part in model.model_fields and depth < len(location) - 1:
            model = _inner_model(model.model_fields[part].annotation) or model
    return path.lstrip("."), model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_inner_model(arg) for arg in get_args(annotation))
    return next((model for model in inner if model is not None), None)
