"""What goes wrong in a run without ending it is kept in a file."""

import logging

from polar.cli.log_file import run_log


async def test_a_traceback_is_in_the_file_when_the_run_has_ended(tmp_path):
    async with run_log(tmp_path / "run.log"):
        try:
            raise ValueError("never seen before")
        except ValueError:
            logging.getLogger("polar.rollout").exception("session a")
    written = (tmp_path / "run.log").read_text()
    assert "ERROR polar.rollout: session a" in written
    assert "Traceback" in written
    assert written.rstrip().endswith("ValueError: never seen before")


async def test_a_run_in_which_nothing_goes_wrong_has_no_such_file(tmp_path):
    async with run_log(tmp_path / "run.log"):
        logging.getLogger("polar.rollout").debug("all is well")
    assert not (tmp_path / "run.log").exists()


async def test_a_second_run_appends_and_nothing_is_written_after_the_end(tmp_path):
    for name in "ab":
        async with run_log(tmp_path / "run.log"):
            logging.getLogger("polar.gateway").warning("call %s", name)
    logging.getLogger("polar.gateway").debug("call c")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["a", "b"]
