"""`run.json` keeps no secret, and a run cleans up after one that was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nantrap.incident import Incident, Source
from nantrap.incident.redaction import option_names, redacted, without_secrets
from nantrap.record import read_bundle, write_bundle, write_run_info


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--password", "hunter2"], ["--password", "[redacted]"]),
        (["--password=hunter2"], ["--password=[redacted]"]),
        (["-pPassword12"], ["-p[redacted]"]),
        (["-uAdmin", "-nproc", "4"], ["-u[redacted]", "-nproc", "4"]),
        (["--wandb-api-key", "abc"], ["--wandb-api-key", "[redacted]"]),
        (["--hf_token=hf_x"], ["--hf_token=[redacted]"]),
        (["+wandb.api_key=abc"], ["+wandb.api_key=[redacted]"]),
        (["AWS_SECRET_ACCESS_KEY=abc"], ["AWS_SECRET_ACCESS_KEY=[redacted]"]),
        (["--dbUrl", "postgres://me:hunter2@host/db"], ["--dbUrl", "postgres://[redacted]@host/[redacted]"]),
        (["hf_abcdefghijklmnopqrstuvwxyz"], ["[redacted]"]),
        (["--authToken", "abc"], ["--authToken", "[redacted]"]),
    ],
)
def test_secrets_are_left_out(given: list[str], shown: list[str]) -> None:
    assert redacted(given) == shown


SECRET, AWS = "Zq7hunter2Xy9", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    "given",
    [
        [f"--api-key={SECRET}"], ["-p", SECRET], [f"-p{SECRET}"], ["-u", f"me:{SECRET}"], [f"KEY={SECRET}"], [SECRET],
        [f"++logger.key={SECRET}"], [f'{{"api_key": "{SECRET}"}}'], ["--json", f'{{"a": {{"b": "{SECRET}"}}}}'],
        ["-H", f"Authorization: Bearer {SECRET}"], [f"--header=X-Api-Key: {SECRET}"], ["--dsn", f"host=x pw={SECRET}"],
        [f"mysql://host/db?password={SECRET}"], [f"https://{SECRET}@github.com/x/y"], ["--name", SECRET], ["--a", AWS],
        [f"https://hooks.slack.com/services/T000/B000/{SECRET}"], [AWS], [f"--x={AWS}"], ["--x", f"/tmp/{AWS}"],
        [f"s3://a:{SECRET}@b/k"], ["--cookie", f"session={SECRET}"], ["-e", f"TOKEN={SECRET}"], [f"--{SECRET}"],
        ["--opts", f"lr=1,password={SECRET}"], ["--opts", f"[a,{SECRET}]"], [f"-{SECRET}"],
        ["--password", f"-{SECRET}"],
        [f"--password:{SECRET}"], [f"hydra.job.env_set.A={SECRET}"], [f"redis://:{SECRET}@h:6379/0"], ["--", SECRET],
        [f"Pwd={SECRET};Uid=me"], [f"https://x.blob/c?sv=1&sig={SECRET}"], [f"--a=b={SECRET}"], [f"={SECRET}"],
        [f"AccountName=a;AccountKey={SECRET}"], [f"token: {SECRET}"], ["--lr", "1e-3", SECRET], ["-k", SECRET],
        [f"--login=me@x.org:{SECRET}"], ["--password", "--lr", SECRET], [f"/password:{SECRET}"], ["--pin", "123456"],
    ],
)  # fmt: skip
def test_a_value_of_no_known_form_is_left_out(given: list[str]) -> None:
    shown = " ".join(redacted(given))
    assert "[redacted]" in shown
    assert not any(secret in shown for secret in (SECRET, AWS, "123456"))
    assert redacted(redacted(given)) == redacted(given)


@pytest.mark.parametrize("secret", ["hunter2", "correcthorse", "48392017", "9911"])
@pytest.mark.parametrize(
    "given",
    [
        ["/password:{}"], ["--phrase", "~{}"], ["https://api.telegram.org/bot1:{}/send"], ["--otp", "{}"], ["--mfa={}"],
        ["--password", "-{}"], ["--license", "{}"], ["redis://h/a:{}"], ["-D", "db.password={}"], ["--token", "{}"],
        ["--auth", "{}"], ["-t", "{}"], ["-p{}"], ["--{}"], ["-{}"], ["{}=1"], ["+{}=1"], ["--pass-{}", "1"], ["-D{}"],
        ["--code", "{}"], ["--id", "{}"], ["--session", "{}"], ["--geheim", "{}"], ["{}"], ["user:{}"], ["./{}"],
        ["https://ntfy.sh/{}"], ["{}://host"], ["postgres:///{}"], ["--cfg", "[{},1]"], ["--password", "--{}"], ["/{}"],
        ["--token", "1", "{}"], ["--login", "{}/{}"], ["--otp", "{}-{}"], ["--host", "{}.example"], ["--model.{}=3"],
    ],
)  # fmt: skip
def test_a_secret_that_looks_like_a_word_or_a_number_is_left_out(given: list[str], secret: str) -> None:
    assert secret not in " ".join(redacted([part.format(secret, secret) for part in given]))


@pytest.mark.parametrize(
    "given",
    [
        ["--lr", "1e-4"], ["--tokenizer", "gpt2"], ["--max_tokens", "512"], ["--num_key_value_heads", "8"],
        ["--pad_token", "<pad>"], ["--password", "--lr", "1"], ["train.py"], ["--passes", "3"],
        ["-lr", "0.1"], ["-j8"], ["--bf16"], ["--dtype=bfloat16"], ["--device", "cuda:0"], ["--data", "/data/a/train"],
        ["configs/base.yaml"], ["model.width=64"], ["+trainer.max_steps=1000"], ["--betas=[0.9,0.95]"],
        ["--seed", "-1"], ["--size", "64x64"], ["optimizer=adamw"], ["--out", "runs/exp1"],
        ["--model", "meta-llama/Llama-2-7b"],
        ["--master_addr", "127.0.0.1"], ["s3://bucket/run-1/data"], ["tcp://127.0.0.1:29500"],
        ["--max-steps", "100_000"],
    ],
)  # fmt: skip
def test_numbers_known_words_and_paths_stay(given: list[str]) -> None:
    assert redacted(given) == given


@pytest.mark.parametrize("given", [["--gnarl_dim2", "7"], ["--own.gnarl-dim2=7"], ["gnarl_dim2=0.5"]])
def test_the_name_of_an_option_is_kept_where_the_script_holds_it(given: list[str]) -> None:
    names = option_names('parser.add_argument("--gnarl-dim2", type=int)\nown = 1')
    assert redacted(given, names) == given
    assert "gnarl" not in " ".join(redacted(given))
    assert redacted(redacted(given, names), names=None) == given, "a report shows what run.json holds"


@pytest.mark.parametrize("number", ["48392017", "4111-1111-1111-1111", "078-05-1120", "9911"])
def test_a_number_without_the_name_of_a_quantity_is_left_out(number: str) -> None:
    names = option_names('add_argument("--nip")')
    assert redacted(["--nip", number, number, "--steps", "9911"], names) == [
        "--nip", "[redacted]", "[redacted]", "--steps", "9911",
    ]  # fmt: skip


def test_a_literal_in_a_source_line_is_hidden_and_the_columns_stay() -> None:
    source = Source("train.py", 3, text='client = Api(api_key="abcd", tokens=4)  # 1')
    assert source.text == 'client = Api(api_key="****", tokens=4)  # 1'
    assert without_secrets('os.environ["HF_TOKEN"] = "abc"') == 'os.environ["HF_TOKEN"] = "***"'
    assert Incident(1, phase="forward", notes=("no route to https://me:pw@host/x",)).notes == (
        "no route to https://*****@host/x",
    )


@pytest.mark.parametrize("line", ['x = tokens.sum("x")', 'tokenizer = load("gpt2")', 'batch["pad_token_id"]', "a / b"])
def test_ordinary_source_lines_stay(line: str) -> None:
    assert without_secrets(line) == line


def test_the_home_folder_does_not_name_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr(sys, "argv", ["/home/jane/train.py", "--data=/home/jane/data", "/home/janet"])
    document = json.loads(write_run_info(tmp_path, {"folder": "/home/jane/x"}).read_text())
    assert document["arguments"] == ["~/train.py", "--data=~/data", "/home/janet"]
    assert document["folder"] == "~/x"


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom nantrap.record.durable import folder_beside\n"
        "with folder_beside(Path(sys.argv[1]), '000001-r0') as folder:\n"
        "    (folder / 'incident.json').write_text('{')\n    os._exit(9)\n"
    )
    incidents = tmp_path / "incidents"
    incidents.mkdir()
    subprocess.run([sys.executable, "-c", script, str(incidents)], timeout=120, check=False)
    (left,) = incidents.iterdir()
    assert left.name.startswith(".writing-")
    living = incidents / f".writing-{os.getppid()}-x"
    living.mkdir()
    write_run_info(tmp_path, {})
    assert list(incidents.iterdir()) == [living]


def test_several_runs_in_one_folder_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(9) as pool:
        paths = list(pool.map(lambda n: write_bundle(tmp_path, Incident(7, phase="forward"), text=str(n)), range(20)))
    assert len(set(paths)) == 20
    for path in paths:
        assert read_bundle(path).incident.step == 7
        assert json.loads((path / "incident.json").read_text())["bundle"] == str(path)
    assert not [path for path in (tmp_path / "incidents").iterdir() if path.name.startswith(".")]


def test_rank_1_does_not_thin_out_rank_10(tmp_path: Path) -> None:
    for step in range(4):
        write_bundle(tmp_path, Incident(step, phase="forward", rank=10), text="x", most=2)
        write_bundle(tmp_path, Incident(step, phase="forward", rank=1), text="x", most=2)
    assert len(list((tmp_path / "incidents").glob("*-r10"))) == 2
    assert len(list((tmp_path / "incidents").glob("*-r1"))) == 2
