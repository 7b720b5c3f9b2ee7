"""embbench: latency matrices of OpenAI-compatible embedding servers, with every answer checked."""

__version__ = "0.1.0"
