"""A model that generates exactly what the program asks for is never interrupted: no token is cut (S14, S16, S18)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq

BETWEEN = ["", "\n", ", ", ": ", "- é", ". And "]
LETTERS = st.text("abé", max_size=4)


@st.composite
def spoken(draw: st.DrawFn) -> tuple[str, dict[str, str], str]:
    """Source of one segment, the value that the model generates for each hole, and the whole text."""
    prompt, clauses, values, text = "", [], {}, ""
    for number in range(draw(st.integers(1, 4))):
        name, between = f"H{number}", draw(st.sampled_from(BETWEEN))
        kind = draw(st.sampled_from(["at", "before", "choice", "int", "pattern", "fixed"]))
        stop = draw(st.sampled_from(["\n", ".", ";;"]))
        match kind:
            case "at":
                value, clause, after = draw(LETTERS) + stop, f"STOPS_AT({name}, {stop!r})", ""
            case "before":
                value, clause, after = draw(LETTERS), f"STOPS_BEFORE({name}, {stop!r})", stop
            case "choice":
                options = draw(st.lists(LETTERS, min_size=1, max_size=4, unique=True))
                value, after = draw(st.sampled_from(options)), "!"
                clause = f"{name} in {options!r}"
            case "int":
                value, clause, after = str(draw(st.integers(-30, 3000))), f"INT({name})", "!"
            case "pattern":
                value, clause, after = draw(st.text("xé", min_size=1)), f'REGEX({name}, r"[xé]+")', "!"
            case "fixed":
                value, after = draw(LETTERS), ""
                clause = f"{name} == {value!r}"
        prompt += f"{between}[{name}]{after}"
        text += between + value + after
        values[name] = value
        clauses.append(clause)
    return f"{prompt!r} where {' and '.join(clauses)}", values, text


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    segment=spoken(), data=st.data(), decoder=st.sampled_from(["argmax", "sample"]), ending=st.sampled_from(["", "?"])
)
def test_a_model_that_says_what_the_segment_asks_for_is_never_cut(
    segment: tuple[str, dict[str, str], str], data: st.DataObject, decoder: str, ending: str
) -> None:
    source, values, text = segment
    said = text.encode()
    places = st.integers(0, len(said))
    spans = [sorted(pair) for pair in data.draw(st.lists(st.tuples(places, places), max_size=8))]
    words = tuple(dict.fromkeys(said[start:end] for start, end in spans if end - start > 1))
    model = lq.ScriptedModel(text + ending, certainty=60, words=words)
    result = lq.run_sync(source, model=model, session=lq.Session(), decoder=decoder, seed=1)
    assert result.prompt == text
    assert {name: str(value) for name, value in result.variables.items()} == values
    assert result.usage.wasted_tokens == 0
