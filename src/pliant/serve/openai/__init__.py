"""Endpoints for clients of OpenAI's API."""
