"""The task sets: ids, splits, the environment's contract, pickling; and commands with free text."""

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from webshop_shop import ITEMS, write_shop

from progpo_trl.advantages import GRPO, ProGPO, ProxMO
from progpo_trl.environments import OpenCommand, environment_class, is_admissible, load_environment
from progpo_trl.environments.webshop import GeneratedWebshopTasks, WebshopEnvironment, WebshopTasks
from progpo_trl.environments.webshop.splits import split_goals
from progpo_trl.episodes import Episode, StepBatch, StopReason
from progpo_trl.generation import TurnOutput
from progpo_trl.metrics import episode_metrics
from progpo_trl.rollout import play
from progpo_trl.settings import parse
from progpo_trl.tasks import evaluation_ids

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def tasks(folder):
    return WebshopTasks(folder)


@pytest.fixture(scope="module")
def generated():
    return GeneratedWebshopTasks(300)


def id_of(tasks, asin, **options):
    wanted = tuple(sorted(options.items()))
    goals = enumerate(tasks.catalogue.goals)
    return next(tasks.ids.id(i) for i, g in goals if g.product.asin == asin and g.options[: len(wanted)] == wanted)


def test_the_published_splits_of_the_real_goals(shared_data):
    tasks = WebshopTasks(shared_data / "webshop")
    assert {name: (int(i[0]), int(i[-1]) + 1) for name, i in tasks.splits.items()} == {
        "test": (0, 500),
        "dev": (500, 1500),
        "train": (1500, 6910),
    }
    by_product = WebshopTasks(shared_data / "webshop", split_by="product")
    targets = {name: set(tasks.catalogue.goals.positions[i].tolist()) for name, i in by_product.splits.items()}
    assert not any(targets[a] & targets[b] for a, b in (("train", "dev"), ("train", "test"), ("dev", "test")))
    sizes = {name: len(by_product.splits[name]) for name in SPLITS}
    assert sum(sizes.values()) == 6910
    assert 500 <= sizes["test"] < 700
    assert 1000 <= sizes["dev"] < 1300
    summary = tasks.data_summary()
    assert summary["products"] == 1000
    assert summary["test"]["total"] == 500 == sum(summary["test"].values()) - 500


@pytest.mark.parametrize("by", ["goal", "product"])
@pytest.mark.parametrize("n", [30, 200, 1000])
def test_splits_are_disjoint_and_whole_whatever_the_size(n, by):
    goals = GeneratedWebshopTasks(n, shop_seed=3).catalogue.goals
    splits = split_goals(goals, by)
    assert sorted(np.concatenate([splits[name] for name in SPLITS]).tolist()) == list(range(len(goals)))
    assert all(len(splits[name]) for name in SPLITS)
    if by == "product":
        positions = [set(goals.positions[splits[name]].tolist()) for name in SPLITS]
        assert sum(map(len, positions)) == len(set().union(*positions))


class FewGoals:
    def __init__(self, n, products=None):
        self.positions = np.arange(n, dtype=np.int32) % (products or max(n, 1))

    def __len__(self):
        return len(self.positions)


def test_the_sizes_shrink_with_the_shop():
    sizes = {n: [len(split_goals(FewGoals(n))[name]) for name in SPLITS] for n in (0, 2, 3, 9, 100, 5000, 20_000)}
    assert sizes == {
        **{0: [0, 0, 0], 2: [2, 0, 0], 3: [1, 1, 1], 9: [7, 1, 1]},
        **{100: [70, 20, 10], 5000: [3500, 1000, 500], 20_000: [18_500, 1000, 500]},
    }
    with pytest.raises(ValueError, match="2 products with goals are too few to split by product"):
        split_goals(FewGoals(50, products=2), "product")
    with pytest.raises(ValueError, match="split_by must be one of goal, product, got 'asin'"):
        split_goals(FewGoals(50), "asin")


