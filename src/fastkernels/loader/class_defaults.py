"""What a config.json leaves out: the defaults of the class that transformers has for its model_type.

A key that is there keeps its value, also if that is null. A section with a model_type of its own, or one that
the class declares, is completed likewise. A configuration whose model_type transformers does not know stays
as it is: the model names what it lacks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the fields that it lacks, in the sections too."""
    sections = {
        key: completed(value)
        for key, value in config.items()
        if isinstance(value, Mapping) and "model_type" in value
    }
    whole = {**config, **sections}
    if not isinstance(kind := config.get("model_type"), str):
        return whole
    from transformers import CONFIG_MAPPING

    return _completed(whole, CONFIG_MAPPING[kind]) if kind in CONFIG_MAPPING else whole


def _completed(config: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    aliases = {
        name: config[alias]
        for alias, name in cls.attribute_map.items()
        if alias in config and name not in config
    }
    whole = {**_defaults(cls), **config, **aliases}
    for name, part in cls.sub_configs.items():
        if dataclasses.is_dataclass(part) and isinstance(section := whole.get(name) or {}, Mapping):
            whole[name] = _completed(section, part)
    return whole


def _defaults(cls: Any) -> dict[str, Any]:
    """Of the fields that the class adds to those of all classes. None is left out: it stands for a value that
    the model derives from others."""
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields = [field for field in dataclasses.fields(cls) if field.name not in common]
    found = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in fields
    }
    if "rope_parameters" in found:
        found["rope_theta"] = cls.default_theta  # no field of a class, but a key of many files
    return {name: value for name, value in found.items() if value not in (None, dataclasses.MISSING)}
