"""`pd-handoff completion`: a script for bash, zsh or fish, made from the command line's own parsers."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass

from pd_handoff.cli import serve

HELP = "print a completion script for a shell"
DESCRIPTION = """\
Print a completion script, made from this very version's commands and options.

bash:  pd-handoff completion bash > ~/.local/share/bash-completion/completions/pd-handoff
zsh:   pd-handoff completion zsh > "${fpath[1]}/_pd-handoff"
fish:  pd-handoff completion fish > ~/.config/fish/completions/pd-handoff.fish"""

SHELLS = ("bash", "zsh", "fish")


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own options."""
    parser.add_argument("shell", choices=SHELLS)


@dataclass(frozen=True)
class Option:
    """One option: its flags, its help, its choices, and whether a value or a file follows."""

    flags: tuple[str, ...]
    text: str
    choices: tuple[str, ...] = ()
    value: bool = True
    file: bool = False


@dataclass(frozen=True)
class Command:
    """One command with its help, options, and the choices of its argument."""

    name: str
    text: str
    options: tuple[Option, ...]
    choices: tuple[str, ...] = ()


def run(args: argparse.Namespace) -> None:
    """Prints the script."""
    from pd_handoff.cli.arguments import parser  # noqa: PLC0415  # it knows this command, too

    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](commands_of(parser())))


def commands_of(parser: argparse.ArgumentParser) -> list[Command]:
    """The commands of a parser, with those of the server where it is installed."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    found = []
    for name, sub in subparsers.choices.items():
        actions = (serve.parser_of(name) or sub)._actions
        options = [option for action in actions if (option := _option(action))]
        choices = [action.choices for action in actions if not action.option_strings and action.choices]
        found.append(Command(name, helps[name], tuple(options), tuple(choices[0]) if choices else ()))
    return found


def _option(action: argparse.Action) -> Option | None:
    if not action.option_strings:
        return None
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return Option(
        tuple(action.option_strings),
        text.replace("%%", "%"),
        tuple(map(str, action.choices or (metavar.split("|") if "|" in metavar else ()))),
        action.nargs != 0,
        metavar in ("FILE", "DIR"),
    )


def _bash(commands: list[Command]) -> str:
    cases, values, files = [], {}, set()
    for command in commands:
        words = [flag for option in command.options for flag in option.flags] + list(command.choices)
        cases.append(f"    {command.name}) words={shlex.quote(' '.join(words))} ;;")
        for option in command.options:
            for flag in option.flags:
                if option.choices:
                    values[flag] = " ".join(option.choices)
                elif option.file:
                    files.add(flag)
    answers = {flag: f"-W {shlex.quote(text)}" for flag, text in values.items()}
    if files:
        answers["|".join(sorted(files))] = "-f"
    chosen = [f'    {flags}) COMPREPLY=($(compgen {how} -- "$word")); return ;;' for flags, how in answers.items()]
    names = " ".join(command.name for command in commands)
    return "\n".join(
        [
            "_pd_handoff() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
            "  if ((COMP_CWORD == 1)); then",
            f'    COMPREPLY=($(compgen -W {shlex.quote(names + " --help --version")} -- "$word"))',
            "    return",
            "  fi",
            '  case "$before" in',
            *chosen,
            "  esac",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            "complete -F _pd_handoff pd-handoff",
        ]
    )


def _zsh(commands: list[Command]) -> str:
    lines = ["#compdef pd-handoff", "_pd_handoff() {", "  local -a commands", "  commands=("]
    lines += [f"    {shlex.quote(command.name + ':' + _zsh_text(command.text))}" for command in commands]
    lines += ["  )", "  if ((CURRENT == 2)); then _describe command commands; return; fi", "  local name=$words[2]"]
    lines += ["  shift words", "  ((CURRENT--))", "  case $name in"]
    for command in commands:
        specs = [_zsh_spec(flag, option) for option in command.options for flag in option.flags]
        if command.choices:
            specs.append(shlex.quote(f"1:choice:({' '.join(command.choices)})"))
        lines.append(f"    {command.name}) _arguments {' '.join(specs)} ;;")
    # Read by `source` it registers itself; from a file in fpath it is the function's own body.
    end = [
        "  esac",
        "}",
        'if [ "$funcstack[1]" = "_pd-handoff" ]; then _pd_handoff "$@"',
        "else compdef _pd_handoff pd-handoff",
        "fi",
    ]
    return "\n".join([*lines, *end])


def _zsh_spec(flag: str, option: Option) -> str:
    text = f"{flag}[{_zsh_text(option.text)}]"
    if option.value:
        text += ":value:" + (f"({' '.join(option.choices)})" if option.choices else "_files" if option.file else "")
    return shlex.quote(text)


def _zsh_text(text: str) -> str:
    return text.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", ",")


def _fish(commands: list[Command]) -> str:
    names = " ".join(command.name for command in commands)
    first = f"not __fish_seen_subcommand_from {names}"
    lines = ["complete -c pd-handoff -f"]
    for command in commands:
        lines.append(f"complete -c pd-handoff -n {_fish_text(first)} -a {command.name} -d {_fish_text(command.text)}")
        seen = _fish_text(f"__fish_seen_subcommand_from {command.name}")
        if command.choices:
            lines.append(f"complete -c pd-handoff -n {seen} -a {_fish_text(' '.join(command.choices))}")
        for option in command.options:
            for flag in option.flags:
                kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                value = f" -x -a {_fish_text(' '.join(option.choices))}" if option.choices else ""
                value = value or (" -r -F" if option.file else " -x" if option.value else "")
                lines.append(f"complete -c pd-handoff -n {seen} {kind}{value} -d {_fish_text(option.text)}")
    return "\n".join(lines)


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
