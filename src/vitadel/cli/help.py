"""Help that reads well at 80 columns: options under headings, in two columns, nothing cut off."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_OTHER = "Options"


class Command(TyperCommand):
    """A command whose help lists options under the headings of their `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        arguments = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append((record[0].split(" <")[0], record[1]))
            else:
                heading = getattr(parameter, "rich_help_panel", None) or _OTHER
                headings.setdefault(heading, []).append(record)
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        for heading in sorted(headings, key=lambda one: one == _OTHER):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])


class Group(TyperGroup):
    """A group whose help shows what each command does, in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None) or "Commands"
                heading = heading if isinstance(heading, str) else "Commands"
                listed.setdefault(heading, []).append((name, command.get_short_help_str(1000)))
        for heading, rows in listed.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def application(text: str) -> typer.Typer:
    """An application without commands."""
    return typer.Typer(
        help=text,
        cls=Group,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
