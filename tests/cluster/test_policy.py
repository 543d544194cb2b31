"""Which replica gets a request: decided from texts, sessions and queues, without Ray."""

from __future__ import annotations

from typing import Any

from llama_py.cluster.policy import Policy, PolicySettings, ReplicaState
from llama_py.dialects.routing_hints import BLOCK, MOST_BLOCKS, Hint, hint_of


def chat(*texts: str, owner: str = "", session: str | None = None) -> Hint:
    messages = [{"role": "user", "content": text} for text in texts]
    return hint_of({"messages": messages}, owner=owner, session=session)


def policy(*names: str, **settings: Any) -> Policy:
    made = Policy(PolicySettings(**settings))
    made.set_replicas(names or ("a", "b", "c"))
    return made


def send(policy: Policy, hint: Hint, request: str = "r", *, done: bool = True) -> str:
    """Send it where the policy says."""
    name = policy.rank(hint)[0].replica
    policy.routed(hint, name, request)
    if done:
        policy.completed(request)
    return name


# -- hints ---------------------------------------------------------------------------------------


def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter_one() -> None:
    one, other = chat("first " * 400, "second"), chat("first " * 400, "second", "third")
    assert len(one.blocks) >= 4  # the long message has several
    assert other.blocks[: len(one.blocks)] == one.blocks
    assert one.ends[-1] == one.size < other.size


def test_blocks_end_where_messages_end() -> None:
    one, other = chat("a" * 10, "b" * 10), chat("a" * 10, "c" * 10)
    assert one.blocks[0] == other.blocks[0]
    assert one.blocks[1] != other.blocks[1]


def test_another_beginning_shares_nothing_whatever_follows() -> None:
    one, other = chat("a", "same", "same"), chat("b", "same", "same")
    assert not {*one.blocks} & {*other.blocks}


def test_owners_and_models_share_no_block() -> None:
    mine, yours = chat("hello", owner="alice"), chat("hello", owner="bob")
    assert not {*mine.blocks} & {*yours.blocks}
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert not {*hint_of(body, model="x").blocks} & {*hint_of(body, model="y").blocks}


def test_all_dialects_have_blocks() -> None:
    anthropic = {"system": "s" * 50, "messages": [{"role": "user", "content": "hi"}]}
    assert len(hint_of(anthropic).blocks) == 2
    assert len(hint_of({"instructions": "be brief", "input": "hi"}).blocks) == 2
    assert len(hint_of({"prompt": "x" * (3 * BLOCK)}).blocks) == 3
    assert hint_of({}).blocks == ()


def test_the_order_of_a_messages_fields_does_not_matter() -> None:
    one = hint_of({"messages": [{"role": "user", "content": "hi"}]})
    other = hint_of({"messages": [{"content": "hi", "role": "user"}]})
    assert one.blocks == other.blocks


def test_what_is_no_conversation_is_no_error() -> None:
    bodies: list[dict[str, Any]] = [{"messages": 5}, {"messages": [None, 3]}]
    bodies += [{"prompt": ["a", [1, 2]]}, {"prompt": "half a pair \ud800"}]
    for body in bodies:
        assert hint_of(body).size > 0


def test_a_very_long_text_has_only_so_many_blocks() -> None:
    hint = hint_of({"prompt": "x" * (BLOCK * (MOST_BLOCKS + 100))})
    assert len(hint.blocks) == MOST_BLOCKS
    assert hint.size == BLOCK * (MOST_BLOCKS + 100)


# -- choosing ------------------------------------------------------------------------------------


def test_a_request_goes_where_its_beginning_is() -> None:
    routing = policy()
    first = send(routing, chat("long text " * 1000))
    for number in range(20):  # others come in between
        send(routing, chat(f"something else {number}"))
    assert send(routing, chat("long text " * 1000, "and more")) == first


def test_a_session_stays_though_nothing_of_its_text_is_known() -> None:
    routing = policy()
    home = send(routing, chat("hello", session="s"))
    for number in range(5):
        other = chat(f"quite another text {number}", session="s")
        assert send(routing, other) == home


def test_a_session_moves_when_its_replica_is_far_behind() -> None:
    routing = policy(patience=3)
    home = send(routing, chat("hello", session="s"))
    for number in range(3):
        routing.routed(chat("x", session="s"), home, f"{number}")
    assert send(routing, chat("hello", session="s")) == home
    routing.routed(chat("x"), home, "one more")
    assert send(routing, chat("hello", session="s")) != home


def test_a_short_prompt_does_not_wait_behind_long_ones() -> None:
    routing = policy("a", "b")
    busy = send(routing, chat("long " * 2000), "long", done=False)
    short = chat("long " * 10)
    assert send(routing, short, "short") != busy
    routing.begun("long")  # it is evaluated: it costs others little now
    assert routing.rank(chat("long " * 2000, "more"))[0].replica == busy


