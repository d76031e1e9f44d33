"""Gate records for people: as HTML, and in a terminal."""