def test_ids_are_readable_and_lead_back_to_their_goal(tasks):
    ids = [task_id for split in SPLITS for task_id in tasks.task_ids(split)]
    assert len(set(ids)) == len(ids) == len(tasks.catalogue.goals) == 12
    assert tasks.task_ids("test")[0] == f"goal-00000-{tasks.catalogue.goals[0].product.asin}"
    for task_id in ids:
        goal = tasks.catalogue.goals[tasks.ids.goal(task_id)]
        assert task_id.endswith(goal.product.asin)
        assert tasks.task_type(task_id) == goal.product.category
    assert list(tasks.task_ids("train")[1:3]) == list(tasks.task_ids("train"))[1:3]
    for wrong in ("goal-00000-X", "goal-99999-C000000001", "goal-0-C000000001", "human-00000-C000000001", "", "goal"):
        with pytest.raises(KeyError, match="no goal"):
            tasks.make().reset(wrong)
    with pytest.raises(KeyError, match="no goals of split 'valid'; there are train, dev, test"):
        tasks.task_ids("valid")


def test_one_id_never_means_two_goals(folder):
    assert WebshopTasks(folder, seed=3).task_ids()[0].startswith("goal-seed3-00")
    assert WebshopTasks(folder, human_goals=True).task_ids()[0].startswith("human-00000-")
    assert GeneratedWebshopTasks(40, shop_seed=2).task_ids()[0].startswith("full-40-2-000")


def test_the_trainer_evaluates_on_dev(tasks):
    assert evaluation_ids(None, tasks) == list(tasks.task_ids("dev"))
    script, _, _ = parse(["--environment.name", "webshop_generated", "--model_name_or_path", "tiny", "--use_cpu"])
    assert (script.environment["split"], script.environment["eval_split"]) == ("train", "dev")


def test_ids_and_goals_are_the_same_in_another_process(generated):
    program = (
        "from progpo_trl.environments.webshop import GeneratedWebshopTasks as T\n"
        "t = T(300); i = t.task_ids('dev')[7]; print(i, t.make().reset(i).task, sep='\\n')"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    task_id = generated.task_ids("dev")[7]
    assert out.splitlines() == [task_id, generated.make().reset(task_id).task]


BUY_OAK = ["search[oak]", "click[c000000001]", "click[red]", "click[large]", "click[buy now]"]


def test_success_pays_once_and_the_end_is_final(tasks):
    environment = tasks.make()
    first = environment.reset(id_of(tasks, "C000000001", color="red", size="large"))
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {first.task} [SEP] Search"
    assert first.task.startswith("Find me a sturdy chair with solid wood with color: red, and size: large")
    assert first.admissible == ("search[<your query>]",)
    for action in BUY_OAK[:-1]:
        result = environment.step(action)
        assert (result.reward, result.done, result.info) == (0.0, False, {})
    assert "click[navy | white]" in result.admissible
    bought = environment.step(BUY_OAK[-1])
    assert (bought.reward, bought.done, bought.success, bought.admissible) == (10.0, True, True, ())
    assert bought.info == {
        **{"score": 1.0, "bought": 1.0, "r_type": 1.0, "r_att": 1.0, "r_option": 1.0, "r_price": True},
        **{"title_score": 1.0, "query_match": True, "category_match": True},
    }
    again = environment.step("search[lamp]")
    assert (again.text, again.reward, again.done, again.success, again.info) == (bought.text, 0.0, True, True, {})
    assert environment.steps == 5


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 0.6)])
def test_part_of_the_score_is_paid_only_with_partial(folder, partial, reward):
    environment = WebshopTasks(folder, partial=partial, success_reward=7.0).make()
    environment.reset(id_of(WebshopTasks(folder), "C000000001", color="red", size="large"))
    for action in ("search[oak]", "click[c000000001]", "click[buy now]"):
        result = environment.step(action)
    assert (result.reward, result.success, result.info["score"]) == (reward, False, 0.6)
    environment.reset(id_of(WebshopTasks(folder), "C000000001", color="red", size="large"))
    for action in BUY_OAK:
        result = environment.step(action)
    assert (result.reward, result.success) == (1.0 if partial else 7.0, True)


