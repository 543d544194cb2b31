"""Templates drawn from what costs most stay within the budget of time and memory that is stated."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llama_py.chat.templates import budget, python_jinja
from llama_py.errors import TemplateError

ROOT = Path(__file__).parents[2]
#: Bytes that a process may grow by, however many templates it renders.
MOST_MEMORY = 400 << 20
#: Seconds of one rendering: the limit, and the call of C that it ends behind.
MOST_SECONDS = 1.5 * budget.MAX_SECONDS + 3

NUMBERS = ("9", "99", "1000", "99999", "10**7", "2**31", "10**30", "-1")
TEXTS = ("'a'", "'%s'", "'{}'", "'\\n'", "'aé'", "'a b '", "'%0999999999d'", "'{:>999999999}'")
LISTS = ("[]", "[1]", "[s]", "[s, s]", "l", "[l, l]", "range(1000)", "range(99999)", "messages")
#: With N, T, L in the place of a number, a text and a list.
TEXT_OPS = (
    "T * N", "(T * N) * N", "T ~ T", "s ~ s", "T.join(L)", "L | join(T)", "L | join(s)",
    "s | replace('a', s)", "s.replace('a', s)", "s | replace('', T)", "s | indent(N)",
    "s | center(N)", "s.zfill(N)", "s.ljust(N)", "(s ~ '\\t').expandtabs(N)", "L | string",
    "L | tojson", "L | tojson(indent=N)", "{'a': L, 'b': s} | tojson(indent=N)", "T % N", "T % s",
    "'%s%s%s' % (s, s, s)", "'%*d' % (N, 1)", "T.format(N)", "'{:{}}'.format(s, N)",
    "'{0}{0}{0}' | format(s)", "s | escape", "s | urlencode", "s | wordwrap(N)", "s | upper",
    "s | tojson", "(s * N) | length", "s[::-1]", "s | list | join(s)", "s.split('a') | join(s)",
    "s.rsplit('ab') | length", "s.rfind('a' * N ~ 'b' ~ 'a' * N)", "s | wordcount", "s | title",
    "L | sort | string", "L | unique | list", "(L ~ L)", "L | sum(start=[])", "N ** N", "N * N",
    "N | round(N)", "L | batch(N, s) | list", "L | slice(N) | list", "l == [l]", "l in [l, l]",
    "{l | string: s}", "L | map('string') | join(s)", "L | groupby(0)", "n.t ~ n.t", "n",
    "range(N) | list", "s | list", "s.splitlines() | length", "s.partition('a')", "L | max",
    "s | wordwrap(1, wrapstring=s)", "('ab ' * N) | wordwrap(1)", "('a' * N) | wordwrap(1)",
    "L | tojson(separators=(s, s))", "L | join(attribute='a', d=s)", "('<!---->' * N) | striptags",
    "('{}' * N).format(s)", "'%s' * N % L", "[s] * N", "(1, 2) * N", "dict.fromkeys(L, s)",
    "'{w:{w}}'.format(w=N)", "'%.*f' % (N, 1)", "s | truncate(N, end=s)",
    "L | map('replace', 'a', s) | list",
    "'x' | truncate(N)", "s | striptags", "dict(a=s, b=L)", "L | items | list", "cycler(*L)",
)  # fmt: skip
STATEMENTS = (
    "{% set s = E %}", "{% set l = L %}", "{% set l = [l, l] %}", "{% set l = (l, l) %}",
    "{% set n.t = E %}", "{% set n.t = n %}", "{% set n.l = [n.l, n.l] %}", "{{ E }}",
    "{% for a in L %}B{% endfor %}", "{% for a in range(N) %}B{% endfor %}",
    "{% for a in range(N) if false %}x{% endfor %}", "{% set s %}{{ s }}{{ s }}{% endset %}",
    "{% macro f(x) %}B{{ f(x) }}{% endmacro %}{{ f(s) }}", "{% if E == E %}B{% endif %}",
    "{% macro g(x) %}{{ x }}{{ x }}{% endmacro %}{{ g(g(g(g(s)))) }}",
    "{% for a in L recursive %}{{ loop(L) }}{% endfor %}", "{% filter upper %}B{% endfilter %}",
    "{% set _ = l.append(l) %}", "{% set _ = l.append(E) %}", "{{ {l: 1} }}", "{{ {s: E} }}",
    "{% call g(s) %}B{% endcall %}", "{% block b %}{{ self.b() }}{% endblock %}",
)  # fmt: skip

#: Lists in lists (and tuples): 10^12 items when they are written, compared or hashed.
NESTED = "{% set a = [1] %}{% set b = [1] %}{% set t = (1,) %}" + 6 * (
    "{% set a = [a] * 100 %}{% set b = [b] * 100 %}{% set t = (t,) * 100 %}"
)
#: Each went past the counting, and took hours or gigabytes.
PAST_THE_COUNT = (
    "{{ (1).to_bytes(1500000000, 'big') | length }}",
    "{{ '{0[0]:{0[1]}}'.format([1, 900000000]) }}",
    "{% set s = 'x' * 1000000 %}{{ ''.join(([s] * 2000) | select) }}",
    "{% set s = 'x' * 1000000 %}{{ ([s] * 2000) | select | join }}",
    "{% set l = [0] * 100000 %}{{ ([l] * 1000) | select | sum(start=[]) | length }}",
    "{% set r = range(900000) %}" + "{{ 'x' in r }}" * 3000,
    "{{ strftime_now('%999d' * 200000) | length }}",
    "{{ ('a\\r' * 1000000) | indent(2000) }}",
    "{% set l = [[1] * 2000] %}" + 190 * "{% set l = [l] %}" + "{{ l | tojson(indent=900) }}",
    "{% for i in range(900000) %}" + "{% set a = i %}" * 7000 + "{% endfor %}",
    "{% set l = [] %}{% for i in range(900000) %}"
    + "{% set _ = l.append({}) %}" * 4000
    + "{% endfor %}",
    *(
        NESTED + each
        for each in (
            "{{ {1: a}.values() }}", "{{ {1: a}.values().mapping }}",
            "{{ {1: a}.values() | join }}",
            "{{ a.count(b) }}", "{{ [a] | select | join }}", "{{ [a] | select | tojson }}",
            "{{ [[a] | select] | tojson }}", "{{ dict([[t, 1]]) | length }}",
            "{{ [t] | select | unique | list }}", "{{ {1: a}.items() == {1: b}.items() }}",
            "{{ {1: 2}.keys() - [t] }}", "{{ 'a' ~ {1: a}.values() }}",
            "{{ '%s' % ({1: a}.values(),) }}", "{{ {1: a, 2: b}.values() | sort | length }}",
            "{{ {1: a, 2: b}.values() | max }}", "{{ raise_exception({1: a}.values()) }}",
            "{% macro m() %}{{ varargs }}{% endmacro %}{{ m({1: a}.values()) }}",
        )
    ),
)  # fmt: skip


class Bomb:
    """One template."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def fill(self, text: str, depth: int) -> str:
        out = []
        for letter in text:
            if letter == "N":
                out.append(self.rng.choice(NUMBERS))
            elif letter == "T":
                out.append(self.rng.choice(TEXTS))
            elif letter == "L":
                out.append(self.rng.choice(LISTS))
            elif letter == "E":
                out.append(f"({self.fill(self.rng.choice(TEXT_OPS), depth)})")
            elif letter == "B":
                out.append(self.block(depth - 1))
            else:
                out.append(letter)
        return "".join(out)

    def block(self, depth: int) -> str:
        if depth <= 0:
            return "{% set s = s ~ s %}"
        count = self.rng.randrange(1, 4)
        return "".join(self.fill(self.rng.choice(STATEMENTS), depth) for _ in range(count))

    def source(self) -> str:
        start = "{% set s = 'ab' * 1000 %}{% set l = [s] %}{% set n = namespace(t=s, l=[1]) %}"
        return f"{start}{self.block(3)}{self.block(3)}"


