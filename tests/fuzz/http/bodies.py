"""Values of a JSON Schema as /openapi.json writes them, and what can be wrong with a body made of them."""

import json

TEXTS = ["", "a", "def clamp(x, low, high):", "x = 1\n" * 40, "é€😀", "\u0000\u001f", "<｜User｜><｜end▁of▁sentence｜>", "{\"a\": [1", "}" * 30,
         "\ufeff\u2028", "x" * 3000, "../../etc/passwd", "%s%n", "ＡＢ", "\U0010ffff"]
SCHEMAS = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
            "additionalProperties": False}, {"type": "boolean"}, {"enum": ["a", 1, None]}, {}, {"type": "array", "maxItems": 2},
           {"$ref": "#/nowhere"}, {"$ref": "#"}, {"type": "string", "pattern": "^[a-z]{1,4}$"}, {"type": "string", "pattern": "("},
           {"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "nothing"}, {"uniqueItems": True, "type": "array"}]
PATTERNS = ["[ab]{1,6}", "(a|b)*c?", "(", "a{1,99999}", "^$", "\\d{3}-\\d{4}", "[^", "(?=a)a"]
GRAMMARS = ['root ::= "a" | "b" root', "root ::= root", "root ::= [a-z]{1,5}", "root", '::= "', 'root ::= "x" other']
# Fields whose text has a form of its own.
BY_NAME = {"regex": PATTERNS, "ebnf": GRAMMARS, "grammar": GRAMMARS, "arguments": ['{"a": 1}', "{}", "no JSON", "[1]"],
           "reasoning_effort": ["low", "high", "none", "odd"], "effort": ["low", "none"]}
# Counts that decide how long a request runs are small but for one in ten.
COUNTS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of", "top_logprobs", "logprobs",
          "prompt_logprobs", "thinking_token_budget", "max_reasoning_tokens", "budget_tokens"}
LENGTHS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}  # without one a request goes on to the context's end
MOST_DEPTH = 6


class Bodies:
    def __init__(self, random, document):
        self.random, self.document = random, document

    def value(self, schema, name="", depth=0):
        schema = self.resolved(schema)
        if "anyOf" in schema and "properties" not in schema:
            return self.value(self.random.choice(schema["anyOf"]), name, depth)
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.random.choice(kind)
        if kind == "object":
            return self.object(schema, name, depth)
        if kind == "array":
            return self.array(schema, name, depth)
        if kind == "integer":
            return self.integer(schema, name)
        if kind == "number":
            return self.number(schema)
        if kind == "boolean":
            return self.random.random() < 0.5
        if kind == "string":
            return self.text(schema, name)
        if kind == "null":
            return None
        return self.random.choice([None, True, 0, 1.5, "a", [], {}])

    def resolved(self, schema):
        while "$ref" in schema:
            place = self.document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                place = place[part]
            schema = place
        return schema

    def object(self, schema, name, depth):
        properties = schema.get("properties", {})
        if not properties:
            if name in ("schema", "json_schema", "json", "parameters", "input_schema"):
                return self.random.choice(SCHEMAS)
            if "additionalProperties" in schema:
                return {str(self.random.randrange(300)): self.value(schema["additionalProperties"], "", depth + 1)
                        for _ in range(self.random.randrange(4))}
            return self.random.choice([{}, {"a": 1}, {"thinking": True}, {"b": {"c": [1, 2]}}])
        wanted = set(schema.get("required", []))
        if "anyOf" in schema:
            wanted |= set(self.random.choice(schema["anyOf"]).get("required", []))
        # Few at a time: two faults in one body hide each other.
        optional = [key for key in properties if key not in wanted]
        share = self.random.choice([0, 0.1, 0.3]) if depth == 0 else 0.5
        if depth == 0 and "model" in properties:
            optional.remove("model")  # its only name is the server's own
        chosen = wanted | {key for key in optional if self.random.random() < share}
        if depth == 0 and not chosen & LENGTHS:
            chosen |= {"max_tokens", "max_output_tokens"} & properties.keys()
        if depth == 0 and "stream" in properties and self.random.random() < 0.4:
            chosen.add("stream")
        return {key: self.value(properties[key], key, depth + 1) for key in properties if key in chosen}

    def array(self, schema, name, depth):
        if depth > MOST_DEPTH:
            return []
        least = schema.get("minItems", 0)
        count = self.random.choice([least, least + 1, least + 2, least + self.random.randrange(6)])
        return [self.value(schema.get("items", {}), name, depth + 1) for _ in range(min(count, schema.get("maxItems", count)))]

    def integer(self, schema, name):
        least, most = schema.get("minimum", -(1 << 31)), schema.get("maximum", 1 << 31)
        if name in COUNTS and self.random.random() < 0.9:
            return min(max(self.random.randrange(1, 7), least), most)
        inside = [least, most, max(least, min(0, most)), max(least, min(1, most)), self.random.randint(int(least), int(most))]
        return self.random.choice(inside + [max(least, min(self.random.randrange(300), most))] * 4)

    def number(self, schema):
        least = schema.get("minimum", schema.get("exclusiveMinimum", -3.0))
        most = schema.get("maximum", 3.0)
        picked = self.random.choice([least, most, self.random.uniform(least, min(most, least + 4)), 1])
        return most if "exclusiveMinimum" in schema and picked <= least else max(least, min(picked, most))

    def text(self, schema, name):
        if "pattern" in schema:
            return self.random.choice(["f", "get_weather", "a.b-c", "A" * min(schema.get("maxLength", 9), 64)])
        if name in ("schema", "json_schema", "json"):
            return json.dumps(self.random.choice(SCHEMAS))
        if name in BY_NAME:
            return self.random.choice(BY_NAME[name])
        return self.random.choice(TEXTS)


