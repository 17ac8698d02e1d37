import pytest

from polar.errors import ConfigError, ModelMissing
from polar.rendering import load_renderer
from polar.rendering.family import FamilyRenderer
from polar.rendering.generic import GenericRenderer
from polar.rendering.tiny import tiny_tokenizer

QWEN3 = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")


@pytest.fixture
def model(tmp_path):
    tokenizer = tiny_tokenizer(special_tokens=(*QWEN3, "</tool_response>"))
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_folder_is_rendered_by_its_own_template(model):
    assert isinstance(load_renderer(model), GenericRenderer)


def test_a_folder_can_be_said_to_be_of_a_family(model):
    assert isinstance(load_renderer(model, family="qwen3"), FamilyRenderer)


@pytest.mark.parametrize("family", ["qwen33", "kimi-k2"])
def test_a_family_that_does_not_fit_is_a_config_error(model, family):
    with pytest.raises(ConfigError, match=family):
        load_renderer(model, family=family)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelMissing, match="nowhere"):
        load_renderer(str(tmp_path / "nowhere"))


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelMissing, match=str(tmp_path)):
        load_renderer(str(tmp_path))


def test_a_tokenizer_without_a_template_is_named(tmp_path):
    tiny_tokenizer("").save_pretrained(tmp_path / "base")
    with pytest.raises(ModelMissing, match=r"no chat template.*base"):
        load_renderer(str(tmp_path / "base"))
