"""`lingen plan`: the JSON, the report, and a refusal for every option that makes no sense."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from lingen.cli import run

ROOT = Path(__file__).parents[2]
FLASH = "specs/ling-2.6-flash.yaml"
EIGHT = ("--cache-gib", "8")
CARD = ("--device", "h200", "--weights", "fp8", "--mem-fraction", "0.9")


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def plan(capsys):
    def call(*arguments, spec=FLASH):
        code = run(["plan", spec, *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_json_has_the_documented_keys_in_order(plan):
    code, out, err = plan(*EIGHT, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "max_state_slots": 68,
        "max_running_requests": 22,
        "slots_per_request": 3,
        "verify_rows": 0,
        "kv_tokens": 984768,
        "kv_pages": 15387,
        "page_size": 64,
        "bytes": {
            "budget": 8589934592,
            "state": 4051697664,
            "verify": 0,
            "kv": 4538105856,
            "unused": 131072,
        },
        "stage": 0,
        "state_bytes_per_slot": 58720256,
        "verify_bytes_per_request": 0,
        "kv_bytes_per_token": 4608,
        "warnings": [],
    }


def test_bytes_and_gib_are_the_same_budget(plan):
    assert plan(*EIGHT, "--json") == plan("--cache-bytes", str(8 << 30), "--json")
    _, out, _ = plan("--cache-gib", "0.75", "--json")
    assert json.loads(out)["bytes"]["budget"] == 3 << 28


def test_a_card_leaves_what_the_weights_do_not_take(plan):
    code, out, _ = plan(*CARD, "--tp", "8", "--json", spec="ling-2.6-1t")
    found = json.loads(out)
    assert code == 0
    assert list(found)[:2] == ["gpu_bytes", "weight_bytes"]
    assert found["gpu_bytes"] == 143771 << 20
    budget = (143771 << 20) * 9 // 10 - found["weight_bytes"]
    assert found["bytes"]["budget"] == budget


def test_context_length_says_how_many_requests_fit(plan):
    _, out, _ = plan(*EIGHT, "--context-len", "100000", "--json")
    assert json.loads(out)["requests_at_context_len"] == 15387 // -(-100000 // 64)
    _, out, _ = plan(*EIGHT, "--context-len", "2000000")
    assert "warning: no request of 2,000,000 tokens fits: there are 984,768\n" in out


def test_compat_stands_beside_it_once_per_engine(plan):
    engines = ("--compat", "sglang", "--compat", "sglang-pr", "--compat", "sglang")
    _, out, _ = plan(*EIGHT, "--draft-tokens", "4", *engines, "--json")
    found = json.loads(out)["compat"]
    assert list(found) == ["sglang", "sglang-pr"]
    assert list(found["sglang"]) == [
        "max_state_slots", "max_running_requests", "kv_tokens", "over_budget_bytes"
    ]  # fmt: skip
    assert found["sglang"]["over_budget_bytes"] <= 0 < found["sglang-pr"]["over_budget_bytes"]


def test_the_report_for_people(plan):
    code, out, err = plan(*EIGHT, "--max-running-requests", "4096", "--compat", "sglang")
    assert (code, err) == (0, "")
    assert out == (
        "name                 ling-2.6-flash\n"
        "budget per GPU       8,589,934,592 bytes (8 GiB)\n"
        "  states             4,051,697,664 bytes (3.773 GiB): 68 + 1 slots of 58,720,256\n"
        "  KV                 4,538,105,856 bytes (4.226 GiB): 15387 + 1 pages of 294,912\n"
        "  unused             131,072 bytes (128 KiB)\n"
        "\n"
        "|SSSSSSSSSSSSSSSSSSSSSSSSSSSSKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK.|\n"
        " S states, V draft rows, K keys and values\n"
        "\n"
        "requests             22\n"
        "slots per request    3\n"
        "KV tokens            984,768\n"
        "context, full load   44,736 tokens for each request\n"
        "slots sized by       ratio 0.9: the states' share of the budget\n"
        "requests bound by    state slots\n"
        "\n"
        "        slots     requests     KV tokens     bytes over\n"
        "lingen     68           22       984,768       -131,072\n"
        "sglang     68  =        22  =    984,768  =    -131,072  =\n"
        "\n"
        "warning: 4096 requests asked, 22 fit; state slots bind: ratio 0.9 gives 68 state slots,"
        " and a request holds 3\n"
    )


def test_a_given_number_of_slots_says_so(plan):
    _, out, _ = plan(*EIGHT, "--max-state-slots", "40")
    assert "slots sized by       --max-state-slots; the ratio was not used\n" in out
    assert "warning: ratio 0.9 was not used: max_state_slots 40 sized the state pool\n" in out


def test_a_refusal_is_exit_2_with_what_would_work(plan):
    assert plan("--cache-gib", "0.3") == (
        2,
        "",
        "not one request fits: a request holds 3 state slots, and 1 fit; 322,122,547 bytes are"
        " there, 495,859,940 are needed\n"
        "  would do  memory for the cache 495,859,940 bytes (472.9 MiB)\n"
        "  would do  --ratio 2.693\n"
        "  would do  --max-state-slots 3\n",
    )
    code, out, err = plan("--cache-gib", "0.3", "--json")
    assert (code, err) == (2, "")
    found = json.loads(out)
    assert list(found) == ["error", "needed_bytes", "budget_bytes", "would_work"]
    assert found["would_work"] == {
        "cache_bytes": 495859940, "ratio": 2.693, "max_state_slots": 3
    }  # fmt: skip
    for knob, value in (("--ratio", "2.693"), ("--max-state-slots", "3")):
        assert plan("--cache-gib", "0.3", knob, value)[0] == 0
    assert plan("--cache-bytes", "495859940")[0] == 0
    assert plan("--cache-bytes", "495859939")[0] == 2


def test_a_card_too_small_for_the_weights_is_refused(plan):
    code, out, _ = plan("--device", "h100", "--weights", "bf16", "--mem-fraction", "0.9", "--json")
    assert code == 2
    assert json.loads(out)["budget_bytes"] < 0


def test_everything_that_a_card_is_said_to_need_works(plan):
    h20 = {"--device": "h20", "--tp": "2", "--weights": "bf16", "--mem-fraction": "0.9"}
    h200 = {"--device": "h200", "--tp": "8", "--weights": "fp8", "--mem-fraction": "0.876"}
    h200["--draft-tokens"] = "4"
    for spec, given, expected in (
        (FLASH, h20, {"tp": 4, "pp": 2, "weights": "fp8", "device": "h20-3e"}),
        ("ling-2.6-1t", h200, {"mem_fraction": 0.877, "pp": 2, "device": "b200"}),
    ):
        call = [text for pair in given.items() for text in pair]
        code, out, _ = plan(*call, "--json", spec=spec)
        found = json.loads(out)
        assert code == 2
        assert list(found) == [
            "error", "needed_bytes", "budget_bytes", "would_work", "gpu_bytes", "weight_bytes",
            "would_work_on_card",
        ]  # fmt: skip
        assert found["would_work_on_card"] == expected
        tried = {**found["would_work"], **expected}
        del tried["cache_bytes"]
        for knob, value in tried.items():
            changed = {**given, f"--{knob.replace('_', '-')}": str(value)}
            call = [text for pair in changed.items() for text in pair]
            assert plan(*call, spec=spec)[0] == 0, knob
    # The MTP layer's weights are what is too much, and they go with the drafts.
    assert found["would_work"]["draft_tokens"] == 0
    h200["--mem-fraction"] = "0.877"
    assert plan(*[text for pair in h200.items() for text in pair], spec="ling-2.6-1t")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((), "--cache-gib"),
        (("--cache-gib", "8", "--cache-bytes", "8"), "--cache-bytes"),
        ((*EIGHT, *CARD), "--device"),
        (("--cache-gib", "0"), "--cache-gib"),
        (("--cache-gib", "-1"), "--cache-gib"),
        (("--cache-gib", "nan"), "--cache-gib"),
        (("--cache-gib", "1/3"), "--cache-gib"),
        (("--cache-gib", "1e400"), "--cache-gib"),
        (("--cache-bytes", "0"), "--cache-bytes"),
        (("--cache-bytes", "8.5"), "--cache-bytes"),
        (("--cache-bytes", str(2**63)), "--cache-bytes"),
        (("--cache-bytes", "-1"), "--cache-bytes"),
        (("--cache-gib", "inf"), "--cache-gib"),
        (("--cache-gib", ""), "--cache-gib"),
        (("--cache-gib", "9000000000"), "--cache-gib"),
        ((*EIGHT, "--ratio", "nan"), "--ratio"),
        ((*EIGHT, "--ratio", "1e99"), "--ratio"),
        ((*EIGHT, "--ratio", "1e-13"), "--ratio"),
        ((*EIGHT, "--ratio", "0.9.1"), "--ratio"),
        ((*EIGHT, "--tp", "-1"), "--tp"),
        ((*EIGHT, "--pp", "0"), "--pp"),
        ((*EIGHT, "--dp", "-2"), "--dp"),
        ((*EIGHT, "--dp", str(2**63)), "--dp"),
        ((*EIGHT, "--dp", "8", "--max-running-requests", "7"), "--dp"),
        ((*EIGHT, "--dp", "8", "--max-state-slots", "7"), "--dp"),
        ((*EIGHT, "--page-size", "-64"), "--page-size"),
        ((*EIGHT, "--page-size", "1.5"), "--page-size"),
        ((*EIGHT, "--page-size", str(2**64)), "--page-size"),
        ((*EIGHT, "--context-len", "-1"), "--context-len"),
        ((*EIGHT, "--context-len", str(2**63)), "--context-len"),
        ((*EIGHT, "--max-running-requests", "-1"), "--max-running-requests"),
        ((*EIGHT, "--max-running-requests", str(2**63)), "--max-running-requests"),
        ((*EIGHT, "--max-state-slots", "0"), "--max-state-slots"),
        ((*EIGHT, "--max-state-slots", str(2**63)), "--max-state-slots"),
        ((*EIGHT, "--draft-tokens", str(2**63)), "--draft-tokens"),
        ((*CARD[:5], "nan"), "--mem-fraction"),
        ((*CARD[:5], "inf"), "--mem-fraction"),
        ((*CARD[:5], "-0.5"), "--mem-fraction"),
        ((*EIGHT, "--sweep", "ratio", "--ratio", "1"), "--ratio"),
        ((*EIGHT, "--sweep", "ratio", "--compat", "sglang", "--svg", "-"), "--compat"),
        ((*EIGHT, "--sweep", "ratio", "--context-len", "9", "--svg", "-"), "--context-len"),
        ((*EIGHT, "--ratio", "0"), "--ratio"),
        ((*EIGHT, "--ratio", "-0.5"), "--ratio"),
        ((*EIGHT, "--ratio", "inf"), "--ratio"),
        ((*EIGHT, "--tp", "0"), "--tp"),
        ((*EIGHT, "--tp", "3"), "--tp"),
        ((*EIGHT, "--pp", "33"), "--pp"),
        ((*EIGHT, "--dp", "0"), "--dp"),
        ((*EIGHT, "--page-size", "0"), "--page-size"),
        ((*EIGHT, "--context-len", "0"), "--context-len"),
        ((*EIGHT, "--max-running-requests", "0"), "--max-running-requests"),
        ((*EIGHT, "--max-state-slots", "-4"), "--max-state-slots"),
        ((*EIGHT, "--draft-tokens", "33"), "--draft-tokens"),
        ((*EIGHT, "--draft-tokens", "-1"), "--draft-tokens"),
        ((*EIGHT, "--verify-states", "both"), "--verify-states"),
        ((*EIGHT, "--extra-buffer", "yes"), "--extra-buffer"),
        ((*EIGHT, "--compat", "vllm"), "--compat"),
        ((*EIGHT, "--weights", "fp8"), "--weights"),
        ((*EIGHT, "--mem-fraction", "0.9"), "--mem-fraction"),
        (("--device", "h200"), "--weights"),
        (("--device", "h200", "--weights", "fp8"), "--mem-fraction"),
        (("--device", "a100", *CARD[2:]), "--device"),
        ((*CARD[:2], "--weights", "int4", *CARD[4:]), "--weights"),
        ((*CARD[:5], "1.1"), "--mem-fraction"),
        ((*CARD[:5], "0"), "--mem-fraction"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nonsense_is_refused_and_the_option_named(plan, arguments, option):
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    assert option in err


def test_no_suggestion_is_beyond_what_its_option_takes(plan):
    _, out, _ = plan(*EIGHT, "--ratio", "1e-12", "--json")
    found = json.loads(out)
    assert found["needed_bytes"] > 2**63
    assert list(found["would_work"]) == ["ratio", "max_state_slots"]
    assert plan(*EIGHT, "--ratio", str(found["would_work"]["ratio"]))[0] == 0


def test_drafts_without_an_mtp_layer_are_refused(plan):
    code, _, err = plan(*EIGHT, "--draft-tokens", "4", spec="ring-2.5-1t")
    assert code == 2
    assert err == ("--draft-tokens 4: ring-2.5-1t has no MTP layer to draft with\n  expected  0\n")


def test_without_a_prefix_cache_a_request_holds_one_slot_whatever_the_buffer(plan):
    _, out, _ = plan(*EIGHT, "--no-prefix-cache", "--extra-buffer", "overlap", "--json")
    assert json.loads(out)["slots_per_request"] == 1


@pytest.mark.parametrize("spec", ["ling-lite-1.5", "ling-mini-2.0", "ring-mini-linear-2.0"])
def test_siblings_are_planned_too(plan, spec):
    code, out, _ = plan(*EIGHT, "--json", spec=spec)
    found = json.loads(out)
    assert code == 0
    assert sum(found["bytes"][part] for part in ("state", "verify", "kv", "unused")) == 8 << 30
    assert found["max_running_requests"] > 0
    assert plan(*EIGHT, spec=spec)[0] == 0


def test_a_sweep_is_a_line_per_value_and_each_is_what_a_plan_says(plan):
    code, out, err = plan(*EIGHT, "--sweep", "draft-tokens", "--json")
    assert (code, err) == (0, "")
    points = json.loads(out)["points"]
    assert [point["value"] for point in points] == list(range(9))
    _, single, _ = plan(*EIGHT, "--draft-tokens", "4", "--json")
    for key, value in points[4].items():
        assert value == (4 if key == "value" else json.loads(single)[key])
    assert len(plan(*EIGHT, "--sweep", "draft-tokens")[1].splitlines()) == 1 + 9


@pytest.mark.parametrize(
    "knob", ["cache-bytes", "draft-tokens", "max-running-requests", "max-state-slots", "ratio"]
)
def test_every_knob_can_be_swept_where_some_values_fit_and_where_all_do(plan, knob):
    # A request without drafts just fits, one with some does not.
    start = "0.465" if knob == "draft-tokens" else "0.4"
    fewer = ("--max-state-slots", "3") if knob == "max-running-requests" else ()
    code, out, _ = plan("--cache-gib", start, *fewer, "--sweep", knob)
    assert code == 0
    assert ("none fits" in out) == (not fewer)
    assert plan(*EIGHT, "--sweep", knob, spec="ling-lite-1.5")[0] == 0


@pytest.mark.parametrize("knob", ["draft-tokens", "max-running-requests"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_sweep_in_which_nothing_fits_is_refused_as_its_first_row_is(plan, knob, form):
    first = {"draft-tokens": "0", "max-running-requests": "1"}[knob]
    refused = plan("--cache-gib", "0.1", "--sweep", knob, *form)
    assert refused == plan("--cache-gib", "0.1", f"--{knob}", first, *form)
    assert refused[0] == 2
    assert "not one request fits" in refused[1 if form else 2]


def test_a_sweep_of_budgets_that_all_fail_speaks_of_its_first_budget(plan):
    refused = plan("--cache-bytes", "800000", "--sweep", "cache-bytes")
    assert refused == plan("--cache-bytes", "100000")
    card = ("--device", "h20", "--tp", "2", "--weights", "bf16", "--mem-fraction", "0.9")
    code, out, err = plan(*card, "--sweep", "cache-bytes")
    assert (code, out) == (2, "")
    # The rows are budgets: no option of the card changes one.
    assert "--mem-fraction" not in err
    assert "--tp" not in err


def test_a_picture_of_nothing_is_not_drawn(plan, tmp_path):
    file = tmp_path / "sweep.svg"
    code, _, _ = plan("--cache-gib", "0.1", "--sweep", "draft-tokens", "--svg", str(file))
    assert code == 2
    assert not file.exists()


def test_a_sweep_says_the_warnings_of_its_plans_once(plan):
    asked = (*EIGHT, "--max-running-requests", "40")
    _, single, _ = plan(*asked, "--draft-tokens", "0", "--json")
    _, out, _ = plan(*asked, "--sweep", "draft-tokens", "--json")
    assert json.loads(out)["points"][0]["warnings"] == json.loads(single)["warnings"] != []
    _, out, _ = plan(*asked, "--sweep", "draft-tokens")
    table, _, notes = out.partition("\n\n")
    lines = notes.splitlines()
    assert len(table.splitlines()) == 1 + 9
    assert f"warning: {json.loads(single)['warnings'][0]}" in lines
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("option", "value", "declared"), [("--tp", "16", "1, 2, 4, 8"), ("--pp", "3", "1, 2, 4")]
)
def test_a_size_that_the_spec_does_not_declare_is_refused(plan, option, value, declared):
    assert plan(*EIGHT, option, value) == (
        2,
        "",
        f"{option} {value}: ling-2.6-flash does not declare it in parallel.{option[2:]}\n"
        f"  expected  {declared}\n",
    )


def test_counts_that_replicas_cannot_share_are_warned_of(plan):
    asked = (*EIGHT, "--dp", "2", "--max-running-requests", "3")
    warning = (
        "max_running_requests 3 is no multiple of dp 2: 3 asked, 2 are served, 1 on each replica"
    )
    assert json.loads(plan(*asked, "--json")[1])["warnings"] == [warning]
    assert plan(*asked)[1].endswith(f"\nwarning: {warning}\n")
    assert json.loads(plan(*asked[:-1], "4", "--json")[1])["warnings"] == []
    slots = json.loads(plan(*EIGHT, "--dp", "2", "--max-state-slots", "41", "--json")[1])
    assert slots["max_state_slots"] == 20
    assert slots["warnings"][0] == (
        "max_state_slots 41 is no multiple of dp 2: 41 asked, 40 are there, 20 on each replica"
    )


def test_messages_say_what_is_meant(plan):
    assert "too large" in plan("--cache-gib", "9" * 20)[2]
    assert "h200 is in lower case" in plan("--device", "H200", *CARD[2:])[2]
    missing = plan("--device", "h200")[2]
    assert "--weights and --mem-fraction are missing" in missing
    for spec in ("no-such-spec", "tests/bad_specs/alias/spec.yaml"):
        code, _, err = plan(*EIGHT, spec=spec)
        assert code == 2
        assert "Nothing was written" not in err


def test_a_sweep_shows_what_is_asked_beside_it(plan):
    asked = (*EIGHT, "--context-len", "100000", "--compat", "sglang")
    _, out, _ = plan(*asked, "--sweep", "draft-tokens")
    header, *rows = [line.split("  ") for line in out.splitlines()]
    assert header[-2:] == ["of 100,000 tokens", "sglang requests"]
    _, out, _ = plan(*asked, "--sweep", "draft-tokens", "--json")
    _, single, _ = plan(*asked, "--draft-tokens", "4", "--json")
    point, whole = json.loads(out)["points"][4], json.loads(single)
    for key in ("requests_at_context_len", "compat"):
        assert point[key] == whole[key]
    assert rows[4][-1].strip() == str(whole["compat"]["sglang"]["max_running_requests"])


def test_a_sweep_over_drafts_on_a_card_counts_the_drafting_layer_where_it_drafts(plan):
    _, out, _ = plan(*CARD, "--sweep", "draft-tokens", "--json")
    for point in (json.loads(out)["points"][drafts] for drafts in (0, 4)):
        _, single, _ = plan(*CARD, "--draft-tokens", str(point["value"]), "--json")
        assert point["kv_tokens"] == json.loads(single)["kv_tokens"]


def test_a_ratio_is_read_as_json_writes_it(plan):
    assert plan(*EIGHT, "--ratio", "9e-1", "--json") == plan(*EIGHT, "--json")


def test_an_unknown_knob_is_refused(plan):
    code, out, err = plan(*EIGHT, "--sweep", "tp")
    assert (code, out) == (2, "")
    assert err.startswith("--sweep tp: unknown\n  expected  cache-bytes, draft-tokens, ")


def test_a_sweep_as_a_picture_is_well_formed_and_has_a_bar_for_each_value(plan, tmp_path):
    code, out, _ = plan(*EIGHT, "--sweep", "draft-tokens", "--svg", "-")
    assert code == 0
    texts = [element.text for element in ElementTree.fromstring(out).iter() if element.text]
    assert texts.count("22 requests") >= 1
    assert "ling-2.6-flash: cache memory by draft-tokens" in texts
    file = tmp_path / "sweep.svg"
    assert plan(*EIGHT, "--sweep", "draft-tokens", "--svg", str(file))[0] == 0
    assert file.read_text() == out
    _, out, _ = plan("--cache-gib", "0.4", "--sweep", "max-state-slots", "--svg", "-")
    assert "not one request fits" in out


@pytest.mark.parametrize("arguments", [(), ("--sweep", "ratio", "--json")], ids=" ".join)
def test_a_picture_needs_a_sweep_and_no_json(plan, arguments):
    code, _, err = plan(*EIGHT, *arguments, "--svg", "-")
    assert code == 2
    assert err.startswith("--svg draws a sweep\n")
