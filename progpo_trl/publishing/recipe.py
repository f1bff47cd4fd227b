"""The recipe of a run, as far as publishing reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from progpo_trl.publishing.errors import PublishError
from progpo_trl.settings_sections import SECTIONS
from progpo_trl.settings_values import SettingsError, convert, one_line, read_file

_TEXTS = ("model_name_or_path", "prompt_template", "system_prompt", "output_dir")


def read_recipe(path: Path) -> dict[str, Any]:
    """The settings in a recipe, by name. PublishError, which says where, for those that cannot be what they should."""
    if not path.is_file():
        raise PublishError(f"{path}: there is no such file; name the recipe of this run with --config FILE")
    try:
        settings = read_file(path)
        values = {name: setting.value for name, setting in settings.items()}
        for name in settings.keys() & set(_TEXTS):
            values[name] = convert(name, settings[name], str | None)
        for name in settings.keys() & set(SECTIONS):
            section = settings[name]
            if convert(name, section, dict | None) and "name" in section.children:
                values[name]["name"] = convert(f"{name}.name", section.children["name"], str | None)
    except (SettingsError, OSError) as error:
        raise PublishError(one_line(error)) from error
    return values
