"""Zero-shot prompting, models on this machine, and the command line of prompted agents."""

import json
import threading

import pytest
from stub_api import KEY, StubApi, react_expert
from test_react import Chat
from worlds import doors

from progpo_trl.cli import main
from progpo_trl.environments.alfworld import GeneratedAlfworldTasks
from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.chat import Call, ContextTooLong
from progpo_trl.evaluation.local_chat import LocalChatModel
from progpo_trl.evaluation.prompted import QUOTED, PromptAgent, PromptSettings
from progpo_trl.evaluation.react import ReactAgent


def test_a_window_prompt_is_the_trainings_own():
    chat = Chat(lambda messages: "<think>hm</think><action>look</action>")
    tasks = GeneratedAlfworldTasks(n_eval=1)
    content = evaluate(PromptAgent(chat), tasks, temperatures=(0.0,), progress=False)
    # the tiny policy's bare prompt means nothing to others: the one with instructions takes its place
    assert content["agent"]["settings"]["prompt_template"] == "alfworld"
    last = chat.chats[-1]
    assert [m["role"] for m in last] == ["user"]
    assert "You have taken 11 steps so far. The last 2 observations" in last[0]["content"]
    assert "inside <action> </action>" in last[0]["content"]
    chat.chats.clear()
    evaluate(PromptAgent(chat, PromptSettings(history=0)), tasks, temperatures=(0.0,), progress=False)
    assert "[Observation" not in chat.chats[-1][0]["content"]


def test_a_full_prompt_is_the_whole_conversation():
    chat = Chat(lambda messages: "look " + "x" * 10_000, room=10**6)
    agent = PromptAgent(chat, PromptSettings(context="full", system_prompt="S"))
    content = evaluate(agent, doors(1), temperatures=(0.0,), progress=False)
    assert [m["role"] for m in chat.chats[-1]] == ["system", *["user", "assistant"] * 3, "user"]
    assert len(chat.chats[-1][2]["content"]) == QUOTED
    assert content["games"][0]["steps"] == 4
    chat.chats.clear()
    chat.room = 2 * QUOTED + 100  # two past turns at most
    evaluate(agent, doors(1), temperatures=(0.0,), progress=False)
    assert [len(messages) for messages in chat.chats] == [2, 4, 6, 6]
    assert chat.chats[-1][1] == {"role": "user", "content": "Door 0."}


def test_prompts_that_cannot_be():
    with pytest.raises(EvaluationError, match="context"):
        PromptSettings(context="half")
    with pytest.raises(EvaluationError, match="max_tokens"):
        PromptSettings(max_tokens=0)
    with pytest.raises(EvaluationError, match="no prompt template 'nope'"):
        evaluate(PromptAgent(Chat(str), PromptSettings(prompt_template="nope")), doors(1), progress=False)


def call(number):
    return Call("eval", 1.0, 0, f"g{number}", 1, 1)


