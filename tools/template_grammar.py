# SPDX-License-Identifier: Apache-2.0
"""Random templates for make_template_goldens.py. Expressions have a type most of the time, so that most templates render."""

TEXTS = ["''", "'a'", "'<｜User｜>'", "'x\\ny'", '"it\'s"', "'é😀'", "' pad '", "'a,b,c'", "s", "t", "e", "bos_token", "messages[0].content",
         "messages[1]['content']", "messages[2].role", "m.role", "words[0]", "nested.Z.k"]
INTEGERS = ["0", "1", "-2", "7", "n", "numbers[0]", "numbers|length", "messages|length", "loop.index", "true"]
LISTS = ["[]", "[1, 2]", "numbers", "words", "['a', 'b']", "(1, 2, 3)", "range(3)", "nested.a", "messages[3].content"]
SIGNS = ["", "", "", "-", "+"]
GAPS = ["", " ", "\n", "  \n", "\n  ", "\n\n", " a ", "b\n", "\t", "text", "\n  text\n  ", "\u3000"]


class Grammar:
    def __init__(self, rng):
        self.rng = rng

    def template(self):
        parts = [self.rng.choice(["", "{% macro f(a, b='z') %}{{ a }}:{{ b }}{% endmacro %}"])]
        parts += [self.statement(3) for _ in range(self.rng.randint(1, 4))]
        return "".join(parts) + self.rng.choice(["", "\n"])

    def tag(self, body):
        # `{{+ x }}` is a sign, `{%+` keeps white space; a variable has no `+` at its end.
        return "{%" + self.rng.choice(SIGNS) + " " + body + " " + self.rng.choice(SIGNS) + "%}"

    def gap(self):
        return self.rng.choice(GAPS)

    def statement(self, depth):
        kinds = ["output"] * 4 + ["comment", "raw", "set"] + (["if", "for", "block", "namespace", "with", "filter"] if depth > 0 else [])
        return self.gap() + getattr(self, self.rng.choice(kinds) + "_")(depth) + self.gap()

    def body(self, depth):
        return self.gap() + "".join(self.statement(depth - 1) for _ in range(self.rng.randint(1, 2))) + self.gap()

    def output_(self, depth):
        begin, end = self.rng.choice(["{{ ", "{{- "]), self.rng.choice([" }}", " -}}"])
        return begin + self.any(2) + end

    def comment_(self, depth):
        return "{#" + self.rng.choice(SIGNS) + " c " + self.rng.choice(SIGNS) + "#}"

    def raw_(self, depth):
        return "{%" + self.rng.choice(SIGNS) + " raw " + self.rng.choice(["", "-"]) + "%}" + self.gap() + "{{ n }}" + self.gap() + self.tag("endraw")

    def set_(self, depth):
        return self.tag("set " + self.rng.choice(["x", "y", "n", "s"]) + " = " + self.any(2))

    def if_(self, depth):
        out = self.tag("if " + self.boolean(2)) + self.body(depth)
        if self.rng.random() < 0.3:
            out += self.tag("elif " + self.boolean(1)) + self.body(depth)
        if self.rng.random() < 0.4:
            out += self.tag("else") + self.body(depth)
        return out + self.tag("endif")

    def for_(self, depth):
        target, sequence = self.rng.choice([("m", "messages"), ("i", self.list(1)), ("c", self.text(1)), ("k, v", "nested.items()"), ("i", "numbers if i > 0")])
        out = self.tag(f"for {target} in {sequence}") + self.body(depth)
        if self.rng.random() < 0.3:
            out += self.tag("if " + self.boolean(1)) + self.tag(self.rng.choice(["break", "continue"])) + self.tag("endif") + self.body(depth)
        if self.rng.random() < 0.2:
            out += self.tag("else") + self.body(depth)
        return out + self.tag("endfor")

    def block_(self, depth):
        return self.tag("set x") + self.body(depth) + self.tag("endset") + "{{ x }}"

    def namespace_(self, depth):
        return self.tag("set q = namespace(v=" + self.integer(0) + ")") + self.tag("for i in range(3)") + self.tag("set q.v = q.v + i") + self.tag("endfor") + "{{ q.v }}"

    def with_(self, depth):
        return self.tag("with w = " + self.any(1)) + self.body(depth) + "{{ w }}" + self.tag("endwith")

    def filter_(self, depth):
        return self.tag("filter " + self.rng.choice(["trim", "replace('a', 'b')", "string"])) + self.body(depth) + self.tag("endfilter")

    def any(self, depth):
        kind = self.rng.random()
        if kind < 0.5:
            return self.text(depth)
        if kind < 0.7:
            return self.integer(depth)
        if kind < 0.85:
            return self.boolean(depth)
        if kind < 0.95:
            return self.list(depth) + self.rng.choice(["|list|length", "|tojson", "|join('-')", "|first", "|last", "[0]", "[-1]"])
        return self.rng.choice(["missing", "nothing", "nested|tojson", "tools|tojson", "x", "f(1)", "f(b=2, a='q')", "f('a') + 'b'", "f * 1.5", "1 / 4", "[1, 'a']", "{'a': [none, 1.5]}"])

    def text(self, depth):
        if depth == 0 or self.rng.random() < 0.3:
            return self.rng.choice(TEXTS)
        inner = lambda: self.text(depth - 1)  # noqa: E731
        return self.rng.choice([
            lambda: f"{inner()} + {inner()}", lambda: f"({inner()} ~ {self.integer(depth - 1)})", lambda: f"({inner()})|trim", lambda: f"({inner()}).strip()",
            lambda: f"({inner()})[{self.rng.randint(-3, 3)}:]", lambda: f"({inner()})[:{self.rng.randint(-3, 3)}]", lambda: f"({inner()})[::{self.rng.choice([-1, 2, -2])}]",
            lambda: f"({inner()}).split({self.rng.choice(['a', ',', ' ', 'é'])!r})[{self.rng.choice([0, -1])}]", lambda: f"({inner()})|replace({inner()}, {inner()})",
            lambda: f"({inner()} if {self.boolean(depth - 1)} else {inner()})", lambda: f"({inner()} or {inner()})", lambda: f"({inner()})|tojson",
            lambda: f"({inner()}).replace('a', {inner()}, 1)", lambda: f"({inner()}) * {self.rng.randint(-1, 3)}", lambda: f"({self.list(depth - 1)})|join({inner()})",
            lambda: f"({inner()})|default({inner()}, true)", lambda: f"({inner()}).lstrip('a ')", lambda: f"({inner()})|string|reverse"])()

    def integer(self, depth):
        if depth == 0 or self.rng.random() < 0.4:
            return self.rng.choice(INTEGERS)
        inner = lambda: self.integer(depth - 1)  # noqa: E731
        return self.rng.choice([lambda: f"{inner()} + {inner()}", lambda: f"({inner()} - {inner()})", lambda: f"{inner()} * {inner()}", lambda: f"({inner()}) // {self.rng.choice([2, -3])}",
                                lambda: f"({inner()}) % {self.rng.choice([2, -3])}", lambda: f"({self.text(depth - 1)})|length", lambda: f"({inner()} if {self.boolean(depth - 1)} else {inner()})",
                                lambda: f"({self.text(depth - 1)})|int({inner()})", lambda: f"-({inner()})", lambda: f"({self.text(depth - 1)}).find('a')"])()

    def boolean(self, depth):
        if depth == 0 or self.rng.random() < 0.2:
            return self.rng.choice(["yes", "no", "true", "missing is defined", "n is odd", "messages[0].tool_calls is defined", "loop.first", "nothing is none"])
        inner = lambda: self.boolean(depth - 1)  # noqa: E731
        return self.rng.choice([lambda: f"not {inner()}", lambda: f"({inner()} and {inner()})", lambda: f"{inner()} or {inner()}", lambda: f"{self.integer(depth - 1)} {self.rng.choice(['<', '<=', '==', '!=', '>'])} {self.integer(depth - 1)}",
                                lambda: f"{self.text(depth - 1)} == {self.text(depth - 1)}", lambda: f"({self.text(depth - 1)}) in ({self.text(depth - 1)})", lambda: f"({self.text(depth - 1)}).startswith('a')",
                                lambda: f"({self.any(depth - 1)}) is {self.rng.choice(['string', 'number', 'defined', 'none', 'mapping', 'iterable', 'not string', 'sequence'])}", lambda: f"({self.integer(depth - 1)}) in {self.list(depth - 1)}"])()

    def list(self, depth):
        if depth == 0 or self.rng.random() < 0.5:
            return self.rng.choice(LISTS)
        return self.rng.choice([lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", lambda: f"({self.text(depth - 1)}).split(',')", lambda: f"numbers[{self.rng.randint(-3, 3)}:]", lambda: "numbers|reverse|list",
                                lambda: "words|map('upper')|list", lambda: "messages|selectattr('role', 'equalto', 'user')|map(attribute='role')|list", lambda: "numbers|select('odd')|list", lambda: "messages|map(attribute='role')|list", lambda: "numbers + [9]"])()
