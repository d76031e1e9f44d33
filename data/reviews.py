"""A small labelled corpus of ours, for trying the objective `task`: short reviews, made from templates.

Which class a review has is decided by an opinion or two. All other words are drawn alike for both classes, so that a
rationale that tells the class is made of opinions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

REVIEWS = 480

_OPINIONS = {
    "positive": (
        *("excellent", "delightful", "superb", "charming", "wonderful", "reliable", "spotless", "generous", "friendly"),
        *("impressive", "comfortable", "brilliant", "lovely", "outstanding", "refreshing", "flawless", "welcoming"),
        *("enjoyable", "gorgeous", "helpful", "tasty", "inspiring", "thoughtful", "graceful", "memorable", "fantastic"),
    ),
    "negative": (
        *("awful", "disappointing", "dreadful", "rude", "terrible", "broken", "filthy", "stingy", "unfriendly"),
        *("shabby", "uncomfortable", "horrible", "ugly", "mediocre", "stale", "faulty", "hostile", "tedious", "bland"),
        *("useless", "tasteless", "depressing", "careless", "clumsy", "forgettable", "annoying"),
    ),
}
_THINGS = (
    *("breakfast", "hotel", "film", "concert", "keyboard", "museum", "soup", "train ride", "waiter", "novel", "garden"),
    *("lecture", "camera", "bakery", "guide", "apartment", "game", "coat", "exhibition", "ferry", "headset", "market"),
)
_PLACES = ("in Lisbon", "near the harbour", "on the third floor", "by the station", "in our street", "at the old mill")
_TIMES = ("last week", "on Sunday", "during the holidays", "in early spring", "after work", "that evening", "this year")
_PEOPLE = ("my sister", "our neighbour", "a colleague", "the whole family", "my teacher", "two friends", "everybody")
_DEGREES = ("really", "quite", "rather", "truly", "simply", "somewhat")
_TEMPLATES = (
    "the {thing} {place} was {degree} {opinion}",
    "{people} went there {time} and called the {thing} {opinion}",
    "{time} we tried the {thing} {place} , a {degree} {opinion} one",
    "what a {opinion} {thing} , said {people} {time}",
    "we paid for the {thing} {time} and it turned out {opinion}",
    "the {thing} {place} , which {people} told us about , is {opinion} and {second}",
    "{people} found the {thing} {degree} {opinion} and the other {thing2} {second}",
    "i saw the {thing} {time} with {people} : {opinion} , {second} , and no more to say",
)


def bundled_reviews() -> Iterator[tuple[str, str]]:
    """Texts with their classes, "positive" and "negative" in turn; always the same.

    >>> next(bundled_reviews())
    ('we paid for the bakery after work and it turned out ugly', 'negative')
    """
    generator = random.Random(0)
    for number in range(REVIEWS):
        label = ("negative", "positive")[number % 2]
        opinion, second = generator.sample(_OPINIONS[label], 2)
        thing, thing2 = generator.sample(_THINGS, 2)
        words = {"opinion": opinion, "second": second, "thing": thing, "thing2": thing2}
        words |= {"place": generator.choice(_PLACES), "time": generator.choice(_TIMES)}
        words |= {"people": generator.choice(_PEOPLE), "degree": generator.choice(_DEGREES)}
        yield generator.choice(_TEMPLATES).format(**words), label
