"""Where programs of npm packages are looked for, and how Node starts them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from polar.errors import HarnessMissing
from polar.harnesses.npm import NpmProgram

SCRIPT = NpmProgram("tool", "@maker/tool", "1.2.3", "tool", node="22.0.0", least_node="20")
NATIVE = NpmProgram("tool", "@maker/tool", "1.2.3", "tool", native="@maker/tool-*/bin/tool")


def a_file(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def installed(cache: Path) -> tuple[Path, Path]:
    """Lay out what `npm install` makes: the program behind a link, and Node."""
    folder = SCRIPT.folder(cache)
    package = folder / "node_modules" / "@maker" / "tool"
    script = a_file(package / "cli.js")
    a_file(package / "package.json", json.dumps({"version": "1.2.3"}))
    link = folder / "node_modules" / ".bin" / "tool"
    link.parent.mkdir(parents=True)
    link.symlink_to(script)
    node = Path(SCRIPT.install_command(cache)[1][3])
    return script, a_file(node, '#!/bin/sh\necho "cache:$NODE_COMPILE_CACHE" "$@"\n')


@pytest.fixture
def bare_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))


def test_the_installed_program_is_found_with_its_version_and_what_it_needs(tmp_path):
    script, node = installed(tmp_path)

    found = SCRIPT.find(None, tmp_path, node)

    assert (found.executable, found.version) == (script, "1.2.3")
    assert found.read_only[0] == SCRIPT.folder(tmp_path)
    assert node.parent.parent in found.read_only


def test_a_native_program_is_found_by_its_pattern(tmp_path):
    modules = NATIVE.folder(tmp_path) / "node_modules"
    program = a_file(modules / "@maker" / "tool-linux" / "bin" / "tool")

    found = NATIVE.find(None, tmp_path)

    assert found.executable == program
    assert found.version == "unknown"


@pytest.mark.usefixtures("bare_path")
def test_what_is_nowhere_says_how_to_install_it(tmp_path):
    with pytest.raises(HarnessMissing) as caught:
        NATIVE.find(None, tmp_path)
    assert caught.value.fix == "Run `polar install tool`."


def test_a_wrong_setting_is_not_passed_over(tmp_path):
    installed(tmp_path)
    with pytest.raises(HarnessMissing, match="not where the settings say"):
        SCRIPT.find(tmp_path / "elsewhere", tmp_path)


def test_its_own_node_goes_before_the_machines(tmp_path):
    _, node = installed(tmp_path)
    assert SCRIPT.find_node(None, tmp_path) == node
    chosen = a_file(tmp_path / "chosen" / "node")
    assert SCRIPT.find_node(chosen, tmp_path) == chosen


@pytest.mark.usefixtures("bare_path")
def test_without_any_node_the_error_says_which_is_needed(tmp_path):
    with pytest.raises(HarnessMissing, match="needs Node 20"):
        SCRIPT.find_node(None, tmp_path)


def test_another_node_is_started_as_it_is(tmp_path):
    installed(tmp_path)
    assert SCRIPT.launcher(Path("/usr/bin/node"), tmp_path, "/home/x") == ("/usr/bin/node",)


def test_code_compiled_at_installation_is_there_for_whatever_user_runs_it(tmp_path):
    _, node = installed(tmp_path)
    made = SCRIPT.folder(tmp_path) / "compiled" / "v22.0.0-x64-abc-12345"
    a_file(made / "code", "compiled")
    home = tmp_path / "home"
    home.mkdir()
    argv = [*SCRIPT.launcher(node, tmp_path, str(home)), "cli.js", "it's odd"]

    ran = subprocess.run(
        argv,
        env={"HOME": str(home), "PATH": str(Path(shutil.which("ln") or "").parent)},
        capture_output=True,
        text=True,
        check=True,
    )

    cache = home / ".compiled"
    assert ran.stdout == f"cache:{cache} cli.js it's odd\n"
    (tag,) = cache.iterdir()
    assert tag.name.startswith("v22.0.0-x64-abc-")
    assert tag.name.rsplit("-", 1)[1].isdigit()
    assert (tag / "code").read_text() == "compiled"
