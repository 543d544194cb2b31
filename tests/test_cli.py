"""The command line, driven as a person or a script drives it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from llama_py import Llama, demo_model_path
from llama_py.cli import main
from llama_py.cli.chat import Chat
from llama_py.cli.progress import ProgressLine
from llama_py.cli.terminal import Interrupts
from llama_py.version import LLAMA_CPP_COMMIT, __version__
from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent
COMMANDS = ("chat", "generate", "embed", "serve", "inspect", "devices")
#: One thread each: several processes that wait for each other in a busy loop are slow together.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_THREAD_LIMIT": "1"}
#: Does not end before four million tokens; a grammar that can never end is refused.
ENDLESS = 'root ::= line{2000}\nline ::= "a "{2000}\n'


def process(
    *arguments: str, given: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """``llama-py ...`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "llama_py", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=cwd,
        env=ENVIRONMENT,
    )


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """The same without a process, which takes a second to start."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
    with (
        mock.patch("sys.stdin", io.StringIO(given)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(arguments, code, *texts)


def assert_sentence(text: str) -> None:
    """One line that is not a traceback."""
    assert "Traceback" not in text
    assert text.count("\n") == 1, text
    assert text.startswith("llama-py")


# ---- help, version, mistakes -----------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *[(name,) for name in (*COMMANDS, "bench")]])
def test_every_help_names_its_options_and_exits_0(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: llama-py")
    assert "--help" in shown


def test_help_lists_the_commands_and_only_those(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    listed = re.findall(
        r"^    ([a-z][a-z-]+)(?: |$)", shown.partition("examples:")[0], re.MULTILINE
    )
    files = [
        "quantize",
        "imatrix",
        "merge-imatrix",
        "perplexity",
        "kl-divergence",
        "split",
        "merge",
        "edit",
        "diff",
    ]
    models = ["pull", "list", "show", "rm", "verify", "where"]
    assert {*listed} == {*COMMANDS, *files, *models, "bench", "cluster", "rpc-server"}


def test_the_version_names_llama_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert __version__ in shown
    assert LLAMA_CPP_COMMIT in shown


def test_help_loads_no_native_library_and_no_numpy() -> None:
    code = (
        "import sys; from llama_py.cli import main; main(['chat', '--help']); "
        "from llama_py._native import loader; assert not loader._loaded; "
        "assert 'numpy' not in sys.modules, 'numpy'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("frob",), "there is no command frob;"),
        (("chta",), "there is no command chta; did you mean chat?"),
        (("run", "x"), "there is no command run: it is chat here"),
        (("chat", "-np", "4", "hi"), "no option -np: it is an option of llama-py serve"),
        (("chat", "-sy", "text", "hi"), "there is no option -sy"),
        (("chat", "-n4", "hi"), "there is no option -n4; did you mean -n 4?"),
        (("chat", "-hf", "a/b"), "there is no option -hf: it is --hf here"),
        (("chat", "-p", "hi"), "there is no option -p: write the prompt by itself"),
        (("embed", "--color"), "there is no option --color: leave it out"),
        (("chat", "no-such.gguf", "hi"), "there is no model file no-such.gguf; name a model here"),
        (("generate", "one", "two"), 'write it in quotes: "one two"'),
        (("chat", "-dev", "CUDA7", "hi"), "there is no device 'CUDA7'; available: CPU"),
        (("chat", "--image", "nope.png", "hi"), "nope.png cannot be read: No such file or dir"),
        (("chat", "--frob"), "there is no option --frob;"),
        (("chat", "--frob", "x", "y"), "there is no option --frob;"),
        (("serve", "-m", "x", "--frob", "y"), "there is no option --frob;"),
        (("serve", "-m", "x", "--slot-save-path", "y"), "it is --slot-dir here"),
        (("serve", "-cb"), "there is no option -cb: leave it out"),
        (("serve", "-m", "x", "-b", "512"), "there is no option -b: it is n_batch"),
        (("serve", "-m", "x", "-c", "9x"), "n_ctx must be an integer"),
        (("chat", "--temprature", "3", "hi"), "--temprature; did you mean --temperature?"),
        (("chat", "--max-tokns=3", "hi"), "--max-tokns; did you mean --max-tokens?"),
        (("chat", "-m", "no-such-model", "hi"), "no model of that name is on this machine"),
        (("chat", "-m", "https://a.example/b.gguf", "hi"), "https://a.example/b.gguf; an address"),
        (("chat", "--temp", "warm", "hi"), "--temp"),
        (("chat", "-m", "a.gguf", "--hf", "a/b", "hi"), "not allowed with"),
        (("chat", "-m", "/no/such.gguf", "hi"), "no model file"),
        (("generate", "-m", "/no/such.gguf", "hi"), "no model file"),
        (("inspect", "/no/such.gguf"), "no model file"),
        (("chat", "--hf", "nonsense", "hi"), "owner/name"),
        (("chat", "--top-p", "7", "hi"), "top_p"),
        (("chat", "--grammar", "/no/such", "hi"), "--grammar"),
        (("chat", "--json-schema", "{", "hi"), "--json-schema"),
        (("chat", "--chat-template", "/no/such", "hi"), "--chat-template"),
        (("chat", "--n-ctx", "-5", "hi"), "n_ctx"),
        (("chat", "--load", "/no/such.json", "hi"), "/no/such.json cannot be read: No such file"),
        (("embed", "Hi all"), "a text itself comes through a pipe: echo 'Hi all' | llama-py embed"),
        (("chat",), "standard input is empty"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert_sentence(shown.err)
    assert expected in shown.err


def test_an_option_before_the_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """And not its value, as an unknown command."""
    for given in (["-p", "Hello!"], ["-m", "model.gguf", "chat"]):
        assert main(given) == 2
        shown = capsys.readouterr().err
        assert shown.startswith(f"llama-py: {given[0]} stands before a command; ")
        assert "llama-py chat" in shown


def test_a_text_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("hello")
    done = run("chat", "-m", str(file), "hi")
    assert done.returncode == 2
    assert done.stdout == ""
    assert_sentence(done.stderr)


def test_inspect_of_a_text_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("hello")
    assert main(["inspect", str(file)]) == 2
    assert_sentence(capsys.readouterr().err)


def test_what_should_not_happen_is_a_sentence_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_parsed: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr("llama_py.cli.options.load_model", broken)
    assert main(["chat", "hi"]) == 2
    assert_sentence(capsys.readouterr().err)
    with pytest.raises(KeyError):
        main(["chat", "--verbose", "hi"])


def test_ctrl_c_is_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_parsed: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llama_py.cli.options.load_model", interrupted)
    assert main(["chat", "hi"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    grammar = tmp_path / "endless.gbnf"
    grammar.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_py", "generate", "--grammar", str(grammar), "-n", "0", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=PATIENCE) == 141
    assert error == b""


# ---- one question ----------------------------------------------------------------------------


def test_a_question_is_answered_on_standard_output(tmp_path: Path) -> None:
    done = process("chat", "--temp", "0", "Hello!", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stdout.endswith("\n")
    assert done.stderr == ""


def test_a_pipe_that_cannot_hold_a_character_loses_that_one_only(tmp_path: Path) -> None:
    """On Windows a pipe is cp1252; Python's own answer is an error, and half of a reply is lost."""
    grammar = tmp_path / "reply.gbnf"
    grammar.write_text('root ::= "caf\u00e9 \U0001f31f \u2115 end"', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "llama_py", "chat", "--grammar", str(grammar), "hi"],
        capture_output=True,
        timeout=PATIENCE,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "cp1252"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("cp1252").split() == ["caf\u00e9", "?", "?", "end"]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_a_question_comes_from_a_pipe(arguments: tuple[str, ...]) -> None:
    asked = run("chat", "--temp", "0", "Hello!")
    piped = process("chat", "--temp", "0", *arguments, given="Hello!\n")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == asked.stdout


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_pipe_that_is_not_text_is_named(locale: str) -> None:
    environment = {**ENVIRONMENT, "LC_ALL": locale}
    arguments = [sys.executable, "-m", "llama_py", "chat", "Hello!"]
    found = subprocess.run(arguments, input=b"\xff", env=environment, capture_output=True)
    assert found.returncode == 2
    assert found.stderr.decode().startswith("llama-py: standard input is not UTF-8: ")


def test_the_same_seed_gives_the_same_reply() -> None:
    command = ("chat", "--temp", "1.5", "--seed", "7", "--top-k", "50", "Hello!")
    assert run(*command).stdout == run(*command).stdout


def test_max_tokens_and_statistics() -> None:
    done = run("chat", "-n", "2", "--stats", "--temp", "0", "Hello!")
    assert done.returncode == 0
    assert "reply: 2 tokens" in done.stderr


def test_a_json_schema_is_followed(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, '
        '"required": ["n"], "additionalProperties": false}'
    )
    done = run("chat", "--json-schema", str(schema), "--temp", "0", "Answer in JSON.")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout)["n"], int)


def test_a_chat_without_a_limit() -> None:
    done = run("chat", "-n", "-1", "-c", "64", "--temp", "0", "Hello!")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_generate_continues_a_text() -> None:
    done = process("generate", "--temp", "0", "-n", "4", "--echo", "Hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello")
    piped = run("generate", "--temp", "0", "-n", "4", "--echo", given="Hello")
    assert piped.stdout == done.stdout


def test_embed_writes_a_vector_for_each_line(tmp_path: Path) -> None:
    given = "What is 2 + 3?\nHello!\n"
    done = process("embed", "--dimensions", "8", given=given)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    file, array = tmp_path / "lines.txt", tmp_path / "lines.npy"
    file.write_text(given, encoding="utf-8")
    again = run("embed", str(file), "-o", str(array), "--dimensions", "8")
    assert (again.returncode, again.stdout) == (0, "")
    vectors = np.load(array)
    assert vectors.shape == (2, 8)
    assert np.allclose(vectors, [line["embedding"] for line in lines], atol=1e-6)
    wrong = run("embed", "-c", "64", given="short\n" + "long " * 100)
    assert wrong.returncode == 2
    assert_sentence(wrong.stderr)
    assert "line 2 of standard input has" in wrong.stderr
    assert "with --truncate" in wrong.stderr


def test_embed_names_the_line_that_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("What is 2 + 3?\n\nHello!\n", encoding="utf-8")
    for given, source in ((str(file), str(file)), ("-", "standard input")):
        done = run("embed", given, given=file.read_text(encoding="utf-8"))
        assert (done.returncode, done.stdout) == (2, "")
        assert_sentence(done.stderr)
        assert f"line 2 of {source} is empty" in done.stderr
        assert "leave empty lines out (grep .)" in done.stderr


def test_a_question_that_does_not_fit_is_an_error() -> None:
    done = run("chat", "-c", "256", given="word " * 2000)
    assert done.returncode == 2
    assert_sentence(done.stderr)
    assert "or give a larger -c N" in done.stderr
    assert "TrimMessages" not in done.stderr


# ---- inspect ---------------------------------------------------------------------------------


def test_inspect_shows_what_is_in_a_model() -> None:
    done = process("inspect", demo_model_path())
    assert done.returncode == 0, done.stderr
    for expected in ("architecture    llama", "full attention", "chat template", "general.name"):
        assert expected in done.stdout


def test_inspect_writes_json() -> None:
    done = run("inspect", "--json", "-m", demo_model_path())
    report = json.loads(done.stdout)
    assert report["architecture"] == "llama"
    assert report["memory"] == "full attention"
    assert report["context_length"] == 2048
    assert report["bytes"] == Path(demo_model_path()).stat().st_size
    assert "<|im_start|>" in report["chat_template"]
    assert report["metadata"]["general.architecture"] == "llama"
    assert report["defaults"]["n_threads"] == {"value": 1, "from": "one: the model is tiny"}


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("iswa", "sliding window, window of 32 tokens"),
        ("recurrent", "recurrent"),
        ("hybrid", "hybrid"),
        ("hybrid_swa", "hybrid with sliding window, window of 32 tokens"),
    ],
)
def test_inspect_knows_the_kind_of_memory(
    kind: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_model(kind))]) == 0
    assert re.search(rf"^memory +{memory}$", capsys.readouterr().out, re.MULTILINE)


def test_inspect_shows_the_installation() -> None:
    report = json.loads(run("inspect", "--json").stdout)
    assert report["version"] == __version__
    assert report["llama_cpp"] == LLAMA_CPP_COMMIT
    assert all(Path(path).is_file() for path in report["libraries"].values())
    assert any(device["kind"] == "cpu" for device in report["devices"])
    assert report["features"]["CPU"]
    shown = run("inspect").stdout
    for expected in ("backends", "libraries", "devices", "features", __version__):
        assert expected in shown


# ---- a conversation --------------------------------------------------------------------------


def talk(*lines: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """``llama-py chat -i`` with these lines on standard input."""
    return run("chat", "-i", "--temp", "0", *arguments, given="\n".join(lines) + "\n")


def test_a_conversation_keeps_its_history_and_reuses_it() -> None:
    lines = ("Hello!", "What is your name?", "/info", "/exit", "never said")
    done = process("chat", "-i", "--temp", "0", given="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert re.search(r"\([1-9]\d* tokens of the prompt were reused", done.stderr)


def test_commands_of_a_conversation(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    done = talk(
        "/help", "/system You are kind.", "Hello!", "/retry", f"/save {saved}", "/reset",
        "/system", "/nonsense", "/save", "/load", f"/load {saved}", "/save /no/such/place",
        "/load /no/such/file", "/info",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "/reset" in done.stdout
    for expected in (
        "the conversation begins again", "You are kind.", "no command /nonsense",
        "3 messages are saved", "goes on after 3 messages",
        "/no/such/place cannot be written: No such file",
        "/no/such/file cannot be read: No such file",
    ):  # fmt: skip
        assert expected in done.stderr
    roles = [message["role"] for message in json.loads(saved.read_text())["messages"]]
    assert roles == ["system", "user", "assistant"]
    assert "Traceback" not in done.stderr


def test_a_saved_conversation_is_loaded_at_the_start(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    talk("Hello!", f"/save {saved}")
    done = talk("How are you?", f"/save {saved}", arguments=("--load", str(saved)))
    assert done.returncode == 0, done.stderr
    assert len(json.loads(saved.read_text())["messages"]) == 4


def test_a_line_goes_on_after_a_backslash(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    talk("Hello \\", "there!", f"/save {saved}")
    assert json.loads(saved.read_text())["messages"][0]["content"] == "Hello \nthere!"


def test_a_full_context_drops_the_oldest_turns_says_so_and_ends(tmp_path: Path) -> None:
    """Regression 13."""
    saved = tmp_path / "chat.json"
    turns = [f"My number is {number}. " + "I like my dog. " * 8 for number in range(12)]
    done = talk(*turns, f"/save {saved}", arguments=("-c", "256", "-n", "16"))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"oldest (turn was|turns were) left out", done.stderr)) >= 3
    messages = json.loads(saved.read_text())["messages"]
    assert 2 <= len(messages) < 2 * len(turns)
    assert messages[0]["role"] == "user"
    assert messages[-2]["content"].startswith("My number is 11.")


def test_a_message_that_can_never_fit_ends_too() -> None:
    done = talk("Hello!", "word " * 2000, "Hello!", arguments=("-c", "256", "-n", "16"))
    assert done.returncode == 0, done.stderr
    assert "does not fit even without the earlier turns" in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_ctrl_c_while_the_prompt_is_processed_sends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Llama(demo_model_path(), n_threads=1, n_threads_batch=1) as llm:
        chat = Chat(llm, llm.chat_session(temperature=0.0, max_tokens=4))
        interrupts = Interrupts()
        interrupts.seen = True
        chat.say("Hello!", interrupts)
        assert chat.session.messages == []
        assert "was not sent" in capsys.readouterr().err
        chat.say("Hello!")
        assert len(chat.session.messages) == 2
        assert not any(entry["busy"] for entry in llm.memory_report()["sequences"])


def test_progress_is_drawn_after_a_moment_and_erased(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llama_py.cli.progress._PATIENCE", 0.0)
    monkeypatch.setattr("llama_py.cli.progress._INTERVAL", 0.0)
    with ProgressLine("processing the prompt", enabled=True) as progress:
        progress.tokens(512, 2048)
    progress.tokens(2048, 2048)
    shown = capsys.readouterr().err
    assert "processing the prompt [######" in shown
    assert "512/2048 tokens" in shown
    assert shown.endswith("\r\x1b[K")
    with ProgressLine("processing the prompt", enabled=False) as progress:
        progress.tokens(512, 2048)
    assert capsys.readouterr().err == ""


# ---- a terminal ------------------------------------------------------------------------------

pty = pytest.importorskip("pty")

#: Makes standard input the controlling terminal, so that Ctrl-C there is a signal.
_CHILD = (
    "import fcntl, runpy, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "sys.argv[0] = 'llama-py'; runpy.run_module('llama_py', run_name='__main__')"
)


class Terminal:
    """A process at a pseudo-terminal."""

    def __init__(self, *arguments: str, history: Path) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**ENVIRONMENT, "TERM": "xterm", "LLAMA_PY_HISTORY": str(history)},
        )
        os.close(slave)
        self.seen = ""

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def press_until(self, key: str, pattern: str) -> None:
        """Press a key, and again if nothing came: one may arrive before the line is read."""
        for _ in range(4):
            self.send(key)
            with contextlib.suppress(AssertionError):
                self.expect(pattern, seconds=10)
                return
        raise AssertionError(f"{pattern!r} did not come; there was: {self.seen!r}")

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Wait until the output after the last match matches; what came up to there."""
        import select

        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen)
            if found:
                before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return before
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{pattern!r} did not come; there was: {self.seen!r}"
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                pytest.fail(f"{pattern!r} did not come before the end; there was: {self.seen!r}")

    def close(self) -> int:
        """Wait for the end of the process; its exit code."""
        try:
            return self.process.wait(timeout=PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self.master)


@pytest.fixture
def endless(tmp_path: Path) -> tuple[str, ...]:
    """Options for replies that do not end."""
    grammar = tmp_path / "endless.gbnf"
    grammar.write_text(ENDLESS)
    return ("--grammar", str(grammar))


def test_ctrl_c_stops_the_reply_and_not_the_program(
    tmp_path: Path, endless: tuple[str, ...]
) -> None:
    saved = tmp_path / "chat.json"
    terminal = Terminal("chat", *endless, history=tmp_path / "history")
    terminal.expect("> ")
    terminal.send("Hello!\n")
    terminal.expect("a a a a")
    terminal.send("\x03")
    terminal.expect(r"\(stopped\)")
    terminal.expect("> ")
    terminal.send(f"/save {saved}\n")
    terminal.expect("2 messages are saved")
    terminal.expect("> ")
    terminal.press_until("\x03", "Ctrl-D leaves")
    terminal.send("/exit\n")
    assert terminal.close() == 0
    message = json.loads(saved.read_text())["messages"][1]
    assert message["content"].startswith("a a a a")


def test_ctrl_c_ends_a_single_question_with_130(tmp_path: Path, endless: tuple[str, ...]) -> None:
    terminal = Terminal("chat", *endless, "Hello!", history=tmp_path / "history")
    terminal.expect("a a a a")
    terminal.send("\x03")
    assert terminal.close() == 130
    assert "Traceback" not in terminal.seen


def test_lines_can_be_edited_and_the_history_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    history = tmp_path / "state" / "history"
    terminal = Terminal("chat", "--temp", "0", history=history)
    terminal.expect("> ")
    terminal.send("/systex\x7fm You are kind.\n")
    terminal.expect("the system message is set")
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.close() == 0
    assert "/system You are kind." in history.read_text()
    again = Terminal("chat", history=history)
    again.expect("> ")
    again.send("\x1b[A")
    again.expect("/system You are kind")
    again.send("\n")
    again.expect("> ")
    again.send("\x04")
    assert again.close() == 0


def test_pasted_lines_are_one_message(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    saved, settings = tmp_path / "chat.json", tmp_path / "inputrc"
    settings.write_text("set enable-bracketed-paste off\n")  # as some builds of Python do
    with mock.patch.dict(ENVIRONMENT, INPUTRC=str(settings)):
        terminal = Terminal("chat", "-n", "4", history=tmp_path / "history")
    terminal.expect("tokens of context; ")
    terminal.expect(r"\x1b\[\?2004h> ", seconds=20)  # the terminal is asked to mark what is pasted
    terminal.send("\x1b[200~one\ntwo\nthree\x1b[201~")
    terminal.expect("three")
    terminal.send("\n")
    terminal.expect("> ")
    terminal.send(f"/sav\t{saved}\n")  # Tab
    terminal.expect("2 messages are saved")
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.close() == 0
    assert json.loads(saved.read_text())["messages"][0]["content"] == "one\ntwo\nthree"


@pytest.mark.parametrize(
    ("command", "says"),
    [("generate", "type the text to continue"), ("embed", "type the lines to embed")],
)
def test_a_terminal_that_waits_says_for_what(command: str, says: str, tmp_path: Path) -> None:
    terminal = Terminal(command, history=tmp_path / "history")
    terminal.expect(f"{says}; Ctrl-D")
    terminal.send("Hello\n\x04")
    assert terminal.close() == 0


# ---- what is asked -----------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """Models and prompts of ``chat`` and ``generate``, which are not answered."""
    found: list[tuple[str | None, str]] = []

    def complete(prompt: str, **_options: Any) -> list[Any]:
        found.append(("", prompt))
        return []

    def load(parsed: Any) -> Any:
        found.append((parsed.model, ""))
        llm = mock.MagicMock()
        llm.__enter__.return_value = llm
        llm.n_ctx.return_value = 512
        llm.create_completion.side_effect = complete
        return llm

    monkeypatch.setattr("llama_py.cli.options.load_model", load)
    monkeypatch.setattr(Chat, "say", lambda _self, text: found.append(("", text)))
    return found


@pytest.mark.parametrize("command", ["chat", "generate"])
@pytest.mark.parametrize(
    ("arguments", "given", "prompt"),
    [
        (("What?",), "", "What?"),
        (("What?",), "some text\n\n", "some text\n\nWhat?"),
        (("-",), "some text", "some text"),
        ((), "some text", "some text"),
        (("-n", "4", "What?", "--seed", "1"), "a\nb\n", "a\nb\n\nWhat?"),
    ],
)
def test_a_pipe_comes_before_the_question(
    asked: Any, command: str, arguments: tuple[str, ...], given: str, prompt: str
) -> None:
    assert run(command, *arguments, given=given).returncode == 0
    assert [text for _, text in asked if text] == [prompt]


def test_a_model_may_come_first(asked: Any, tmp_path: Path) -> None:
    model, blob = demo_model_path(), tmp_path / "sha256-abc"
    blob.symlink_to(model)
    for command in ("chat", "generate"):
        for arguments in ((model, "-n", "4", "Hi"), (str(blob), "Hi"), ("-m", model, "Hi")):
            asked.clear()
            done = run(command, *arguments)
            assert done.returncode == 0, done.stderr
            assert (asked[0][0], asked[-1][1]) == (model if model in arguments else str(blob), "Hi")
    asked.clear()
    assert run("chat", "-m", model, "other.gguf").returncode == 0
    assert asked[-1][1] == "other.gguf"
    text = tmp_path / "notes.txt"
    text.write_text("one\ntwo\n")
    assert len(run("embed", model, str(text)).stdout.splitlines()) == 2


def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_PY_MODEL", "/no/such/model")
    for command in ("chat", "generate", "embed", "serve"):
        done = run(command, *(["hi"] if command in ("chat", "generate") else []))
        assert done.returncode == 2
        assert "/no/such/model" in done.stderr
    assert run("chat", "-m", demo_model_path(), "-n", "4", "hi").returncode == 0


def test_flags_are_spelled_alike_in_all_commands() -> None:
    from llama_py.cli import _parser
    from llama_py.cli.elsewhere import ALIASES

    parser = _parser()
    (commands,) = (each for each in parser._actions if isinstance(each.choices, dict))
    assert commands.choices is not None
    for name, command in dict(commands.choices).items():
        known = command._option_string_actions
        for flag, others in ALIASES.items():
            missing = {*others} - known.keys() if flag in known else ()
            assert not missing, (name, flag, missing)
        clash = known.keys() & command.elsewhere.keys()
        assert not clash, (name, clash)


def test_a_text_file_goes_with_the_next_message(tmp_path: Path) -> None:
    saved, notes = tmp_path / "chat.json", tmp_path / "notes.txt"
    notes.write_text("PELICAN\n")
    done = talk(
        "/file", "/file /no/such", f"/file {notes}", "What is it?", "Hello!", f"/save {saved}",
        "/sytem", arguments=("-n", "4"),
    )  # fmt: skip
    assert "notes.txt goes with the next message, as " in done.stderr
    assert "/no/such cannot be read: No such file" in done.stderr
    assert "no command /sytem; did you mean /system?" in done.stderr
    first, _, second, _ = (each["content"] for each in json.loads(saved.read_text())["messages"])
    assert first == "notes.txt:\n```\nPELICAN\n```\n\nWhat is it?"
    assert second == "Hello!"


def test_lines_between_quotes_are_one_message(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    talk('"""one', "two", '"""', f"/save {saved}", arguments=("-n", "4"))
    assert json.loads(saved.read_text())["messages"][0]["content"] == "one\ntwo"
    done = talk(f"/load {saved}")
    assert "(user: one two)" in done.stderr


def test_tab_completes_commands_and_files(tmp_path: Path) -> None:
    from llama_py.cli.tabs import completions

    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder").mkdir()
    commands = ["/file", "/system"]
    assert completions("/sy", commands) == ["/system "]
    assert completions("", commands) == completions("Hello", commands) == []
    assert completions(f"/file {tmp_path}/n", commands) == [f"/file {tmp_path}/notes.txt"]
    assert completions(f"/file {tmp_path}/f", commands) == [f"/file {tmp_path}/folder/"]
    assert completions("/system /", commands) == []


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_py.cli.chat.is_terminal", lambda _stream: True)
    assert Chat(mock.Mock(), mock.Mock())._colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Chat(mock.Mock(), mock.Mock())._colours


def test_a_cluster_without_its_packages_says_so() -> None:
    with mock.patch.dict("sys.modules", {"llama_py.cluster.configuration": None}):
        done = run("cluster", "deploy", "--check")
    assert "a cluster needs the package" in done.stderr
    assert "pip install 'llama-py[ray]'" in done.stderr


def test_a_shell_completes_commands_and_options() -> None:
    pytest.importorskip("argcomplete")
    line = "llama-py cha"
    environment = {
        **ENVIRONMENT, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout", "_ARGCOMPLETE_IFS": "\n",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "llama_py"], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "chat"


# ---- devices ---------------------------------------------------------------------------------


def test_devices_says_what_there_is_and_what_is_missing() -> None:
    shown = run("devices").stdout
    assert "CPU" in shown
    assert "holds whatever is not on a GPU" in shown
    report = json.loads(run("devices", "--json").stdout)
    assert {device["name"] for device in report["devices"]} >= {"CPU"}
    assert isinstance(report["hints"], list)


def test_inspect_says_what_a_model_takes_before_it_is_loaded() -> None:
    small, large = (
        json.loads(
            run(
                "inspect", "--json", "--fit", demo_model_path(), "-c", size, "--n-seq-max", "2"
            ).stdout
        )
        for size in ("1024", "2048")
    )
    assert (small["n_ctx"], small["n_seq_max"]) == (1024, 2)
    assert sum(each["cells"] for each in large["devices"]) == 2 * sum(
        each["cells"] for each in small["devices"]
    )
    assert small["fits"] is True
    shown = run("inspect", demo_model_path(), "--fit", "-c", "1024", "-ctk", "q8_0").stdout
    assert "it fits" in shown
    assert "weights" in shown
    wrong = run("inspect", "--fit")
    assert wrong.returncode == 2
    assert "give the file of a model" in wrong.stderr
