"""`{block(text)}` in queries, on a tiny model of transformers: results, trees and what is computed (laws 1 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.blocks import BlockModel  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402
from tests.models.test_transformers import HEADS, LAYERS, SHAPE, save, tokenizer  # noqa: E402
from tests.tables import cases  # noqa: E402

FIRST = "Pack the brown stick at last, a week at the sea is what it is sticky for. " * 2
SECOND = "What is a good dad joke? Things at the sea, and a stick to pack for a week. " * 2
QUERY = 'argmax(max_tokens=6)\n"Read: {block(one)}\\nThen: {block(two)}\\nQ: what is it?[X]"'
PLAIN = QUERY.replace("block(one)", "one").replace("block(two)", "two")
INPUTS = {"one": FIRST, "two": SECOND}
CHAT = (
    "{% for message in messages %}{{ '<s>' + message['role'] + '\n' + message['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(**{**SHAPE, "max_position_embeddings": 512}, **LAYERS, **HEADS)
    return save(tmp_path_factory.mktemp("blocks"), config)


@pytest.fixture(scope="module")
def model(folder: Path) -> TransformersModel:
    return TransformersModel.load(folder)


def run(model: Any, query: str = QUERY, inputs: Any = None, **options: Any) -> lq.Result:
    result = lq.run_sync(query, INPUTS if inputs is None else inputs, model=model, **options)
    assert isinstance(result, lq.Result)
    return result


def test_exact_blocks_change_neither_result_nor_tree(model: TransformersModel) -> None:
    session = lq.Session()
    plain = run(model, PLAIN, session=session)
    for options in ({}, {"blocks": "exact"}):
        again = run(model, session=session, **options)
        assert (again.prompt, again.variables, again.score) == (plain.prompt, plain.variables, plain.score)
        assert again.usage.forward_passes == 0 and again.usage.tokens_from_model == 0  # all of it is in the tree
        assert [token.id for token in again.tokens] == [token.id for token in plain.tokens]
        assert again.model == plain.model and again.notices == ()


@pytest.mark.parametrize("policy", ["rotate(behind=8)", "blend(0.3, behind=8)", "smash"])
def test_an_approximation_is_named_and_shares_no_entry_with_the_exact_model(
    model: TransformersModel, policy: str, tmp_path: Path
) -> None:
    session, file = lq.Session(), str(tmp_path / "x.tokens")
    exact = run(model, session=session, cache=file)
    moved = run(model, session=session, cache=file, blocks=policy)
    assert "blocks=" not in exact.model and moved.model.startswith(f"{exact.model} blocks={policy.split('(')[0]}")
    assert moved.usage.tokens_from_cache == 0 and moved.usage.forward_passes
    assert [token.id for token in moved.tokens if token.hole is None] == [
        token.id for token in exact.tokens if token.hole is None
    ]
    again = run(model, session=session, cache=file, blocks=policy)
    assert (again.prompt, again.score) == (moved.prompt, moved.score) and again.usage.forward_passes == 0
    # law 1: without a cache, in another session, from the file alone, in the same words
    alone = run(model, session=lq.Session(), cache=False, blocks=policy)
    assert (alone.prompt, alone.variables) == (moved.prompt, moved.variables)
    assert alone.score == pytest.approx(moved.score, abs=1e-4)
    restarted = run(model, session=lq.Session(), cache=file, cache_mode="replay", blocks=policy)
    assert restarted.prompt == moved.prompt and restarted.usage.forward_passes == 0
    assert moved.score != pytest.approx(exact.score, abs=1e-6)  # an approximation it is


def test_blending_everything_is_exact(model: TransformersModel) -> None:
    exact, blended = run(model, cache=False), run(model, cache=False, blocks="blend(1.0)")
    assert blended.prompt == exact.prompt and blended.score == pytest.approx(exact.score, abs=1e-4)


def test_text_without_blocks_is_scored_by_the_exact_model(model: TransformersModel) -> None:
    exact, moved = run(model, PLAIN, cache=False), run(model, PLAIN, cache=False, blocks="rotate")
    assert (moved.prompt, moved.score) == (exact.prompt, pytest.approx(exact.score, abs=1e-5))


def test_check_29_a_second_question_behind_the_same_blocks_computes_their_gaps_alone(model: TransformersModel) -> None:
    fed: list[int] = []
    layer = model.network.model.layers[0]
    hook = layer.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].shape[1]))
    try:
        run(model, cache=False, blocks="rotate(behind=8)")
        cold, fed[:] = sum(fed), []
        run(model, QUERY.replace("what", "who"), cache=False, blocks="rotate(behind=8)")
    finally:
        hook.remove()
    assert cold > 150 and sum(fed) < 60
    # the same blocks the other way round, in another text: the first one has another head
    swapped = run(model, inputs={"one": SECOND, "two": FIRST}, cache=False, blocks="rotate(behind=0)")
    assert swapped.prompt.startswith(f"Read: {SECOND}")


def test_check_28_without_caches_the_text_is_the_same(model: TransformersModel, folder: Path, tmp_path: Path) -> None:
    cached = TransformersModel.load(folder, kv=str(tmp_path))
    texts = {
        run(each, cache=cache, session=lq.Session()).prompt
        for each in (model, cached)
        for cache in (False, lq.TokenCache())
        for _ in range(2)
    }
    assert texts == {run(model, PLAIN, cache=False).prompt}


def test_blocks_are_kept_where_the_model_keeps_its_prompts(folder: Path, tmp_path: Path) -> None:
    texts = list[str]()
    for expected in (False, True):
        model = TransformersModel.load(folder, kv=str(tmp_path))
        reusing = model.with_blocks(lq.BlockPolicy.parse("rotate(behind=8)"))
        assert isinstance(reusing, BlockModel)
        texts.append(run(reusing, cache=False, session=lq.Session()).prompt)
        found = reusing.kv.report()
        assert found.asked > 100 and found.by_tier.get("disk", 0) == (found.asked if expected else 0)
        reusing.kv.close()
    assert texts[0] == texts[1]


def test_check_29_the_same_block_twice_in_a_prompt(model: TransformersModel) -> None:
    twice = run(model, inputs={"one": FIRST, "two": FIRST}, cache=False, blocks="rotate(behind=0)")
    assert twice.prompt.count(FIRST) == 2


def test_check_29_marks_stand_before_blocks_and_the_ids_are_those_of_the_text(model: TransformersModel) -> None:
    asked: list[ScoreRequest] = []
    reusing = model.with_blocks(lq.BlockPolicy.parse("rotate"))
    assert isinstance(reusing, BlockModel)
    score = reusing.score

    async def spying(requests: Any) -> Any:
        asked.extend(requests)
        return await score(requests)

    reusing.score = spying  # type: ignore[method-assign]
    result = run(reusing, cache=False, session=lq.Session())
    size = len(model.tokenizer.vocabulary)
    (first, *_) = asked
    ids = [token for token in first.prefix if token < size]
    text = result.prompt[: result.prompt.index("Q: what is it?") + 14]
    whole = (*model.tokenizer.bos, *model.tokenizer.encode(text.encode()))
    assert tuple(ids) == whole[: len(ids)] and len(ids) >= len(whole) - 8  # the last ones are held back for healing
    marks = [(at, token - size) for at, token in enumerate(first.prefix) if token >= size]
    assert len(marks) == 2
    for (at, length), block in zip(marks, (FIRST, SECOND), strict=True):
        said = b"".join(model.tokenizer.vocabulary[one] or b"" for one in first.prefix[at + 1 : at + 1 + length])
        assert said and said in block.encode() and len(said) >= len(block) - 8


def test_scores_do_not_depend_on_how_the_text_came_to_be_known(model: TransformersModel) -> None:
    policy = lq.BlockPolicy.parse("blend(0.4, behind=4)")
    size = len(model.tokenizer.vocabulary)
    ids = torch.randint(2, 250, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    base = (0, 5, 6, size + 40, *ids[:40], 9, size + 40, *ids[40:80])
    tail = tuple(ids[80:])

    def asked(model: Any, prefix: tuple[int, ...], new: tuple[int, ...] = (), at: tuple[int, ...] = (0,)) -> Any:
        (rows,) = asyncio.run(model.score([ScoreRequest(prefix, new, at)]))
        return rows

    once = asked(model.with_blocks(policy), base, tail, tuple(range(11)))
    reusing = model.with_blocks(policy)
    steps = [asked(reusing, base + tail[:count])[0] for count in range(11)]
    back = asked(reusing, base + tail[:2], tail[2:4], (0, 2))
    for count, row in enumerate(steps):
        assert abs(once[count][:250] - row[:250]).max() <= 1e-4
    assert abs(back[0][:250] - once[2][:250]).max() <= 1e-4 and abs(back[1][:250] - once[4][:250]).max() <= 1e-4
    inside = asked(reusing, base[:60])  # within a block it is text like any other
    assert abs(inside[0][:250] - asked(reusing, base[:60])[0][:250]).max() <= 1e-4


def test_blocks_inside_the_turns_of_a_chat(folder: Path, tmp_path: Path) -> None:
    chat = tmp_path / "chat"
    save(chat, transformers.LlamaConfig(**{**SHAPE, "max_position_embeddings": 512}, **LAYERS, **HEADS))
    own = tokenizer(True)
    own.chat_template = CHAT
    own.save_pretrained(chat)
    model = TransformersModel.load(chat)
    query = 'argmax(max_tokens=4)\n"{:user}{block(one)} {block(two)} Why?"\n"{:assistant}[X]"'
    exact = run(model, query, cache=False)
    assert run(model, query, cache=False, blocks="blend(1.0)").variables == exact.variables
    moved = run(model, query, cache=False, blocks="rotate(behind=0)")
    assert moved.prompt.startswith(f"{FIRST} {SECOND} Why?") and "blocks=rotate" in moved.model


def test_models_whose_blocks_cannot_be_moved_are_refused_and_still_run(tmp_path: Path) -> None:
    gpt2 = transformers.GPT2Config(vocab_size=320, n_positions=512, n_embd=32, n_layer=2, n_head=4, eos_token_id=1)
    mamba = transformers.MambaConfig(vocab_size=320, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=1)
    for name, config in (("gpt2", gpt2), ("mamba", mamba)):
        model = TransformersModel.load(save(tmp_path / name, config))
        with pytest.raises(lq.ModelError, match="cannot move blocks of a prompt") as raised:
            run(model, cache=False, blocks="rotate")
        assert "leave blocks= out" in (raised.value.hint or "")
        assert run(model, cache=False).prompt == run(model, PLAIN, cache=False).prompt
    with pytest.raises(lq.ModelError, match="demo does not support blocks="):
        run("demo", blocks="rotate")
    assert FIRST in run("demo", max_tokens=2).prompt


def test_the_policy_stands_in_a_header_and_a_wrong_one_at_its_place(model: TransformersModel) -> None:
    written = run(model, QUERY.replace("max_tokens=6", 'max_tokens=6, blocks="rotate(behind=8)"'), cache=False)
    assert written.model.endswith("blocks=rotate(behind=8)")
    with pytest.raises(lq.InputError, match="no policy for blocks is called 'rotat'") as raised:
        run(model, QUERY.replace("max_tokens=6", 'max_tokens=6, blocks="rotat"'))
    assert raised.value.span is not None and raised.value.hint == "did you mean rotate?"
    with pytest.raises(lq.InputError, match="blend needs the share"):
        run(model, blocks="blend")


def test_block_is_a_name_like_any_other_where_the_query_binds_it() -> None:
    model = lq.ScriptedModel("Say: hi")
    assert run(model, '"{block}[X]"', {"block": "Say:"}).prompt == "Say: hi"
    assert run(model, "block = str.upper\n\"{block('a')}[X]\"", {}).prompt.startswith("A")
    assert run(model, "\"{block('Say:')}[X]\"", {}).prompt == "Say: hi"
    assert run(model, '"{text}[X]"', {"text": lq.CBlock("Say:")}).prompt == "Say: hi"


@pytest.mark.parametrize("policy", ["rotate(behind=8)", "blend(0.3, behind=8)", "smash"])
def test_a_run_with_blocks_counts_what_was_computed_and_what_was_known(
    folder: Path, policy: str, tmp_path: Path
) -> None:
    query = 'argmax(max_tokens=3)\n"Read: {block(one)}\\nThen: {block(two)}\\nQ: {question}[X]"'

    def usage(model: Any, question: str, session: Any = None) -> Any:
        inputs = {**INPUTS, "question": question}
        return run(model, query, inputs, blocks=policy, session=session or lq.Session()).usage

    tokens = len(run(TransformersModel.load(folder), query, {**INPUTS, "question": "what?"}).tokens)
    model, session = TransformersModel.load(folder, kv=str(tmp_path)), lq.Session()
    first, second = (usage(model, question, session) for question in ("what?", "and who?"))
    assert first.tokens_fed >= tokens - 1
    assert second.tokens_fed < first.tokens_fed / 2 + tokens * (0.3 if "blend" in policy else 0)
    assert second.kv_from_memory >= tokens / 2
    again = usage(model, "what?", session)
    assert (again.tokens_fed, again.forward_passes) == (None, 0)
    model.kv.close()
    for each in session._reused[model].values():
        each.kv.close()
    other = usage(TransformersModel.load(folder, kv=str(tmp_path)), "where?")
    assert other.kv_from_disk >= tokens / 2


def test_a_text_without_blocks_counts_under_a_policy_too(model: TransformersModel) -> None:
    usage = run(model, PLAIN + " ", blocks="rotate", session=lq.Session()).usage
    assert usage.tokens_fed


@pytest.mark.parametrize("policy", ["rotate", "rotate(behind=8)", "blend(0.1)"])
@cases("engine/prompt_blocks", "a document after the question is prefilled once", globals())
def test_a_document_after_the_question_is_prefilled_once(folder: Path, policy: str, query: str) -> None:
    (folder / "chat_template.jinja").write_text(CHAT)
    model, session = TransformersModel.load(folder), lq.Session()
    fed = []
    for question in ("Who?", "What is it for?", "And a longer one: where is the sea, and when?"):
        inputs = {"one": FIRST * 4, "question": question, "name": question[:3]}
        inputs = {name: value for name, value in inputs.items() if name in query}
        usage = run(model, "argmax(max_tokens=3)\n" + query, inputs, blocks=policy, session=session).usage
        fed.append(usage.tokens_fed)
    document = len(model.tokenizer.encode((FIRST * 4).encode()))
    assert fed[0] > document
    assert max(fed[1:]) < document / 2, "the second question finds the document"


def test_a_document_after_the_querys_own_text_is_an_exact_prefix(folder: Path) -> None:
    model = TransformersModel.load(folder)
    query = 'argmax(max_tokens=3)\n"Read: {block(one)}\\n{question}[X]"'
    inputs = {"one": FIRST, "question": "Who?"}
    exact, moved = (run(model, query, inputs, session=lq.Session(), blocks=each) for each in ("exact", "rotate"))
    assert moved.score == pytest.approx(exact.score, abs=1e-4)
