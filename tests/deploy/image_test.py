"""Runs the lines of deploy/Dockerfile in fresh roots, and then the image's own command and health check: image_test.py.

It compiles the project as the image would: minutes.
"""

import glob
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/deploy")]
import dockerfile  # noqa: E402
from fresh_root import FreshRoot  # noqa: E402
from serving import Server  # noqa: E402

FILE = ROOT / "deploy/Dockerfile"
IGNORED = (ROOT / "deploy/Dockerfile.dockerignore").read_text().split()


class Stage:
    def __init__(self, root):
        self.root, self.directory, self.environment, self.user = root, "/", {}, "0:0"

    def run(self, *words, **more):
        self.root.run(*words, directory=self.directory, environment=self.environment, user=self.user, **more)

    def copy(self, rest, stages):
        *sources, target = shlex.split(rest)
        origin = ROOT
        if sources[0].startswith("--from="):
            origin = stages[sources.pop(0).removeprefix("--from=")].root.path
        to = self.root.path / os.path.join(self.directory, target).lstrip("/")
        for source in sources:
            for path in map(pathlib.Path, glob.glob(str(origin / source.lstrip("/")))):
                if path.is_dir():
                    ignore = lambda folder, names: [n for n in names if pathlib.Path(folder) == ROOT and n in IGNORED]
                    shutil.copytree(path, to, symlinks=True, ignore=ignore, dirs_exist_ok=True)
                else:
                    file = to / path.name if target.endswith("/") else to
                    file.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, file)


class Image(unittest.TestCase):
    def build(self):
        """The stage that the image is made of."""
        stages, stage = {}, None
        for name, rest in dockerfile.instructions(FILE):
            print(f"{name} {rest}", flush=True)
            if name == "FROM":
                image, *label = rest.split()
                self.assertEqual(image, "debian:12-slim")  # what a fresh root stands for
                stage = Stage(self.enterContext(FreshRoot()))
                stages[label[1] if label else len(stages)] = stage
            elif name == "WORKDIR":
                stage.directory = rest
                (stage.root.path / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                stage.copy(rest, stages)
            elif name == "RUN":
                start = time.monotonic()
                stage.run("sh", "-c", rest)
                print(f"    took {time.monotonic() - start:.0f} s", flush=True)
            elif name == "ENV":
                stage.environment |= dockerfile.variables(rest)
            elif name == "USER":
                stage.user = rest
        return stage

    def test_its_lines_make_a_server(self):
        stage = self.build()
        as_image = {"user": stage.user, "environment": stage.environment}
        self.assertEqual(stage.root.output("id", "-u", **as_image), "10001\n")
        self.assertEqual(list(stage.root.path.glob("tmp/*")), [])
        stage.root.run("espalier", "make-model", "--preset", "tiny-v3", "--out", "/tmp/model", **as_image)
        entry = dockerfile.last_stage(FILE)["ENTRYPOINT"]
        self.assertEqual(entry, '["espalier", "serve"]')  # as Server starts it
        server = Server(stage.root.command("espalier", **as_image), "/tmp/model")
        server.get("/health")
        as_image["environment"] = stage.environment | {"ESPALIER_PORT": server.root.rsplit(":", 1)[1]}
        stage.root.run(*dockerfile.health_command(dockerfile.last_stage(FILE)["HEALTHCHECK"]), **as_image)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
