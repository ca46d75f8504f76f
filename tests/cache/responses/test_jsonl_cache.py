"""The older surface of lmms-eval's caches: statements 42 to 50 of the reference, right in order and types."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.older import CachingModel, JsonlCache, merge_responses
from tests.cache.responses.models import GREEDY, Counting, Sampling, generation, generations


class Model(JsonlCache):
    """The example of the seed, with its order mended."""

    cache_tasks = ("mme",)

    def __init__(self, name: str = "org/model", rank: int = 0, world_size: int = 1) -> None:
        self.model_version, self.rank, self.world_size = name, rank, world_size
        self.asked: list[int] = []

    def generate_until(self, requests: list[lq.Request]) -> list[str]:
        self.load_cache()
        cached, pending = self.get_response_from_cache(requests)
        answers = []
        for request in pending:
            answer = f"answer to {request.args[0]}"
            self.asked.append(request.doc_id)
            self.add_request_response_to_cache(request, answer)
            answers.append(answer)
        return merge_responses(cached, answers)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMMS_EVAL_HOME", str(tmp_path))
    monkeypatch.setenv("LMMS_EVAL_USE_CACHE", "True")
    return tmp_path


def files(home: Path) -> list[Path]:
    return sorted(home.rglob("*.jsonl"))


@pytest.mark.parametrize("value", [None, "true", "1", "False", ""])
def test_it_is_on_only_where_the_environment_says_true(home: Path, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    """Statements 42 and 46."""
    monkeypatch.delenv("LMMS_EVAL_USE_CACHE") if value is None else monkeypatch.setenv("LMMS_EVAL_USE_CACHE", value)
    model = Model()
    assert len(model.generate_until(generations(2))) == 2
    assert files(home) == [] and model.get_response_from_cache(generations(2)) == ([], generations(2))


def test_files_are_named_by_task_rank_and_world_size(home: Path) -> None:
    """Statements 42, 43, 44."""
    Model(rank=1, world_size=4).generate_until(generations(1))
    (path,) = files(home)
    assert path.name == "mme_rank1_world_size4.jsonl" and path.parent.parent == home / "eval_cache"
    assert path.parent.name.startswith("Model_org_model")
    record = json.loads(path.read_text())
    assert (record["doc_id"], record["response"]) == (0, "answer to question 0")


def test_without_a_home_files_stand_in_the_users_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statement 42."""
    monkeypatch.delenv("LMMS_EVAL_HOME")
    monkeypatch.setenv("HOME", str(home / "me"))
    Model().generate_until(generations(1))
    assert (home / "me" / ".cache" / "lmms-eval" / "eval_cache").is_dir()


def test_two_models_of_one_last_name_have_folders_of_their_own(home: Path) -> None:
    """Finding L1."""
    Model("a/x").generate_until(generations(1))
    second = Model("b/x")
    second.generate_until(generations(1))
    assert second.asked == [0] and len({path.parent for path in files(home)}) == 2


def test_what_is_loaded_is_answers_by_task_and_document(home: Path) -> None:
    """Statements 44 and 45: later records win, bad lines are passed over with a warning."""
    assert Model().load_jsonl_cache() == {}
    Model().generate_until([*generations(2), generation(1, task="mmb")])
    path = next(path for path in files(home) if path.name.startswith("mme"))
    path.write_text(path.read_text() + '{"doc_id": 1, "response": "later"}\nno JSON\n42\n{"doc_id": 3}\n\n')
    with pytest.warns(RuntimeWarning, match="a line that is not a record"):
        found = Model().load_jsonl_cache()
    assert found["mme"] == {0: "answer to question 0", 1: "later"} and found["mmb"] == {1: "answer to question 1"}


def test_answers_come_in_the_order_of_the_requests_and_in_one_type(home: Path) -> None:
    """Statement 48 (a) and (b): the example of the seed, in the same process and after a reload."""
    Model().generate_until(generations(2, 1))
    model = Model()
    assert model.generate_until(generations(4)) == [f"answer to question {number}" for number in range(4)]
    assert model.asked == [0, 3]
    for loaded in (model, Model()):
        cached, pending = loaded.get_response_from_cache(generations(4))
        assert pending == [] and [each["response"] for each in cached] == [f"answer to question {n}" for n in range(4)]


