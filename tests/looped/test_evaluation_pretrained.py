"""SmolLM2 on Social IQa: our likelihoods are those of the adapter of lm-eval for such models."""

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

from unrolled.data.fetch import FetchError
from unrolled.data.pretrained import load_smollm2, smollm2_folder
from unrolled.data.social_iqa import social_iqa
from unrolled.looped.evaluation import LoopedLM, social_iqa_task

# The first test that needs a file may have to fetch it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def test_smollm2_gets_the_same_numbers_through_both_adapters():
    try:
        smollm2_folder(), social_iqa()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")
    model, tokenizer = load_smollm2()
    task = {"social_iqa": social_iqa_task(social_iqa()[:2])}
    adapters = (
        LoopedLM(model, tokenizer, batch_size=6),
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=6),
    )
    scores, accuracies = [], []
    for lm in adapters:
        output = evaluate(lm=lm, task_dict=task, bootstrap_iters=0)
        samples = output["samples"]["social_iqa"]
        scores.append([float(r[0][0]) for sample in samples for r in sample["resps"]])
        accuracies.append(output["results"]["social_iqa"]["acc,none"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert accuracies[0] == accuracies[1]
    assert len(scores[0]) == 6
