"""`polar doctor`: each finding says what to do, and the exit code says whether Polar works."""

import asyncio
import json
import os

import pytest

from polar.cli import app, findings
from polar.cli.engine_check import check_engine
from polar.cli.engine_log import check_engine_log, engine_log
from polar.cli.findings import check_machine
from polar.cli.run_folder import RunFolder
from polar.engines.servers.events import log_event
from polar.harnesses.gemini_cli import VERSION
from polar.models.manifest import write_manifest


@pytest.fixture
def doctor(capsys, monkeypatch):
    def run(*arguments: str, cache: str) -> tuple[int, str]:
        monkeypatch.setenv("POLAR_CACHE", cache)
        with pytest.raises(SystemExit) as ended:
            app.main(["doctor", *arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def state_of(subject: str, cache) -> str:
    (found,) = (each for each in check_machine(cache) if each.subject == subject)
    return found.state


def test_every_finding_has_a_state_and_what_is_wrong_has_a_fix(doctor, tmp_path):
    code, told = doctor("--json", cache=str(tmp_path))

    found = json.loads(told)
    assert code == 0
    assert {"torch", "sandbox", "node", "cache folder"} <= {each["subject"] for each in found}
    assert all(each["fix"] for each in found if each["state"] != "ok")


def test_for_people_each_finding_is_a_line_with_its_fix_below(doctor, tmp_path):
    code, told = doctor(cache=str(tmp_path))

    assert code == 0
    assert "harness mini_swe_agent" in told
    assert told.count("fix:") == told.count("! ")


def test_a_cache_that_cannot_be_written_fails(doctor):
    code, told = doctor("--json", cache="/dev/null/cache")

    (found,) = (each for each in json.loads(told) if each["subject"] == "cache folder")
    assert code == 3
    assert found["state"] == "fail"
    assert "POLAR_CACHE" in found["fix"]


def test_node_that_is_not_there_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert state_of("node", tmp_path) == "warn"


@pytest.mark.parametrize(
    ("script", "state"), [("echo v22.1.0", "ok"), ("echo v18.0.0", "warn"), ("exit 1", "warn")]
)
def test_node_must_start_and_be_new_enough(monkeypatch, tmp_path, script, state):
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\n{script}\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert state_of("node", tmp_path) == state


def test_a_damaged_model_is_found_by_its_hashes(tmp_path):
    folder = tmp_path / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    weights = folder / "weights"
    weights.write_bytes(b"1234")
    write_manifest(folder, source="a test")
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    assert state_of("model smollm2-135m", tmp_path) == "ok"

    weights.write_bytes(b"1235")
    os.utime(weights, ns=times)

    assert state_of("model smollm2-135m", tmp_path) == "warn"


def test_little_free_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(findings, "NEEDED_DISK_GB", 1e9)

    assert state_of("cache folder", tmp_path) == "warn"


def test_an_engine_without_an_address_is_told_so(tmp_path):
    (found,) = check_engine(
        "embedded", ["http://127.0.0.1:9"], model="smollm2-135m", cache=tmp_path
    )

    assert found.state == "fail"
    assert "no address" in found.found


def test_an_engine_that_does_not_answer_is_a_finding_and_no_defect(tmp_path):
    (found,) = check_engine("vllm", ["http://127.0.0.1:1"], model="smollm2-135m", cache=tmp_path)

    assert found.state == "fail"
    assert "does not answer" in found.found
    assert found.fix is not None
    assert found.fix not in found.found


def test_each_server_is_a_finding_and_one_that_is_missing_is_told(tmp_path):
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    *each, together = check_engine("vllm", urls, model="smollm2-135m", cache=tmp_path)

    assert [finding.subject for finding in each] == [f"vllm at {url}" for url in urls]
    assert (together.state, together.found) == ("fail", "0 of 2 answer")


async def logged(path, *events):
    async with engine_log(path):
        for event in events:
            log_event(*event)


def test_what_happened_to_a_run_s_servers_is_read_from_its_folder(doctor, tmp_path):
    events = (
        ("http://a", "lost", "no answer"),
        ("http://b", "lost", "no answer"),
        ("http://b", "moved", "a call"),
        ("http://b", "returned", "weight version 3"),
    )
    asyncio.run(logged(RunFolder(tmp_path).engine_log, *events))

    code, told = doctor("--json", "--run", str(tmp_path), cache=str(tmp_path))

    found = {each["subject"]: each for each in json.loads(told)}
    assert code == 0
    assert found["server http://a"]["state"] == "warn"
    assert "lost 1 times, 0 calls" in found["server http://a"]["found"]
    assert found["server http://b"]["state"] == "ok"
    assert "lost 1 times, 1 calls" in found["server http://b"]["found"]


def test_a_run_that_lost_no_server_says_so(tmp_path):
    asyncio.run(logged(tmp_path / "engine.log"))

    (found,) = check_engine_log(tmp_path / "engine.log")
    assert (found.state, found.found) == ("ok", "none was lost in this run")


def test_a_harness_of_another_version_than_the_known_one_is_told(doctor, tmp_path, monkeypatch):
    package = tmp_path / "lib" / "node_modules" / "@google" / "gemini-cli"
    package.mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"version": "0.0.1"}))
    (package / "gemini.js").write_text("")
    (package / "gemini.js").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gemini").symlink_to(package / "gemini.js")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    code, told = doctor("--json", cache=str(tmp_path / "cache"))

    (found,) = (each for each in json.loads(told) if each["subject"] == "harness gemini_cli")
    assert code == 0
    assert found["state"] == "warn"
    assert found["found"].startswith("0.0.1 ")
    assert f"known to work with {VERSION}" in found["found"]
    assert "polar install gemini_cli" in found["fix"]
