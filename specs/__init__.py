"""Model specs and families, shipped as package data."""
