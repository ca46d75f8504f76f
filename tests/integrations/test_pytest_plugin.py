"""Recordings of tests: what is asked, what is replayed, and the sentences where one cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.inspect import read_file, write_new
from lmql_lite.engine.session import default_session
from lmql_lite.errors import CacheError
from lmql_lite.store.log import line_of
from tests.conftest import ROOT
from tests.servers.kinds import OPENAI_CHAT, VLLM, Config
from tests.servers.stub import serving

pytest_plugins = "pytester"
Tests = Callable[..., pytest.RunResult]
FILE = Path("recordings/test_joke/test_joke.jsonl")
JOKE = '''
import lmql_lite as lq

@lq.query(model="demo")
def joke():
    """lq
    "A good dad joke. A indicates the punchline\\n"
    "Q:[JOKE]" where len(JOKE) < 120 and STOPS_AT(JOKE, "?")
    "\\nA:[PUNCHLINE]" where STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
    return JOKE
    """

def test_joke(lq_recording):
    assert joke() == " Why did the bicycle fall over?"
'''


EDITED = JOKE.replace("\\nA:", "\\nAnswer:")


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Tests:
    """Runs pytest with the plugin, on a file `test_joke.py` with this text.

    `alone` is for what imports the HTTP client: modules that a run within this process imports first are dropped after
    it, and a second copy of them would not know the first one's loops.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a source that is edited within a second is read again

    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(source: str | None = None, *options: str, alone: bool = False) -> pytest.RunResult:
        if source is not None:
            pytester.makepyfile(test_joke=source)
        runs = pytester.runpytest_subprocess if alone else pytester.runpytest_inprocess
        return runs("-p", "lmql_lite.integrations.pytest_plugin", *options)

    return run


@pytest.fixture
def recorded(tests: Tests) -> bytes:
    """A recording of the joke."""
    tests(JOKE, "--lq-record=new").stdout.fnmatch_lines(["*lq recordings*", f"{FILE}: 20 tokens asked, 0 known"])
    return FILE.read_bytes()


def test_a_recorded_test_asks_nothing(tests: Tests, recorded: bytes) -> None:
    replayed = tests()
    replayed.assert_outcomes(passed=1)
    assert "lq recordings" not in replayed.stdout.str() and FILE.read_bytes() == recorded
    assert default_session().recording is None
    assert lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"))["X"] == " hi", "no part of the recording"


def test_an_edited_prompt_asks_for_what_follows_the_edit(tests: Tests, recorded: bytes) -> None:
    stale = tests(EDITED)
    stale.assert_outcomes(failed=1)
    stale.stdout.fnmatch_lines(
        [
            f'E *CacheError: {FILE} is stale: *fall over?*": stored "A", asked "Answer"',
            'E *hint: pytest "test_joke.py::test_joke" --lq-record=new asks the model for what is missing',
        ]
    )
    assert FILE.read_bytes() == recorded
    tests(EDITED, "--lq-record=new").stdout.fnmatch_lines([f"{FILE}: 8 tokens asked, 12 known"])
    tests().assert_outcomes(passed=1)
    both = read_file(str(FILE)).count("top-k")
    tests(EDITED, "--lq-record=all").stdout.fnmatch_lines([f"{FILE}: 20 tokens asked, 0 known"])
    assert read_file(str(FILE)).count("top-k") < both, "what no run reads any more is dropped"
    tests().assert_outcomes(passed=1)
    assert [path.name for path in FILE.parent.iterdir()] == [FILE.name]


def test_a_missing_recording_is_a_sentence_with_file_and_remedy_and_nothing_is_made(tests: Tests) -> None:
    missing = tests(JOKE)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines([f"E *CacheError: there is no recording {FILE}", "E *hint: pytest *--lq-record=new*"])
    assert not FILE.parent.exists()


def test_a_test_that_runs_no_query_needs_no_recording(tests: Tests) -> None:
    tests("def test_joke(lq_recording):\n    assert lq_recording.asked == 0").assert_outcomes(passed=1)
    tests(None, "--lq-record=new").assert_outcomes(passed=1)
    assert not FILE.exists()


def test_a_failing_test_replaces_no_recording(tests: Tests, recorded: bytes) -> None:
    tests(JOKE.replace("bicycle fall", "bicycle rise"), "--lq-record=all").assert_outcomes(failed=1)
    assert FILE.read_bytes() == recorded
    assert [path.name for path in FILE.parent.iterdir()] == [FILE.name]


def test_a_recording_is_in_the_place_of_the_querys_own_cache(tests: Tests) -> None:
    for option in ('cache="own.tokens"', "cache=False", 'cache_mode="off"'):
        tests(JOKE.replace('model="demo"', f'model="demo", {option}'), "--lq-record=new").assert_outcomes(passed=1)
        tests().assert_outcomes(passed=1)
    assert not Path("own.tokens").exists()


def test_a_query_that_samples_without_a_seed_is_replayed(tests: Tests) -> None:
    sampling = JOKE.replace('model="demo"', 'model="demo", decoder="sample"').split("    assert")[0]
    tests(sampling + "    print(joke())", "--lq-record=new").assert_outcomes(passed=1)
    tests().assert_outcomes(passed=1)


