"""The tiny policy: tokenizer, chat template, shipped weights, how well it plays, and that it can be made again."""

import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progpo_trl.actions import project
from progpo_trl.contexts import PromptTemplate, TurnView
from progpo_trl.environments import is_admissible
from progpo_trl.environments.alfworld import rooms
from progpo_trl.environments.alfworld.expert import noisy_play
from progpo_trl.environments.alfworld.generate import GeneratedAlfworldTasks
from progpo_trl.environments.webshop import GeneratedWebshopTasks, shopper
from progpo_trl.tiny_policy import CHECKPOINTS, checkpoint_path
from progpo_trl.tiny_policy.tokenizer import ACTION_CLOSE, ACTION_OPEN, SPECIAL, action_text
from progpo_trl.tiny_policy.warm_start import OWN, REFUSED, TraceEncoder, prompt

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint_path())


@pytest.fixture(scope="module")
def shop_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint_path("base-shop"))


@pytest.fixture(scope="module")
def episode():
    """Observations, commands, and which of these were refused."""
    task_set = GeneratedAlfworldTasks("medium")
    observations, commands, _ = noisy_play(task_set.make(), task_set.task_ids()[3], 0.5, 20, random.Random(0), 0.2)
    return observations, commands, [text == "Nothing happens." for text in observations[1:]]


@pytest.fixture(scope="module")
def shop_episode():
    task_set = GeneratedWebshopTasks(400, level="tiny", max_steps=10)
    return shopper.noisy_play(task_set.make(), task_set.task_ids()[3], 0.5, random.Random(4), 0.2, 0.3)[:3]


def conversation(observations, commands):
    messages = []
    for observation, command in zip(observations, commands, strict=False):
        messages += [
            {"role": "user", "content": prompt(observation)},
            {"role": "assistant", "content": action_text(command)},
        ]
    return messages


@settings(max_examples=200)
@given(text=st.text(max_size=200))
def test_any_text_round_trips(tokenizer, shop_tokenizer, text):
    if any(token in text for token in SPECIAL):
        return
    for one in (tokenizer, shop_tokenizer):
        # Qwen's tokenizer normalises to NFC, and so do these, which are of its class.
        assert one.decode(one.encode(text)) == unicodedata.normalize("NFC", text)


def test_texts_of_the_game_are_a_few_tokens(tokenizer, episode):
    observations, commands, _ = episode
    assert isinstance(tokenizer, transformers.Qwen2Tokenizer)
    for kind in rooms.kinds():
        for name in (f" {kind}", f" {kind} 1"):
            assert len(tokenizer.encode(name)) == 1, name
            assert tokenizer.decode(tokenizer.encode("take" + name)) == "take" + name
    assert len(tokenizer.encode(ACTION_OPEN)) == len(tokenizer.encode(ACTION_CLOSE)) == 1
    assert len(tokenizer.encode(action_text("take mug 1 from shelf 1"))) == 6
    whole = tokenizer.apply_chat_template(conversation(observations, commands), return_dict=False)
    assert len(whole) < 30 + 18 * len(commands)


def test_texts_of_the_shop_are_a_few_tokens(shop_tokenizer, shop_episode):
    observations, commands, _ = shop_episode
    for text in ("search[soft warm mug]", "click[p17]", "click[buy now]", "click[red]", "click[< prev]"):
        assert len(shop_tokenizer.encode(action_text(text))) <= 7
    # A word is the same token on a page, in the instruction and in an action, so that it can be copied.
    words, color, product = map(shop_tokenizer.encode, ("soft warm mug", "red", "p17"))
    assert [len(words), len(color), len(product)] == [3, 1, 1]
    instruction = shop_tokenizer.encode("Instruction: [SEP] Buy a soft warm mug with color: red, and price lower than")
    page = shop_tokenizer.encode(" [SEP] p17 [SEP] soft warm mug [SEP] $5.0 [SEP] red [SEP] ")
    for ids, what in ((instruction, words), (page, words), (instruction, color), (page, color), (page, product)):
        assert any(ids[i : i + len(what)] == what for i in range(len(ids)))
    whole = shop_tokenizer.apply_chat_template(conversation(observations, commands), return_dict=False)
    assert len(whole) < 80 * len(commands)