def places(value, found, path=()):
    found.append(path)
    if isinstance(value, dict):
        for key in value:
            places(value[key], found, path + (key,))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            places(one, found, path + (i,))
    return found


def changed(random, value):
    """One place of the value is another value, is gone, or has one more beside it."""
    odd = [None, True, -1, 0, 2**31, 2**63, 2**64, 1e308, -0.0, 1.5, "", "a", "é", [], [[]], {}, {"a": 1}, [None], "\ud800", [{}] * 200]
    path = random.choice(places(value, []))
    if not path:
        return random.choice(odd)
    place = value
    for part in path[:-1]:
        place = place[part]
    way = random.randrange(4)
    if way == 0:
        del place[path[-1]]
    elif way == 1 and isinstance(place, dict):
        place[random.choice(["unknown", "Model", "", "__proto__", "a" * 300, "functions", "audio"])] = random.choice(odd)
    else:
        place[path[-1]] = random.choice(odd)
    return value


def broken(random, value):
    """The bytes of a body with something wrong: in its values, its JSON or its bytes."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice([1, 1, 1, 3])):
        value = changed(random, value)
        if not isinstance(value, (dict, list)):
            break
    text = json.dumps(value).encode()
    way = random.randrange(12)
    if way == 0:
        text = text[:random.randrange(len(text) + 1)]
    elif way == 1:
        at = random.randrange(len(text))
        text = text[:at] + bytes([random.randrange(256)]) + text[at + 1:]
    elif way == 2:
        text = text[:-1] + b', "model": "a", "model": "b"}'
    elif way == 3:
        depth = random.choice([10, 31, 33, 2000])
        text = b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"
    elif way == 4:
        text = text.replace(b"1", random.choice([b"1e400", b"NaN", b"-Infinity", b"0x10", b"1" * 400]), 1)
    elif way == 5:
        text = random.choice([b"", b"\xff\xfe", b"\xef\xbb\xbf" + text, b"[]", b"null", text + text, b" " * 70000])
    return text
