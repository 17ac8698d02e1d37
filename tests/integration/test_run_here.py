"""`polar run`: real harnesses in the user's own folder, at the user's own terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness_support import CACHE, install

from polar.cli.harness_check import checked
from polar.cli.run_folder import RunFolder
from polar.cli.verify import verify_run
from polar.config.families import settings_model
from polar.store import read_journal
from polar.types import Cancelled, Ended, Failed

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).parent.parent / "support" / "run_here.py"
PRESETS = (
    "aider",
    "claude_agent_sdk",
    "claude_code",
    "codex",
    "gemini_cli",
    "mini_swe_agent",
    "openai_agents",
    "opencode",
    "pi",
    "qwen_code",
)
ASK = """\
import json, os, urllib.request
headers = {"content-type": "application/json", "authorization": "Bearer k"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
def ask(**fields):
    messages = [{"role": "user", "content": "hello"}]
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
"""


class Place:
    """A user's machine: a home, a folder that is worked in, a run folder."""

    def __init__(self, root: Path) -> None:
        self.home, self.work, self.run = root / "home", root / "work", root / "data" / "run"
        self.home.mkdir()
        self.work.mkdir()
        subprocess.run(["git", "init", "--quiet", str(self.work)], check=True)
        self.variables: dict[str, str] = {}

    def command(self, name: str, *task: str, flags: str = "yes", context: int = 0) -> list[str]:
        return [sys.executable, str(PROGRAM), name, str(self.run), str(context), flags, *task]

    @property
    def environ(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "POLAR_CACHE": str(CACHE), "TERM": "xterm-256color"}
        # What a proxy and a provider's own key would do is part of the test.
        lures = {
            "HTTP_PROXY": "http://127.0.0.1:9",
            "OPENAI_BASE_URL": "http://127.0.0.1:9",
            "ANTHROPIC_AUTH_TOKEN": "somebody-elses",
            "GEMINI_API_KEY": "somebody-elses",
        }
        return {**os.environ, **lures, **own, **self.variables}

    def ran(self, name: str, *task: str, **kinds) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name, *task, **kinds),
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def script(self, program: str) -> None:
        """Let the `shell` harness run a Python program."""
        path = self.home.parent / "agent.py"
        path.write_text(ASK + program)
        self.variables["SETTINGS"] = f"command=exec\u00a0{sys.executable}\u00a0-I\u00a0{path}"

    def sessions(self):
        with read_journal(RunFolder(self.run).journal) as journal:
            return [(each, journal.calls(each.session.id)) for each in journal.sessions()]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def home_of(place: Place) -> list[str]:
    return [path.name for path in place.home.iterdir()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_real_harness_works_here_and_is_on_record_and_nothing_of_the_users_is_touched(
    name, place
):
    install(checked(name, settings_model("harness", name)(cache=CACHE)))

    ran = place.ran(name, "Create a file hello.txt that contains the word hello.")

    assert ran.returncode == 0, ran.stderr
    assert (place.work / "hello.txt").read_text() == "hello\n", ran.stdout + ran.stderr
    assert sorted(path.name for path in place.work.iterdir()) == [".git", "hello.txt"]
    assert home_of(place) == []
    ((record, calls),) = place.sessions()
    assert record.outcome == Ended(0)
    assert [call.kind for call in calls] == ["main"] * len(calls)
    assert len(calls) >= (1 if name == "aider" else 3)
    found = verify_run(RunFolder(place.run))
    assert found.violations == []
    assert found.counts["trajectories equal to the rebuilt ones"] == 1
    assert found.counts["tokens kept"] == found.counts["sampled tokens"] > 0


@pytest.mark.parametrize(
    "name",
    ["aider", "claude_agent_sdk", "claude_code", "codex", "gemini_cli", "openai_agents"],
)
def test_without_a_yes_the_harness_keeps_its_own_approvals(name, place):
    install(checked(name, settings_model("harness", name)(cache=CACHE)))
    place.variables["COMMANDS"] = f"echo hello > {place.home}/outside.txt"

    ran = place.ran(name, "Write outside of this folder.", flags="none")

    assert home_of(place) == [], ran.stdout + ran.stderr
    assert place.sessions()[0][1] != ()


def test_a_harness_whose_first_request_does_not_fit_is_told_by_name(place):
    install(checked("pi", settings_model("harness", "pi")(cache=CACHE)))

    ran = place.ran("pi", "Do something.", context=600)

    assert ran.returncode == 4
    assert "the first request of pi has" in ran.stderr
    assert "context window 600" in ran.stderr
    assert isinstance(place.sessions()[0][0].outcome, Failed)


def test_the_exit_code_is_the_harnesss_own(place):
    place.script("ask(); raise SystemExit(7)")

    assert place.ran("shell", "whatever").returncode == 7
    assert place.sessions()[0][0].outcome == Ended(7)


@pytest.mark.parametrize(
    ("setting", "limits"),
    [
        ("", [4096, 9000]),
        (" rollout.max_tokens=3", [3, 3]),
        (" rollout.max_tokens=50000", [50_000, 9000]),
    ],
)
def test_a_reply_has_the_limit_of_the_user_or_the_harness_or_else_a_default(place, setting, limits):
    place.script("ask(); ask(max_tokens=9000)")
    place.variables["SETTINGS"] += setting

    place.ran("shell", "whatever")

    ((_, calls),) = place.sessions()
    assert [call.sampling.max_tokens for call in calls] == limits


def test_replies_that_the_default_limit_cuts_are_told_with_how_to_set_another(place):
    place.script("ask(); ask(max_tokens=1)")

    ran = place.ran("shell", "whatever", context=60)

    calls = place.sessions()[0][1]
    assert [call.sampling.max_tokens for call in calls] == [15, 1]
    assert [call.finish_reason for call in calls] == ["length", "length"]
    assert "1 reply was cut at 15 tokens, for shell sets no limit" in ran.stderr
    assert "--set rollout.max_tokens=N" in ran.stderr


def test_a_second_session_goes_beside_the_first(place):
    place.script("ask()")

    place.ran("shell", "one")
    place.ran("shell", "two")

    assert [each.session.id for each, _ in place.sessions()] == ["shell-0000", "shell-0001"]
    assert verify_run(RunFolder(place.run)).violations == []


def test_an_interrupt_keeps_what_was_recorded(place):
    place.script("import time; ask(); open('asked', 'w').close(); time.sleep(100)")
    process = subprocess.Popen(
        place.command("shell", "wait"), cwd=place.work, env=place.environ, start_new_session=True
    )
    wait_for((place.work / "asked").exists)

    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(timeout=60) == 130
    ((record, calls),) = place.sessions()
    assert record.outcome == Cancelled("interrupted")
    assert len(calls) == 1
    assert verify_run(RunFolder(place.run)).violations == []


def test_a_program_that_is_deaf_to_the_interrupt_is_ended(place):
    place.script(
        "import signal, time; signal.signal(2, signal.SIG_IGN); ask();"
        "open('asked', 'w').close(); time.sleep(100)"
    )
    process = subprocess.Popen(
        place.command("shell", "wait"), cwd=place.work, env=place.environ, start_new_session=True
    )
    wait_for((place.work / "asked").exists)

    os.kill(process.pid, signal.SIGINT)

    assert process.wait(timeout=60) == 130
    assert len(place.sessions()[0][1]) == 1


def test_a_screen_gets_the_terminal_and_makes_of_the_interrupt_what_it_wants(place):
    place.script(
        "import os, signal, time; print(os.isatty(0), os.isatty(1), flush=True)\n"
        "interrupts = []; signal.signal(2, lambda *_: interrupts.append('not yet'))\n"
        "print('ready> ', flush=True)\n"
        "while not interrupts: time.sleep(0.05)\n"
        "print(*interrupts, flush=True)\n"
        "print('heard', input('again> '), flush=True); ask()\n"
    )
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *place.command("shell", flags="interactive")[1:]],
        cwd=place.work,
        env=place.environ,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    said = read_until(main, "ready> ")
    os.write(main, b"\x03")
    said += read_until(main, "again> ")
    os.write(main, b"you\n")
    said += read_until(main, "Ended")

    assert process.wait(timeout=60) == 0
    assert "True True" in said
    assert "not yet" in said
    assert "heard you" in said
    assert len(place.sessions()[0][1]) == 1


OWN_TERMINAL = """\
import fcntl, os, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def read_until(terminal: int, text: str) -> str:
    said = ""
    while text not in said:
        assert select.select([terminal], [], [], 60)[0], f"silent after {said!r}"
        said += os.read(terminal, 4096).decode(errors="replace")
    return said


def wait_for(holds) -> None:
    while not holds():
        time.sleep(0.05)
