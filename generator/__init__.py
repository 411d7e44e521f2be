"""lingen: a YAML description of a Bailing/Ling model in, a complete inference runtime out."""

__version__ = "0.1.0"
