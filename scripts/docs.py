"""Writes the pages of docs/ that are made from the code: configuration.md."""

from pathlib import Path

from polar.config.reference import run_reference

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Made by `make docs` from the docstrings under the fields of the settings models. -->

A run is told everything by one document, in YAML, TOML or JSON:

```yaml
model: smollm2-135m
harness:
  name: mini_swe_agent
  settings: {step_limit: 6}
tasks:
  train: tasks/train.jsonl
  heldout: tasks/heldout.jsonl
loop: {steps: 40, group_size: 8}
train: {lr: 1e-5}
```

`engine`, `harness` and `runtime` have a `name` and `settings`; what can be set depends on the name.
Without one they are `embedded`, `mini_swe_agent` and `auto`: bubblewrap where it works, else plain
local processes with a warning.

`polar train CONFIG --set train.lr=2e-5` changes one setting; the value is read as YAML. Reading is
strict: an unknown key, a missing one or a wrong type is an error that names the file, `--set` or
flag that it is from, the key and what to write, all of them at once. The run folder keeps the
resolved document, every default spelt out, as `config.yaml`.

These environment variables are read, no others: `POLAR_CACHE` (folder of converted models and
installed harnesses, `~/.cache/polar`), `POLAR_DATA` (folder of the sessions that `polar run` keeps;
else `polar` in `XDG_DATA_HOME`, which is `~/.local/share` where it is not set) and `POLAR_DEBUG`
(`1` shows the stack trace of an error, as `--debug` does).

"""


def page() -> str:
    """Compose the page."""
    return INTRODUCTION + run_reference()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