def test_another_prompt_or_sampling_is_no_hit(home: Path) -> None:
    """Statement 48 (c), finding L2."""
    Model().generate_until(generations(1))
    for request in (
        generation(0, prompt="other"),
        generation(0, {"max_new_tokens": 5}),
        generation(0, {"temperature": 1}),
    ):
        model = Model()
        model.generate_until([request])
        assert model.asked == [0]
    assert Model().load_jsonl_cache()["mme"][0] != ""


def test_a_record_of_lmms_eval_itself_counts_for_its_document(home: Path) -> None:
    """Statement 46: the key is task and document where the record knows no more."""
    Model().generate_until(generations(1))
    (path,) = files(home)
    path.write_text('{"doc_id": 5, "response": "theirs"}')
    model = Model()
    assert model.generate_until([generation(5)]) == ["theirs"]
    model.add_request_response_to_cache(generation(6), "ours")  # the last line had no end
    assert Model().load_jsonl_cache()["mme"] == {5: "theirs", 6: "ours"}


def test_bad_answers_and_samples_are_not_written(home: Path) -> None:
    """Statement 47, mended."""
    model = Model()
    model.load_cache()
    for answer in (None, "", "  "):
        model.add_request_response_to_cache(generation(1), answer)
    model.add_request_response_to_cache(generation(1, {"temperature": 1}), "sample")
    assert files(home) == []
    with pytest.warns(RuntimeWarning, match="was not kept"):
        model.add_request_response_to_cache(generation(1), object())


# -- files of lmms-eval


def theirs(home: Path, *records: Any, name: str = "model", tasks: str = "mme", file: str = "mme") -> Path:
    """File that lmms-eval wrote for the model `org/model` and a list of tasks, joined by |."""
    folder = home / "eval_cache" / f"Model_{name}_{hashlib.sha256(tasks.encode()).hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}_rank0_world_size1.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("attribute", ["cache_tasks", "task_dict"])
def test_answers_in_a_folder_of_lmms_eval_are_found(home: Path, attribute: str) -> None:
    records = [{"doc_id": 0, "response": "theirs"}, {"doc_id": 2, "response": "theirs too"}]
    path = theirs(home, *records, tasks="mme|mmb")
    before = path.read_bytes()
    for asked in ([1], []):
        model = Model()
        setattr(model, attribute, {"mme": 1, "mmb": 2} if attribute == "task_dict" else ("mme", "mmb"))
        if attribute == "task_dict":
            model.cache_tasks = ()
        assert model.generate_until(generations(3)) == ["theirs", "answer to question 1", "theirs too"]
        assert model.asked == asked
    assert path.read_bytes() == before  # new answers are in a folder of our own


@pytest.mark.parametrize("folder", ["theirs", "ours"])
@pytest.mark.parametrize("poison", ["", "  \n", None], ids=repr)
def test_an_empty_answer_in_a_file_is_not_served(home: Path, folder: str, poison: Any) -> None:
    records = [{"doc_id": 0, "response": poison}, {"doc_id": 1, "response": "good"}, {"doc_id": 1, "response": poison}]
    path = theirs(home, *records)
    if folder == "ours":
        Model().generate_until([generation(9)])
        ours = next(each for each in files(home) if each != path)
        path.replace(ours)
    model = Model()
    assert model.generate_until(generations(2)) == ["answer to question 0", "good"] and model.asked == [0]
    assert Model().load_jsonl_cache()["mme"] == {1: "good", 0: "answer to question 0"}


def test_a_record_without_a_document_is_no_answer_to_every_request_without_one(home: Path) -> None:
    theirs(home, {"doc_id": None, "response": "theirs"})
    requests = [lq.Request("generate_until", (f"question {number}", GREEDY), metadata={"task": "mme"})
                for number in range(2)]  # fmt: skip
    for asked in ([None, None], []):
        model = Model()
        assert model.generate_until(requests) == ["answer to question 0", "answer to question 1"]
        assert model.asked == asked


def test_an_answer_of_ours_takes_the_place_of_one_that_knows_no_prompt(home: Path) -> None:
    path = theirs(home)
    Model().generate_until(generations(1))
    theirs(home, {"doc_id": 0, "response": "theirs"})
    model = Model()
    assert model.generate_until([generation(0, prompt="new")]) == ["answer to new"] and path.is_file()


def test_several_requests_of_one_document_are_all_kept(home: Path) -> None:
    requests = [generation(0, prompt=each) for each in ("a", "b")]
    for asked in ([0, 0], []):
        model = Model()
        assert model.generate_until(requests) == ["answer to a", "answer to b"] and model.asked == asked


