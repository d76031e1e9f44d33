import pytest

from hardkuma.corpora import CorpusError
from hardkuma.corpora.frames import Grammar, slots


def grammar(*lines: str) -> Grammar:
    result = Grammar()
    result.add(lines, "file")
    result.check()
    return result


def test_pools_with_attributes_comments_and_blank_lines() -> None:
    result = grammar(
        "# a comment",
        "[city : place] country:place size",
        "Lagos | Nigeria | big ; Osaka | Japan | big",
        "",
        "Bern|Switzerland|small",
    )
    pool = result.pools["city"]
    assert pool.columns == (("city", "place"), ("country", "place"), ("size", None))
    assert [filler[0] for filler in pool.fillers] == ["Lagos", "Osaka", "Bern"]
    assert pool.names[pool.fillers[0]] == {"Lagos", "Nigeria"}


def test_men_and_women_are_pools_of_their_own() -> None:
    result = grammar("[person : person] he", "Ana Diaz | she ; Bo Lund | he ; Cy Orr | she")
    assert [filler[0] for filler in result.pools["person_f"].fillers] == ["Ana Diaz", "Cy Orr"]
    assert [filler[0] for filler in result.pools["person_m"].fillers] == ["Bo Lund"]


def test_values_of_a_filler() -> None:
    pool = grammar("[person : person] he home:place", "Ana Diaz | she | the Hague").pools["person"]
    (filler,) = pool.fillers
    values = [pool.value(filler, name, "") for name in ("", "he", "him", "his", "himself", "first", "last", "home")]
    assert values == [
        ("Ana Diaz", "person"),
        ("she", None),
        ("her", None),
        ("her", None),
        ("herself", None),
        ("Ana", "person"),
        ("Diaz", "person"),
        ("the Hague", "place"),
    ]


def test_slots_inside_of_nested_choices() -> None:
    result = grammar("[a]", "x", "[b]", "y", "> {a} [or [{b}|nothing]|{2..9}] {b2}")
    assert [(slot.pool, slot.instance) for slot in slots(result.frames[0].parts)] == [("a", ""), ("b", ""), ("b", "2")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[city : town]"], "file, line 1: unknown entity type 'town'; use one of person, organisation"),
        (["[City]"], r"line 1: cannot read '\[City\]'"),
        (["[a]", "[b]", "x"], "line 1: the pool 'a' is empty"),
        (["[a]", "x", "[a]", "y"], "line 3: a second pool 'a'"),
        (["x ; y"], "line 1: fillers before any pool: 'x ; y'"),
        (["[a] b", "x"], "line 2: 1 values in 'x', 2 columns in its pool; give every attribute"),
        (["> [a|b"], r"line 1: a \[ is never closed; add \]"),
        (["> a|b"], "outside of brackets"),
        (["> a]"], "outside of brackets"),
        (["> {a"], "is never closed"),
        (["> {A b}"], "cannot read {A b}"),
        (["> {city}"], r"line 1: no pool 'city'; define it with \[city : type\]"),
        (["[a] b", "x | y", "> {a.c}"], "line 3: the pool 'a' has no attribute 'c'; use one of: b"),
    ],
)
def test_errors_name_the_place_and_the_fix(lines: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        grammar(*lines)