def test_idle_replicas_share_new_conversations() -> None:
    routing = policy()
    for name in "abc":
        routing.note_state(name, ReplicaState(room=100_000))
    names = [send(routing, chat(f"{number} " * 500, session=f"{number}")) for number in range(60)]
    assert all(names.count(name) >= 10 for name in "abc")


def test_new_conversations_go_where_there_is_room() -> None:
    routing = policy()
    routing.note_state("a", ReplicaState(room=10_000, used=10_000))
    routing.note_state("b", ReplicaState(room=10_000, used=10_000))
    routing.note_state("c", ReplicaState(room=10_000, used=1_000))
    for number in range(4):
        assert send(routing, chat(f"{number} " * 500)) == "c"
    names = {send(routing, chat(f"{number} " * 500)) for number in range(10, 40)}
    assert len(names) == 3  # by then "c" is taken to be full as well


def test_a_model_is_asked_for_where_it_is_loaded() -> None:
    routing = policy()
    routing.note_state("b", ReplicaState(models=frozenset({"big"})))
    for name in "ac":
        routing.note_state(name, ReplicaState(models=frozenset({"small"})))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert routing.rank(hint_of(body, model="big"))[0].replica == "b"


# -- what replicas say -----------------------------------------------------------------------------


def test_what_a_replica_has_lost_is_not_looked_for_there() -> None:
    routing = policy("a", "b")
    text = chat("long text " * 1000)
    home = send(routing, text)
    assert routing.rank(text)[0].shared == text.size
    routing.note_state(home, ReplicaState(lost=text.blocks[3:], held=text.blocks[:3]))
    assert {each.replica: each.shared for each in routing.rank(text)}[home] == text.ends[2]


def test_what_a_replica_holds_is_found_though_another_router_sent_it() -> None:
    routing = policy()
    text = chat("long text " * 1000)
    routing.note_state("b", ReplicaState(held=text.blocks))
    assert routing.rank(text)[0].replica == "b"


def test_sessions_of_a_replica_that_is_gone_go_elsewhere() -> None:
    routing = policy("a", "b")
    home = send(routing, chat("hello", session="s"), "r", done=False)
    routing.drop(home)
    assert routing.home_of("s") is None
    assert send(routing, chat("hello", session="s")) != home
    routing.completed("r")  # Ray says so later; nothing comes of it
    routing.set_replicas(["a", "b"])
    assert all(each.shared == 0 for each in routing.rank(chat("hello")) if each.replica == home)


def test_load_that_other_routers_make_counts() -> None:
    routing = policy("a", "b")
    routing.note_state("a", ReplicaState(running=4, waiting=10))
    assert {send(routing, chat(f"{number}")) for number in range(8)} == {"b"}


def test_our_own_requests_are_not_taken_for_those_of_others() -> None:
    routing = policy("a", "b")
    for number in range(10):
        routing.routed(chat("x"), "a", f"{number}")
    for number in range(10):
        routing.completed(f"{number}")
    # It says how it was before they ended.
    routing.note_state("a", ReplicaState(running=10))
    loads = {send(routing, chat(f"{number}", session=f"{number}")) for number in range(20)}
    assert loads == {"a", "b"}


def test_where_all_are_busy_sessions_stay() -> None:
    routing = policy("a", "b", patience=3)
    home = send(routing, chat("hello", session="s"))
    other = "b" if home == "a" else "a"
    for number in range(20):
        routing.routed(chat("x"), other, f"other {number}")
    for number in range(28):
        routing.routed(chat("x"), home, f"home {number}")
    assert send(routing, chat("hello", session="s")) == home


def test_nobody_is_there() -> None:
    assert Policy().rank(chat("hello")) == []


def test_memory_is_bounded() -> None:
    routing = policy("a", "b", most_blocks=100, most_sessions=10)
    for number in range(500):
        send(routing, chat(f"{number} " * 800, session=f"s{number}"))
    assert routing.sizes()["blocks"] <= 200
    assert routing.sizes()["sessions"] == 10


def test_the_end_of_a_text_is_forgotten_before_its_beginning() -> None:
    routing = policy("a", most_blocks=4)
    text = chat("x" * (6 * BLOCK))
    send(routing, text)
    assert routing.rank(text)[0].shared == text.ends[3]


def test_two_routers_agree_where_all_is_equal() -> None:
    one, other = policy("a", "b", "c"), policy("c", "b", "a")
    for number in range(20):
        hint = chat(f"{number}", session=f"{number}")
        assert one.rank(hint)[0].replica == other.rank(hint)[0].replica
