"""What people do with a model: pairs, key terms, search, spaCy, exports, Ray, the page."""
