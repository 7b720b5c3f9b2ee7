"""The conductor: the only room that launches servers, drives load and writes a run directory."""
