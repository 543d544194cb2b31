"""Sixty things that people ask of a model, in six kinds: what ``bench drafts`` measures with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

__all__ = ["KINDS", "prompts"]

_FUNCTIONS = (
    "merges two sorted lists into one",
    "counts the words of a file and prints the ten most frequent ones",
    "parses a line of CSV with quoted fields",
    "finds the shortest path in a graph by breadth-first search",
    "validates an e-mail address with a regular expression",
    "reads a JSON file and returns the values of one key",
    "computes the moving average of a list of numbers",
    "converts Roman numerals into integers",
    "retries another function with exponential backoff",
    "groups a list of dictionaries by one of their keys",
)

_SHOP = '''\
def total_price(items, rate):
    """The price of all items, with tax."""
    total = 0.0
    for item in items:
        price = item["price"] * item["count"]
        if item.get("discount"):
            price = price * (1 - item["discount"])
        total = total + price
    return total * (1 + rate)


def most_expensive(items):
    """The item with the highest price."""
    best = items[0]
    for item in items:
        if item["price"] > best["price"]:
            best = item
    return best
'''
_QUEUE = '''\
class Queue:
    """Jobs in the order in which they came."""

    def __init__(self, limit):
        self.limit = limit
        self.jobs = []

    def push(self, job):
        if len(self.jobs) >= self.limit:
            raise OverflowError("the queue is full")
        self.jobs.append(job)
        return len(self.jobs)

    def pop(self):
        if not self.jobs:
            return None
        job = self.jobs[0]
        self.jobs = self.jobs[1:]
        return job
'''
_LOG = """\
import re

PATTERN = re.compile(r"(\\S+) (\\S+) \\[(.*?)\\] (.*)")


def read_log(path):
    entries = []
    with open(path) as file:
        for line in file:
            match = PATTERN.match(line)
            if match is None:
                continue
            host, user, when, text = match.groups()
            entries.append({"host": host, "user": user, "when": when, "text": text})
    return entries


def errors(entries):
    return [entry for entry in entries if "error" in entry["text"].lower()]
"""
_MATRIX = """\
def multiply(left, right):
    rows = len(left)
    columns = len(right[0])
    inner = len(right)
    result = [[0] * columns for _ in range(rows)]
    for row in range(rows):
        for column in range(columns):
            value = 0
            for index in range(inner):
                value += left[row][index] * right[index][column]
            result[row][column] = value
    return result


def identity(size):
    result = [[0] * size for _ in range(size)]
    for index in range(size):
        result[index][index] = 1
    return result
"""
_CACHE = """\
class Cache:
    def __init__(self, size):
        self.size = size
        self.values = {}
        self.order = []

    def get(self, key, default=None):
        if key not in self.values:
            return default
        self.order.remove(key)
        self.order.append(key)
        return self.values[key]

    def put(self, key, value):
        if key not in self.values and len(self.order) >= self.size:
            oldest = self.order.pop(0)
            del self.values[oldest]
        if key in self.order:
            self.order.remove(key)
        self.values[key] = value
        self.order.append(key)
"""
#: A file, and what is to be called otherwise.
_RENAMES = (
    (_SHOP, "items", "products"),
    (_SHOP, "price", "amount"),
    (_QUEUE, "jobs", "tasks"),
    (_QUEUE, "limit", "capacity"),
    (_LOG, "entries", "records"),
    (_LOG, "match", "found"),
    (_MATRIX, "result", "output"),
    (_MATRIX, "index", "k"),
    (_CACHE, "values", "data"),
    (_CACHE, "order", "recent"),
)

_PEOPLE = ("Clara Weber", "Tomas Novak", "Aisha Khan", "Joao Silva", "Mei Tanaka")
_ORDERS = (("four chairs and a table", "chair"), ("a lamp and two shelves", "lamp"))

_SUBJECTS = ("canal", "lighthouse")
_PAGE = (
    "The {0} was planned in 1821 and finished nine years later. More than four hundred people "
    "worked on it. Its first keeper, Martin Hale, lived there with his family for thirty years. "
    "The winter of 1838 damaged the eastern wall, which was built anew in granite. Ships paid two "
    "pence for passing the {0}. In 1904 a storm broke the gate, and the town closed it for a year. "
    "Electric light came in 1927, paid for by the harbour. During the war the {0} was painted "
    "grey. Since 1968 it has been a museum, which is open from May to October. Visitors climb 112 "
    "steps. The museum keeps Hale's diary and the old tools. A ticket costs six euros."
)
_MENTIONED = ("a year (a number such as 1821)", "money", "Hale", "the museum", "damage")

_TOPICS = (
    "why the sky is blue",
    "how a refrigerator works",
    "what inflation means for savings",
    "how vaccines protect people",
    "why leaves change their colour in autumn",
    "how the tides come about",
    "what made the printing press important",
    "how an aeroplane stays in the air",
    "why we need sleep",
    "how bees find their way home",
)
_THINGS = (
    "the planets of the solar system, with one fact about each",
    "ten European countries and their capitals",
    "the months of the year and how many days each has",
    "eight programming languages and what each is used for",
    "the steps of baking bread",
    "ten animals and what they eat",
    "the parts of a bicycle and what each is for",
    "eight musical instruments, with the material that each is made of",
    "the steps of changing a tyre",
    "ten foods that are rich in protein, with the amount in each",
)


def _code() -> list[str]:
    return [f"Write a Python function that {each}. Answer with code only." for each in _FUNCTIONS]


def _edit() -> list[str]:
    return [
        f"Rename `{old}` to `{new}` everywhere in this file. Answer with the whole file, and "
        f"nothing else.\n\n```python\n{file}```"
        for file, old, new in _RENAMES
    ]


def _fields() -> list[str]:
    return [
        "Turn this letter into a JSON object with the keys name, street, city, postcode, order and "
        f"reason. Answer with JSON only.\n\nDear Sir or Madam,\n\nI ordered {order} on the 3rd of "
        f"March, but the {broken} arrived broken, and I would like to have it replaced. Please "
        f"send the new one to {number} Mill Lane, Ashford, TN23 4{number % 10}B.\n\n"
        f"Yours faithfully,\n{name}"
        for number, (name, (order, broken)) in enumerate(product(_PEOPLE, _ORDERS), 11)
    ]


def _quote() -> list[str]:
    return [
        f"Copy, word for word, every sentence of this text that mentions {mentioned}.\n\n"
        f"{_PAGE.format(subject)}"
        for subject, mentioned in product(_SUBJECTS, _MENTIONED)
    ]


def _prose() -> list[str]:
    return [f"Explain to a child {topic}." for topic in _TOPICS]


def _list() -> list[str]:
    return [f"List {things}." for things in _THINGS]


_WRITERS: dict[str, Callable[[], list[str]]] = {
    "code": _code,
    "edit": _edit,
    "fields": _fields,
    "quote": _quote,
    "prose": _prose,
    "list": _list,
}
KINDS = tuple(_WRITERS)


def prompts(kind: str) -> list[str]:
    """The prompts of a kind, ten of them."""
    return _WRITERS[kind]()
