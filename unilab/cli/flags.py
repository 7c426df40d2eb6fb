"""Flags of a command line, parsed by their Python types; errors are one line and name what is allowed.

`--num-envs 4096 --steps 1e6 --algo.actor-hidden 256 128 --digest --algo.no-mirror --task.rewards.alive=0.5`
"""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unilab.cli.errors import UsageError

HELP = ("-h", "--help")
WORDS = {int: "a whole number such as 4096 or 1e6", float: "a number", bool: "true, false", type(None): "none"}


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        hint: type of its value; `bool` takes none and has an opposite, `--no-...`.
        help: one line or two.
        metavar: stands for the value in the help.
        field: the dotted name of the field that it sets, where that differs from the flag's own.
    """

    hint: Any
    help: str = ""
    metavar: str = ""
    field: str = ""


@dataclass(frozen=True)
class Arguments:
    """A parsed command line: what stood alone, and the values of the flags that were given, by name."""

    positional: list[str]
    values: dict[str, Any]


def parse(args: Sequence[str], flags: Mapping[str, Flag], see: str) -> Arguments:
    """Parse `args`; `flags` is by name without dashes in front, such as "algo.learning-rate".

    Args:
        see: command that shows the help, for errors that have nothing better to offer.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has one that is not allowed.
    """
    rest = list(args)
    positional: list[str] = []
    values: dict[str, Any] = {}
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            if token.startswith("-") and len(token) > 1:
                raise UsageError(f"unknown flag {token}; see {see}")
            positional.append(token)
            continue
        spelled, equals, attached = token.removeprefix("--").partition("=")
        name, is_negated = _named(spelled, flags)
        if name is None:
            raise UsageError(f"unknown flag --{spelled}; {_nearest(spelled, flags, see)}")
        if equals:
            rest.insert(0, attached)
        hint = flags[name].hint
        if hint is bool:
            explicit = bool(rest) and (bool(equals) or rest[0].lower() in ("true", "false"))
            values[name] = (_value(name, rest.pop(0), bool) if explicit else True) is not is_negated
        elif _is_tuple(hint):
            values[name] = _take_tuple(name, rest, hint)
        else:
            if not rest or (not equals and rest[0].startswith("--")):
                raise UsageError(f"--{name} needs a value" + (f": {allowed(hint)}" if hint is not str else ""))
            values[name] = _value(name, rest.pop(0), hint)
    return Arguments(positional, values)


def one_positional(arguments: Arguments, what: str, usage: str) -> str:
    """The one argument that a command takes.

    Raises:
        UsageError: there is none, or more than one.
    """
    if not arguments.positional:
        raise UsageError(f"which {what}? usage: {usage}")
    if len(arguments.positional) > 1:
        raise UsageError(f"unexpected argument {arguments.positional[1]!r}; usage: {usage}")
    return arguments.positional[0]


def require_at_least(values: Mapping[str, Any], **least: int) -> None:
    """Check flags with a smallest value.

    Raises:
        UsageError: one is smaller.
    """
    for name, smallest in least.items():
        if values.get(name, smallest) < smallest:
            raise UsageError(f"--{name} is {values[name]}; allowed: at least {smallest}")


def flags_of(config: Any, prefix: str = "") -> dict[str, Flag]:
    """A flag for each field of a (nested) dataclass and each entry of its dictionaries; `config` is an instance."""
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        path, value, hint = f"{prefix}{field.name}", getattr(config, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            found |= {flag.field: flag.hint for flag in flags_of(value, f"{path}.").values()}
        elif isinstance(value, dict):
            item = typing.get_args(hint)[1] if typing.get_args(hint) else float
            found |= {f"{path}.{key}": item for key in value}
        else:
            found[path] = hint
    return {path.replace("_", "-"): Flag(hint, field=path) for path, hint in found.items()}


def convert(text: str, hint: Any) -> Any:
    """The value of type `hint` that a text stands for.

    Raises:
        ValueError: it stands for none.
    """
    for option in _options(hint):
        try:
            return _converted(text, option)
        except (ValueError, OverflowError):
            continue
    raise ValueError(text)


def allowed(hint: Any) -> str:
    """What may stand for a value of type `hint`, in words."""
    if _is_tuple(hint):
        items = typing.get_args(hint)
        if Ellipsis in items:
            return f"{allowed(items[0])}, one or more with spaces between"
        return " and ".join(map(allowed, items))
    words: list[str] = []
    for option in _options(hint):
        if typing.get_origin(option) is Literal:
            words += map(str, typing.get_args(option))
        else:
            words.append(WORDS.get(option, "a text"))
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def help_text(usage: str, about: str, flags: Mapping[str, Flag]) -> str:
    """Help of a command: usage, what it does, one entry per flag."""
    heads = {name: f"--{name} {flag.metavar}".rstrip() for name, flag in flags.items()}
    width = max(map(len, heads.values())) + 4
    lines = [f"usage: {usage}", "", about, ""]
    for name, flag in flags.items():
        first, *more = textwrap.wrap(flag.help, 100 - width) or [""]
        lines += [f"  {heads[name]:<{width - 2}}{first}", *(" " * width + line for line in more)]
    return "\n".join(lines)


def _converted(text: str, option: Any) -> Any:
    if option in (str, Any):
        return text
    if option is float:
        return float(text)
    if option is int:
        try:
            return int(text)
        except ValueError:
            number = float(text)  # 1e6 as a count
            if int(number) == number:
                return int(number)
            raise
    choices: dict[Any, Any] = {str(choice): choice for choice in typing.get_args(option)}
    if option is type(None) and text.lower() == "none":
        return None
    if option is bool:
        text, choices = text.lower(), {"true": True, "false": False}
    if text not in choices:
        raise ValueError(text)
    return choices[text]


def _named(spelled: str, flags: Mapping[str, Flag]) -> tuple[str | None, bool]:
    """The flag that a spelling means, and whether it is the opposite of a switch."""
    name = spelled.replace("_", "-")
    if name in flags:
        return name, False
    head, dot, last = name.rpartition(".")
    positive = f"{head}{dot}{last.removeprefix('no-')}"
    is_negated = last.startswith("no-") and positive in flags and flags[positive].hint is bool
    return (positive, True) if is_negated else (None, False)


def _nearest(spelled: str, flags: Mapping[str, Flag], see: str) -> str:
    name = spelled.replace("_", "-")
    tails = {full: full.rpartition(".")[2] for full in flags}
    head = name.rpartition(".")[0]
    same = [full for full, tail in tails.items() if name.rpartition(".")[2] == tail]
    longer = [full for full, tail in tails.items() if tail.startswith(name)]
    # A name with a dot says where to look; one without may have lost its beginning.
    tails = {full: tail for full, tail in tails.items() if not head or full.rpartition(".")[0] == head}
    close = difflib.get_close_matches(name.rpartition(".")[2], list(tails.values()), n=2, cutoff=0.6)
    near = same or [full for tail in close for full in tails if tails[full] == tail] or longer
    return f"did you mean {' or '.join(f'--{each}' for each in near[:2])}?" if near else f"see {see}"


def _take_tuple(name: str, rest: list[str], hint: Any) -> tuple[Any, ...]:
    """Values from the front of `rest`, up to the next flag; commas separate too."""
    items, is_open = typing.get_args(hint), Ellipsis in typing.get_args(hint)
    taken: list[Any] = []
    while rest and not rest[0].startswith("--"):
        for part in rest.pop(0).split(","):
            taken.append(_value(name, part, items[0] if is_open else items[min(len(taken), len(items) - 1)]))
        if not is_open and len(taken) >= len(items):
            break
    if not taken or (not is_open and len(taken) != len(items)):
        count = "at least one value" if is_open else f"{len(items)} values"
        raise UsageError(f"--{name} needs {count}, given {len(taken)}; allowed: {allowed(hint)}")
    return tuple(taken)


def _value(name: str, text: str, hint: Any) -> Any:
    try:
        return convert(text, hint)
    except ValueError:
        raise UsageError(f"--{name} is {text!r}; allowed: {allowed(hint)}") from None


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple
