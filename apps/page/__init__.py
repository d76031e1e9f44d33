"""The demonstration page: a web server of our own, and the same as a complete Hugging Face Space."""
