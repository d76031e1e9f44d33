"""Texts that the page comes with."""

from __future__ import annotations

TEXTS = (
    "Marie Curie moved from Warsaw to Paris in 1891 and shared the Nobel Prize in Physics with her husband Pierre.",
    "Please restart the router twice, then wait until the green light stops blinking before you call support.",
    "The old lighthouse keeper climbed the stairs every evening, although nobody had seen a ship for thirty years.",
    "Der Zug nach München fällt heute aus, bitte nehmen Sie den Bus vom Hauptbahnhof.",
)
PAIRS = (
    ("A cat sleeps on the warm kitchen floor.", "My cat is asleep in the kitchen."),
    ("The bank raised its interest rates again.", "We sat on the bank of the river and watched the boats."),
    ("How do I reset my password?", "I cannot log in because I forgot my password."),
    ("Interest rates rose sharply in Germany.", "A cat sleeps on the mat."),
)