MARK = 'import pytest\npytestmark = pytest.mark.lq_recording("joke.jsonl")\n' + JOKE


def test_a_mark_names_the_file_which_only_one_test_has(tests: Tests) -> None:
    both = tests(MARK + "\n\ndef test_again(lq_recording):\n    joke()\n", "--lq-record=new")
    both.assert_outcomes(errors=2)
    both.stdout.fnmatch_lines(
        ["joke.jsonl is the recording of two tests, test_joke.py::test_joke and test_joke.py::test_again: give each*"]
    )
    assert not Path("joke.jsonl").exists()
    tests(MARK, "--lq-record=new")
    assert Path("joke.jsonl").stat().st_size
    wrong = tests(MARK.replace('"joke.jsonl"', ""))
    wrong.stderr.fnmatch_lines(["*test_joke.py::test_joke: the mark takes one file, such as*"])


def test_each_parameter_has_a_file_also_where_its_name_cannot_be_one(tests: Tests) -> None:
    source = '@pytest.mark.parametrize("n", ["a/b", "a:b"])\ndef test_joke(lq_recording, n):\n'
    source = "import pytest\n" + JOKE.replace("def test_joke(lq_recording):\n", source)
    tests(source, "--lq-record=new").assert_outcomes(passed=2)
    assert len(list(FILE.parent.glob("test_joke[[]a_b[]]-*.jsonl"))) == 2
    tests().assert_outcomes(passed=2)


def test_a_reviewer_reads_in_a_recording_what_the_model_answered(tests: Tests, recorded: bytes) -> None:
    lines = [json.loads(line) for line in recorded.splitlines()]
    assert "bicycle fall over?" in "".join(line["says"] for line in lines)
    assert all(line["kind"] == "top-k" and line["model"] == "demo" for line in lines)
    tests(JOKE, "--lq-record=all").assert_outcomes(passed=1)
    assert FILE.read_bytes() == recorded, "the same answers make the same file"


def test_a_cache_is_no_recording_and_a_recording_no_cache(tests: Tests, recorded: bytes) -> None:
    with pytest.raises(CacheError, match=r"test_joke.jsonl is a recording, not a .tokens file") as caught:
        lq.run_sync('"Q:[JOKE]"', model="demo", cache=FILE)
    assert "lq cache merge" in str(caught.value.hint) and FILE.read_bytes() == recorded
    write_new("x.tokens", read_file(FILE).rows)
    lines = [json.loads(line) | {"place": f"{1:016x}"} for line in recorded.splitlines()]
    earlier = b"".join(line_of({name: each[name] for name in each if name != "crc32"}) for each in lines)
    for found in (Path("x.tokens").read_bytes(), b"notes", earlier):
        FILE.write_bytes(found)
        for option in ("none", "new", "all"):
            tests(JOKE, f"--lq-record={option}").stdout.fnmatch_lines(["E *CacheError: *test_joke.jsonl *"])
            assert FILE.read_bytes() == found, "what is no recording is left as it is"


def test_a_torn_line_costs_only_itself(tests: Tests, recorded: bytes) -> None:
    FILE.write_bytes(recorded[:-30])
    tests().assert_outcomes(failed=1)
    tests(JOKE, "--lq-record=new").stdout.fnmatch_lines([f"{FILE}: 1 token asked, 19 known"])
    tests().assert_outcomes(passed=1)


def test_junit_says_what_was_asked(tests: Tests) -> None:
    tests(JOKE, "--lq-record=new", "--junit-xml=report.xml")
    found = {each.get("name"): each.get("value") for each in ElementTree.parse("report.xml").iter("property")}
    assert found == {"lq_recording": str(FILE), "lq_tokens_recorded": "0", "lq_tokens_asked": "20"}


@pytest.mark.parametrize("config", [VLLM, OPENAI_CHAT], ids=lambda config: config.kind)
def test_a_replay_needs_neither_server_nor_key(tests: Tests, config: Config) -> None:
    with serving(config, "Say: hello there.") as server:
        source = f'''
            import lmql_lite as lq
            model = lq.model("openai/{server.config.model}", base_url="{server.base_url}", api_key=KEY)
            def test_joke(lq_recording):
                found = lq.run_sync('"Say:[X]" where STOPS_AT(X, ".")', model=model)
                assert found["X"].strip() == "hello there."  # an answer of a chat begins without a blank
            '''
        tests(source.replace("KEY", '"x"'), "--lq-record=new", alone=True).assert_outcomes(passed=1)
    source = source.replace("KEY", "None")
    tests(source, alone=True).assert_outcomes(passed=1)
    tests(source.replace("/v1", "/v2"), alone=True).stdout.fnmatch_lines(["E *is stale: it knows nothing of *"])


def test_openai_itself_is_replayed_without_a_key(tests: Tests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    source = """
        import lmql_lite as lq
        model = lq.model("openai/gpt-4o")
        def test_joke(lq_recording):
            lq.run_sync('"Say:[X]"', model=model)
        """
    tests(source, alone=True).stdout.fnmatch_lines([f"E *there is no recording {FILE}"])
    tests(source, "--lq-record=new", alone=True).stdout.fnmatch_lines(["E *needs an API key, and none is set"])
