"""Runtimes are found by name, and chosen by what the machine can do."""

import pytest

from polar.errors import ConfigError, SetupError
from polar.runtimes import default_runtime, load, names
from polar.runtimes.bubblewrap import BubblewrapRuntime
from polar.runtimes.local import LocalRuntime
from polar.runtimes.settings import BubblewrapSettings


def test_runtimes_are_loaded_by_name():
    assert load("local") is LocalRuntime
    assert load("bubblewrap") is BubblewrapRuntime
    assert {"local", "bubblewrap"} <= set(names())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="bubblewrap"):
        load("bublewrap")


def test_bubblewrap_is_chosen_where_it_works():
    choice = default_runtime()

    assert choice.name == "bubblewrap"
    assert choice.warning is None


def test_without_bubblewrap_the_choice_is_local_and_says_what_is_not_protected(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))

    choice = default_runtime()

    assert choice.name == "local"
    assert "without a sandbox" in choice.warning
    assert "apt install bubblewrap" in choice.warning
    assert not any(choice.runtime.protections()[name] for name in ("network", "root_read_only"))


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho no permission >&2\nexit 1\n"])
def test_a_bubblewrap_that_does_not_work_is_a_set_up_error(tmp_path, script):
    executable = tmp_path / "bwrap"
    if script is not None:
        executable.write_text(script)
        executable.chmod(0o755)

    with pytest.raises(SetupError) as caught:
        BubblewrapRuntime(BubblewrapSettings(executable=executable)).probe()

    assert str(executable) in str(caught.value)
    assert script is None or "no permission" in str(caught.value)
