"""Help for terminals of 80 columns: options under headings, in two columns, without truncation."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from vitadel.cli.options import ATTACK, COMPUTE, DATA, EVALUATION, MODEL, OUTPUT, TRAINING

_OTHER = "Options"
_HEADINGS = ("Arguments", MODEL, DATA, TRAINING, EVALUATION, ATTACK, COMPUTE, OUTPUT, _OTHER)


class Command(TyperCommand):
    """A command whose help lists options under the headings of their `rich_help_panel`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments and required options, then a placeholder for the others."""
        parameters = self.get_params(ctx)
        arguments = [str(one.metavar) for one in parameters if one.param_type_name == "argument"]
        required = [
            f"{one.opts[0]} {one.metavar}" for one in parameters if one.required and one.opts[0].startswith("-")
        ]
        return [*arguments, *required, self.options_metavar or ""]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                listed["Arguments"].append((str(parameter.metavar), record[1].removesuffix("  [required]")))
            else:
                listed[getattr(parameter, "rich_help_panel", None) or _OTHER].append(record)
        for heading, records in listed.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group whose help shows the full description of each command."""

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
