"""The instructions of deploy/Dockerfile. One that the tests do not know is an error rather than left out."""

import json
import pathlib
import shlex

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "LABEL", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT"}


def instructions(path):
    """(instruction, rest) in order; lines that end in a backslash are joined."""
    lines = [line for line in pathlib.Path(path).read_text().splitlines() if not line.lstrip().startswith("#")]
    made = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, rest = line.split(None, 1)
        if name not in KNOWN:
            raise ValueError(f"{path}: the tests know no {name}")
        made.append((name, " ".join(rest.split()) if name != "HEALTHCHECK" else rest.strip()))
    return made


def variables(rest):
    """Of ENV a=b c=d."""
    return dict(word.split("=", 1) for word in shlex.split(rest))


def health_command(rest):
    """The words of HEALTHCHECK … CMD ["…"]."""
    return json.loads(rest.split("CMD", 1)[1])


def last_stage(path):
    """What a container of the image starts with: instruction → its last value in the last stage, ENV merged."""
    state = {"ENV": {}}
    for name, rest in instructions(path):
        if name == "FROM":
            state = {"ENV": {}}
        elif name == "ENV":
            state["ENV"] |= variables(rest)
        state[name] = rest if name != "ENV" else state["ENV"]
    return state
