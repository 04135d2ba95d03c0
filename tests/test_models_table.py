"""The table of models: what is read out of LiteLLM's, what the vendors' rules make of that, `sglc backends`."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from sglc.backends.models import refresh, table
from sglc.backends.models.table import VENDORS, facts_of, known_models
from sglc.backends.models.vendor_rules import api_model
from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.cli import main
from sglc.ir.target import Takes
from sglc.passes.compile import compile_program
from tests.backend_matrix import FEATURES, traced


def takes(name: str) -> Takes:
    model = api_model(name)
    assert model is not None
    return model.takes


def test_a_wheel_becomes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {
        "gpt-x": {"litellm_provider": "openai", "mode": "chat", "supports_vision": 1, "max_input_tokens": 7.0},
        "claude-x": {
            "litellm_provider": "anthropic", "mode": "chat", "supports_assistant_prefill": False,
            "supports_sampling_params": False, "input_cost_per_token": 4e-06, "output_cost_per_token": 2e-05,
            "cache_read_input_token_cost": 2e-07, "prompt_cache_min_tokens": 512,
        },
        "old": {"litellm_provider": "text-completion-openai", "mode": "completion"},
        "gemini/g": {"litellm_provider": "gemini", "mode": "chat", "input_cost_per_token": 1e-06},
        "claude-x@1": {"litellm_provider": "vertex_ai-anthropic_models", "mode": "chat"},
        "voice": {"litellm_provider": "openai", "mode": "audio_speech"},
    }  # fmt: skip
    wheel = tmp_path / "litellm-9.8.7-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("litellm/model_prices_and_context_window_backup.json", json.dumps(models))
    monkeypatch.setattr(refresh, "TABLE", tmp_path / "models.json")
    monkeypatch.setattr("sys.argv", ["refresh", str(wheel)])
    refresh.main()
    made = json.loads((tmp_path / "models.json").read_text(encoding="utf-8"))
    assert made["source"].startswith("LiteLLM 9.8.7,")
    assert made["models"] == {
        "anthropic/claude-x": ["f", None, None, 512, 4.0, 0.2, 20.0],
        "gemini/g": ["", None, None, None],
        "openai/gpt-x": ["i", 7, None, None],
        "openai/old": ["t", None, None, None],
        "vertex_ai/claude-x@1": ["", None, None, None],
    }


def test_the_file_is_one_model_a_line() -> None:
    lines = table.TABLE.read_text(encoding="utf-8").splitlines()
    made = json.loads(table.TABLE.read_text(encoding="utf-8"))
    assert len([line for line in lines if line.startswith("  ")]) == len(made["models"]) > 3000
    assert {letter for row in made["models"].values() for letter in row[0]} <= {*table.FLAGS}


def test_models_are_found_by_their_names_and_without_their_dates() -> None:
    for name in ("openai:gpt-4o", "openai:gpt-4o-2099-01-01", "litellm:gpt-4o", "litellm:openai/gpt-4o"):
        facts = facts_of(name)
        assert facts is not None
        assert facts.name == "openai/gpt-4o"
        assert facts.prices == (2.5, 1.25, 10.0)
    for name in (
        "openai:gpt-none",
        "local",
        "scripted:f",
        "vertex:meta/llama3-8b-instruct-maas",
        "gemini:gpt-4o",
    ):
        assert facts_of(name) is None


def test_what_models_take() -> None:
    assert takes("openai:gpt-4o").json_schema == "strict"
    assert takes("openai:gpt-4o-2024-05-13").json_schema == ""  # came before structured outputs
    assert takes("openai:gpt-5").temperature is None
    assert (takes("openai:gpt-5.2").temperature, takes("openai:gpt-5.2").stops) == (
        2.0,
        0,
    )  # thinks when asked to
    assert takes("openai:gpt-5.5").temperature is None
    newest, older = takes("anthropic:claude-opus-5-5"), takes("anthropic:claude-sonnet-4-5")
    assert (newest.temperature, newest.prefill, newest.late_system, newest.json_schema) == (
        *(None, False, True, "anthropic"),
    )
    assert (older.temperature, older.prefill, older.late_system) == (1.0, True, False)
    assert takes("anthropic:claude-opus-4-6").prefill is False
    assert (takes("gemini:gemini-2.5-flash").temperature, takes("gemini:gemini-3.6-flash").temperature) == (
        2.0,
        None,
    )
    assert takes("gemini:gemma-3-27b-it").roles == ("user", "assistant")
    assert takes("vertex:claude-opus-5-5") == newest
    assert takes("azure:gpt-4o").json_schema == "strict"
    assert takes("litellm:anthropic/claude-opus-5-5").temperature is None
    assert api_model("local") is None


def test_a_model_nobody_knows_gets_what_all_take_and_a_remark() -> None:
    for kind in (*VENDORS, "litellm"):
        unknown = api_model(f"{kind}:no-such-model")
        assert unknown is not None
        assert not unknown.known
        assert (unknown.images, unknown.takes.json_schema, unknown.takes.logit_bias) == (
            *(False, "", kind == "openai-completions"),
        )
    program = traced(FEATURES["chat turns"])
    for model, said in (("no-such-model", 1), ("gpt-4o", 0)):
        target = OpenAIBackend(OpenAIOptions(model=model)).target
        remarks = [remark.message for remark in compile_program(program, target).remarks]
        assert sum("is in no table of models" in remark for remark in remarks) == said
    given = OpenAIBackend(OpenAIOptions(model="no-such-model", takes=Takes())).target
    assert given.known


def test_the_command_shows_one_model_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "openai:gpt-4o"]) == 0
    shown = capsys.readouterr().out
    assert "\n  stop: up to 4\n" in shown
    assert "prompt 2.5, kept prompt 1.25, answer 10" in shown
    assert main(["backends", "openai:no-such-model"]) == 0
    assert "it is in no table of models" in capsys.readouterr().out
    assert main(["backends"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "LiteLLM" in head
    assert len(lines) == sum(len(known_models(kind)) for kind in VENDORS)
    assert len({line.split("  ")[0] for line in lines}) == len(lines) > 400
    assert main(["backends", "no-such-back-end"]) == 2
