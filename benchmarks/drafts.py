"""Drafts on real weights: sixty prompts of six kinds, each answered with drafts and without.

*code* writes functions, *edit* renames a variable in a file, *fields* turns a letter into a JSON
object, *quote* copies sentences of a page, *prose* explains, and *list* enumerates. Replies are
greedy, and end where the model ends them. Nobody drafts, prompt lookup drafts, the model of
``--draft`` does, and then both in turn, for one prompt after the other; every reply reuses the
prompt, so that what is compared is what each generated token took.

Texts should be equal: a reply that is not the plain one is shown. Exit code 1 if one is not.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.writing_tasks import KINDS, prompts
from llama_py.bench.report import Report, median
from llama_py.bench.subject import add_model_arguments, conditions, load, resolve_model
from llama_py.options.drafters import DraftModel, PromptLookup, Speculative

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["add_arguments", "run"]

#: What is asked of a drafter for a kind of reply; of every other one, that it costs nothing.
_LEAST = {("code", "model"): 1.3, ("edit", "lookup"): 1.8}
_NOT_SLOWER = 0.97


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(flash_attn="default")
    parser.add_argument("--draft", metavar="NAME", help="a draft model, named as --model is")
    parser.add_argument("--n-draft", type=int, metavar="N", help="its longest drafts")
    parser.add_argument("--p-min", type=float, default=0.0, metavar="P", help="of its tokens")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--prompts", type=int, default=10, metavar="N", help="of each kind")
    parser.add_argument("--generate", type=int, default=160, metavar="N", help="tokens of a reply")


@dataclass(slots=True)
class _Replies:
    """What one drafter did for one kind.

    Attributes:
        speeds: generated tokens per second, by those of the plain reply.
        differing: replies whose text is not the plain one.
    """

    speeds: list[float] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    differing: int = 0


def run(options: argparse.Namespace) -> Report:
    n_ctx = 4096
    report = Report("drafts", conditions(options, n_ctx))
    found: dict[tuple[str, str], _Replies] = {}
    for name, speculative in _drafters(options).items():
        with load(options, n_ctx, n_seq_max=1, speculative=speculative) as llm:
            for kind in options.kinds:
                noted = found.setdefault((kind, name), _Replies())
                for prompt in prompts(kind)[: options.prompts]:
                    problem = _compare(llm, prompt, options.generate, noted)
                    if problem:
                        report.fail(f"{kind}, {name}: {problem}")
    _table(report, found)
    return report


def _drafters(options: argparse.Namespace) -> dict[str, Speculative]:
    """Who drafts. Draft models are loaded with the model that they draft for."""
    lookup = PromptLookup()
    drafters = {"lookup": Speculative((lookup,))}
    if options.draft is not None:
        length = {} if options.n_draft is None else {"n_draft": options.n_draft}
        model = DraftModel(resolve_model(options.draft), p_min=options.p_min, **length)
        drafters |= {"model": Speculative((model,)), "both": Speculative((lookup, model))}
    return drafters


def _compare(llm: Llama, prompt: str, generate: int, noted: _Replies) -> str:
    """Answer one prompt without drafts and with them; in what the texts differ, or nothing."""
    _reply(llm, prompt, 2, speculative=False)  # the prompt: both others reuse it
    plain = _reply(llm, prompt, generate, speculative=False)
    drafted = _reply(llm, prompt, generate)
    timings = drafted["timings"]
    noted.speeds.append(timings["predicted_per_second"] / plain["timings"]["predicted_per_second"])
    noted.tokens += timings["predicted_n"]
    noted.drafted += timings.get("draft_n", 0)
    noted.accepted += timings.get("draft_n_accepted", 0)
    if _text(drafted) == _text(plain):
        return ""
    noted.differing += 1
    return f"{_difference(_text(plain), _text(drafted))}, asked {prompt[:60]!r}"


def _reply(llm: Llama, prompt: str, generate: int, **options: Any) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return llm.create_chat_completion(messages, temperature=0.0, max_tokens=generate, **options)


def _text(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def _difference(plain: str, drafted: str) -> str:
    """Where two texts part."""
    place = next(
        (n for n, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b),
        min(len(plain), len(drafted)),
    )
    return f"{drafted[place : place + 30]!r} in place of {plain[place : place + 30]!r}"


def _table(report: Report, found: dict[tuple[str, str], _Replies]) -> None:
    table = report.table(
        "tokens per second of a reply, by those of the same reply without drafts",
        *("kind", "drafter", "median", "least", "most", "tokens", "drafted", "accepted", "other"),
    )
    for (kind, name), noted in sorted(found.items(), key=lambda each: KINDS.index(each[0][0])):
        table.add(
            *(kind, name, median(noted.speeds), min(noted.speeds), max(noted.speeds)),
            *(noted.tokens, noted.drafted, noted.accepted, noted.differing),
        )
        least = _LEAST.get((kind, name), _NOT_SLOWER)
        report.at_least(f"{kind}, {name}", median(noted.speeds), least)