def test_a_local_model_answers_the_same_alone_and_beside_others(tiny):
    chat = LocalChatModel(tiny)
    asked = [([{"role": "user", "content": f"Your task is to: put a mug in desk {i}."}], i) for i in range(4)]

    def ask(messages, i, temperature=1.0):
        return chat.complete(messages, temperature=temperature, max_tokens=12, call=call(i))

    chat.start()
    alone = [ask(*one) for one in asked]
    together = [None] * 4

    def note(i):
        together[i] = ask(*asked[i])

    threads = [threading.Thread(target=note, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a.text for a in together] == [a.text for a in alone]
    assert len({a.text for a in alone}) > 1
    assert all(0 < a.completion_tokens <= 12 and a.prompt_tokens > 5 for a in alone)
    assert ask(*asked[0], temperature=0.0).text == ask(*asked[0], temperature=0.0).text
    word = alone[0].text[3:6]
    cut = chat.complete(asked[0][0], temperature=1.0, max_tokens=12, call=call(0), stop=[word])
    assert cut.text == alone[0].text.partition(word)[0]
    with pytest.raises(ContextTooLong):
        chat.complete([{"role": "user", "content": "x " * 100_000}], temperature=1.0, max_tokens=12, call=call(0))
    with pytest.raises(EvaluationError, match="chat template"):
        chat.complete([{"role": 3}], temperature=1.0, max_tokens=12, call=call(0))
    chat.stop(abort=False)


def test_react_on_weights_of_this_machine(tiny):
    tasks = GeneratedAlfworldTasks(n_eval=2, max_steps=3)
    agent = ReactAgent(LocalChatModel(tiny), PromptSettings(max_tokens=8), shots=0)
    content = evaluate(agent, tasks, temperatures=(0.0,), progress=False)
    assert content["totals"]["calls"] == sum(game["steps"] for game in content["games"])
    assert content["totals"]["cost"] is None
    assert content["agent"]["chat"]["weights_sha256"] == tiny.facts()["weights_sha256"]
    assert content["agent"]["chat"]["kind"] == "local"


def test_the_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("openai")
    monkeypatch.setenv("STUB_KEY", KEY)
    words = ["evaluate", "--agent", "react", "--api-model", "stub/one", "--api-key-env", "STUB_KEY"]
    words += ["--environment", "alfworld_generated", "--tasks", "3", "--temperatures", "0", "--out", str(tmp_path)]
    words += ["--price-in", "1", "--price-out", "10", "--api-extra", '{"seed": null}', "--shots", "1"]
    with StubApi(react_expert) as stub:
        words += ["--base-url", stub.url]
        assert main([*words, "--max-requests", "4"]) == 2
        said = capsys.readouterr()
        assert "--max-requests is 4" in said.err
        assert len(stub.requests) == 4
        assert main([*words, "--resume"]) == 0
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["totals"]["calls"] == len(stub.requests)
    assert content["totals"]["cost"] == pytest.approx(len(stub.requests) * (100 + 100) / 1e6)
    assert content["agent"]["chat"]["model"] == "stub/one"
    assert content["agent"]["settings"]["shots"] == 1
    assert "seed" not in stub.requests[0]
    said = capsys.readouterr()
    assert "100.0 %" in said.out
    assert "cost 0.0" in said.out
    assert not any(KEY in path.read_text() for path in tmp_path.iterdir())
    assert KEY not in said.out + said.err


def test_top_p_reaches_the_endpoint_and_a_recipes_other_settings_are_left_unused(tmp_path):
    pytest.importorskip("openai")
    recipe = "environment: {name: alfworld_generated, n_eval: 1}\nmax_turns: 1\ncontext: full\nhistory: 1\n"
    recipe += "min_p: 0.2\ntop_k: 5\nrepetition_penalty: 1.3\nattn_implementation: sdpa\nmodel_name_or_path: x\n"
    (tmp_path / "mine.yaml").write_text(recipe)
    words = ["evaluate", "--config", str(tmp_path / "mine.yaml"), "--api-model", "m", "--temperatures", "0.4"]
    with StubApi(lambda messages, body: "look") as stub:
        words += ["--base-url", stub.url, "--top_p", "0.3"]
        for agent in ("prompt", "react"):
            assert main([*words, "--agent", agent, "--out", str(tmp_path / agent)]) == 0
    assert [body["top_p"] for body in stub.requests] == [0.3, 0.3]
    assert not {"min_p", "top_k", "repetition_penalty"} & set(stub.requests[0])


API = ["--agent", "prompt", "--api-model", "m"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [*API, "--min_p", "0.2"],
            "prompt --api-model has no use for --min_p; if the endpoint knows it, give it with",
        ),
        ([*API, "--top_k=5"], "no use for --top_k"),
        ([*API, "--repetition_penalty", "1.3"], "--api-extra '{\"repetition_penalty\": ...}'"),
        ([*API, "--generation_kwargs", '{"stop": ["x"]}'], "no use for --generation_kwargs"),
        ([*API, "--chat_template_kwargs.enable_thinking", "false"], "no use for --chat_template_kwargs"),
        ([*API, "--max_context_length", "300"], "no use for --max_context_length; the endpoint's server decides that"),
        ([*API, "--attn_implementation", "sdpa"], "no use for --attn_implementation"),
        ([*API, "--trust_remote_code"], "no use for --trust_remote_code"),
        ([*API, "--batch-size", "3"], "no use for --batch-size; it is --concurrency"),
        ([*API, "--dtype", "float16"], "no use for --dtype"),
        ([*API, "--context", "full", "--history", "1"], "--history has no use in full context"),
        (["--model", "tiny", "--context", "full", "--history", "1"], "--history has no use in full context"),
        (["--agent", "react", "--model", "tiny", "--context", "window"], "react has no use for --context"),
        (["--agent", "react", "--model", "tiny", "--history", "1"], "no use for --history; it is --agent-history"),
        (["--agent", "reflexion", "--model", "tiny", "--prompt_template", "no"], "it is --agent-template"),
        (["--agent", "expert", "--top_p", "0.3"], "--agent expert has no use for --top_p"),
        (["--agent", "random", "--batch-size", "3"], "--agent random has no use for --batch-size"),
        ([*API, "--api-modle", "m"], "no use for --api_modle; did you mean 'api_model'?"),
        ([*API, "--max-cots", "5"], "no use for --max_cots; did you mean 'max_cost'?"),
        ([*API, "--top_p", "0"], "top_p must be above 0"),
        ([*API, "--api-extra", '{"seed": 5}'], "--api-extra can only take seed out (null); its value is --seeds"),
    ],
)
def test_settings_without_a_use_are_refused_on_the_command_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setattr("progpo_trl.evaluation.run.evaluate", lambda *_, **__: pytest.fail("it is played"))
    assert main(["evaluate", "--environment", "alfworld_generated", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--api-model", "m"], "--agent policy has no use for --api-model; say --agent prompt, react or reflexion"),
        (["--agent", "react", "--trials", "2", "--api-model", "m"], "no use for --trials"),
        (["--agent", "prompt", "--shots", "2", "--api-model", "m"], "no use for --shots"),
        (["--agent", "react", "--max-cost", "2", "--model", "tiny"], "no use for --max-cost without --api-model"),
        (["--agent", "react", "--api-model", "m", "--model", "tiny"], "leave out --model"),
        (["--agent", "expert", "--shots", "1"], "--agent expert has no use for --shots"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    assert main(["evaluate", "--environment", "alfworld_generated", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("extra", ["{", "[]", '{"stream": true}', '{"n": 2}'])
def test_extra_fields_that_cannot_be(extra, capsys, tmp_path):
    words = ["--agent", "prompt", "--api-model", "m", "--base-url", "http://127.0.0.1:1/v1", "--api-extra", extra]
    assert main(["evaluate", "--environment", "alfworld_generated", "--out", str(tmp_path), *words]) == 2
    assert "--api-extra" in capsys.readouterr().err


def test_help_names_all_options(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    said = capsys.readouterr().out
    for option in ("--api-model", "--base-url", "--max-cost", "--max-requests", "--trials", "--examples"):
        assert option in said
