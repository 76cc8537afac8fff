"""A copy of a model whose tokenizer knows <think> and </think>, in place of its last two tokens."""

import contextlib
import json
import pathlib
import shutil
import tempfile


@contextlib.contextmanager
def with_reasoning_markers(model):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / pathlib.Path(model).name
        shutil.copytree(model, copy)
        tokenizer = json.loads((copy / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        for marker in ("<think>", "</think>"):
            token = max(vocabulary, key=vocabulary.get)
            tokenizer["added_tokens"].append({
                "id": vocabulary.pop(token), "content": marker, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": False})
            tokenizer["model"]["merges"].pop()
        (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
        yield str(copy)