def test_the_step_limit_ends_with_a_score_of_zero(folder):
    environment = WebshopTasks(folder, max_steps=3).make()
    environment.reset(environment.goals.id(0))
    assert not environment.step("search[oak]").done
    assert not environment.step("nonsense").done
    last = environment.step("click[c000000001]")
    assert (last.done, last.success, last.reward, last.info) == (True, False, 0.0, {"score": 0.0, "bought": 0.0})
    assert environment.step("click[buy now]").text == last.text
    assert environment.score == 0.0


def test_strict_mode_reaches_the_session(folder):
    pine = id_of(WebshopTasks(folder), "C000000005", seat="6", back="8")
    for mode, success in (("compat", False), ("strict", True)):
        environment = WebshopTasks(folder, mode=mode).make()
        environment.reset(pine)
        for action in ("search[folding]", "click[c000000005]", "click[6]", "click[8]", "click[buy now]"):
            result = environment.step(action)
        assert result.success == success
    with pytest.raises(ValueError, match="mode must be one of compat, strict, got 'exact'"):
        WebshopTasks(folder, mode="exact")


def test_an_episode_pickles_small_and_goes_on_the_same(generated):
    environment = generated.make()
    first = environment.reset(generated.task_ids()[3])
    for action in (f"search[{first.task}]", "click[next >]"):
        result = environment.step(action)
    data = pickle.dumps(environment)
    assert len(data) < 1_500
    copy = pickle.loads(data)
    assert copy.goals.catalogue is environment.goals.catalogue
    for action in (result.admissible[3], "click[features]", "click[< prev]", "click[buy now]", "click[buy now]"):
        assert copy.step(action) == environment.step(action)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).step('search[tea]').text)"
    out = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True).stdout
    assert out.decode().strip() == pickle.loads(data).step("search[tea]").text.strip()


def test_before_the_first_reset(tasks):
    with pytest.raises(RuntimeError, match=r"step\(\) before reset\(\)"):
        tasks.make().step("search[x]")
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        WebshopEnvironment(tasks.ids, max_steps=0)


def test_by_name_with_options(folder):
    assert load_environment("webshop", data=folder, max_steps=7).max_steps == 7
    assert environment_class("webshop_generated") is GeneratedWebshopTasks
    with pytest.raises(ValueError, match="did you mean 'human_goals'"):
        load_environment("webshop", human_goal=True)


def test_a_store_serves_the_same_tasks(tmp_path, generated):
    from progpo_trl.environments.webshop import ShopFileError
    from progpo_trl.environments.webshop.files import find_files
    from progpo_trl.environments.webshop.store import build_store, files_source, generated_source

    stored = GeneratedWebshopTasks(300, store=build_store(generated_source(300), tmp_path / "generated"))
    folder = write_shop(tmp_path / "files")
    files = build_store(files_source(find_files(folder)), tmp_path / "store")
    for ours, other in ((stored, generated), (WebshopTasks(folder, store=files), WebshopTasks(folder))):
        assert type(ours.catalogue) is not type(other.catalogue)
        assert ours.data_summary() == other.data_summary()
        task_id = other.task_ids()[1]
        one, two = ours.make(), other.make()
        first = one.reset(task_id)
        assert first == two.reset(task_id)
        one = pickle.loads(pickle.dumps(one))
        for action in (f"search[{first.task}]", "click[next >]", "click[< prev]", "click[buy now]"):
            assert one.step(action) == two.step(action)
    with pytest.raises(ShopFileError, match="was built with other settings"):
        GeneratedWebshopTasks(200, store=tmp_path / "generated")