def test_decoding_keeps_the_action_format(tokenizer):
    ids = [*tokenizer.encode(action_text("go to shelf 1")), tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think></think><action>go to shelf 1</action>"
    parsed = project(tokenizer.decode(ids, skip_special_tokens=True))
    assert parsed.action == "go to shelf 1"
    assert parsed.format_valid


def test_chat_template_is_qwens_form(tokenizer):
    text = tokenizer.apply_chat_template(
        [{"role": r, "content": c} for r, c in (("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"))],
        tokenize=False,
        add_generation_prompt=True,
    )
    turns = ("system\ns", "user\nu", "assistant\na", "user\nv")
    assert text == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("world", ["alfworld", "webshop"])
def test_conversation_ids_are_the_turns_put_together(world, request):
    """What the trainer relies on: the ids of a conversation extend the ids of every earlier prompt and answer."""
    shop = "shop_" if world == "webshop" else ""
    tokenizer = request.getfixturevalue(f"{shop}tokenizer")
    observations, commands, refused = request.getfixturevalue(f"{shop}episode")
    messages = conversation(observations, commands)
    ids: list[int] = []
    for turn in range(len(commands)):
        prefix = tokenizer.apply_chat_template(messages[: 2 * turn + 1], add_generation_prompt=True, return_dict=False)
        assert prefix[: len(ids)] == ids
        ids = prefix + tokenizer.encode(messages[2 * turn + 1]["content"]) + [tokenizer.eos_token_id]
    newline = tokenizer.encode("\n")
    assert ids + newline == tokenizer.apply_chat_template(messages, return_dict=False)
    traced, roles = TraceEncoder(tokenizer)(observations, commands, refused)
    assert traced == ids
    assert 0 < sum(refused) < len(commands)
    for role, kept in ((OWN, False), (REFUSED, True)):
        said = tokenizer.decode([i for i, r in zip(traced, roles, strict=True) if r == role])
        expected = [action_text(c) + "<|im_end|>" for c, was in zip(commands, refused, strict=True) if was == kept]
        assert said == "".join(expected)


def test_prompt_template():
    template = PromptTemplate("tiny")
    first = "-= Title =-\n\nYou see a bed 1.\n\nYour task is to: sleep."
    view = TurnView(first, ("look",), "sleep.", (), 14)
    assert template.render("full", view) == template.render("window", view, 2)
    assert template.render("full", view) == "You see a bed 1.\n\nYour task is to: sleep." == prompt(first)
    assert prompt("A =- B") == "A =- B"
    played = [type("S", (), {"observation": first, "action": "look"})()]
    window = template.render("window", TurnView("You see nothing.", None, "sleep.", played, 14), 2)
    assert window.startswith("Your task is to: sleep.")
    assert window.endswith("> look\nYou see nothing.")


def test_unknown_checkpoint_is_refused():
    with pytest.raises(ValueError, match="base, base-hard, base-shop"):
        checkpoint_path("huge")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint_loads_and_is_small(name):
    torch = pytest.importorskip("torch")
    folder = checkpoint_path(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, transformers.Qwen2ForCausalLM)
    assert model.dtype == torch.float32
    assert 100_000 < model.num_parameters() < 500_000
    assert model.config.vocab_size == len(tokenizer)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    generation = model.generation_config
    assert (generation.eos_token_id, generation.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def play(name, task_set, ids):
    """Success rate and share of inadmissible commands of sampled episodes of the tasks `ids`, in lock-step."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_path(name)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint_path(name), padding_side="left")
    chats, environments, listed, wins, refused, steps = [], [], [], 0, 0, 0
    for task_id in ids:
        environments.append(task_set.make())
        first = environments[-1].reset(task_id)
        listed.append(first.admissible)
        chats.append([{"role": "user", "content": prompt(first.text)}])
    while environments:
        texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        output = model.generate(**inputs, max_new_tokens=12, do_sample=True, temperature=1.0, top_k=0)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        playing = []
        for chat, environment, answer, admissible in zip(chats, environments, answers, listed, strict=True):
            action = project(answer).action
            result = environment.step(action)
            steps, refused = steps + 1, refused + (not is_admissible(action, admissible))
            wins += result.success
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": prompt(result.text)}]
            if not result.done:
                playing.append((chat, environment, result.admissible))
        chats, environments, listed = ([one[i] for one in playing] for i in range(3))
    return wins / len(ids), refused / steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level", "low", "high"), [("base", "easy", 0.03, 0.22), ("base-hard", "hard", 0, 0.06)]
)
def test_checkpoint_speaks_the_language_but_solves_few_tasks(name, level, low, high):
    task_set = GeneratedAlfworldTasks(level, n_eval=128)
    success, refused = play(name, task_set, task_set.task_ids("valid_unseen"))
    assert low <= success <= high
    assert refused < 0.35


def test_the_shop_checkpoint_shops_but_carelessly():
    task_set = GeneratedWebshopTasks(400, level="tiny", max_steps=10)
    success, refused = play("base-shop", task_set, task_set.task_ids("dev")[:48])
    assert 0.02 <= success <= 0.35
    assert refused < 0.8  # sampled, most product ids are not those of the page


@pytest.mark.slow
def test_make_gives_the_same_bytes_under_another_hash_seed(tmp_path):
    root = str(Path(__file__).parents[1])
    for seed in ("1", "2"):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "progpo_trl.tiny_policy.make",
                "--out",
                str(tmp_path / seed),
                "--scale",
                "0.003",
                "--corpus-episodes",
                "40",
            ],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
        )
    for name in ("expert", "shop-expert", *CHECKPOINTS):
        files = sorted(file.name for file in (tmp_path / "1" / name).iterdir())
        assert {"model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(files)
        for file in files:
            first, second = ((tmp_path / seed / name / file).read_bytes() for seed in ("1", "2"))
            assert first == second, (name, file)
