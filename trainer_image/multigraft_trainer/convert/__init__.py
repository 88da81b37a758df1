"""From the file formats of other projects to a Hugging Face folder."""
