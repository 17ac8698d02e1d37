import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.errors import ConfigError
from polar.tasks import check_path, lay_out


@given(st.text(st.sampled_from("a./\0 é"), max_size=8))
def test_an_accepted_path_stays_inside_wherever_it_is_laid_out(tmp_path_factory, path):
    folder = tmp_path_factory.mktemp("outer") / "work"
    folder.mkdir()
    try:
        check_path(path)
    except ValueError:
        return
    lay_out({path: "x"}, folder)
    assert (folder / path).read_text() == "x"
    assert (folder / path).resolve().is_relative_to(folder.resolve())
    assert [each.name for each in folder.parent.iterdir()] == ["work"]


def test_files_are_laid_out_byte_for_byte(tmp_path):
    lay_out({"a/b.txt": "x\r\ny\n", "c.txt": "é"}, tmp_path)
    assert (tmp_path / "a/b.txt").read_bytes() == b"x\r\ny\n"
    assert (tmp_path / "c.txt").read_bytes() == b"\xc3\xa9"


@pytest.mark.parametrize("path", ["/x", "../x", "a/../b", "", "a/", "./a"])
def test_nothing_is_laid_out_when_one_path_is_refused(tmp_path, path):
    with pytest.raises(ConfigError):
        lay_out({"fine.txt": "", path: ""}, tmp_path)
    assert list(tmp_path.iterdir()) == []
