"""Keep secrets out of results, logs and error messages: values masked by the name they stand under.

In: the environment or command line of a process. Out: the same with secret values replaced.
"""

import re
from collections.abc import Mapping, Sequence

MASK = "***"
_SECRET = re.compile(r"TOKEN(?!I[SZ])|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_HARMLESS = re.compile(r"TOKENS\b|KEYBOARD|KEYWORD|KEYS_PER|NUM_KEY|AUTHOR", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a value under this name is to be hidden, such as ``HF_TOKEN`` or ``--api-key``."""
    return bool(_SECRET.search(name)) and not _HARMLESS.search(name)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with the values of secret names masked."""
    return {name: MASK if is_secret(name) else value for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """``argv`` with values masked that follow a secret flag (``--api-key X``, ``--api-key=X``)."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("-") and is_secret(flag)
        if hide_next and not word.startswith("-"):
            shown.append(MASK)
        elif secret and equals:
            shown.append(f"{flag}={MASK}")
        else:
            shown.append(word)
        hide_next = secret and not equals
    return tuple(shown)
