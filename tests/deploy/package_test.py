"""The Debian package and the archive in fresh roots: package_test.py FOLDER.

Each is installed where no file of this project was before, and then asked for its version, to inspect a model and to serve it.
"""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/deploy")]
from fresh_root import FreshRoot  # noqa: E402
from serving import Server  # noqa: E402

FOLDER = pathlib.Path(sys.argv[1])
VERSION = (ROOT / "include/espalier/version.hpp").read_text().split('"')[1]


def only(pattern):
    found = list(FOLDER.glob(pattern))
    assert len(found) == 1, f"{FOLDER} has {len(found)} files like {pattern}"
    return found[0]


class Package(unittest.TestCase):
    def use(self, root, binary):
        """As user 1: nothing it does needs root."""
        as_user = {"user": "1:1"}
        self.assertEqual(root.output(binary, "--version", **as_user), f"espalier {VERSION}\n")
        root.run(binary, "make-model", "--preset", "tiny-v3", "--out", "/tmp/model", **as_user)
        self.assertIn("DeepSeek", root.output(binary, "inspect", "/tmp/model", **as_user))
        server = Server(root.command(binary, **as_user), "/tmp/model")
        server.get("/health")
        self.assertIn('"id"', server.get("/v1/models"))
        self.assertEqual(server.stop(), 0)

    def test_the_debian_package(self):
        package = only("espalier_*.deb")
        with FreshRoot() as root:
            (root.path / "tmp" / package.name).write_bytes(package.read_bytes())
            root.run("apt-get", "update", "-qq")
            root.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/tmp/{package.name}",
                     environment={"DEBIAN_FRONTEND": "noninteractive"})
            self.use(root, "espalier")
            files = root.output("dpkg", "-L", "espalier").split()
            for path in ("/usr/lib/systemd/system/espalier.service", "/usr/share/man/man1/espalier.1.gz",
                         "/usr/share/doc/espalier/copyright"):
                self.assertIn(path, files)
            self.assertEqual(root.output("dpkg", "--verify", "espalier"), "")
            self.assertEqual(root.output("stat", "-c", "%a %U", "/etc/default/espalier"), "600 root\n")
            explained = root.output("espalier", "serve", "/tmp/model", "--config", "/etc/espalier/serve.conf", "--explain")
            self.assertRegex(explained, r"log-format +json +file")

            conf = root.path / "etc/espalier/serve.conf"
            conf.write_text(conf.read_text() + "# mine\n")
            root.run("apt-get", "remove", "-y", "-qq", "espalier")
            self.assertTrue(conf.read_text().endswith("# mine\n"))
            root.run("dpkg", "--purge", "espalier")
            left = [str(path) for folder in ("etc", "usr", "var/cache", "var/lib/systemd")
                    for path in (root.path / folder).rglob("*espalier*")]
            self.assertEqual(left, [])

    def test_the_archive_runs_on_glibc_alone(self):
        archive = only("espalier-*.tar.xz")
        prefix = f"/opt/{archive.name.removesuffix('.tar.xz')}"
        for suite in ("bookworm", "trixie"):
            with self.subTest(suite), FreshRoot(suite) as root:
                subprocess.run(["tar", "-C", root.path / "opt", "-xJf", archive], check=True)
                linked = subprocess.run(["objdump", "-p", root.path / prefix[1:] / "bin/espalier"], capture_output=True, text=True, check=True).stdout
                needed = {line.split()[1] for line in linked.splitlines() if "NEEDED" in line}
                self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})
                self.use(root, f"{prefix}/bin/espalier")
                for path in ("include/espalier/mla.h", "lib/systemd/system/espalier.service", "share/man/man1/espalier.1.gz", "copyright"):
                    self.assertTrue((root.path / prefix[1:] / path).is_file(), path)

    def test_dependencies_are_named(self):
        control = subprocess.run(["dpkg-deb", "--field", only("espalier_*.deb"), "Depends"], capture_output=True, text=True,
                                 check=True).stdout
        for library in ("libc6 (>= ", "libssl3 (>= ", "libstdc++6 (>= "):
            self.assertIn(library, control)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
