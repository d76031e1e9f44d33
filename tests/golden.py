"""What the released head says of fifty texts, written to tests/data/golden.json; test_golden.py holds to it.

python -m tests.golden writes the file anew. Do that only where the head itself has changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "data" / "golden.json"
RATE = 0.2

TEXTS = [
    "Marie Curie moved from Warsaw to Paris in 1891.",
    "Our flight from Oslo to Bergen was cancelled because of heavy snow.",
    "The new phone is fast, but its battery hardly lasts half a day.",
    "No evidence of metastatic disease was found.",
    "i flew from new york to los angeles with delta",
    "the eiffel tower and angela merkel were in the news on tuesday",
    "THE QUICK BROWN FOX JUMPED OVER BARACK OBAMA",
    "URGENT: server down since 4 am, customers cannot log in!!!",
    "Dr. Sarah O'Neil of the University of Cambridge won the prize.",
    "J. K. Rowling wrote seven books about a boy who is a wizard.",
    "See [1] for the heart [valve] and (Smith, 2004).",
    "Milk, eggs, bread, soap, two lemons",
    "He did not kill the bird.",
    "To be or not to be",
    "of the and",
    "",
    "   ",
    "...",
    "rain",
    "Rain.",
    "@ana: this is #great 😀 see https://example.org/a?b=1",
    "Contact john@example.com or call +44 20 7946 0123.",
    "Revenue rose 4,500 to $12.7 million (up 3.5%).",
    "She can't say whether it's John's or the neighbours' dog.",
    "Aspirin reduces the risk of myocardial infarction in patients with diabetes.",
    "We used the BRCA1 gene and mRNA of 14 mice, p < 0.05.",
    "Der Hund schläft im Garten der Nachbarin in München.",
    "La profesora explicó el problema a los alumnos de Sevilla.",
    "東京は日本の首都です。",
    "กรุงเทพเป็นเมืองหลวงของไทย",
    "Москва - столица России.",
    "القاهرة عاصمة مصر",
    "def add(a, b): return a + b  # sums two numbers",
    "A\u0301ngel met Zoe\u0308 at the cafe\u0301.",
    "First line of an address\n12 High Street\nReading RG1 2AB",
    "Is raw fish safe when you are pregnant?",
    "What is the capital of Australia, and who founded it?",
    "Bitcoin falls as regulators ban crypto trading",
    "The Fed raised rates; the Fed may raise them again.",
    "AT&T and Time-Warner announced a merger in Q3.",
    "The court held that the contract was void for lack of consideration.",
    "Preheat the oven to 180 degrees, then whisk the eggs with sugar until pale.",
    "lol that movie was sooo boring i fell asleep twice",
    "Thank you for your mail. Please find the invoice attached. Best regards, Tom",
    "Antidisestablishmentarianism is pneumonoultramicroscopicsilicovolcanoconiosis",
    "x\ud800y is half a character",
    "The cat sat on the mat. The dog, which was older, slept by the fire. Nobody spoke.",
    "Kubernetes schedules containers over the nodes of a cluster and restarts those that fail.",
    "In May I may go to Reading, or I may stay in and do some reading.",
    " ".join(f"Paragraph {i} says that the river rose by {i} feet near the old mill of Ashford." for i in range(1, 31)),
]


def make(model: Any, score: Any) -> dict[str, list[dict[str, Any]]]:
    """By selector: words with offsets, probabilities, the numbers of those selected by the model itself and at a rate."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, scored in score(model, TEXTS).items():
        rows[name] = [
            {
                "words": [list(span) for span in text.words],
                "probabilities": [round(value, 7) for value in text.probabilities],
                "own": [i for i, chosen in enumerate(text.decide()) if chosen],
                "rate": [i for i, chosen in enumerate(text.decide(rate=RATE)) if chosen],
            }
            for text in scored
        ]
    return rows


if __name__ == "__main__":
    from hardkuma import load_released
    from hardkuma.scoring_hardkuma import score_selectors

    FILE.write_text(json.dumps(make(load_released()[0], score_selectors), separators=(",", ":")) + "\n", encoding="utf-8")
