"""The page about the command line has every option of every command, with its default."""

import re
from pathlib import Path

import pytest
import typer.main

from tailsum_studies.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "command_line.md"
COMMANDS = typer.main.get_command(app).commands


def section(command):
    """The rows of a command's tables: the option, and the cell of its default."""
    parts = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    (text,) = (text for title, text in parts.items() if command in title.split())
    rows = re.findall(r"^\| (`--.+?) \|.*\| ?(.*?) ?\|$", text, re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"--[a-z-]+", names)}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_the_page(command):
    found = section(command)
    options = [option for option in COMMANDS[command].params if option.opts[0].startswith("--")]
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    assert names - {"--help"} == found.keys() - (
        {"--samples", "--sentences", "--baselines", "--no-baselines"} if command == "explore" else set()
    )
    for option in options:
        if isinstance(option.default, (int, float)) and not isinstance(option.default, bool):
            assert float(found[option.opts[0]].replace(",", "")) == option.default, option.name
