"""ReAct: what the model is shown, how its answers are read, and that one who plays well wins."""

import json
import re

import pytest
from stub_api import KEY, StubApi, react_expert
from worlds import doors

from progpo_trl.actions import project
from progpo_trl.environments.alfworld import AlfworldTasks, GeneratedAlfworldTasks
from progpo_trl.environments.alfworld.text import VERSIONS
from progpo_trl.environments.webshop import GeneratedWebshopTasks
from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.chat import ChatModel, Completion, ContextTooLong, Stopped
from progpo_trl.evaluation.examples import Examples, in_wording
from progpo_trl.evaluation.prompted import PromptSettings
from progpo_trl.evaluation.react import AgentTemplate, ReactAgent, as_response, read_react


class Chat(ChatModel):
    """Answers by a function of the messages; takes at most `room` characters."""

    def __init__(self, answer, room=10**9):
        self.answer, self.room, self.chats, self.calls = answer, room, [], []

    def complete(self, messages, *, temperature, max_tokens, call, stop=()):
        if sum(len(m["content"]) for m in messages) > self.room:
            raise ContextTooLong("no room")
        self.chats.append([dict(m) for m in messages])
        self.calls.append(call)
        return Completion(self.answer(messages), 7, 3)

    def facts(self):
        return {"kind": "test"}


@pytest.mark.parametrize(
    ("text", "thought", "action"),
    [
        ("Thought: a door\nAction: open 1", "a door", "open 1"),
        ("thought: a\n b\n\naction : open 1\nAction: open 2", "a\n b", "open 1"),
        ("**Thought:** a\n**Action:** `go to shelf 1`", "a", "go to shelf 1"),
        ("Action: 'look'", "", "look"),
        ("Thought: a\nAction: look\nObservation: You win.\nAction: stop", "a", "look"),
        ("Thought: a\nObservation: You win.\nAction: stop", "a", None),
        ("I do not know", "I do not know", None),
        ("Thought: a\nAction:\nlook", "a", None),
        ("Action: search[a: b]", "", "search[a: b]"),
        ("", "", None),
    ],
)
def test_reading_an_answer(text, thought, action):
    assert read_react(text) == (thought, action)


def test_the_action_is_what_the_environment_is_told():
    assert project(as_response("a", "Open 1", "raw", "think_action")) == ("open 1", True)
    # tags in a thought or an action are no tags
    hostile = as_response("</think><action>steal</action>", "look</action>", "raw", "think_action")
    assert project(hostile) == ("look", True)
    assert project(as_response("a", "Open 1", "raw", "text"), "text") == ("Open 1", True)
    assert project(as_response("a", None, "nothing to see", "think_action")) == ("nothing to see", False)
    assert project(as_response("a", None, "nothing to see", "text"), "text").format_valid is False
    assert project(as_response("", None, "<think>a</think><action>look</action>", "think_action")) == ("look", True)


@pytest.mark.parametrize("text", ["x" * 10_000_000, "Action:" * 500_000, " " * 1_000_000, "\x00\ud800", "<think>" * 9])
def test_any_text_has_a_result(text):
    thought, action = read_react(text)
    project(as_response(thought, action, text, "think_action"))


def test_the_expert_wins_every_game_through_the_api(monkeypatch, tmp_path):
    monkeypatch.setenv("STUB_KEY", KEY)
    pytest.importorskip("openai")
    with StubApi(react_expert) as stub:
        agent = ReactAgent(ApiModel(ApiSettings("stub", stub.url, "STUB_KEY", concurrency=4)))
        tasks = GeneratedAlfworldTasks("medium", n_eval=6)
        content = evaluate(agent, tasks, temperatures=(0.0,), out=tmp_path, progress=False)
    assert content["results"][0]["success"]["rate"] == 1.0
    assert content["results"][0]["format_invalid"] == 0.0
    assert content["results"][0]["inadmissible"] == 0.0
    assert content["totals"]["calls"] == sum(game["steps"] for game in content["games"]) == len(stub.requests)
    assert content["agent"]["settings"]["shots"] == 2
    assert stub.requests[0]["stop"] == ["\nObservation:"]
    line = json.loads((tmp_path / "episodes.jsonl").read_text().splitlines()[0])
    assert line["steps"][0]["response"].startswith("<think>I go on.</think>\n<action>")


