"""What a field is for, by the names datasets use."""

from __future__ import annotations

import pytest

from nantrap.doctor.data.roles import DataOptions, role_of


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("x", "feature"), ("pixel_values", "feature"), ("waveform", "feature"), ("text", "feature"),
        ("y", "label"), ("labels", "label"), ("train/labels", "label"), ("y_train", "label"), ("class_id", "label"),
        ("target_ids", "label"), ("trainLabels", "label"), ("labels.cls", "label"),
        ("input_ids", "token"), ("decoder_input_ids", "token"), ("tokens", "token"), ("ids", "token"),
        ("attention_mask", "mask"), ("mask", "mask"), ("src_key_padding_mask", "mask"),
        ("input_lengths", "input_length"), ("n_frames", "input_length"), ("audio_len", "input_length"),
        ("target_lengths", "target_length"), ("label_length", "target_length"),
        ("user_id", "identifier"), ("image_ids", "identifier"), ("position_ids", "identifier"),
        ("token_type_ids", "identifier"), ("num_tokens", "identifier"), ("timestamp", "identifier"),
        ("mean", "constant"), ("", "feature"), ("0", "feature"),
    ],
)  # fmt: skip
def test_names(name: str, role: str) -> None:
    assert role_of(name, DataOptions()) == role


def test_names_that_the_user_gives() -> None:
    options = DataOptions(labels="genre", mask="valid")
    assert role_of("genre", options) == "label"
    assert role_of("data/valid", options) == "mask"
    assert role_of("labels", options) == "target"
