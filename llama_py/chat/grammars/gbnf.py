"""Editing the text of GBNF grammars: renaming rules, and allowing more spellings.

llama.cpp writes the grammars of schemas and tools. Some of their rules are narrower than JSON and
would change a reply that fits the schema. ``widened`` recognises these rules by name and body, and
replaces them. What it should find and does not is a ``GrammarError``: with another version of
llama.cpp, a grammar must not become narrower, or wider, in silence.
"""

from __future__ import annotations

import re
from itertools import accumulate

from llama_py.chat.grammars.integers import digits_in_gbnf
from llama_py.chat.schemas.json_forms import (
    NATURAL,
    POSITIVE,
    is_escaped_by_some,
    number_units,
    space_bounds,
)
from llama_py.errors import GrammarError
from llama_py.tenants import remembering

__all__ = [
    "free_name",
    "in_python",
    "in_text",
    "opened",
    "rename_rules",
    "widened",
    "widened_schema",
    "with_margins",
]

# A quoted literal or a character class is skipped whole: rule names do not occur inside.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\#[^\n]*|<\[?[^>\n]*>|[a-zA-Z][a-zA-Z0-9-]*'
)


def rename_rules(grammar: str, prefix: str) -> str:
    """The same grammar with ``prefix`` before the name of every rule."""

    def rename(match: re.Match[str]) -> str:
        text = match.group()
        return prefix + text if text[0].isalpha() else text

    return _TOKEN.sub(rename, grammar)


# ---- spellings -----------------------------------------------------------------------------------

