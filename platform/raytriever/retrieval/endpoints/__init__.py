"""Encoders outside this program: services with OpenAI's interface, which are paid once for a text, and functions."""