def test_a_shop_nobody_asks_anything_of(tmp_path):
    from progpo_trl.environments.webshop import ShopFileError

    with pytest.raises(ShopFileError, match="asks for none of the products: no goals"):
        WebshopTasks(write_shop(tmp_path, attributes={}, items=ITEMS[:2]))


# Commands with free text


@pytest.mark.parametrize(
    ("action", "accepted"),
    [
        *(("search[red shoes]", True), ("search[a]b]", True), ("search[<your query>]", True), ("search[ ]", True)),
        *(("search[]", False), ("search[a[b]", False), ("search[a\nb]", False), ("search[a] b", False)),
        *(("click[search]", False), ("Search[a]", False), ("", False)),
    ],
)
def test_an_open_command_accepts_what_its_pattern_says(action, accepted):
    command = OpenCommand("search[<your query>]", r"search\[[^\[\n]+\]")
    for one in (command, pickle.loads(pickle.dumps(command))):
        assert one == "search[<your query>]"
        assert is_admissible(action, ("click[x]", one)) == accepted
    assert is_admissible(action, None)
    assert not is_admissible("search[x]", ("search[<your query>]", "look"))  # plain text is taken literally


class Typist:
    """A context that writes no prompts; what is played is given in `lines`."""

    def prompts(self, views):
        return [np.zeros(1, np.int32) for _ in views]


