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
QUESTIONS = (
    "I cannot get into my account",
    "When will my parcel come?",
    "Is the soup all right for a vegan?",
    "Who won the war?",
)
PASSAGES = (
    "To set a new password, open the settings and choose Security.",
    "Parcels leave our warehouse on the day of the order and arrive within three working days.",
    "You can return anything within thirty days, unless it has been worn.",
    "After five wrong passwords the login is locked for an hour.",
    "The lentil soup is made without meat, milk or eggs.",
    "Our kitchen uses nuts; tell the waiter about allergies.",
    "The museum is closed on Mondays and on the first of January.",
    "Children under six travel free if an adult comes along.",
    "The last bus to the harbour leaves at twenty to twelve.",
    "Bicycles may be taken on the ferry for two euros.",
    "The warranty covers the battery for two years.",
    "Hold both buttons for ten seconds to reset the thermostat.",
    "Water the fern once a week and keep it out of the sun.",
    "The choir rehearses on Thursdays in the old library.",
    "Invoices are sent by e-mail at the end of the month.",
    "If a delivery is late, the driver calls the number that you gave us.",
)
DOCUMENT = """\
The lighthouse of Gull Point was built in 1871, after three ships had been lost on the reef in a single winter. Its \
tower is made of granite from the quarry at Hallam, brought over the bay on barges, and it stands forty metres above \
the water at low tide.

The first keeper was Anna Reyes, a widow from the village. She lit the lamp every evening for twenty-six years and \
kept a diary of the weather, which is now in the museum. Her diary is the reason why we know so much about the storms \
of those years. On 3 March 1888 she rowed out to the reef alone and brought back four sailors of the Swedish barque \
Ingrid.

At first the lamp burned whale oil. Paraffin came in 1880, and in 1902 the lens was replaced by one from Paris, a \
Fresnel lens of the second order that floats in a bath of mercury. A child could turn it with one finger. The light \
could then be seen from eighteen miles, and the insurance companies lowered their rates for ships bound for Hallam.

Electricity reached Gull Point late, in 1954. Twelve years after that the lamp was made automatic and the last keeper, \
Tom Okafor, moved to the village. He still climbed the stairs on Sundays to clean the lens. When the authority wanted \
to replace the Fresnel lens by a plastic lamp in 1991, Okafor and the fishermen of Hallam collected nine thousand \
signatures, and the lens stayed.

Today the reef is a reserve. Seals rest on it at low tide, and the granite tower is home to a colony of swifts. \
Visitors can climb the tower from May to September; the museum in the keeper's house shows the diary of Anna Reyes, \
the mercury bath and a model of the Ingrid."""
