"""Settings that do not fit together are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from polar.train import TrainSettings


def test_lists_from_a_file_are_taken_for_tuples():
    settings = TrainSettings.model_validate(
        {"betas": [0.9, 0.95], "lora": {"rank": 8, "target_modules": ["q_proj"]}}
    )
    assert settings.betas == (0.9, 0.95)
    assert settings.lora.target_modules == ("q_proj",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 1e-5},
        {"lr": "1e-5"},
        {"lr": -1.0},
        {"frozen_layers": 2},
        {"frozen_layers": 2, "train_embeddings": False, "lora": {}},
        {"clip_low": 1.0},
        {"correction": "icepop", "recompute": False},
        {"icepop_band": [2.0, 0.5]},
        {"kl": {"coefficient": 0.0}},
        {"overlong": {"max_tokens": 10, "buffer_tokens": 20}},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(wrong):
    with pytest.raises(ValidationError):
        TrainSettings.model_validate(wrong)
