#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/cli.md from the binary's own help texts. A flag is printed once: a later command that has the same one names it, and
those of serve have docs/flags.md.

  tools/make_cli_page.py build/cpu/espalier            writes the page
  tools/make_cli_page.py build/cpu/espalier --check    compares it; the tests run this
"""
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs/cli.md"
HEAD = """\
# The command line

Flags, as the binary prints them; `[1…64]` is a range. *As in …* names flags that another command has with the same meaning and default, those of `serve` on
[flags.md](flags.md); `--help` is every command's.

`model` is a directory, a GGUF file or `ORG/NAME` in the hub cache (`HF_HUB_CACHE`, `HF_HOME`), into which `pull`, `serve` and `chat` fetch.
`ESPALIER_CPU_VARIANT` (portable, avx2, avx512, avx512_bf16) chooses kernels below this machine's best. A wrong command line exits with 2,
any other failure with 1 and a sentence that says what to do.

`tools/make_cli_page.py` makes this page, and a test holds it to `--help`.
"""
COMMANDS = ["", "generate", "chat", "serve", "demo", "inspect", "tokenize", "eval", "pull", "quantize", "convert", "pack", "make-model", "selftest",
            "selftest lossless", "selftest model", "bench", "bench model", "bench engine", "bench mla", "bench serve", "replay"]
ENTRY = re.compile(r"^ +(-\S+|model\b).*\n(?: {20,}\S.*\n)*", flags=re.M)  # help stands beside the flag or below it


RANGE = re.compile(r":(?:INT|UINT|FLOAT) in \[(\S+) - (\S+)\]")


def help_of(binary, command):
    text = subprocess.run([binary, *command.split(), "--help"], check=True, capture_output=True, text=True).stdout
    return RANGE.sub(r"[\1…\2]", text)


def without_empty_headings(text):
    text = re.sub(r"^ *(Positionals|Options):\n(?!  +\S)", "", text, flags=re.M)
    return re.sub(r"\n{2,}", "\n\n", text).strip("\n")


def shortened(command, text, printed):
    """The help without the entries that `printed` ({entry: command}) has, whose flags are named at the end; adds the others."""
    known = {}

    def keep_or_name(match):
        entry = " ".join(match[0].split())
        if match[1] == "-h,--help":
            return match[0] if not command else ""
        if entry in printed:
            if match[1].startswith("-"):
                known.setdefault(printed[entry], []).append(match[1])
            return ""
        printed[entry] = command
        return match[0]

    text = without_empty_headings(ENTRY.sub(keep_or_name, text))
    return text + "".join(f"\n\nAs in {other}: {' '.join(flags)}" for other, flags in known.items())


def page_text(binary):
    page, printed = HEAD, {}
    served = help_of(binary, "serve")
    shortened("serve", served, printed)
    for command in COMMANDS:
        text = without_empty_headings(ENTRY.sub("", served)) if command == "serve" else shortened(command, help_of(binary, command), printed)
        if command:
            text = text.split("\n", 1)[1]  # the first line stands in the list of commands above
        page += f"\n## espalier {command}".rstrip() + f"\n\n```\n{text}\n```\n"
    return page


def main():
    text = page_text(sys.argv[1])
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"docs/cli.md is not what --help prints: tools/make_cli_page.py {sys.argv[1]}")


if __name__ == "__main__":
    main()