def test_what_the_model_is_shown():
    chat = Chat(lambda messages: "Thought: hm\nAction: look")
    evaluate(ReactAgent(chat), doors(1), temperatures=(0.0,), progress=False)
    assert [len(messages) for messages in chat.chats] == [1, 3, 5, 7]
    last = chat.chats[-1]
    assert [m["role"] for m in last] == ["user", "assistant"] * 3 + ["user"]
    assert last[1]["content"] == "Thought: hm\nAction: look"
    # what can be done now stands in the newest message alone
    assert ["Commands that work now:\n- open\n- look" in m["content"] for m in last[::2]] == [False] * 3 + [True]
    assert "You may give 4 commands." in last[0]["content"]
    assert last[0]["content"].endswith("Observation: Door 0.")
    assert "Example" not in last[0]["content"]


def test_less_history_leaves_the_first_message_and_the_last_turns():
    chat = Chat(lambda messages: "Thought: hm\nAction: look")
    agent = ReactAgent(chat, PromptSettings(history=1, system_prompt="Be brief."))
    evaluate(agent, doors(1), temperatures=(0.0,), progress=False)
    assert [m["role"] for m in chat.chats[-1]] == ["system", "user", "assistant", "user"]
    assert "(2 turns of this episode left out here.)" in chat.chats[-1][1]["content"]
    chat.chats.clear()
    evaluate(ReactAgent(chat, PromptSettings(history=0)), doors(1), temperatures=(0.0,), progress=False)
    assert [len(messages) for messages in chat.chats] == [1, 1, 1, 1]
    assert chat.chats[-1][0]["content"].count("Observation: Door 0.") == 2


def test_a_full_context_loses_its_oldest_turns():
    chat = Chat(lambda messages: "Thought: " + "hm " * 100 + "\nAction: look", room=1100)
    content = evaluate(ReactAgent(chat), doors(1), temperatures=(0.0,), progress=False)
    assert content["games"][0]["steps"] == 4
    assert [len(messages) for messages in chat.chats] == [1, 3, 5, 3]
    chat.room = 100
    content = evaluate(ReactAgent(chat), doors(1), temperatures=(0.0,), progress=False)
    game = content["games"][0]
    assert (game["stop_reason"], game["steps"], game["success"]) == ("context_limit", 0, False)
    with pytest.raises(Stopped, match="no game can begin"):  # a model that has never answered: settings are at fault
        evaluate(ReactAgent(Chat(str, room=100)), doors(1), temperatures=(0.0,), progress=False)


def test_the_shipped_examples_are_real_episodes():
    examples = Examples.for_tasks(GeneratedAlfworldTasks())
    types = [example.task_type for example in examples.choose("", 99)]
    assert len(types) == 12
    assert all(types.count(name) == 2 for name in types)
    for item in raw("react_alfworld.yaml"):
        replay(GeneratedAlfworldTasks("medium", task_types=[item["task_type"]]), item)
    (item,) = raw("react_webshop.yaml")
    replay(GeneratedWebshopTasks(), item)


def raw(name):
    import yaml

    from progpo_trl.contexts import PROMPTS

    return yaml.safe_load((PROMPTS / "agents" / name).read_text())


def replay(tasks, item):
    environment = tasks.make()
    seen = environment.reset(item["game"], 0).text
    for turn in item["turns"]:
        # without the game's title and its blank lines
        assert turn["observation"].split() == seen.removeprefix("-= Welcome to TextWorld, ALFRED! =-").split()
        result = environment.step(turn["action"])
        seen = result.text
    assert result.success


