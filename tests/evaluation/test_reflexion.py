"""Reflexion: what is learned of a failed trial is used in the next, and counted apart."""

import pytest
from stub_api import KEY, StubApi, react_expert
from test_react import Chat
from worlds import Doors, doors

from progpo_trl.environments.alfworld import GeneratedAlfworldTasks
from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.chat import ContextTooLong, Stopped
from progpo_trl.evaluation.react import ReactAgent
from progpo_trl.evaluation.reflexion import REFLECTION_CHARACTERS, ReflexionAgent

FAILED = "It failed: all commands were used up before the task was done."


def learner(messages, body=None):
    """Looks around until a reflection tells it to open doors; even doors are opened at once."""
    text = messages[0]["content"]
    if FAILED in text:
        return "I only looked.\n\nOpen the door."
    door = messages[-1]["content"].rpartition("Door ")[2].split(".")[0]
    knows = int(door) % 2 == 0 or "[1] I only looked. Open the door." in text
    return f"Thought: hm\nAction: {'open ' + door if knows else 'look'}"


def test_success_on_the_second_trial_through_the_api(monkeypatch, tmp_path):
    pytest.importorskip("openai")
    monkeypatch.setenv("STUB_KEY", KEY)
    with StubApi(learner) as stub:
        agent = ReflexionAgent(ApiModel(ApiSettings("stub", stub.url, "STUB_KEY", concurrency=3)))
        content = evaluate(agent, doors(6), temperatures=(0.0,), out=tmp_path, progress=False)
    assert content["results"][0]["success"]["rate"] == 1.0
    assert content["totals"]["trials"] == [
        {"trial": 1, "success": 0.5, "played": 6},
        {"trial": 2, "success": 1.0, "played": 3},
        {"trial": 3, "success": 1.0, "played": 0},
    ]
    even, odd = content["games"][0]["notes"], content["games"][1]["notes"]
    assert [len(even["trials"]), even["reflections"], even["calls"]] == [1, [], 1]
    assert odd["trials"] == [
        {"success": False, "steps": 4, "stop_reason": "step_limit"},
        {"success": True, "steps": 1, "stop_reason": "success"},
    ]
    assert odd["reflections"] == ["I only looked. Open the door."]
    assert odd["calls"] == 6  # four looks, one reflection, one door
    assert content["totals"]["calls"] == len(stub.requests) == 3 * 1 + 3 * 6


def test_the_first_trial_is_react_call_for_call():
    def react(messages):
        return react_expert(messages, None)

    tasks, one, other = GeneratedAlfworldTasks(n_eval=3), Chat(react), Chat(react)
    evaluate(ReactAgent(one), tasks, temperatures=(0.4,), progress=False)
    evaluate(ReflexionAgent(other), tasks, temperatures=(0.4,), progress=False)
    assert one.chats == other.chats
    assert one.calls == other.calls


def test_only_the_last_reflections_are_kept_in_the_prompt():
    count = iter("abcdefg")
    chat = Chat(lambda messages: next(count) if FAILED in messages[0]["content"] else "Thought: hm\nAction: look")
    agent = ReflexionAgent(chat, trials=5, memory=3)
    content = evaluate(agent, doors(1), temperatures=(0.0,), progress=False)
    assert content["games"][0]["notes"]["reflections"] == ["a", "b", "c", "d"]
    assert [t["success"] for t in content["totals"]["trials"]] == [0.0] * 5
    last = chat.chats[-1][0]["content"]
    assert "\n[1] b\n[2] c\n[3] d\n" in last
    assert "[1] a" not in last
    asked = [chat.chats[i][0]["content"] for i, call in enumerate(chat.calls) if call.purpose == "reflect"]
    assert asked[0].count("Action: look") == 4
    assert "[1] a\n[2] b\n[3] c\n" in asked[3]
    assert [call.trial for call in chat.calls if call.purpose == "reflect"] == [1, 2, 3, 4]


def test_a_failed_environment_or_endpoint_is_no_failed_trial():
    chat = Chat(learner)
    Doors.failures["door-01"] = 1
    try:
        content = evaluate(ReflexionAgent(chat), doors(2), temperatures=(0.0,), progress=False)
    finally:
        Doors.failures.clear()
    assert [len(g["notes"]["trials"]) for g in content["games"]] == [1, 2]
    assert [g["success"] for g in content["games"]] == [True, True]


def test_a_long_trial_is_reflected_on_by_its_last_turns():
    def answer(messages):
        if FAILED in messages[0]["content"] and messages[0]["content"].count("Action:") > 2:
            raise ContextTooLong("no room")
        return learner(messages)

    content = evaluate(ReflexionAgent(Chat(answer)), doors(2), temperatures=(0.0,), progress=False)
    assert content["games"][1]["success"]


def test_no_trial_is_made_of_a_game_that_cannot_begin():
    chat = Chat(learner, room=100)
    with pytest.raises(Stopped, match="no game can begin"):
        evaluate(ReflexionAgent(chat), doors(3), temperatures=(0.0,), progress=False)
    assert chat.chats == []


def test_reflections_are_bounded_and_one_paragraph():
    long = "line\n" * 10_000
    chat = Chat(lambda messages: long if FAILED in messages[0]["content"] else "Action: look")
    content = evaluate(ReflexionAgent(chat, trials=2), doors(1), temperatures=(0.0,), progress=False)
    (reflection,) = content["games"][0]["notes"]["reflections"]
    assert len(reflection) == REFLECTION_CHARACTERS
    assert "\n" not in reflection
    chat.answer = lambda messages: "" if FAILED in messages[0]["content"] else "Action: look"
    content = evaluate(ReflexionAgent(chat, trials=2), doors(1), temperatures=(0.0,), progress=False)
    assert content["games"][0]["notes"]["reflections"] == ["(no reflection)"]


def test_trials_and_memory_must_be_at_least_one():
    for wrong in ({"trials": 0}, {"memory": 0}, {"shots": -1}):
        with pytest.raises(EvaluationError, match="at least"):
            ReflexionAgent(Chat(learner), **wrong)
