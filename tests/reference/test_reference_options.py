"""Options: the command line and the dataclass say the same, and bad values are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embbench.errors import ConfigError
from embbench.reference.options import ServeOptions, parse_command

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "processes": st.sampled_from([1, 2]),
    "hop": st.sampled_from(["json", "base64-struct", "base64-numpy", "shm"]),
    "engine": st.sampled_from(["numpy", "torch", "vllm"]),
    "port": st.integers(0, 65535),
    "model": st.none() | st.text(st.characters(categories=["L", "N"]), min_size=1),
    "pooling": st.sampled_from(["embed", "token"]),
    "normalise": st.booleans(),
    "allow_dimensions": st.booleans(),
    "delay_ms_per_input": st.floats(0, 1e3),
    "max_model_len": st.none() | st.integers(1, 99999),
    "seed": st.integers(0, 1 << 32),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_the_command_line_makes_the_same_options_again(values: dict[str, Any]) -> None:
    options = ServeOptions(**values)
    assert parse_command(options.to_argv(), "serve") == (options, None)


def test_defaults_need_no_arguments() -> None:
    assert ServeOptions().to_argv() == []


@pytest.mark.parametrize(
    "values",
    [
        {"processes": 3},
        {"hop": "pigeon"},
        {"engine": ""},
        {"pooling": None},
        {"port": -1},
        {"port": 65536},
        {"threads": 0},
        {"max_batch": 0},
        {"max_model_len": 0},
        {"delay_ms_per_request": -1.0},
        {"delay_ms_per_request": float("nan")},
        {"max_hop_mb": 5000.0},
        {"engine_args": "{"},
        {"engine_args": "[]"},
    ],
)
def test_values_that_cannot_be_served_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(values))}: "):
        ServeOptions(**values)


@pytest.mark.parametrize("argv", [["--prot", "1"], ["--por", "1"], ["--hop", "x"], ["--port", "x"]])
def test_unknown_flags_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_command(argv, "embbench serve")
    assert stopped.value.code == 2
    assert argv[0] in capsys.readouterr().err