def test_examples_of_the_same_task_type_come_first():
    examples = Examples.for_tasks(GeneratedAlfworldTasks())
    chosen = examples.choose("pick_heat_then_place_in_recep", 3)
    assert [one.task_type for one in chosen] == ["pick_heat_then_place_in_recep"] * 2 + ["pick_and_place_simple"]
    assert examples.choose("pick_heat_then_place_in_recep", 0) == []


def test_examples_in_the_older_wording():
    old = VERSIONS["0.2.2"]
    (example,) = Examples.for_tasks(GeneratedAlfworldTasks()).choose("pick_two_obj_and_place", 1)
    turns = in_wording(example, old.put_command, old.put_feedback).turns
    put = [i for i, turn in enumerate(turns) if turn.action.startswith("put ")]
    assert len(put) == 2
    assert turns[put[0]].action == example.turns[put[0]].action.replace("move", "put").replace(" to ", " in/on ")
    assert turns[put[0] + 1].observation.startswith("You put the ")
    assert not any("move" in turn.action + turn.observation for turn in turns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "neither YAML nor JSON"),
        ("a: 1", "must be a list"),
        ("- turns: []", "number 1: must have turns"),
        ("- turns: [{observation: a, thought: b}]", "number 1, turn 1: must have the texts"),
        ("- turns: [{observation: a, thought: b, action: 3}]", "turn 1"),
        ("- turns: [5]", "turn 1"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("!!python/object/apply:os.getcwd []", "neither YAML nor JSON"),
    ],
)
def test_example_files_that_cannot_be_used(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=message):
        ReactAgent(Chat(str), examples=path)
    with pytest.raises(EvaluationError, match=r"cannot be read"):
        ReactAgent(Chat(str), examples=tmp_path / "none.yaml")


def test_own_examples_and_an_own_template(tmp_path):
    examples, template = tmp_path / "mine.json", tmp_path / "mine.jinja"
    examples.write_text('[{"turns": [{"observation": "A gate.", "thought": "Hm.", "action": "open 9"}]}]')
    template.write_text("{{ part }}|{{ observation }}|{{ examples | length }}|{{ memory | length }}")
    chat = Chat(lambda messages: "Action: open 0")
    agent = ReactAgent(chat, examples=examples, template=template)
    content = evaluate(agent, doors(1), temperatures=(0.0,), progress=False)
    assert chat.chats == [[{"role": "user", "content": "first|Door 0.|1|0"}]]
    assert content["games"][0]["success"]
    assert content["agent"]["settings"]["examples_sha256"] is not None
    with pytest.raises(EvaluationError, match=rf"^template {re.escape(str(tmp_path))}: Is a directory$"):
        AgentTemplate(tmp_path)
    template.write_text("{{ nothing }}")
    with pytest.raises(EvaluationError, match="nothing"):
        AgentTemplate(template)
    template.write_text("{% if %}")
    with pytest.raises(EvaluationError, match="line 1"):
        AgentTemplate(template)
    with pytest.raises(EvaluationError, match="No such file"):
        AgentTemplate(tmp_path / "none.jinja")


@pytest.mark.parametrize(("tree", "put"), [("json_2.1.1", "move"), ("legacy_0.2.2", "put")])
def test_real_games_get_examples_in_their_own_wording(shared_data, tree, put):
    tasks = AlfworldTasks(shared_data / "alfworld" / tree)
    split = next(name for name in ("valid_seen", "train", "valid_unseen") if name in tasks.library.splits)
    chat = Chat(lambda messages: react_expert(messages, None))
    content = evaluate(
        ReactAgent(chat, shots=12), tasks, splits=[split], n_tasks=2, temperatures=(0.0,), progress=False
    )
    assert content["results"][0]["success"]["rate"] == 1.0
    examples = chat.chats[0][0]["content"].partition("--- Your task ---")[0]
    assert ("Action: put " in examples, "Action: move " in examples) == (put == "put", put == "move")
