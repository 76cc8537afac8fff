"""Fresh Debian systems in directories: mmdebstrap's minbase, entered by chroot with mounts that end with the process."""

import os
import pathlib
import shutil
import subprocess
import tempfile

ENTER = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
root=$1 user=$2 directory=$3
shift 3
exec chroot --userspec="$user" "$root" env -C "$directory" "$@"
"""


class FreshRoot:
    """`with FreshRoot() as root:`; needs root, or nothing of it could be installed. suite: Debian's name of a release."""

    def __init__(self, suite="bookworm"):
        self.suite = suite
        if os.geteuid() != 0:
            raise PermissionError("fresh roots are made and entered by root: run it as root, or in a container")
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="espalier-root-"))
        self.path.chmod(0o755)

    def __enter__(self):
        subprocess.run(["tar", "-C", self.path, "-xpf", base(self.suite)], check=True)
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        return self

    def __exit__(self, *_):
        # Mounts were made in namespaces that are gone.
        shutil.rmtree(self.path)

    def command(self, *words, user="0:0", directory="/", environment=None):
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        settings = [f"{name}={value}" for name, value in (variables | (environment or {})).items()]
        return ["unshare", "--mount", "sh", "-c", ENTER, "enter", str(self.path), user, directory, "-i", *settings, *words]

    def run(self, *words, **options):
        """Its output is of interest when it fails."""
        done = subprocess.run(self.command(*words, **options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")

    def output(self, *words, **options):
        return subprocess.run(self.command(*words, **options), check=True, stdout=subprocess.PIPE, text=True).stdout


def base(suite):
    """A tarball of the system, made once: what is in it is brought up to date by apt when it is used."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "espalier"
    made = cache / f"debian-{suite}-minbase.tar"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(".part.tar")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", suite, partial], check=True)
        partial.rename(made)
    return made
