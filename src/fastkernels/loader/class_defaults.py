"""What a config.json leaves out: the defaults of the class that transformers has for its model_type.

A key that is there keeps its value, also if that is null. A section that the class declares is completed by
the class that it declares, whatever model_type the section says (Qwen2-VL's vision_config says that of the
whole), another one by its own model_type. A configuration whose model_type transformers does not know stays
as it is: the model names what it lacks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the fields that it lacks, in the sections too."""
    if not isinstance(kind := config.get("model_type"), str):
        return _by_their_model_types(config)
    if (cls := transformers_class(kind)) is None:
        return _by_their_model_types(config)
    return _completed(config, cls)


def transformers_class(kind: str) -> Any:
    """Its class of a model_type, or None. Its own, also where a library that was imported (fla) has
    registered another one in CONFIG_MAPPING."""
    import transformers
    from transformers.models.auto import configuration_auto

    names = configuration_auto.CONFIG_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]
    return getattr(transformers, names[kind]) if kind in names else None


def _by_their_model_types(config: Mapping[str, Any], declared: Collection[str] = ()) -> dict[str, Any]:
    """Its sections completed, but those that its class declares."""
    return {
        key: completed(value)
        if isinstance(value, Mapping) and "model_type" in value and key not in declared
        else value
        for key, value in config.items()
    }


def _completed(config: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    parts = {name: part for name, part in cls.sub_configs.items() if dataclasses.is_dataclass(part)}
    config = _by_their_model_types(config, parts)
    aliases = {
        name: config[alias]
        for alias, name in cls.attribute_map.items()
        if alias in config and name not in config
    }
    whole = {**_defaults(cls), **config, **aliases}
    for name, part in parts.items():
        if isinstance(section := whole.get(name) or {}, Mapping):
            whole[name] = _completed(section, part)
    # Of a section that may be of any class: the one that the class makes where there is none.
    for name in cls.sub_configs.keys() - parts.keys() - config.keys():
        if (section := getattr(cls(), name)) is not None:
            whole[name] = section.to_dict()
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
