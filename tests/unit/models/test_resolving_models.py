"""Finding a model: by name, folder or hub id, with one clear error where there is none."""

import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from polar.errors import ModelMissing
from polar.models import names, resolve
from polar.models.hub import from_hub, hub_reachable
from polar.models.manifest import write_manifest


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (made / name).write_text("{}")
    return made


def test_a_local_folder_is_used_in_place(folder, tmp_path):
    assert resolve(str(folder), cache=tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something_is_told_what(folder, tmp_path, name):
    (folder / name).unlink()

    with pytest.raises(ModelMissing, match=name.removeprefix("model.")) as missing:
        resolve(str(folder), cache=tmp_path)

    assert missing.value.where == str(folder)


def test_a_misspelt_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ModelMissing) as missing:
        resolve("smollm-135m", cache=tmp_path)

    assert missing.value.where == "smollm-135m"
    assert "smollm2-135m" in str(missing.value.fix)


def test_a_wrong_path_is_not_taken_for_a_hub_id(tmp_path):
    with pytest.raises(ModelMissing, match="no folder"):
        resolve("/no/such/folder", cache=tmp_path)


def test_a_known_name_that_was_made_before_is_taken_from_the_cache(tmp_path, folder):
    (name,) = names()
    write_manifest(folder, source="a test")
    cached = tmp_path / "cache" / "models" / name
    cached.parent.mkdir(parents=True)
    folder.rename(cached)

    assert resolve(name, cache=tmp_path / "cache") == cached


def test_an_unreachable_hub_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(ModelMissing, match="cannot be reached"):
        from_hub("nobody/nothing-here", progress=print)


def test_a_hub_that_never_answers_is_given_up_on(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")

        assert not hub_reachable(timeout_s=0.2)
