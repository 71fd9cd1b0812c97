"""What a user can set once instead of with every command, and where each value comes from.

flag > FK_* variable > [tool.fastkernels] in the nearest pyproject.toml > registry/settings.yaml > default

settings = resolve(device="cpu", size=None)         flags that were not given are None
settings.device, settings.origin("device")          "cpu", "flag"
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.layout import data_dir, default_candidates_dir, default_state_dir
from fastkernels.records.base import Device, Size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

PREFIX = "FK_"


class Settings(BaseSettings):
    """Every setting; `auto` and None mean that the command decides from the machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"  # cuda where there is one
    size: Literal["auto", "tiny", "full"] = "auto"  # full on CUDA, tiny on a CPU
    suite: str = "default"  # of `fk eval`
    candidates: Path | None = None  # the folder of the user's candidates
    state_dir: Path | None = None  # history and caches
    tracking: bool = True  # log runs to MLflow

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def origin(self, name: str) -> str:
        """`flag`, `FK_DEVICE`, `/home/me/project/pyproject.toml`, `registry/settings.yaml` or `default`."""
        return self._origins.get(name, "default")

    @property
    def device_asked(self) -> Device | None:
        """None for `auto`."""
        return None if self.device == "auto" else self.device

    @property
    def size_asked(self) -> Size | None:
        """None for `auto`."""
        return None if self.size == "auto" else self.size

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        files = (InitSettingsSource(settings_cls, values) for _, values in _files())
        return (init_settings, env_settings, *files)


def resolve(**flags: Any) -> Settings:
    """The settings with these flags over them; UsageError for a wrong value names its origin."""
    given = {name: value for name, value in flags.items() if value is not None}
    layers = [("flag", given), *_variables(), *_files()]
    origins = {name: origin for origin, values in reversed(layers) for name in values}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(
            f"{origins.get(name, 'flag')}: {name}: {first['msg']}, got {first['input']!r}"
        ) from None
    settings._origins.update(origins)
    return settings


def _variables() -> list[tuple[str, dict[str, Any]]]:
    found = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in Settings.model_fields}
    return [(f"{PREFIX}{name.upper()}", {name: value}) for name, value in found.items() if value]


def _files() -> list[tuple[str, dict[str, Any]]]:
    """The two files that may hold settings, the user's first."""
    found = []
    path = nearest_pyproject(Path.cwd())
    if path is not None:
        found.append((str(path), _pyproject(path)))
    path = data_dir("registry") / "settings.yaml"
    if path.is_file():
        found.append(("registry/settings.yaml", _known(path, _yaml(path))))
    return found


def state_dir() -> Path:
    """Where history and caches go; made by who writes there first."""
    chosen = resolve().state_dir
    return Path(os.path.expanduser(chosen)) if chosen else default_state_dir()


def candidates_dir() -> Path:
    """Where `fk stubs` writes and where candidates are looked for."""
    chosen = resolve().candidates
    return Path(os.path.expanduser(chosen)) if chosen else default_candidates_dir()


def nearest_pyproject(folder: Path) -> Path | None:
    """The pyproject.toml of the folder or of the closest folder above it."""
    return next(
        (path for parent in (folder, *folder.parents) if (path := parent / "pyproject.toml").is_file()), None
    )


def _pyproject(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(path, "", str(error)) from None
    except OSError as error:
        raise FileFormatError(path, "", error.strerror or str(error)) from error
    return _known(path, document.get("tool", {}).get("fastkernels", {}))


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise FileFormatError(path, f"line {mark.line + 1}" if mark else "", str(error)) from None


def _known(path: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise FileFormatError(path, "[tool.fastkernels]", f"expected a table of settings, got {values!r}")
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    for name in values:
        if name not in Settings.model_fields:
            settings = list(Settings.model_fields)
            there = f"docs/commands.md (the settings are {', '.join(settings)})"
            raise NotFoundError(f"setting in {path},", name, settings, there)
    return values
