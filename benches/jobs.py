"""What the programs beside this one ask `dormouse`, which lies in the folder `bin` beside theirs."""

import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
DORMOUSE = HERE.parent / "bin" / "dormouse"


def ask(*words: str, timeout: float | None = None, may_have_ended: str | None = None) -> dict | None:
    """What a command answers; nothing where it is about a job that has ended meanwhile, if that may have."""
    said = subprocess.run([str(DORMOUSE), *words, "--json"], capture_output=True, text=True, timeout=timeout)
    if may_have_ended and said.returncode in (3, 11) and not supervisors(may_have_ended, timeout):
        return None
    if said.returncode != 0:
        raise SystemExit(f"dormouse {words[0]} ended with {said.returncode}: {said.stdout}{said.stderr}")
    return json.loads(said.stdout)


def supervisors(job: str, timeout: float | None = None) -> list[int]:
    return [each["supervisor"] for each in ask("ps", timeout=timeout)["jobs"] if each["job"] == job]
