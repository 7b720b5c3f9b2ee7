"""Documentation pages that are made from the code: the command line and the config keys."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_HEAD = "<!-- Made by scripts/docs from the code; change it there. -->\n"


def cli_page() -> str:
    """Every verb with its arguments and options, as Markdown."""
    from embbench.cli import app

    root: Any = typer.main.get_command(app)
    lines = [_HEAD, "# Command line\n"]
    lines.append("Options of the config come first from the command line, then from the file.\n")
    for name, verb in root.commands.items():
        lines.append(f"## embbench {name}\n")
        lines.append(f"{(verb.help or '').strip()}\n")
        rows = [row for parameter in verb.params if (row := _row(parameter))]
        if rows:
            lines += ["| option | what |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    names = parameter.opts if parameter.param_type_name == "option" else [_shown(parameter)]
    text = re.sub(r"\s+", " ", getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| {', '.join(f'`{name}`' for name in names)} | {text} |"


def _shown(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def config_page() -> str:
    """Every key of a config with its type and default, as Markdown."""
    from embbench.config.schema import RunConfig, TargetConfig

    lines = [_HEAD, "# Config keys\n"]
    lines.append(
        "A config is a YAML file (see `configs/`). Unknown keys are errors that name the nearest "
        "key. Any key can be set from the command line: `--set generator.processes=2`.\n"
    )
    models = list(dict.fromkeys(_models(RunConfig)))
    targets = get_args(get_args(TargetConfig)[0])
    for model in [*[m for m in models if m not in targets], *targets]:
        lines.append(f"## {_title(model)}\n")
        lines.append(f"{inspect.getdoc(model)}\n")
        lines += ["| key | what | type | default |", "|---|---|---|---|"]
        for key, field in model.model_fields.items():
            what = field.description or ""
            lines.append(f"| `{key}` | {what} | {_type(field.annotation)} | {_default(field)} |")
        lines.append("")
    return "\n".join(lines)


def _title(model: type[BaseModel]) -> str:
    kind = model.model_fields.get("kind")
    return f"Target of kind `{kind.default}`" if kind else model.__name__


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for inner in _inner(field.annotation):
            yield from _models(inner)


def _inner(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _inner(argument)


def _type(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else ""
    text = text or re.sub(r"typing\.|embbench\.config\.schema\.", "", str(annotation))
    text = re.sub(r"Annotated\[([^,\]]+), .*?\](?=[,\]\s|]|$)", r"\1", text)
    text = re.sub(r"\b(FieldInfo|BeforeValidator|Strict|Gt|Ge)\([^)]*\)", "", text)
    text = re.sub(r"Optional\[(\w+)\]", r"\1 | None", text)
    return f"`{text}`".replace("|", "\\|")


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, dict) and value:
        return ", ".join(f"`{key}`" for key in value)
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return "as in `configs/quick.yaml`"
    return f"`{value!r}`" if value == "" else f"`{value}`"