def typed(tasks, scripts, *, max_turns=15, prompts=None):
    """Episodes in which the responses of each are the lines of a script, (task id, lines); prompts: of the context."""
    episodes = [Episode(task_id, group=i // 4, index=i) for i, (task_id, _) in enumerate(scripts)]
    lines = {id(e): iter(script) for e, (_, script) in zip(episodes, scripts, strict=True)}
    said = []

    def generate(live, prompts):
        said[:] = [next(lines[id(e)]) for e in live]
        return [TurnOutput(np.zeros(1, np.int32), np.zeros(1, np.float32), False)] * len(live)

    play(
        episodes,
        tasks,
        prompts or Typist(),
        generate=generate,
        decode=lambda ids: list(said),
        max_turns=max_turns,
        step_limit=max_turns,
        action_format="think_action" if prompts else "text",
    )
    return episodes


def test_the_rollout_flags_free_text_and_listed_commands(tasks):
    lines = ["search[oak]", "search[oak again]", "click[c000000001]", "click[pink]", "click[buy now]"]
    (episode,) = typed(tasks, [(id_of(tasks, "C000000001"), lines)])
    assert [step.admissible for step in episode.steps] == [True, False, True, False, True]
    assert episode.stop_reason is StopReason.FAILURE
    assert episode.steps[-1].info["bought"] == 1.0
    assert all(step.format_valid for step in episode.steps)


class OneShort(Typist):
    """A context in which the prompts of later steps do not fit."""

    def prompts(self, views):
        return [None if view.steps else np.zeros(1, np.int32) for view in views]


def test_the_tail_of_an_unreadable_response_is_20_characters_long(tasks):
    (episode,) = typed(tasks, [(tasks.task_ids()[0], ["I will now search[oak chair]"])], prompts=OneShort())
    assert episode.steps[0].action == "I will now search[oak chair]".lower()[-20:]
    assert not episode.steps[0].format_valid


def test_the_mean_score_is_over_all_episodes(tasks):
    """Bought, stopped by the turns of the trainer, and stopped by the length of the prompt: 0.6, 0, 0."""
    task_id = id_of(tasks, "C000000001", color="red", size="large")
    bought = ["search[oak]", "click[c000000001]", "click[buy now]"]
    wandering = ["search[oak]", "click[back to search]", "search[oak]"]
    episodes = typed(tasks, [(task_id, bought), (task_id, wandering)], max_turns=3)
    episodes += typed(tasks, [(task_id, ["<action>search[oak]</action>"])], prompts=OneShort())
    assert [e.stop_reason for e in episodes[1:]] == [StopReason.STEP_LIMIT, StopReason.CONTEXT_LIMIT]
    metrics = episode_metrics(episodes)
    assert metrics["info/score"] == pytest.approx(0.2)
    assert metrics["info/bought"] == pytest.approx(1 / 3)
    assert metrics["info/r_att"] == 1.0  # of what was bought
    empty = Episode(task_id, stop_reason=StopReason.CONTEXT_LIMIT, unreported={"score": 0.0, "bought": 0.0})
    assert episode_metrics([*episodes, empty])["info/score"] == pytest.approx(0.15)


# Partial scores


def shopping(tasks, index, what):
    """Actions that buy the target of goal `index` with its options ("all"), without them ("part"), or nothing."""
    goal = tasks.catalogue.goals[index]
    actions = [f"search[{goal.product.title}]", f"click[{goal.product.asin.lower()}]"]
    if what == "all":
        actions += [f"click[{value}]" for _, value in goal.options]
    return [*actions, "click[buy now]"] if what != "nothing" else [actions[0], *["click[next >]"] * 14]


def partial_batch(partial):
    """Three groups of four: different scores and no success; nothing but failures of score 0; with a success."""
    tasks = GeneratedWebshopTasks(100, level="tiny", partial=partial)
    index = next(i for i, goal in enumerate(tasks.catalogue.goals) if goal.options)
    buys = [["part", "part", "nothing", "nothing"], ["nothing"] * 4, ["all", "part", "nothing", "nothing"]]
    scripts = [(tasks.ids.id(index), shopping(tasks, index, what)) for group in buys for what in group]
    for number, (_, actions) in enumerate(scripts):  # so that coverage differs within every group
        if number % 4 == 3:
            actions[3:] = ["click[back to search]", *actions[4:]]
    episodes = typed(tasks, scripts)
    for e in episodes:
        e.group = e.index // 4
    return StepBatch.from_episodes(episodes)


def test_a_group_with_a_partial_score_is_not_all_fail():
    batch = partial_batch(partial=True)
    assert batch.environment_return.round(2).tolist() == [0.75, 0.75, 0, 0] + [0] * 4 + [1, 0.75, 0, 0]
    assert batch.success.tolist() == [False] * 8 + [True] + [False] * 3
    base, gated = GRPO(stats="trajectories"), ProGPO(base=GRPO(stats="trajectories"))
    _, all_fail, q_fail = gated.all_fail(batch)
    assert (all_fail.tolist(), q_fail) == ([False, True, False], pytest.approx(1 / 3))
    plain, advantages = base(batch), gated(batch)
    second = batch.group == 1
    assert (advantages[~second] == plain[~second]).all()  # the outcome decides wherever there is one
    assert (plain[~second] != 0).any()
    assert (plain[second] == 0).all()
    assert (advantages[second] != 0).any()
    # The gate on success takes the first group, too: coverage is added to its partial scores.
    by_success = replace(gated, gate="success")
    assert by_success.all_fail(batch)[1].tolist() == [True, True, False]
    first = batch.group == 0
    assert (by_success(batch)[first] != plain[first]).any()
    assert (by_success(batch)[batch.group == 2] == plain[batch.group == 2]).all()
    # Without partial the same episodes give nothing for a purchase that is not right, and the gates agree.
    assert gated.all_fail(partial_batch(partial=False))[1].tolist() == [True, True, False]


def test_proxmo_counts_success_by_the_flag_and_its_released_code_by_the_score():
    batch = partial_batch(partial=True)
    first = batch.episode_group[batch.episode] == 0
    rate, success, _ = ProxMO().modulation(batch)
    assert not success[first].any()
    assert (rate[first] == 0).all()
    assert set(rate[batch.group == 2]) == {0.25}
    rate, success, _ = ProxMO.released_code().modulation(batch)
    assert success[first].tolist() == [batch.environment_return[e] > 0.5 for e in batch.episode[first]]
    assert success[first].any()
    assert (rate[first] > 0).all()
