"""The experiment `descent.text`: equal budgets, equal noise, and constraints that do nothing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from unrolled.descent import text
from unrolled.descent.constraints import FORMS
from unrolled.descent.text import EXPERIMENT, BestWeights, roc_auc, tfidf_scores
from unrolled.results import comparison_table

pytest.importorskip("transformers")

SMOKE = EXPERIMENT.presets["smoke"]
CASE = {"method": "erm", "readout": "mean", "training_noise": 0.0}


@pytest.fixture(scope="module")
def rows():
    return EXPERIMENT.run("smoke", 0, progress=False)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_all_methods_have_the_same_budget():
    for preset in EXPERIMENT.presets.values():
        for case in EXPERIMENT.cases(preset):
            assert case["method"] in (*text.METHODS, "tfidf")
            # neither steps nor batches depend on the case
            assert text.training_config(preset).steps == preset.steps
    places = [text.batches_at(SMOKE, seed=3)(step) for step in (0, 5)]
    assert [len(p) for p in places] == [SMOKE.batch_size] * 2


def test_methods_start_from_the_same_weights_and_see_the_same_first_loss():
    first = {}
    for method in ("erm", "early", "exact", "proxy", "cumulative", "anchored", "ratio"):
        case = {**CASE, "method": method}
        _, run = text.trained(replace(SMOKE, steps=1), case, seed=4)
        first[method] = run.losses[0]
    assert len(set(first.values())) == 1


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_constraints_without_a_price_are_erm(noise):
    # A dual step so small that no multiplier moves the weights.
    case = {**CASE, "training_noise": noise}
    settings = replace(SMOKE, alpha=0.0, dual_step=1e-12, steps=4)
    erm, _ = text.trained(settings, case, seed=1)
    for method in ("exact", "proxy"):
        constrained, _ = text.trained(settings, {**case, "method": method}, seed=1)
        assert torch.allclose(weights(constrained), weights(erm), atol=1e-6)
    priced, _ = text.trained(replace(settings, dual_step=10.0), {**case, "method": "exact"}, 1)
    assert not torch.allclose(weights(priced), weights(erm), atol=1e-6)


def test_noise_at_training_reaches_the_model():
    runs = [text.trained(SMOKE, {**CASE, "training_noise": g}, 0)[1] for g in (0.0, 1.0, 1.0)]
    assert runs[0].losses[0] != runs[1].losses[0]
    assert runs[1].losses == runs[2].losses


def test_deep_supervision_descends_the_mean_of_all_layers():
    _, run = text.trained(replace(SMOKE, dropout=0.0), {**CASE, "method": "deep"}, seed=2)
    torch.manual_seed(2)
    model = text.build_classifier("toy", SMOKE.head, 0.0).train()
    index = text.batches_at(SMOKE, 2)(0)
    batch = {name: v[index] for name, v in text.batches_of(SMOKE)["train"].items()}
    assert run.losses[0] == pytest.approx(text.layer_losses(model, batch, "mean").mean().item())


def test_early_stopping_returns_the_weights_of_the_validation_minimum():
    settings = replace(SMOKE, steps=12, learning_rate=0.03, validate_every=2)
    model, run = text.trained(settings, {**CASE, "method": "early"}, seed=0)
    curve, steps = (run.diagnostics[k] for k in ("validation_loss", "validated_steps"))
    assert run.steps == steps[int(np.argmin(curve))]
    assert steps == [2, 4, 6, 8, 10, 12]
    validation = text.batches_of(settings)["validation"]
    found = text.layer_columns(model, validation, CASE, settings, "val")
    assert found["val_loss"] == pytest.approx(min(curve), rel=1e-5)


def test_early_stopping_looks_after_the_last_step_and_keeps_the_first_of_two_minima():
    line, losses = torch.nn.Linear(1, 1), iter([1.0, 1.0])
    best = BestWeights(line, lambda: next(losses), every=3)
    found = [best.look(step, steps=5) for step in range(5)]
    assert [bool(f) for f in found] == [False, False, True, False, True]
    assert best.restore() == 3


def test_all_models_are_tested_with_the_same_noise(monkeypatch):
    seen = []
    original = text.Perturbation._add

    def spy(self, layer, inputs, output):
        noisy = original(self, layer, inputs, output)
        seen.append((noisy - output) / self.gamma)
        return noisy

    monkeypatch.setattr(text.Perturbation, "_add", spy)
    batch = text.batches_of(SMOKE)["test"]
    for seed, gamma in ((0, 1.0), (1, 1.0), (1, 2.0)):
        torch.manual_seed(seed)
        model = text.build_classifier("toy", "linear", 0.1)
        text.embedding_layer(model).weight.data.copy_(torch.linspace(-1, 1, 16 * 64).view(64, 16))
        text.noisy_scores(model, batch, CASE, SMOKE, "gaussian", gamma)
    assert torch.allclose(seen[0], seen[1], atol=1e-5)
    assert torch.allclose(seen[0], seen[2], atol=1e-5)


def test_embeddings_do_not_move():
    torch.manual_seed(0)
    before = text.embedding_layer(text.build_classifier("toy", "linear", 0.1)).weight.clone()
    model, _ = text.trained(SMOKE, CASE, seed=0)
    assert torch.equal(text.embedding_layer(model).weight, before)


def test_every_head_trains():
    for head in text.HEADS:
        _, run = text.trained(replace(SMOKE, head=head, steps=2), CASE, seed=0)
        assert np.isfinite(run.losses).all()


def test_rows_say_where_the_loss_rises(rows):
    for row in rows:
        if row["method"] == "tfidf":
            continue
        losses = row["test_loss_by_layer"]
        rises = [after > before for before, after in pairwise(losses)]
        assert row["test_ascents"] == sum(rises)
        assert row["test_monotone"] == (not any(rises))
        assert len(row["test_ascent_rate_by_layer"]) == len(losses) - 1
        assert row["test_loss"] == losses[-1]


def test_rows_hold_accuracies_by_level_and_their_mean(rows):
    for row in rows:
        if row["method"] == "tfidf":
            continue
        for kind in ("gaussian", "uniform", "discrete"):
            values = row[f"accuracy_{kind}_by_gamma"]
            assert len(values) == len(row["gammas"]) == len(row[f"roc_auc_{kind}_by_gamma"])
            assert row[f"area_{kind}"] == pytest.approx(np.mean(values))
            assert row[f"high_{kind}"] == pytest.approx(values[-1])
        # without noise the kinds agree
        assert row["accuracy_gaussian_by_gamma"][0] == row["accuracy_discrete_by_gamma"][0]


def test_rows_of_constraints_hold_multipliers(rows):
    for row in rows:
        assert ("multiplier_by_layer" in row) == (row["method"] in FORMS)
        if row["method"] in FORMS:
            assert len(row["multiplier_2_curve"]) == len(row["step_curve"])
            assert min(row["multiplier_by_layer"]) >= 0
            assert row["sabotaged"] == bool(row["sabotaged_layers"])


def test_claims_are_judged_from_rows(rows):
    laptop = [{**row, "preset": "laptop"} for row in rows]
    table = comparison_table("descent.text", EXPERIMENT.claims, rows=laptop)
    assert {line["verdict"] for line in table} >= {"not attempted"}  # [CLS] is not in smoke
    little = next(c for c in EXPERIMENT.claims if "costs less" in c.statement)
    made = [
        {"method": m, "readout": "mean", "training_noise": 0.0, "seed": s, "test_accuracy": a}
        for s in range(5)
        for m, a in (("erm", 0.8), ("exact", 0.798 + 1e-4 * s))
    ]
    assert little.judge(made).kind == "reproduced"
    worse = [{**row, "test_accuracy": 0.79} if row["method"] == "exact" else row for row in made]
    assert little.judge(worse).kind == "not seen"


def test_each_form_is_judged_under_noise_by_its_own_rows():
    areas = {"erm": 0.6, "deep": 0.7, "exact": 0.5, "proxy": 0.65, "cumulative": 0.8}
    made = [
        {
            "method": method,
            "readout": "mean",
            "training_noise": 0.0,
            "seed": seed,
            **dict.fromkeys(("area_gaussian", "high_gaussian"), area + 0.01 * seed),
        }
        for seed in range(5)
        for method, area in areas.items()
    ]
    names = {"exact": "Constrained", "proxy": "The proxy form", "cumulative": "The cumulative form"}
    for method, name in names.items():
        for rival, shown in text.RIVALS.items():
            found = {
                claim.judge(made).kind
                for claim in EXPERIMENT.claims
                if claim.statement.startswith(name) and f"than {shown} " in claim.statement
                if "Gaussian)" in claim.statement or "(gaussian" in claim.statement
            }
            better = areas[method] > areas[rival]
            assert found == {"reproduced" if better else "not seen"}, (method, rival)


# --- scores -------------------------------------------------------------------------------------


def test_roc_auc_counts_pairs():
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(5, (40,), generator=generator).double()
    y = torch.randint(2, (40,), generator=generator)
    pairs = z[y == 1][:, None] - z[y == 0][None]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean().item()
    assert roc_auc(z, y) == pytest.approx(expected)


def test_tfidf_reaches_the_minimum_of_its_objective():
    texts, labels = [["a", "b"], ["b", "c"], ["a", "c"], ["c", "c"]], np.array([1, 0, 1, 0])
    z = tfidf_scores(texts, labels, texts, penalty=1e-2)
    # At the minimum the intercept's slope is zero: the mean probability is the share of ones.
    assert (1 / (1 + np.exp(-z))).mean() == pytest.approx(0.5, abs=1e-4)
    assert ((z > 0) == labels.astype(bool)).all()


def test_sample_is_spread_evenly():
    batch = {"labels": torch.arange(10), "x": torch.arange(10) * 2}
    kept = text.sample(batch, 4)
    assert kept["labels"].tolist() == [0, 3, 6, 9]
    assert kept["x"].tolist() == [0, 6, 12, 18]
    assert len(text.sample(batch, 99)["labels"]) == 10