def test_answers_of_a_task_with_an_odd_name_are_found_again(home: Path) -> None:
    """In one folder, under `LMMS_EVAL_HOME`. Finding L4: any number of ranks may read them."""
    names = ["a/b", "a_b", "é" * 150, "mme", "../../evil", ".._.._evil"]
    for asked in ([0] * len(names), []):
        model = Model(rank=1, world_size=2) if asked else Model()
        model.generate_until([generation(0, task=name) for name in names])
        assert model.asked == asked
    assert set(Model().load_jsonl_cache()) == set(names)
    assert len(files(home)) == len(names) and {path.parent.parent.parent for path in files(home)} == {home}


def test_requests_with_functions_are_kept_by_the_mixin(home: Path) -> None:
    def visual(doc: Any) -> Any:
        return [doc["image"]]

    def requests(last: Any) -> list[lq.Request]:
        return [lq.Request("generate_until", (f"question {number}", GREEDY, last, number, "mme", "test"),
                           metadata={"task": "mme", "doc_id": number}) for number in range(2)]  # fmt: skip

    for asked in ([0, 1], []):
        model = Model()
        model.generate_until(requests(visual))
        assert model.asked == asked
    model = Model()
    with pytest.warns(RuntimeWarning, match="type object, which no key can represent") as caught:
        model.generate_until(requests(object()))
    model.generate_until(requests(object()))
    assert model.asked == [0, 1, 0, 1] and len(caught) == 1


# -- the wrapper


def test_a_wrapped_model_is_asked_once(tmp_path: Path) -> None:
    """Statement 49: request methods are cached, everything else is the model's own."""
    for expected in (3, 0):
        model = Counting()
        model.device = "cpu"  # type: ignore[attr-defined]
        wrapped = CachingModel(model, tmp_path / "answers.db")
        assert wrapped.generate_until([*generations(2), generation(9)]) == [
            "answer to question 0", "answer to question 1", "answer to question 9"
        ]  # fmt: skip
        assert len(model.asked) == expected and all(
            isinstance(each, lq.Request) and each.metadata for each in model.asked
        )
        assert wrapped.device == "cpu" and wrapped.asked is model.asked
        with pytest.raises(AttributeError, match="no_such_name"):
            wrapped.no_such_name  # noqa: B018
        wrapped.close()


def test_what_the_old_wrapper_got_wrong(tmp_path: Path) -> None:
    """Statement 50: sampling is neither read nor written, any argument is taken, None is no failure, order of names."""
    sampling = Sampling()
    wrapped = CachingModel(sampling, tmp_path / "a.db")
    request = generation(1, {"temperature": 0.7})
    assert wrapped.generate_until([request]) != wrapped.generate_until([request])
    odd = lq.Request("generate_until", ("q", GREEDY, print))
    assert wrapped.generate_until([odd]) == wrapped.generate_until([odd])
    unkeyed = lq.Request("generate_until", ("q", GREEDY, object()))
    with pytest.warns(RuntimeWarning, match="type object, which no key can represent"):
        assert wrapped.generate_until([unkeyed]) != wrapped.generate_until([unkeyed])
    one, other = generation(1, {"a": 1, "b": 2}), generation(1, {"b": 2, "a": 1})
    assert wrapped.generate_until([one]) == wrapped.generate_until([other])
    wrapped.close()
    silent = CachingModel(Counting(lambda _: None), tmp_path / "b.db")
    assert silent.generate_until([one]) == silent.generate_until([one]) == [None]
    silent.close()


class Hooked(Counting):
    """A model that keeps its answers one by one, and fails at the third."""

    def set_cache_hook(self, hook: Any) -> None:
        self.hook = hook

    def generate_until(self, requests: list[lq.Request]) -> list[Any]:
        for request in requests:
            self.asked.append(request)
            if len(self.asked) == 3:
                raise RuntimeError("out of memory")
            self.hook.add_partial("generate_until", request.args, f"answer to {request.args[0]}")
        return [f"answer to {request.args[0]}" for request in requests]


def test_a_model_may_keep_answers_before_it_returns(tmp_path: Path) -> None:
    """Statement 49: `add_partial`."""
    model = Hooked()
    wrapped = CachingModel(model, tmp_path / "a.db")
    with pytest.raises(RuntimeError):
        wrapped.generate_until(generations(5))
    assert len(wrapped.generate_until(generations(5))) == 5
    assert [each.doc_id for each in model.asked] == [0, 1, 2, 2, 3, 4]
    wrapped.close()
