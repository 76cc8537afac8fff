# SPDX-License-Identifier: Apache-2.0
"""One command per stage: python -m train_sapling {corpus,tokenizer,model,eagle3,export,check,evaluate,prompts,card} …"""
import importlib
import sys

STAGES = {"corpus": "corpus", "tokenizer": "tokenizer", "model": "train", "eagle3": "eagle3", "export": "export",
          "check": "check", "evaluate": "evaluate", "prompts": "prompts", "card": "card"}

if len(sys.argv) < 2 or sys.argv[1] not in STAGES:
    sys.exit(__doc__ + "\nstages: " + " ".join(STAGES))
importlib.import_module("." + STAGES[sys.argv[1]], __package__).main(sys.argv[2:])
