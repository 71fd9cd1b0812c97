"""Typed access to a Hugging Face configuration. Every complaint is a UsageError that names the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fastkernels.errors import UsageError

T = TypeVar("T")
REQUIRED: Any = object()


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a model of several parts the language model's configuration: its section, and what is said for all
    parts. Older files say all of it there, and their section holds defaults alone. Of a model that speaks, of
    the half that reads."""
    config = config.get("thinker_config") or config
    section = config.get("text_config")
    return {**section, **config} if isinstance(section, Mapping) else config


class ConfigReader:
    """`reader.integer("hidden_size")`. `default` stands for an absent or null key; without it: required."""

    def __init__(self, config: Mapping[str, Any], prefix: str = "") -> None:
        if not isinstance(config, Mapping):
            raise UsageError(f"Configuration {prefix or 'of a model'}: expected a dictionary, got {config!r}")
        self.config, self.prefix = config, prefix

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.config.get(key) is not None

    def integer(self, key: str, default: Any = REQUIRED, minimum: int = 1) -> Any:
        value = self._value(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"must be an integer of at least {minimum}, not {value!r}")
        return value

    def num_labels(self) -> int:
        """Of classes: a checkpoint's file names them (`id2label`), ours counts them. Where neither is said
        there are two, as in transformers."""
        names = self.config.get("id2label") or ()
        return self.integer("num_labels", default=len(names) or 2)

    def integers(self, key: str) -> list[int]:
        """A list of integers, each at least 1, and at least one of them."""
        value = self._value(key, REQUIRED)
        are = (
            isinstance(value, (list, tuple)) and value and all(type(one) is int and one > 0 for one in value)
        )
        if not are:
            raise self.error(key, f"must be a list of positive integers, not {value!r}")
        return list(value)

    def names(self, key: str, count: int, supported: Sequence[str]) -> list[str]:
        """A list of so many names, as of the kind of each layer, all of them supported."""
        value = self._value(key, REQUIRED)
        if not isinstance(value, (list, tuple)) or len(value) != count:
            raise self.error(key, f"must be a list of {count} names, not {value!r}")
        if unknown := [name for name in value if name not in supported]:
            raise self.error(key, f"{unknown[0]!r} is not supported; supported: {', '.join(supported)}")
        return list(value)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive float."""
        value = self._value(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.error(key, f"must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def choice(self, key: str, choices: Mapping[str, T], default: str = REQUIRED) -> T:
        """The meaning of a name, from a table of those that are supported."""
        name = self._value(key, default)
        if not isinstance(name, str) or name not in choices:
            raise self.error(key, f"{name!r} is not supported; supported: {', '.join(choices)}")
        return choices[name]

    def section(self, key: str) -> ConfigReader:
        """A nested dictionary; empty if absent or null."""
        return ConfigReader(self._value(key, {}), f"{self.prefix}{key}.")

    def refuse(self, keys: Iterable[str], neutral: tuple[Any, ...] = (None, False)) -> None:
        """Features that are not supported: their keys must be absent or hold a value that means `off`."""
        for key in keys:
            if self.config.get(key) not in neutral:
                raise self.error(key, f"{self.config[key]!r} is not supported")

    def error(self, key: str, problem: str) -> UsageError:
        return UsageError(f"Model configuration, {self.prefix}{key}: {problem}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is None:
            if default is REQUIRED:
                raise self.error(key, "is missing")
            return default
        return value
