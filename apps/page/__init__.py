"""The demonstration page: a Gradio app, and the same as a complete Hugging Face Space."""
