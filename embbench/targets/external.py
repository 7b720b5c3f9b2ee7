"""Kind `external`: a server that is already up. Nothing is started, nothing is ended."""

import os
from urllib.parse import urlsplit

from embbench.config.schema import ExternalTarget
from embbench.errors import ConfigError
from embbench.targets.ports import Ports
from embbench.targets.recipe import Context, Recipe


def base_url(url: str, where: str = "url") -> str:
    """``url`` as a base URL: "/v1" is added where there is no path, "/embeddings" is cut off.

    Raises `ConfigError` if it is no http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{where}: '{url}' is no http:// or https:// URL")
    path = parts.path.rstrip("/").removesuffix("/embeddings")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def recipe(name: str, config: ExternalTarget, ports: Ports, context: Context) -> Recipe:  # noqa: ARG001 - one signature for all kinds
    """No processes; the key, if any, comes from the environment."""
    headers = {}
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise ConfigError(
                f"targets.{name}.api_key_env: environment variable {config.api_key_env} is not set"
            )
        headers["Authorization"] = f"Bearer {key}"
    url = base_url(config.url, f"targets.{name}.url")
    parts = urlsplit(url)
    return Recipe(
        specs=(),
        base_url=url,
        model=config.model or context.model,
        headers=headers,
        metrics_url=f"{parts.scheme}://{parts.netloc}/metrics",
    )
