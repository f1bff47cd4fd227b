"""An agent on the stub endpoint that plays doors: what the tests of endpoints share."""

import json

from worlds import doors

from progpo_trl.evaluation import evaluate
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.prompted import PromptAgent


def agent(stub, folder=None, **options):
    options = {"concurrency": 1, "longest_backoff": 0.01, "timeout": 10, "key_variable": "STUB_KEY", **options}
    log = CallLog(None if folder is None else folder / "calls.jsonl")
    return PromptAgent(ApiModel(ApiSettings("stub", stub.url, **options), log))


def play(stub, n=3, folder=None, temperatures=(0.0,), resume=False, **options):
    player = agent(stub, folder, **options)
    return evaluate(player, doors(n), temperatures=temperatures, out=folder, progress=False, resume=resume)


def notes(content):
    return [game["notes"] for game in content["games"]]


def calls(folder):
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
