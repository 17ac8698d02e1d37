"""What a sandbox must show for an interpreter to start."""

from pathlib import Path

from polar.harnesses.installing import interpreter_of, own_folder, python_folders


def _interpreter(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_every_step_of_a_chain_of_links_is_shown(tmp_path):
    real = _interpreter(tmp_path / "real-3.11.9" / "bin" / "python3.11")
    (tmp_path / "alias-3.11").symlink_to("real-3.11.9")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(tmp_path / "alias-3.11" / "bin" / "python3.11")

    folders = python_folders(python)

    assert set(folders) == {tmp_path / "venv", tmp_path / "alias-3.11", real.parent.parent}


def test_a_relative_link_is_followed_from_where_it_is(tmp_path):
    _interpreter(tmp_path / "base" / "bin" / "python3")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("python3")
    (python.parent / "python3").symlink_to("../../base/bin/python3")

    assert set(python_folders(python)) == {tmp_path / "venv", tmp_path / "base"}


def test_folders_inside_of_others_are_left_out(tmp_path):
    _interpreter(tmp_path / "bin" / "python3")
    python = tmp_path / "nested" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(tmp_path / "bin" / "python3")

    assert python_folders(python) == (tmp_path,)


def test_the_interpreter_is_read_from_the_first_line(tmp_path):
    python = _interpreter(tmp_path / "bin" / "python")
    script = tmp_path / "script"
    script.write_text(f"#!{python}\nimport sys\n")

    assert interpreter_of(script) == python


def test_a_script_without_an_absolute_interpreter_has_none(tmp_path):
    script = tmp_path / "script"
    for first in ("#!/usr/bin/env python\n", "#!python\n", "plain\n", "#!/no/such/python\n"):
        script.write_text(first)
        assert interpreter_of(script) is None


def test_own_installations_lie_in_the_cache(tmp_path):
    assert own_folder(tmp_path, "x-1") == tmp_path / "harnesses" / "x-1"
    assert own_folder(Path("~/c"), "x-1").is_absolute()