_HEX = "[0-9a-fA-F]"
#: A character by its number; a surrogate pair is one, half a pair is none.
_NUMBERED = (
    rf'"u" ([0-9a-cA-Ce-fE-F] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}}'
    rf' | [dD] [89abAB] {_HEX}{{2}} "\\u" [dD] [c-fC-F] {_HEX}{{2}})'
)
_ESCAPED = rf'"\\" (["\\/bfnrt] | {_NUMBERED})'
#: The same without the numbers of ASCII.
_HIGH = rf'([1-9a-fA-F] {_HEX}{{3}} | "0" ([1-9a-fA-F] {_HEX} | "0" [89a-fA-F]) {_HEX})'
_NOT_ASCII = rf'"\\" (["\\/bfnrt] | "u" {_HIGH})'
#: Rules that llama.cpp writes -> the same with all that JSON allows.
_RULES = {
    r'char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})': (
        rf'char ::= [^"\\\x00-\x1F] | {_ESCAPED}'
    ),
    # Of numbers, all but the sign.
    "decimal-part ::= [0-9]{1,16}": f"decimal-part ::= {digits_in_gbnf(POSITIVE)}",
    "integral-part ::= [0] | [1-9] [0-9]{0,15}": f"integral-part ::= {digits_in_gbnf(NATURAL)}",
}
#: Parts of a rule -> the same with the room of JSON. They cannot lie within a literal.
_PARTS = (
    (
        re.compile(
            r'\("-"\? integral-part\) \("\." decimal-part\)\? \(\[eE\] \[-\+\]\? integral-part\)\?$'
        ),
        '"-"? decimal-part',
    ),
    (re.compile(r'^(time ::= .* "\." \[0-9\])\{3\}'), r"\1{1,9}"),
    (re.compile(r'(?<![\w-])(?:space )?":" space(?![\w-])'), '" "? ":" " "?'),
    (re.compile(r'(?<!space )"," space(?![\w-])'), '" "? "," JOINT'),
)
#: Rules of which a part has to be replaced -> how that part looks then.
_REPLACED = {"number": '"-"? decimal-part', "time": "{1,9}"}
_NARROW = frozenset(rule.partition(" ::= ")[0] for rule in _RULES)
#: llama.cpp's rule of white space, outside of literals and classes.
_SPACE_NAME = re.compile(r"(?<![\w-])space(?![\w-])")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')
#: White space within brackets that have nothing else, which stays as it is.
_EMPTY = re.compile(r'"\{" space "\}"|"\[" space "\]"')
#: A rule that is one pair of brackets.
_BRACKETS = re.compile(r'^([\w-]+) ::= ("[{\[]") space (.*?) ?space ("[}\]]")$')
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[^"\[]+')


@remembering(64)
def widened(grammar: str, levels: int) -> str:
    """llama.cpp's grammar, with every JSON spelling of names, strings, numbers and white space.

    Args:
        levels: the depth of nested brackets in the texts; see ``json_forms.levels_of``.

    Raises:
        GrammarError: llama.cpp writes one of these rules in an unknown way.
    """
    lines = grammar.split("\n")
    taken = {line.split(" ", 1)[0] for line in lines}
    line_break = free_name("joint-line", taken)
    spaces, tabs = space_bounds(levels)
    rules = [_widened_rule(line, line_break, taken) for line in lines if line]
    rules.append(rf'{line_break} ::= " "? "\r"? "\n" (" "{{0,{spaces}}} | "\t"{{1,{tabs}}})')
    return "\n".join(rules)


def widened_schema(grammar: str, levels: int) -> str:
    """``widened``, for a grammar that is nothing but that of a schema.

    Raises:
        GrammarError: llama.cpp writes white space in an unknown way.
    """
    wide = widened(grammar, levels)
    for rule in wide.split("\n"):
        name, _, body = rule.partition(" ::= ")
        if name != "space" and _SPACE_NAME.search(_QUOTED.sub("", _EMPTY.sub("", body))):
            raise _unknown(name)
    return wide


def _unknown(name: str) -> GrammarError:
    return GrammarError(
        f"llama.cpp's converter of JSON schemas writes the rule {name!r} in an unknown way; use "
        "the llama.cpp that this version of llama_py was made for"
    )


def free_name(name: str, taken: set[str]) -> str:
    """A rule name based on ``name`` that is not the beginning of any other rule's name."""
    while any(rule.startswith(name) for rule in taken):
        name += "-"
    return name


def _widened_rule(rule: str, line_break: str, taken: set[str]) -> str:
    if rule in _RULES:
        return _RULES[rule]
    defined = rule.partition(" ::= ")[0]
    if defined in _NARROW:
        raise _unknown(defined)
    for part, wider in _PARTS:
        rule = part.sub(wider.replace("JOINT", f'({line_break} | " "?)'), rule)
    if _REPLACED.get(defined, "") not in rule:
        raise _unknown(defined)
    pieces = _PIECE.findall(rule)
    for i, (piece, after) in enumerate(zip(pieces, [*pieces[1:], ""], strict=True)):
        if re.fullmatch(r'"\\".*\\""', piece):
            pieces[i] = _spellings(piece)
        elif piece.startswith('[^"') and after.startswith(" char*"):
            # The character at which a name differs from the names that a schema lists.
            letters = piece[3:-1]
            escaped = _NOT_ASCII if letters.isascii() else r'"\\" ["\\/bfnrt]'
            pieces[i] = rf'([^"\\\x00-\x1F{letters}] | {escaped})'
    rule = "".join(pieces)
    match = _BRACKETS.match(rule)
    if match is None:
        return rule
    name, start, inside, end = match.groups()
    inner = free_name(f"{name}-inside", taken) if inside else ""
    flat = f'" "? {inner} " "? {end}'
    tall = f'{line_break} {inner} ({line_break} | " "?) {end}'
    return f"{name} ::= {start} ({flat} | {tall})" + (f"\n{inner} ::= {inside}" if inside else "")


def _spellings(literal: str) -> str:
    """A literal JSON string, with the characters that some libraries escape also escaped."""
    parts = [""]
    for letter in literal[1:-1]:
        if letter == "/":
            parts += [r'("/" | "\\/")', ""]
        elif is_escaped_by_some(letter):
            number: list[str] = []
            for digits in number_units(letter):
                runs = re.findall(r"[a-f]|\d+", digits)
                either = (f'"{r}"' if r.isdigit() else f"[{r}{r.upper()}]" for r in runs)
                number += [r'"\\u"', *either]
            parts += [f'("{letter}" | {" ".join(number)})', ""]
        else:
            parts[-1] += letter
    quoted = [f'"{part}"' if i % 2 == 0 else part for i, part in enumerate(parts)]
    return " ".join(part for part in quoted if part != '""')


def with_margins(grammar: str) -> str:
    """The same grammar with a little white space allowed before and after the whole text."""
    names = ("text", *(f"text-{number}" for number in range(len(grammar))))
    name = next(name for name in names if not re.search(rf"^{name} ::=", grammar, re.M))
    renamed = re.sub(r"^root ::=", f"{name} ::=", grammar, flags=re.M)
    return rf"root ::= [ \t\r\n]{{0,4}} {name} [ \t\r\n]{{0,2}}" + "\n" + renamed


#: The characters of a JSON string that stand for themselves, as ``widened`` writes them.
_PLAIN = r'[^"\\\x00-\x1F'


def in_text(grammar: str, avoid: str) -> str:
    """A widened grammar of JSON whose strings have this character only by its number.

    Raises:
        GrammarError: its strings are written in an unknown way.
    """
    if re.search(r"^string ::=", grammar, re.M) and f"char ::= {_PLAIN}" not in grammar:
        raise _unknown("char")
    return grammar.replace(_PLAIN, f"{_PLAIN}\\x{ord(avoid):02X}")


#: What JSON and Python write in different ways.
_NAMES = {'"true"': '"True"', '"false"': '"False"', '"null"': '"None"'}
#: A string of characters, or of a date.
_STRING = re.compile(r'"\\"" (char|date-time|date|time)([*+]|\{\d+(?:,\d*)?\})? "\\""')
#: A literal string with no character that Python would escape.
_LITERAL_STRING = re.compile(r'"\\"([^"\\\']*)\\""')


def in_python(grammar: str) -> str:
    """A widened grammar of JSON that takes Python's notation, too, as far as llama.cpp reads it.

    Strings may have single quotes, and no white space comes before commas. Strings with a pattern
    and names of further properties have double quotes only.

    Raises:
        GrammarError: there is a comma or a string that is written in an unknown way.
    """
    comma, wide = '","', '" "? ","'
    if grammar.count(comma) != grammar.count(wide):
        raise _unknown(comma)
    single = free_name("single-quoted", {line.split(" ", 1)[0] for line in grammar.split("\n")})

    def with_single_quotes(match: re.Match[str]) -> str:
        name, times = match[1], match[2] or ""
        return f"""({match.group()} | "'" {single if name == "char" else name}{times} "'")"""

    found = _STRING.sub(with_single_quotes, grammar.replace(wide, comma))
    if re.search(r"^string ::= (?!\()", found, re.M):
        raise _unknown("string")
    found = _QUOTED.sub(_python_literal, found)
    return f"{found}\n{single} ::= [^'\\\\\\x00-\\x1F] | {_ESCAPED} | \"\\\\'\""


def _python_literal(match: re.Match[str]) -> str:
    literal = match.group()
    if other := _NAMES.get(literal):
        return f"({literal} | {other})"
    text = _LITERAL_STRING.fullmatch(literal)
    return literal if text is None else f"""({literal} | "'{text[1]}'")"""


#: What the upper bounds of lengths come to in the grammar of all tools, a rule of llama.cpp each.
_MOST_LENGTHS = 8_000
_BOUNDED = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{(\d+),(\d+)\}')


def opened(grammar: str, most: int = _MOST_LENGTHS) -> str:
    """The grammar without its largest upper bounds, if they come to more than ``most`` together.

    Agents have dozens of tools whose texts may have thousands of characters each. A bound costs one
    rule per character. Without it, a text may be longer than the tool wants, which its caller has
    to check.
    """
    found = (match for match in _BOUNDED.finditer(grammar) if match[2])
    sizes = sorted(int(match[2]) - int(match[1]) for match in found)
    if sum(sizes) <= most:
        return grammar
    limit = next(size for size, total in zip(sizes, accumulate(sizes), strict=True) if total > most)

    def replace(match: re.Match[str]) -> str:
        if not match[2] or int(match[2]) - int(match[1]) < limit:
            return match.group()
        return f"{{{match[1]},}}"

    return _BOUNDED.sub(replace, grammar)
