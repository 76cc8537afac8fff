"""The unit, the image and the manifest against systemd, Kubernetes' schema and a server: service_test.py ESPALIER."""

import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/deploy")]
import dockerfile  # noqa: E402
from serving import Server  # noqa: E402

BINARY = str(pathlib.Path(sys.argv[1]).resolve())
DEPLOY = ROOT / "deploy"
VERSION = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class Fixture(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.model = str(cls.directory / "model")
        run(BINARY, "make-model", "--preset", "tiny-v3", "--out", cls.model, check=True)
        flags = run(BINARY, "serve", "--print-flags", check=True).stdout
        names = re.findall(r"^\| `--([\w-]+)", flags, re.MULTILINE)
        cls.flags = {f"ESPALIER_{name.upper().replace('-', '_')}": name for name in names}


class Unit(Fixture):
    """deploy/espalier.service and its settings."""

    def setUp(self):
        # The unit names its binary as systemd finds it after an installation; here it lies in the build.
        text = (DEPLOY / "espalier.service").read_text()
        self.assertIn("\nExecStart=espalier serve ", text)
        self.text = text.replace("ExecStart=espalier ", f"ExecStart={BINARY} ")
        self.unit = self.directory / "espalier.service"
        self.unit.write_text(self.text)

    def verify(self):
        return run("systemd-analyze", "verify", "--man=no", str(self.unit))

    def test_systemd_takes_it(self):
        done = self.verify()
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_systemd_would_refuse_a_misspelt_one(self):
        self.unit.write_text(self.text.replace("ProtectSystem=strict", "ProtectSystem=srict"))
        self.assertIn("srict", self.verify().stderr)

    def test_its_exposure_is_small(self):
        # 0 is least, 10 most; what is left is a network service that reads its own files.
        done = run("systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", str(self.unit))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_server_needs_no_system_call_that_it_forbids(self):
        listed = run("systemd-analyze", "syscall-filter", "--no-pager", check=True).stdout
        groups = {}
        for line in listed.splitlines():
            if line.startswith("@"):
                group = groups.setdefault(line.strip(), set())
            elif line.strip() and not line.strip().startswith("#"):
                group.add(line.strip())

        def expand(name):
            return set().union(*(expand(entry) if entry.startswith("@") else {entry} for entry in groups[name]))

        allowed = set()
        for less, name in re.findall(r"^SystemCallFilter=(~?)(@[\w-]+)$", self.text, re.MULTILINE):
            allowed = allowed - expand(name) if less else allowed | expand(name)
        log = self.directory / "calls"
        tracer = self.directory / "traced"
        tracer.write_text(f'#!/bin/sh\nexec strace -f -qq -o {log} -D {BINARY} "$@"\n')
        tracer.chmod(0o755)
        server = Server(str(tracer), self.model)
        self.assertEqual(server.post("/v1/completions", prompt="x", max_tokens=4), 200)
        self.assertEqual(server.stop(), 0)
        called = set(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
        self.assertIn("listen", called)
        self.assertEqual(called - allowed, set())

    def test_the_server_takes_its_settings(self):
        done = run(BINARY, "serve", self.model, "--config", str(DEPLOY / "serve.conf"), "--explain")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"log-format +json +file")

    def test_it_hears_when_the_server_is_ready_and_when_it_ends(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(self.directory / "notify"))
            manager.settimeout(60)
            server = Server(BINARY, self.model, environment={"NOTIFY_SOCKET": str(self.directory / "notify")})
            self.assertEqual(manager.recv(4096), b"READY=1")
            self.assertEqual(server.stop(), 0)
            self.assertEqual(manager.recv(4096), b"STOPPING=1")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind("\0espalier-test-%d" % os.getpid())  # containers' managers use abstract names
            manager.settimeout(60)
            server = Server(BINARY, self.model, environment={"NOTIFY_SOCKET": "@espalier-test-%d" % os.getpid()})
            self.assertEqual(manager.recv(4096), b"READY=1")
            self.assertEqual(server.stop(), 0)


class Image(Fixture):
    """deploy/Dockerfile, as far as it can be held without building it (image_test.py runs its lines)."""

    def setUp(self):
        self.image = dockerfile.last_stage(DEPLOY / "Dockerfile")

    def test_it_runs_as_nobody_and_serves(self):
        self.assertEqual(self.image["ENTRYPOINT"], '["espalier", "serve"]')
        self.assertRegex(self.image["USER"], r"^[1-9]\d+:[1-9]\d+$")
        for name in self.image["ENV"]:
            self.assertTrue(name == "HF_HOME" or name in self.flags, name)

    def test_its_health_check_tells_200_from_503_and_from_nobody(self):
        def health(port):
            command = dockerfile.health_command(self.image["HEALTHCHECK"])
            return run(*command, env=os.environ | {"ESPALIER_PORT": str(port)}, timeout=60).returncode

        class Unavailable(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_error(503)

            def log_message(self, *_):
                pass

        server = Server(BINARY, self.model)
        port = int(server.root.rsplit(":", 1)[1])
        self.assertEqual(health(port), 0)
        self.assertEqual(server.stop(), 0)
        self.assertNotEqual(health(port), 0)
        with http.server.HTTPServer(("127.0.0.1", 0), Unavailable) as loading:
            threading.Thread(target=loading.serve_forever, daemon=True).start()
            self.assertNotEqual(health(loading.server_port), 0)
            loading.shutdown()


class Manifest(Fixture):
    """deploy/kubernetes.yaml."""

    def setUp(self):
        self.objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
        self.deployment, self.service = self.objects
        self.pod = self.deployment["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def test_the_schema_takes_it(self):
        for each in self.objects:
            kubernetes_validate.validate(each, "1.30", strict=True)

    def test_the_schema_would_refuse_a_misspelt_one(self):
        self.container["readinesProbe"] = self.container.pop("readinessProbe")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(self.deployment, "1.30", strict=True)

    def test_names_and_ports_fit(self):
        labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(self.deployment["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(self.service["spec"]["selector"], labels)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertEqual(ports[self.service["spec"]["ports"][0]["targetPort"]], 8000)
        self.assertEqual(self.container["image"], f"espalier:{VERSION}")
        self.assertEqual({mount["name"] for mount in self.container["volumeMounts"]},
                         {volume["name"] for volume in self.pod["volumes"]})
        user = dockerfile.last_stage(DEPLOY / "Dockerfile")["USER"]
        context = self.pod["securityContext"]
        self.assertEqual(user, f'{context["runAsUser"]}:{context["runAsGroup"]}')

    def test_the_pod_outlives_its_drain(self):
        flags = run(BINARY, "serve", "--print-flags", check=True).stdout
        drain = float(re.search(r"`--drain-seconds=(\d+)`", flags)[1])
        sleep = float(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], drain + sleep)

    def test_a_server_with_its_environment_answers_its_probes(self):
        given = {"ESPALIER_API_KEY": "key", "ESPALIER_THREADS": "1"}  # what the cluster fills in
        environment = {}
        for variable in self.container["env"]:
            self.assertIn(variable["name"], self.flags)
            environment[variable["name"]] = variable.get("value") or given[variable["name"]]
        server = Server(BINARY, None, environment=environment | {"ESPALIER_MODEL": self.model})
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = self.container[probe]["httpGet"]
            self.assertEqual(get["port"], "http")
            server.get(get["path"])  # without a key, as the kubelet asks
        self.assertIn('"model"', server.get("/v1/models", key="key"))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
