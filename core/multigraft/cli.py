"""The `multigraft` command. Commands of the other packages are found by entry point and loaded only when called."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points, version

import click

from multigraft.validate_command import validate

COMMAND_GROUP = "multigraft.commands"
"""Entry points of this group are click commands by name."""

USAGE_ERROR = 2

_EXTRAS = {"multigraft_trainer": "trainer", "multigraft_operator": "operator"}
_SUMMARIES = {
    "run": "Train the jobs of a folder on this machine.",
    "plan": "Plan microbatches from sample lengths alone.",
}


class LazyGroup(click.Group):
    """A group whose commands may lie in packages that are not imported before they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_find_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = _find_entry_points().get(cmd_name)
        return _load(found) if found else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = self.commands
        names = self.list_commands(ctx)
        rows = [
            (name, own[name].get_short_help_str(limit=80) if name in own else _SUMMARIES.get(name, ""))
            for name in names
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _find_entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMAND_GROUP)}


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        package = point.module.partition(".")[0]
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("multigraft") or package not in _EXTRAS:
            raise
        click.echo(f"multigraft {point.name} needs {missing}: install multigraft[{_EXTRAS[package]}]", err=True)
        sys.exit(USAGE_ERROR)
    if not isinstance(command, click.Command):
        raise TypeError(f"entry point {point.value}: got {type(command).__name__}, want a click command")
    return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("multigraft"), prog_name="multigraft")
def main() -> None:
    """Train many LoRA adapters at once on one frozen base model."""


main.add_command(validate)