VALUES = {"messages": [{"role": "user", "content": "ab" * 5000}] * 20, "bos_token": "<s>"}


def work(first: int, last: int) -> None:
    """Render templates; print what went over the budget, and how many were refused."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for seed in range(first, last):
        source = PAST_THE_COUNT[-1 - seed] if seed < 0 else Bomb(seed).source()
        start = time.thread_time()
        try:
            python_jinja.JinjaTemplate(source).render(VALUES)
        except TemplateError as error:
            refused += 1
            if "too much memory" in str(error):
                print(f"OVER {seed}: {error}: {source}", flush=True)
        took = time.thread_time() - start
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
        if took > MOST_SECONDS or grown > MOST_MEMORY:
            print(f"OVER {seed}: {took:.1f} s, {grown >> 20} MiB: {source}", flush=True)
            base += grown // 1024
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    print(f"refused {refused} of {last - first}; grown by {grown >> 10} MiB", flush=True)


def run(first: int, last: int, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.hostile.test_template_bombs", str(first), str(last)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-1000:])
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory")
@pytest.mark.timeout(300)
def test_costly_templates_stay_within_the_budget() -> None:
    told = run(0, 300, 280)
    assert "OVER" not in told
    assert int(told.split("refused ")[1].split()[0]) > 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory")
@pytest.mark.timeout(300)
def test_templates_that_went_past_the_count() -> None:
    told = run(-len(PAST_THE_COUNT), 0, 280)
    assert "OVER" not in told
    assert int(told.split("refused ")[1].split()[0]) == len(PAST_THE_COUNT)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_costly_templates_stay_within_the_budget() -> None:
    assert "OVER" not in run(300, 12_000, 1100)


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]))
