# SPDX-License-Identifier: Apache-2.0
"""The records of data/results: what a record is, reading and writing of a question's file. data/results/README.md has the fields."""
import json


class Problem(Exception):
    """A record that is not as data/results/README.md says."""


FIELDS = {"what": str, "unit": str, "better": str, "median": (int, float), "rounds": int, "command": str, "machine": str,
          "date": str, "commit": str}
OPTIONAL = {"range": list, "peer": dict, "goal": (int, float), "floor": (int, float), "readme": str, "readme_base": (int, float),
            "series": str, "x": str}


def check_record(record):
    name = record.get("what", "a record without `what`")
    for field, kind in FIELDS.items():
        if not isinstance(record.get(field), kind) or record[field] == "":
            raise Problem(f"{name}: {field} is {record.get(field)!r}")
    for field, value in record.items():
        if field in FIELDS or value is None:
            continue
        if field not in OPTIONAL or not isinstance(value, OPTIONAL[field]):
            raise Problem(f"{name}: {field} is {value!r}")
    if record["better"] not in ("less", "more"):
        raise Problem(f"{name}: better is {record['better']!r}, not less or more")
    if record.get("range") and not record["range"][0] <= record["median"] <= record["range"][1]:
        raise Problem(f"{name}: the median {record['median']} is outside of the range {record['range']}")


def read_question(path):
    question = {"name": path.stem, **json.loads(path.read_text())}
    for record in question["records"]:
        check_record(record)
    return question


def read_results(folder):
    return sorted((read_question(path) for path in folder.glob("*.json")), key=lambda question: question["order"])


def question_text(question):
    """The file's text: a line per record, so that a change of one is a change of one line."""
    head = {field: value for field, value in question.items() if field not in ("name", "records")}
    records = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in question["records"])
    return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "records": [\n' + records + "\n ]\n}\n"


def columns_of(records):
    """A grid's columns: numbers ascending, others as they come."""
    def place(x):
        digits = x.replace(",", "")
        return int(digits) if digits.isdigit() else 0
    return sorted(dict.fromkeys(record["x"] for record in records), key=place)
