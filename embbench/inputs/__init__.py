"""Inputs: texts of exact length in tokens, and the request bodies made of them.

In: the plan, and either the model's tokenizer or a server that reports its usage. Out: a `Recipe`
for run.json, a `TextSource`, and encoded bodies. No text is sent twice to one server start.
"""

from embbench.inputs.bodies import (
    demands,
    encode_body,
    namespace,
    request_bodies,
    request_count,
    request_texts,
)
from embbench.inputs.calibrate import calibrate, open_tokenizer, recipe_from_tokenizer
from embbench.inputs.recipe import Recipe
from embbench.inputs.texts import CALIBRATE, GATE, Demand, TextSource

__all__ = [
    "CALIBRATE",
    "GATE",
    "Demand",
    "Recipe",
    "TextSource",
    "calibrate",
    "demands",
    "encode_body",
    "namespace",
    "open_tokenizer",
    "recipe_from_tokenizer",
    "request_bodies",
    "request_count",
    "request_texts",
]
