# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (horst-language)=
# # Sparse language models
#
# Train a language model as usual, then set most of its weights to zero, all at once, without telling the training beforehand. How much does the model lose? That depends on the optimizer that it came from.
# {cite:t}`jacobs2026horst` report that a GPT trained with HORST loses less than one trained with AdamW or HAM. In this chapter you train both kinds, prune them, and derive what pruning costs: three factors, one of which
# can be bounded by a number that is read off the weights. Then you meet a null model that makes weights just as sharp at zero without learning anything. At the end you measure what a step of HORST costs, and put it into a training loop of your own.
#
# After this you can
#
# - derive the loss after pruning to second order, and say when it can be trusted;
# - bound the energy that pruning removes, and with it the loss, by the ratio of two norms;
# - predict how sharp at zero weights become if a mirror amplifies nothing but noise;
# - read the dense cost beside the sparse gain, by paired seeds;
# - tell from $\alpha$, the rate and the length of a training where HORST diverges;
# - say what a slower optimizer step costs in the end, and use HORST in a loop of your own.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | a model of one layer, three optimizers, 6 steps | seconds |
# | live | a GPT of 2 layers of width 64, AdamW and HORST, 120 steps; eight smaller runs for a map | under a minute on one core |
# | laptop | 3 layers of width 96, AdamW, HAM and HORST, 500 steps, 5 seeds; a map of 24 pairs of values, 2 seeds | about an hour and a half of one core in all |
# | colab | SlimPajama, 6 layers of width 384, 5,000 steps | sized for a 16 GB GPU, not measured |

# %% tags=["setup", "hide-input"]
import copy
import math
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import pandas as pd
import torch
from accelerate import Accelerator
from scipy.stats import norm
from torch import nn
from torch.testing import assert_close

from unrolled import checks, figures, provenance, results
from unrolled.benchmark import compare_times
from unrolled.data.text import TokenBatches
from unrolled.experiment import no_report
from unrolled.horst import Ham, Horst, language, search, sensitivity
from unrolled.horst.optimizers import parameter_groups
from unrolled.horst.sparsity import HISTOGRAM, histogram, norm_ratio, prunable_weights
from unrolled.optimization import learning_rate_factor

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# 1. GPT-2 small, trained *dense* on SlimPajama-6B and then pruned in one shot, by magnitude, each layer by the same share: {cite:t}`jacobs2026horst` find a lower validation perplexity with HORST than with AdamW and HAM, and the gap grows with the sparsity.
# 2. We ask the same of a small GPT on the State of the Union addresses, with values that a search chose for every optimizer alike, and look at the *dense* model too: what is given up for the gain?
# 3. And we ask why. "Weights that are sharp at zero" is an observation, and not yet a reason.
#
# The model reads bytes. Let $\ell$ be its mean cross-entropy on held-out addresses, in nats per byte. Its **perplexity** is
#
# $$
# \mathrm{PPL} = e^{\ell}, \qquad \ell = \frac1n \sum_{i=1}^n -\ln p(\text{byte}_i \mid \text{the bytes before it}) :
# $$ (eq-horst-perplexity)
#
# the number of equally likely bytes that would leave it as much in doubt. Not to be compared with perplexities per token of another vocabulary.
#
# One helper for rows, and then the training.


# %%
settings = language.EXPERIMENT.settings(PRESET)
models, live = {}, []
for case in language.cases(settings):
    model, run = language.trained(settings, case, SEED)
    parts = language.pruning_columns(model, settings), language.weight_columns(model)
    back = language.recovery_columns(model, settings, case, SEED)
    models[case["optimizer"]] = model
    live.append({**case, "preset": PRESET, "seed": SEED, **parts[0], **parts[1], **back})
scales = {PRESET: live} | (
    {"laptop": laptop} if (laptop := results.committed("horst.language")) else {}
)

# %% [markdown]
# **Predict before you look:** which curve starts lower, which rises later, and do they cross?

# %% mystnb={"figure": {"name": "fig-horst-pruned", "caption": "Validation perplexity after one-shot layerwise magnitude pruning, against the share of weights that was pruned. (A token is a byte here.) Left: the live run, one seed. Right: laptop scale, mean over seeds and 95 % confidence interval. Logarithmic axis."}, "image": {"alt": "Perplexity against sparsity for each optimizer: flat at first, rising steeply towards 95 percent"}}
_, axes = plt.subplots(1, len(scales), figsize=(3 + 3.9 * len(scales), 3.6), squeeze=False)
for ax, (scale, rows) in zip(axes[0], scales.items(), strict=True):
    points = [row for s in rows[0]["sparsities"] for row in language.at_sparsity(rows, s)]
    look = {"by": "optimizer", "legend": ax is axes[0, -1]}
    figures.mean_with_interval(ax, points, "sparsity", "val_perplexity", **look)
    ax.set(title=scale, yscale="log")
    ax.yaxis.set_major_formatter("{x:.3g}"), ax.yaxis.set_minor_formatter("{x:.3g}")
plt.show()

# %% [markdown]
# A live run is one seed and a short training: read it as a picture of the question. At laptop scale HORST's loss differs from AdamW's by {result}`horst_language | difference_ci loss_by_sparsity[0] | preset=laptop optimizer=horst~adamw | .3f` nats per byte when dense and by
# {result}`horst_language | difference_ci loss_by_sparsity[5] | preset=laptop optimizer=horst~adamw | .3f` at 80 %; HAM's by {result}`horst_language | difference_ci loss_by_sparsity[0] | preset=laptop optimizer=ham~adamw | .3f` and {result}`horst_language | difference_ci loss_by_sparsity[5] | preset=laptop optimizer=ham~adamw | .3f`. So part of the lead of
# HORST is there before anything is pruned, and most of it is not. All curves are nearly flat up to some sparsity, and that alone is worth an explanation.
#
# ## The same budget for everyone
#
# Each optimizer was given as many trials as the others: points of a Sobol sequence in the logarithms of its own ranges, trained for fewer steps than the evidence, with a seed that is used for nothing else. The rule takes the point with the lowest *mean validation loss over the sparsities*. AdamW has two values to choose, rate
# and decay, and HAM and HORST have four. With $N$ trials in $k$ dimensions a point has about $N^{1/k}$ distinct values to try per dimension: four for AdamW and two for the others, at 16 trials. So equal trials are a handicap for the optimizer with more values, and the rule is a choice: it rewards what
# the claim is about. Code: {py:func}`unrolled.horst.search.points`, {py:func}`unrolled.horst.search.best_point`.

# %%
trials, chosen = results.select(results.committed("horst.search"), data="text"), {}
for name in sorted({row["optimizer"] for row in trials}):
    costs = pd.Series([row.get("cost") for row in trials if row["optimizer"] == name], dtype=float)
    best = search.best_point(trials, "text", name)
    used = asdict(getattr(language.EXPERIMENT.settings("laptop"), name)) == best
    chosen[name] = {"trials": len(costs), "failed": costs.isna().sum(), "best": costs.min()}
    chosen[name] |= {"median": costs.median(), **best, "used": used}
pd.DataFrame(chosen).T

# %% [markdown]
# *failed* counts runs that diverged; *best* and *median* are mean losses over the sparsities; *used* says whether the preset has the chosen values.
#
# ## What pruning costs
#
# Let $\theta$ be all weights that may be pruned: the matrices of the blocks. (The head is the embedding here, and the embedding is not pruned.) One-shot pruning at **sparsity** $s$ sets the share $s$ of each matrix to zero, the weights of smallest magnitude. Call what goes $\delta$ and what stays $\theta^{(s)}$:
#
# $$
# \theta^{(s)} = \theta - \delta, \qquad \delta_i = \begin{cases} \theta_i & \lvert \theta_i \rvert \text{ is among the } \mathrm{round}(s n) \text{ smallest of its matrix} \\ 0 & \text{otherwise.} \end{cases}
# $$ (eq-horst-pruning)
#
# Of all vectors with so many zeros in each matrix, $\theta^{(s)}$ is the nearest to $\theta$: the squared distance is the sum of the squares of the weights that go, and these are the smallest. Near in this sense need not be good for the loss. Taylor's theorem says what is,
#
# $$
# f(\theta - \delta) - f(\theta) = -\langle g, \delta \rangle + \tfrac12 \langle \delta, H \delta \rangle + O(\lVert \delta \rVert^3) ,
# $$ (eq-horst-pruning-loss)
#
# with the gradient $g$ and the Hessian $H$ at the dense model. {cite:t}`lecun1990obd` take the diagonal of $H$ and call $\frac12 H_{ii} \theta_i^2$ the *saliency* of a weight. Magnitude pruning is the special case in which all $H_{ii}$ are equal, within a matrix. Write the quadratic term as a product:
#
# $$
# \tfrac12 \langle \delta, H \delta \rangle = \tfrac12 \cdot \chi \cdot \lVert \theta \rVert^2 \cdot \mathcal{E}(s), \qquad \chi = \frac{\langle \delta, H \delta \rangle}{\lVert \delta \rVert^2}, \qquad \mathcal{E}(s) = \frac{\lVert \delta \rVert^2}{\lVert \theta \rVert^2} .
# $$ (eq-horst-three-factors)
#
# $\mathcal{E}(s)$ is the **removed energy**: the share of the squared norm that goes. It is a property of the weights alone. $\chi$ is the mean curvature along $\delta$, a property of the loss. So an optimizer can make pruning cheap in two ways: by concentrating the energy in few weights, or by going where the loss is flat *relative to the size of the weights*, since
# $\chi \lVert \theta \rVert^2$ does not change if all weights double and the loss is as wide again.


# %%
# What goes of one matrix.
def removed(weight, sparsity):
    flat = weight.detach().flatten()
    order = flat.abs().argsort(stable=True)[: round(sparsity * len(flat))]
    return torch.zeros_like(flat).index_copy(0, order, flat[order]).view_as(weight)


for model in models.values():
    weights, kept = prunable_weights(model), prunable_weights(language.pruned(model, 0.8)[0])
    deltas = {name: removed(weight, 0.8) for name, weight in weights.items()}
    assert all(torch.equal(weights[name] - deltas[name], kept[name]) for name in weights)
    gone, whole = (sum(w.norm() ** 2 for w in parts.values()) for parts in (deltas, weights))
    assert abs(gone / whole - language.removed_energy(weights, 0.8)) < 1e-5

# %% [markdown]
# Code: {py:func}`unrolled.horst.sparsity.magnitude_masks`, {py:func}`unrolled.horst.language.pruned`, {py:func}`unrolled.horst.language.removed_energy`.
#
# Now walk from the dense model to the pruned one in a straight line, $f(\theta - t \delta)$ for $t$ from 0 to 1. The slope and the curvature at $t = 0$ are $-\langle g, \delta \rangle$ and $\langle \delta, H \delta \rangle$. Central differences in float64 give both without a Hessian; the slope is compared with backpropagation.
#
# **Predict before you run:** at a sparsity of 80 %, is the parabola above or below the loss that you measure at $t = 1$?

# %%
few = replace(settings, validation_windows=16)


# Loss, slope and curvature at t = 0.
def expansion(model, sparsity, h=0.002):
    left, middle, right = language.loss_along(model, sparsity, (-h, 0, h), few)
    return middle, (right - left) / (2 * h), (right - 2 * middle + left) / h**2


# %%
for model in models.values():
    exact = copy.deepcopy(model).double()
    language.token_loss(exact, language.text_of(few)[1]).backward()
    parts = [(w.grad * removed(w, 0.8)).sum() for w in prunable_weights(exact).values()]
    assert_close(-sum(parts).item(), expansion(model, 0.8)[1], rtol=0.05, atol=1e-4)

# %% mystnb={"figure": {"name": "fig-horst-along", "caption": "Live models: validation loss on the straight line from the dense model (t = 0) to the one pruned by 80 % (t = 1), minus the loss at t = 0. Thin: the parabola with slope and curvature at t = 0."}, "image": {"alt": "Loss along the line for each optimizer with the parabola of its second-order expansion", "width": "80%"}}
_, ax = plt.subplots(figsize=(6.8, 3.4))
t = torch.linspace(0, 1, 9).double()
for (name, model), dash in zip(models.items(), ("-", "--", "-."), strict=False):
    start, slope, curvature = expansion(model, 0.8)
    losses = torch.tensor(language.loss_along(model, 0.8, t.tolist(), few))
    (line,) = ax.plot(t, losses - start, dash, label=name)
    ax.plot(t, slope * t + curvature * t**2 / 2, dash, color=line.get_color(), linewidth=0.8)
ax.set(xlabel="$t$", ylabel="change of the loss (nats per byte)"), ax.legend()
plt.show()

# %% [markdown]
# And the factors of {eq}`eq-horst-three-factors` at several sparsities:

# %%
table = {}
for name, model in models.items():
    for s in (0.5, 0.8, 0.95):
        start, slope, curvature = expansion(model, s)
        found = {"removed energy": language.removed_energy(prunable_weights(model), s)}
        found |= {"χ|θ|²": curvature / found["removed energy"], "slope": slope}
        found["to second order"] = slope + curvature / 2
        found["measured"] = language.loss_along(model, s, [1.0], few)[0] - start
        table[name, f"{s:.0%}"] = found
pd.DataFrame(table).T.rename_axis(["optimizer", "pruned"]).round(4)

# %% [markdown]
# Read the table by columns. The slope is part of the bill: a training that was stopped early is not at a minimum, and moving along $-\delta$ changes the loss to first order, in either direction. The removed energy is where the optimizers differ by construction. The product $\chi \lVert \theta \rVert^2$ need not agree between them:
# a model whose few large weights carry everything may be *more* sensitive per unit of energy. And where the two last columns part, $\delta$ is no longer small, and {eq}`eq-horst-pruning-loss` says nothing.
#
# ## One number that pins the energy
#
# {numref}`fig-horst-pruned` is flat at first because $\mathcal{E}$ is tiny at first: the smaller half of a Gaussian matrix holds a fourteenth of its energy. How tiny it is can be read off the **norm ratio** of a matrix with $n$ weights, $R = \lVert \theta \rVert_1 / (\sqrt n\, \lVert \theta \rVert_2)$ ({eq}`eq-horst-norm-ratio`). It is 1 if all weights have one size,
# $\sqrt{2 / \pi} \approx 0.80$ for many Gaussian ones, and small if a few large ones stand among many tiny ones.
#
# :::{prf:proposition} A ceiling for the loss
# :label: prop-horst-loss-ceiling
# Prune the share $s < 1$ of each matrix $\theta_l$ by magnitude, with $s n_l$ a whole number. Let $R_l$ be its norm ratio, and $w_l = \lVert \theta_l \rVert^2 / \lVert \theta \rVert^2$ its share of the energy. Then
#
# $$
# \mathcal{E}(s) \;\le\; \bar{\mathcal{E}}(s) = \sum_l w_l \min \Bigl( s,\; \frac{R_l^2}{4\, (1 - s)} \Bigr) .
# $$ (eq-horst-energy-ceiling)
#
# If moreover, with some $h \ge 0$, $\langle v, H v \rangle \le h\, \lVert v \rVert^2$ for all $v$, everywhere between $\theta$ and $\theta - \delta$, then
#
# $$
# f(\theta - \delta) - f(\theta) \;\le\; \lVert g \rVert\, \lVert \theta \rVert\, \bar{\mathcal{E}}(s)^{1/2} + \tfrac12\, h\, \lVert \theta \rVert^2\, \bar{\mathcal{E}}(s) .
# $$ (eq-horst-loss-ceiling)
# :::
#
# :::{prf:proof}
# Take one matrix, with magnitudes $a_1 \ge \dots \ge a_n \ge 0$, of which $k = (1 - s)\, n$ stay. The smallest $s n$ squares have at most the mean of all squares: the share is at most $s$. And let $\tau = a_k$. What goes is at most $\tau$, and what stays at least, so
# $\sum_{i > k} a_i^2 \le \tau \sum_{i > k} a_i \le \tau\, (\lVert \theta_l \rVert_1 - k \tau) \le \lVert \theta_l \rVert_1^2 / 4k$, the last since the product is largest at $\tau = \lVert \theta_l \rVert_1 / 2k$. Divide by $\lVert \theta_l \rVert_2^2$, and add the matrices up with their shares. For the loss, Taylor's theorem with its remainder gives
# $-\langle g, \delta \rangle + \frac12 h\, \lVert \delta \rVert^2$ at most, and $-\langle g, \delta \rangle \le \lVert g \rVert \lVert \delta \rVert$; finally $\lVert \delta \rVert^2 = \mathcal{E}\, \lVert \theta \rVert^2$. $\square$
# :::
#
# The bound on one matrix is {prf:ref}`prop-horst-ratio`, squared; it is known from approximation by few terms {cite:p}`foucart2013compressive`, and sharp for $2k$ equal weights among zeros. It holds the other way round, too: by the Cauchy-Schwarz inequality on what stays and what goes, $R \le \cos(u - w)$ with $\sqrt s = \sin u$ and $\sqrt{\mathcal{E}} = \sin w$. So
#
# $$
# \mathcal{E}(s) \;\ge\; \sin^2 \bigl[ \arcsin \sqrt s - \arccos R \bigr]_+ .
# $$ (eq-horst-energy-floor)
#
# A small ratio forces the energy down, and a large one forces it up. *Many tiny weights help because they take up places, and no energy.*

# %%
normal = torch.randn(400, generator=torch.Generator().manual_seed(SEED))
tried = [normal, normal**3, normal.sign(), normal.round()]
tried += [weight for model in models.values() for weight in prunable_weights(model).values()]
for weight in tried:
    R = (weight.abs().mean() / weight.square().mean().sqrt()).item()
    assert_close(R, norm_ratio(weight), rtol=1e-4, atol=0)
    for s in (0.25, 0.5, 0.75):
        turn = math.asin(math.sqrt(s)) - math.acos(min(R, 1.0))
        floor, ceiling = math.sin(max(0, turn)) ** 2, min(s, R**2 / (4 * (1 - s)))
        assert floor - 1e-5 <= language.removed_energy({"": weight}, s) <= ceiling + 1e-5

# %% [markdown]
# Code: {py:func}`unrolled.horst.sparsity.norm_ratio`. The ceiling of the loss is a worst case twice over: it takes the steepest curvature there is for every direction, and the worst weights of a given ratio. Its use is the form: energy times curvature, and energy by the ratio.
#
# **Predict before you look:** the histogram is in standard deviations of each matrix. Which optimizer has more weights *beyond* three of them?

# %% mystnb={"figure": {"name": "fig-horst-energy", "caption": "Live models. Left: share of the weights by size, each matrix in its own standard deviations; logarithmic axis. Right: removed energy of one matrix, the first of the MLP, against sparsity; bands: the bounds that its norm ratio gives."}, "image": {"alt": "Histograms of the weights of each optimizer, and the removed energy of one matrix between its bounds", "width": "95%"}}
_, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.5))
s = torch.linspace(0, 0.99, 100).double()
for (name, model), dash in zip(models.items(), ("-", "--", "-."), strict=False):
    weights = prunable_weights(model)
    left.stairs(histogram(weights), HISTOGRAM, label=name, linestyle=dash)
    one = {"": weights["blocks.0.mlp.hidden.weight"]}
    R, found = norm_ratio(one[""]), [language.removed_energy(one, x) for x in s.tolist()]
    (line,) = right.plot(s, found, dash, label=f"{name}, $R$ = {R:.2f}")
    floor = (s.sqrt().asin() - math.acos(R)).clamp(min=0).sin() ** 2
    ceiling = torch.minimum(s, R**2 / (4 * (1 - s)))
    right.fill_between(s, floor, ceiling, color=line.get_color(), alpha=0.15, linewidth=0)
left.set(yscale="log", xlabel=r"$\theta$ (standard deviations)", ylabel="share of the weights")
right.set(xlabel="sparsity $s$", ylabel=r"removed energy $\mathcal{E}(s)$")
left.legend(loc="lower center"), right.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## What noise alone does
#
# HORST's weights are sharp at zero. The paper's reason is the $L_1$ bias of the mirror: it favours solutions with few large weights. Before we believe a reason we need a *null model*: what would the weights look like if the gradients were noise, and there were nothing to favour?
#
# In mirror coordinates {eq}`eq-horst-flow` HORST is a walk, $z_T = z_0 - \sum_t \eta_t A_t$, to first order. Let the gradients $g_t$ of a weight be independent from step to step, with mean zero and one variance. Adam divides by its root, and a moving average spreads each gradient over some steps without making the sum of all smaller:
# $\sum_t A_t \approx \sum_t g_t / \sqrt{\mathbb{E} g^2}$. So $z_T - z_0$ has the variance $\sum_t \eta_t^2$, and after many steps it is nearly normal.
#
# :::{prf:proposition} Weights that only noise has moved
# :label: prop-horst-noise
# Let $z$ be normal with mean zero, and $\theta = \mathrm{sign}(z)\, (e^{\alpha \lvert z \rvert} - 1) / \alpha$. With the **spread** $\sigma = \alpha \sqrt{\operatorname{Var} z}$, and $\Phi$ the normal distribution function,
#
# $$
# \sigma^2 = \alpha^2 \Bigl( \operatorname{Var} z_0 + \sum_t \eta_t^2 \Bigr), \qquad R(\sigma) = \frac{2 e^{\sigma^2 / 2}\, \Phi(\sigma) - 1}{\sqrt{2 e^{2 \sigma^2}\, \Phi(2 \sigma) - 4 e^{\sigma^2 / 2}\, \Phi(\sigma) + 1}} .
# $$ (eq-horst-noise)
#
# $R \to \sqrt{2 / \pi}$ as $\sigma \to 0$, and $R \approx \sqrt2\, e^{-\sigma^2 / 2}$ for large $\sigma$.
# :::
#
# :::{prf:proof}
# $\alpha \lvert z \rvert = \sigma \lvert \xi \rvert$ with $\xi$ standard normal, so $\alpha \lvert \theta \rvert = e^{\sigma \lvert \xi \rvert} - 1$. Completing the square, $\mathbb{E}\, e^{\sigma \lvert \xi \rvert} = 2 \int_0^\infty \frac{1}{\sqrt{2 \pi}} e^{\sigma x - x^2 / 2}\, dx = 2 e^{\sigma^2 / 2}\, \Phi(\sigma)$. This gives the numerator, $\mathbb{E}\, \alpha \lvert \theta \rvert$, and with
# $(e^x - 1)^2 = e^{2x} - 2 e^x + 1$ the second moment in the root. Both limits follow. $\square$
# :::
#
# So one number decides, the spread: mirror strength, times rate, times the root of the number of steps. No loss is in it. With $\alpha = 0$ the walk is one in $\theta$ itself, and the weights stay Gaussian however long it takes.
#
# **Predict before you run:** 20,000 weights start at zero and take 300 steps of HORST on gradients that are pure noise. At which $\alpha$ will about half of the ratio 0.80 be left?


# %%
def noise_ratio(sigma):
    first = 2 * math.exp(sigma**2 / 2) * norm.cdf(sigma)
    second = 2 * math.exp(2 * sigma**2) * norm.cdf(2 * sigma) - 2 * first + 1
    return (first - 1) / math.sqrt(second)


STEPS = {"smoke": 40}.get(PRESET, 300)


# Weights that start at zero and see only noise.
def walk(alpha, lr=1e-3):
    weight, random = nn.Parameter(torch.zeros(20_000)), torch.Generator().manual_seed(SEED)
    optimizer = Horst([weight], lr=lr, alpha=alpha)
    for _ in range(STEPS):
        weight.grad = torch.randn(20_000, generator=random)
        optimizer.step()
    return weight


# %%
table = {}
for alpha in (1.0, 30.0, 60.0, 100.0):
    sigma = alpha * 1e-3 * math.sqrt(STEPS)
    found = norm_ratio(walk(alpha))
    assert_close(found, noise_ratio(sigma), rtol=0.05, atol=0)
    table[f"{alpha:g}"] = {"spread": sigma, "ratio": found, "predicted": noise_ratio(sigma)}
pd.DataFrame(table).T.rename_axis("α").round(3)

# %% [markdown]
# (Without momentum a second-order term joins in: the exponential form pushes small weights outward by $\frac12 \alpha \eta^2$ in each step. Set `betas=(0.0, 0.0)` and see.)
#
# Now the live models. Their spread under the null model follows from the schedule alone (their weights do not start at zero, which adds a little to it). What the training made of it are the dots.


# %%
# The spread by noise alone, for weights that start at zero, and the sum of all rates.
def spread(tuned, steps):
    warmup = {"warmup_steps": steps // 20}
    factors = [learning_rate_factor(t, steps, "cosine", **warmup) for t in range(steps)]
    rates = [tuned.rate * factor for factor in factors]
    return tuned.alpha * math.sqrt(sum(rate**2 for rate in rates)), sum(rates)


# %% mystnb={"figure": {"name": "fig-horst-noise", "caption": "Norm ratio against the spread. Line: weights that only noise has moved. Dots: the matrices of the live models, at the spread that noise would have given them by the same schedule. (AdamW has no mirror, and so the spread 0.)"}, "image": {"alt": "A falling curve of the norm ratio over the spread, with dots for every matrix of the live models", "width": "75%"}}
_, ax = plt.subplots(figsize=(6.6, 3.4))
sigmas = torch.linspace(0.01, 4, 100)
ax.plot(sigmas, [noise_ratio(x) for x in sigmas.tolist()], color=figures.INK, label="noise alone")
for name, marker in zip(models, "osD", strict=False):
    ratios = [norm_ratio(w) for w in prunable_weights(models[name]).values()]
    at = spread(settings.horst, settings.steps)[0] if name == "horst" else 0.0
    ax.plot([at] * len(ratios), ratios, marker, linestyle="none", fillstyle="none", label=name)
ax.set(xlabel=r"spread $\sigma$", ylabel="norm ratio $R$", ylim=(0, 1)), ax.legend()
plt.show()

# %% [markdown]
# Where dots lie near the line, noise explains their sharpness, and no preference of the loss is needed. Where they lie above it the loss has held its weights back from the walk; where they lie below, it has added to the concentration. Either way the lesson stands: *a histogram that is sharp at zero does not show that a sparse solution was found*. It shows that the steps were
# multiplied. What shows it is the loss after pruning. And the null model has a use of its own: it tells you which $\alpha$ will concentrate weights in a training of a given length, before you train.
#
# ## Dense cost and sparse gain
#
# Two numbers belong together: what HORST costs at sparsity 0, and what it gains at 80 or 90 %. Both are differences of losses between runs that share their seed, with Student's interval ({eq}`eq-looped-paired`).

# %% mystnb={"figure": {"name": "fig-horst-gain", "caption": "Loss of HORST minus the loss of another optimizer, on validation text, after one-shot pruning by the share on the left. Negative: HORST is better. The rows are those of the laptop if there are any, with 95 % confidence intervals over paired seeds, and else the live run, one seed without an interval."}, "image": {"alt": "Differences of the loss by sparsity, from dense at the top to 95 percent at the bottom, beside a line at zero"}}
evidence = laptop or live
others = [name for name in ("adamw", "ham") if name in {row["optimizer"] for row in evidence}]
_, axes = plt.subplots(1, len(others), figsize=(4.7 * len(others), 3.6), squeeze=False)
for ax, other in zip(axes[0], others, strict=True):
    intervals = {}
    for s in evidence[0]["sparsities"]:
        rows = language.at_sparsity(evidence, s)
        pair = (results.select(rows, optimizer=name) for name in ("horst", other))
        intervals[f"{s:.0%}"] = results.paired_difference(*pair, "val_loss")
    figures.forest(ax, intervals, xlabel=f"horst minus {other} (nats per byte)")
    ax.set(ylabel="pruned", title="laptop" if laptop else PRESET)
plt.show()

# %% [markdown]
# The uppermost line is the dense cost, or gain. If HORST were better at every sparsity *by the same amount*, then it would be the better optimizer, and pruning would have nothing to do with it. The claim about sparsity is that the difference *falls* from top to bottom.
#
# ### After a short recovery
#
# A pruned model is seldom used as it is. Train it a little further, with its zeros held: the optimizer starts anew at a tenth of its rate, which falls linearly to zero over $T_r$ steps. How far can a weight get? If every direction has at most length one, then in mirror coordinates
#
# $$
# \lvert z_{T_r} - z_0 \rvert \le \sum_{t=0}^{T_r - 1} \frac{\eta}{10}\, \frac{T_r - t}{T_r} = \frac{\eta}{10}\, \frac{T_r + 1}{2} = Z .
# $$ (eq-horst-recovery)
#
# ($\beta$ and the decay come on top, and $\lvert A \rvert$ may exceed one by {eq}`eq-horst-adam-bound`.) For AdamW that is the distance itself. With a mirror a large weight changes by a factor of up to $e^{\alpha Z}$. So the same schedule is a longer way for HORST, for good and for ill.

# %%
T, tuned = settings.recovery_steps, settings.horst
Z = tuned.rate / 10 * (T + 1) / 2
assert_close(Z, sum(tuned.rate / 10 * learning_rate_factor(t, T, "linear") for t in range(T)))
print(f"live: Z = {Z:.2g}, and a large weight grows at most by {math.exp(tuned.alpha * Z):.2f}")

# %% mystnb={"figure": {"name": "fig-horst-recovered", "caption": "Validation loss (a token is a byte) of pruned models before (left) and after the recovery (right), by sparsity. Laptop rows if there are any, mean over seeds and 95 % confidence interval, and else the live run."}, "image": {"alt": "Loss by sparsity for each optimizer before and after a short recovery training"}}
_, axes = plt.subplots(1, 2, figsize=(9.4, 3.5), sharey=True)
for ax, done in zip(axes, (False, True), strict=True):
    shares = evidence[0]["recovered_sparsities"]
    points = [r for s in shares for r in language.at_sparsity(evidence, s, recovered=done)]
    look = {"by": "optimizer", "legend": done}
    figures.mean_with_interval(ax, points, "sparsity", "val_loss", **look)
    ax.set_title("after the recovery" if done else "as pruned")
plt.show()

# %% [markdown]
# ## Where it diverges
#
# Two numbers, again from the formula alone, say what $\alpha$ does to a training.
#
# *Per step.* By {eq}`eq-horst-update` every weight, however large, is multiplied by $e^{\mp \alpha \eta A}$. So no weight moves by less than the share
#
# $$
# \frac{\lvert \Delta \theta \rvert}{\lvert \theta \rvert} \approx \eta \Bigl( \frac{1}{\lvert \theta \rvert} + \alpha \Bigr) \lvert A \rvert \;\ge\; \alpha \eta\, \lvert A \rvert .
# $$ (eq-horst-relative)
#
# With AdamW the relative step of a growing weight goes to zero. With HORST it does not: at $\alpha \eta = 0.3$ a large weight still changes by a third in each steady step, and all large weights do so at the same time. {numref}`horst-operators` shows in two dimensions what $\alpha \eta > 1$ does.
#
# *Per run.* The spread {eq}`eq-horst-noise` grows with $\alpha \sqrt{\sum_t \eta_t^2}$. Under noise alone the mean square of the weights grows as $e^{2 \sigma^2}$, and their median only as $e^{0.67 \sigma}$: few weights run away. What $\beta$ and the decay can do against it is limited. They multiply all weights by the same factor,
#
# $$
# \lvert \theta \rvert \to \lvert \theta \rvert\, e^{-(\lambda + \beta) \sum_t \eta_t} ,
# $$ (eq-horst-shrink)
#
# small and large alike; far above $1 / \alpha$ this changes the size of the weights, and leaves their ratio as it is.
#
# **Predict before you run:** on a grid of $\alpha$ and $\beta$, does the loss change more from left to right, or from top to bottom?

# %%
wide, table = sensitivity.EXPERIMENT.settings("laptop"), []
for alpha in wide.alphas[1:]:
    tuned = replace(wide.language.horst, alpha=alpha)
    sigma, way = spread(tuned, wide.language.steps)
    table.append((alpha, alpha * tuned.rate, sigma, noise_ratio(sigma)))
print(f"β = {wide.betas[-1]:g} shrinks all by the factor {math.exp(-wide.betas[-1] * way):.2f}")
pd.DataFrame(table, columns=["α", "αη", "spread", "ratio by noise"]).round(3)

# %% [markdown]
# That is the laptop grid, before any training. And here is the training: a small grid live, and the committed one once it is there.

# %%
PAIRS = {"smoke": ((0.0, 20.0), (0.5,))}.get(PRESET, ((0.0, 20.0, 100.0, 400.0), (0.0, 2.0)))
short = replace(settings, num_layers=1, validation_windows=16)
grid, maps = sensitivity.SensitivitySettings(short, *PAIRS), []
for case in sensitivity.cases(grid):
    found = sensitivity.measure(grid, case, SEED, no_report)
    maps.append({**case, "preset": PRESET, "seed": SEED, **found})
grids = {PRESET: maps} | (
    {"laptop": rows} if (rows := results.committed("horst.sensitivity")) else {}
)

# %% mystnb={"figure": {"name": "fig-horst-sensitivity", "caption": "Validation loss (nats per byte) of HORST over $\\alpha$ and $\\beta$, dense (left) and pruned by 80 % (right; at the preset smoke by half). Above: a short live run. Below: laptop scale, mean over seeds. A cross: a seed diverged."}, "image": {"alt": "Heat maps of the loss over alpha and beta, dense and pruned"}}
_, axes = plt.subplots(len(grids), 2, figsize=(10, 2.9 * len(grids)), squeeze=False)
for line, (scale, rows) in zip(axes, grids.items(), strict=True):
    for ax, s in zip(line, (0.0, 0.5 if PRESET == "smoke" else 0.8), strict=True):
        cells = language.at_sparsity(rows, s)
        figures.heat_map(ax, cells, "alpha", "beta", "val_loss", label="loss")
        ax.set(title=f"{scale}, {s:.0%} pruned", xlabel=r"$\alpha$", ylabel=r"$\beta$")
plt.show()

# %% [markdown]
# What to look for: the left map shows the dense cost of a strong mirror, and the right one whether pruning pays it back. If the columns differ and the lines hardly do, $\alpha$ is the value to tune and $\beta$ is a guard. A run that diverges ends with a gradient or a loss that is not finite; a run can also stay finite and be lost, with weights in the hundreds.
#
# In the rows no run diverged, and that is what happens: the columns differ and the lines hardly do. At $\beta = 0.5$, pruned by 80 %, the loss is {result}`horst_sensitivity | mean loss_by_sparsity[5] | preset=laptop alpha=0.0 beta=0.5 | .2f` with $\alpha = 0$, {result}`horst_sensitivity | mean loss_by_sparsity[5] | preset=laptop alpha=20.0 beta=0.5 | .2f` with 20, {result}`horst_sensitivity | mean loss_by_sparsity[5] | preset=laptop alpha=100.0 beta=0.5 | .2f` with 100 and {result}`horst_sensitivity | mean loss_by_sparsity[5] | preset=laptop alpha=200.0 beta=0.5 | .2f` with 200, and dense {result}`horst_sensitivity | mean loss_by_sparsity[0] | preset=laptop alpha=0.0 beta=0.5 | .2f`, {result}`horst_sensitivity | mean loss_by_sparsity[0] | preset=laptop alpha=20.0 beta=0.5 | .2f`, {result}`horst_sensitivity | mean loss_by_sparsity[0] | preset=laptop alpha=100.0 beta=0.5 | .2f` and {result}`horst_sensitivity | mean loss_by_sparsity[0] | preset=laptop alpha=200.0 beta=0.5 | .2f`. Up to 100 a stronger mirror is better on both sides,
# at this rate; at 200 the model has not learned at all. The best value of the grid lies next to a cliff. A lower rate might move the cliff; we have not tried.
#
# ## The cost of a step
#
# An optimizer step does little arithmetic and much reading and writing. In float32 AdamW reads $\theta, g, m, v$ and writes $\theta, m, v$ for each parameter: 28 bytes. HORST needs the same arrays. It stores nothing more, and a kernel that does all in one pass moves not one byte more: the exponential comes on top, for a processor that waits for memory. But written as a list of operations
# (*eager*), each of them reads its arrays again: eight for AdamW, and nine more for the mirror. So the implementation cuts large arrays into pieces that fit the cache, where only the first operation waits for memory, and `torch.compile` gets a form of the step that it can fuse. A million weights lie in the cache of many processors as they are. There operations count, and the ratio is at its worst.
#
# How much of it will you notice? Let the optimizer take the share $\mu$ of a training step with AdamW, and let HORST's step take $\varrho$ times as long. Then the whole takes
#
# $$
# 1 + \mu\, (\varrho - 1)
# $$ (eq-horst-end-to-end)
#
# times as long. The share shrinks with the number of tokens in a batch: forward and backward pass take about 6 operations per parameter and *token* {cite:p}`hoffmann2022chinchilla`, the optimizer 28 bytes per parameter and *step*. On a machine with $F$ operations and $W$ bytes per second, with $B N$ tokens,
#
# $$
# \mu \approx \frac{28 / W}{28 / W + 6\, B N / F} ,
# $$ (eq-horst-optimizer-share)
#
# whatever the size of the model.
#
# **Predict before you run:** a matrix of a million weights, one thread, eager. Which of the three comparisons is nearest to 1, and which is furthest from it?


# %%
SIDE, ROUNDS = {"smoke": (16, 2)}.get(PRESET, (1024, 12))


# The step of an optimizer of one square matrix.
def stepper(build, **options):
    weight = nn.Parameter(0.05 * torch.randn(SIDE, SIDE))
    weight.grad = 0.01 * torch.randn(SIDE, SIDE)
    return build([weight], lr=1e-3, weight_decay=0.1, **options).step


others = (torch.optim.AdamW, {"foreach": True}), (torch.optim.AdamW, {"fused": True}), (Ham, {})
ours, ratios = stepper(Horst, alpha=20.0), []
for build, options in others:
    name = f"HORST / {build.__name__} {' '.join(options)}"
    ratios.append(compare_times(name, ours, stepper(build, **options), rounds=ROUNDS))
results.frame(ratios).set_index("comparison").round(2)

# %% [markdown]
# HAM does as many operations as HORST. AdamW *fused* is compiled beforehand, and does in one pass what the others do in many.
#
# Code: {py:mod}`unrolled.benchmark`, which times both sides in turn. `python -m unrolled bench horst` does this for 1, 10 and 100 million parameters, eager and compiled, counts the memory, and times whole training steps of this chapter's GPT and of a ViT. Its goals were set beforehand: at most 1.25 times AdamW *foreach*, no memory beyond
# AdamW's, at most 1.03 times end to end.
#
# $\exp$ is dear on a CPU, which has no instruction for it: whoever takes AdamW's passes and then an exponential of every weight needs at least one plus the time of the exponential over that of an AdamW step, which the benchmark measures by itself; sign, product and quotient come on top. What was measured, in committed rows:

# %%
bench = results.committed("horst.bench", "bench horst --output book/results/horst_bench.jsonl")
names = ["comparison", "parameters", "ratio", "ratio_low", "ratio_high", "milliseconds"]
results.frame(bench)[names].style.format(precision=2, na_rep="") if bench else None

# %% [markdown]
# With a compiler, which makes one pass of it all, HORST meets the first goal at every size. Without one it does so at ten million parameters alone. Look at the milliseconds: HORST takes about the same time for a weight at all three sizes; it is AdamW *foreach* that is slow at the one in the middle, and why, we have not found out. Of the memory HORST needs less. The whole steps are as fast
# as with AdamW or nearly so; for the GPT the interval is wider than the allowance.
#
# ## In a training of your own
#
# `Horst` is a `torch.optim.Optimizer`. Three things to know: {py:func}`unrolled.horst.optimizers.parameter_groups` gives the mirror to the matrices alone, and neither to norms, biases nor embeddings; a schedule of the rate scales $\beta$ and the decay along with it, as the formula says; and a strong mirror wants $\alpha \eta$ well below one. With Accelerate, a scheduler and clipping:

# %%
accelerator, model = Accelerator(), language.build_model(settings.config)
groups = parameter_groups(model)  # the matrices; and the rest, without mirror and decay
optimizer = Horst(groups, lr=1e-3, alpha=20.0, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
batches = TokenBatches(language.text_of(settings)[0], 4, settings.length, SEED)
for step in range(5):
    batch = [part.to(accelerator.device) for part in batches(step)]
    accelerator.backward(language.token_loss(model, batch))
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), scheduler.step(), optimizer.zero_grad()
print([len(group["params"]) for group in groups], f"rate {scheduler.get_last_lr()[0]:.1e}")

# %% [markdown]
# A checkpoint needs the two state dicts. Loaded into a fresh pair, it goes on as if nothing had happened. With float16 gradients use a `GradScaler`; it skips a step that overflows, and HORST's state does not move in it.

# %%
plain = accelerator.unwrap_model(model)
resumed = Horst(parameter_groups(copied := copy.deepcopy(plain)), lr=1e-3)
resumed.load_state_dict(optimizer.state_dict())  # values of the groups, moments, step counts
scaler = torch.amp.GradScaler(accelerator.device.type, init_scale=1024.0)
for network, chosen in ((plain, optimizer.optimizer), (copied, resumed)):
    scaler.scale(language.token_loss(network, batch)).backward()
    scaler.step(chosen)
    scaler.update()
for one, other in zip(plain.parameters(), copied.parameters(), strict=True):
    assert torch.equal(one, other)

# %% [markdown]
# For a ViT exclude what you want dense by name, `parameter_groups(model, exclude=["head"])`. To train with masks attach them to the optimizer ({py:class}`unrolled.horst.sparsity.Masks`): the addition of a step leaves zero.
#
# ## What the paper says, and what we saw
#
# The verdicts follow from the laptop rows, by paired seeds, and say *not attempted* as long as there are none. The paper gives its perplexities as a figure, so there is no number to compare with.

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
table = results.comparison_table("horst.language", language.EXPERIMENT.claims)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence", "ours"]]

# %% [markdown]
# *ours* is HORST's loss in nats per byte, with its interval. "Better when pruned" includes what was better already when dense: compare with the first line of each pair.
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | model | GPT-2 small, 124 M parameters | the same shape of block, 3 layers of width 96 | two minutes on one core |
# | text | SlimPajama-6B, 50,257 tokens | State of the Union, bytes, split by address | it is shipped with the package |
# | pruning | one-shot, layerwise, unstructured, magnitude | the same; the embedding, which is the head, stays dense | it is most of a small model, and a table |
# | values of $\alpha$, $\beta$, $\lambda$ | not known to us | by a search with as many trials for each optimizer | the baseline is tuned as much |
# | rule of the search | not known to us | lowest mean loss over all sparsities | the claim is about pruned models |
# | HAM | as the authors have it | $\alpha$ and $\beta$ searched too | a gradient's size differs from model to model |
# | recovery | not in what we know of it | 50 steps, masks held | that is how pruned models are used |
# | null model | not in what we know of it | {prf:ref}`prop-horst-noise` | a reason needs a rival |
#
# - One-shot pruning by magnitude is the crudest there is. Saliencies or a few steps in between would help all optimizers, perhaps not equally.
# - The null model has independent directions. Real ones are correlated by momentum and pulled back by the loss.
# - The curvatures are those of the validation text, on a few windows.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: slower and longer
# :label: ex-horst-slower
# You halve the learning rate and train four times as long, with the same $\alpha$ and $\beta$. By which factor does the spread {eq}`eq-horst-noise` change, for weights that start at zero? And by which the exponent of {eq}`eq-horst-shrink`?
# :::

# %% tags=["exercise"]
answer = None  # (factor of the spread, factor of the exponent)
checks.horst_slower(answer)

# %% [markdown]
# :::{solution} ex-horst-slower
# :class: dropdown
# The spread goes with $\eta \sqrt T$, the shrinking with $\eta T$. So the mirror spreads the weights as before, and $\beta$ pulls twice as hard on all of them: values of $\alpha$ and $\beta$ that fit a short training do not fit a long one.
#
# ```python
# answer = (0.5 * math.sqrt(4), 0.5 * 4)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: the ceiling of a model
# :label: ex-horst-energy-ceiling
# Write {eq}`eq-horst-energy-ceiling`: `weights` is a list of matrices (tensors), and the ceiling belongs to all of them together. Why is the mean of the ceilings not enough?
# :::


# %% tags=["exercise"]
def energy_ceiling(weights, sparsity): ...  # a number


checks.horst_energy_ceiling(energy_ceiling)

# %% [markdown]
# :::{solution} ex-horst-energy-ceiling
# :class: dropdown
# A matrix counts by its share of the squared norm. HORST's matrices can differ in norm by large factors, so that a single one decides.
#
# ```python
# def energy_ceiling(weights, sparsity):
#     squares = [weight.double().square().sum() for weight in weights]
#     caps = [w.double().abs().sum() ** 2 / w.numel() / q / (4 * (1 - sparsity))
#             for w, q in zip(weights, squares)]
#     parts = [q * min(sparsity, cap.item()) for q, cap in zip(squares, caps)]
#     return sum(parts) / sum(squares)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the removed energy of Laplace weights
# :label: ex-horst-laplace-energy
# A penalty on $\lVert \theta \rVert_1$ is a Laplace prior, with the density $\frac12 e^{-\lvert x \rvert}$. Derive $\mathcal{E}(s)$ for weights of this distribution. (The threshold is $\tau = -\ln(1 - s)$.)
# :::


# %% tags=["exercise"]
def laplace_energy(sparsity): ...  # a number


checks.horst_laplace_energy(laplace_energy)

# %% [markdown]
# :::{solution} ex-horst-laplace-energy
# :class: dropdown
# $\int_\tau^\infty x^2 e^{-x}\, dx = e^{-\tau} (\tau^2 + 2 \tau + 2)$ is what stays, of 2 in all. At 80 % a Gaussian matrix loses 35 % of its energy and a Laplace one 22 %.
#
# ```python
# def laplace_energy(sparsity):
#     tau = -math.log(1 - sparsity)
#     return 1 - (1 - sparsity) * (1 + tau + tau**2 / 2)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: pruning by saliency
# :label: ex-horst-saliency
# Return the mask (True is kept) that drops the share `sparsity` of a matrix with the lowest saliencies $\frac12 H_{ii} \theta_i^2$. `curvature` has the diagonal of $H$ in the shape of `weight`. When the checker is content, take the mean of squared gradients over a few batches for the diagonal, as is often done, and prune a live model with it. Is it better than magnitude?
# :::


# %% tags=["exercise"]
def saliency_mask(weight, curvature, sparsity): ...  # booleans in the shape of weight


checks.horst_saliency_mask(saliency_mask)

# %% [markdown]
# :::{solution} ex-horst-saliency
# :class: dropdown
# Only the order counts, so the factor $\frac12$ may go. Adam's second moment $v$ is such a mean of squares, and it is there for free.
#
# ```python
# def saliency_mask(weight, curvature, sparsity):
#     score = (curvature * weight**2).flatten()
#     mask = torch.ones(score.numel(), dtype=torch.bool)
#     mask[score.argsort(stable=True)[: round(sparsity * score.numel())]] = False
#     return mask.view_as(weight)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the strength that a training needs
# :label: ex-horst-alpha-for
# Weights start at zero and see noise, by {prf:ref}`prop-horst-noise`. The learning rates of the steps are `rates`, a list. Which $\alpha$ gives the spread `sigma`? When the checker is content: which one brings the ratio down to 0.3 in the laptop schedule, and how does that compare with what the search chose?
# :::


# %% tags=["exercise"]
def alpha_for(sigma, rates): ...  # a number


checks.horst_alpha_for(alpha_for)

# %% [markdown]
# :::{solution} ex-horst-alpha-for
# :class: dropdown
# $\sigma^2 = \alpha^2 \sum_t \eta_t^2$. A training of four times the length needs half the $\alpha$, at the same rates. So a value of $\alpha$ from a short training is too large for a long one.
#
# ```python
# def alpha_for(sigma, rates):
#     return sigma / math.sqrt(sum(rate**2 for rate in rates))
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how much a recovery can change
# :label: ex-horst-recovery-factor
# By which factor can a *large* weight ($\alpha \lvert \theta \rvert \gg 1$) grow in the recovery {eq}`eq-horst-recovery`, if every direction has length one? `rate` is that of the training.
# :::


# %% tags=["exercise"]
def recovery_factor(rate, steps, alpha): ...  # a number


checks.horst_recovery_factor(recovery_factor)

# %% [markdown]
# :::{solution} ex-horst-recovery-factor
# :class: dropdown
# $\theta \approx \mathrm{sign}(z)\, e^{\alpha \lvert z \rvert} / \alpha$, so a way of $Z$ in $z$ is a factor of $e^{\alpha Z}$.
#
# ```python
# def recovery_factor(rate, steps, alpha):
#     return math.exp(alpha * rate / 10 * (steps + 1) / 2)
# ```
# :::

# %% [markdown]
# :::{exercise} Predict: what a slower step costs
# :label: ex-horst-end-to-end
# AdamW's step takes 4 % of a training step. HORST's takes 1.25 times as long as AdamW's. How long does a training step take, relative to one with AdamW? And how large may AdamW's share be, if 1.03 is the limit?
# :::

# %% tags=["exercise"]
answer = None  # (ratio, largest share)
checks.horst_end_to_end(answer)

# %% [markdown]
# :::{solution} ex-horst-end-to-end
# :class: dropdown
# By {eq}`eq-horst-end-to-end`: $1 + 0.04 \cdot 0.25$, and $0.03 / 0.25$.
#
# ```python
# answer = (1 + 0.04 * 0.25, 0.03 / 0.25)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: sparser at the same loss
# :label: ex-horst-matched-sparsity
# A gap in perplexity is hard to value. Ask instead: up to which sparsity does a model stay within a given loss? Interpolate `losses` linearly over `sparsities` (rising, the first is 0) and return the sparsity at which the curve *first* exceeds `level`; 0 if the dense model does, and the last sparsity if none does.
# When the checker is content, ask how much sparser HORST can be than AdamW at the loss that AdamW has at 70 %.
# :::


# %% tags=["exercise"]
def matched_sparsity(sparsities, losses, level): ...  # a number


checks.horst_matched_sparsity(matched_sparsity)

# %% [markdown]
# :::{solution} ex-horst-matched-sparsity
# :class: dropdown
# Walk along the curve to the first piece that ends above the level. Losses need not rise everywhere: a little pruning sometimes helps.
#
# ```python
# def matched_sparsity(sparsities, losses, level):
#     if losses[0] > level:
#         return 0.0
#     for i in range(1, len(losses)):
#         if losses[i] > level:
#             share = (level - losses[i - 1]) / (losses[i] - losses[i - 1])
#             return sparsities[i - 1] + share * (sparsities[i] - sparsities[i - 1])
#     return sparsities[-1]
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** Pruning changes the loss by three factors and a slope. Which of them can an optimizer make small, and how do you see each?
#
# :::{dropdown} Answer
# The removed energy, by concentrating the weights: read it off the weights, or bound it by their norm ratio. The curvature times the squared norm, by going where the loss is flat relative to the weights: it takes the loss on a line ({eq}`eq-horst-three-factors`). The slope goes to zero as the training comes to rest.
# :::
#
# **2.** Why do many tiny weights help?
#
# :::{dropdown} Answer
# They are the ones that go, and they hold no energy. A small norm ratio bounds the removed energy from above ({eq}`eq-horst-energy-ceiling`).
# :::
#
# **3.** The weights of a model are sharp at zero. What does that show about the solution?
#
# :::{dropdown} Answer
# By itself nothing: steps that are multiplied make noise just as sharp ({prf:ref}`prop-horst-noise`). The loss after pruning shows more.
# :::
#
# **4.** HORST is 0.2 nats better than AdamW at 80 % and at 0 %. What has it gained in sparsity?
#
# :::{dropdown} Answer
# Nothing that pruning brought about: the difference is the same when dense. A gain in sparsity is a difference that grows with it.
# :::
#
# **5.** Your training is four times as long as the one for which $\alpha$ was tuned. What do you do?
#
# :::{dropdown} Answer
# Halve $\alpha$ at the same rate, to keep the spread, and look at $\beta$: its shrinking has four times as long to work ({eq}`eq-horst-noise`, {eq}`eq-horst-shrink`).
# :::

# %% [markdown]
# ## Where this came from
#
# The rows name their commit, device and command. What this page computed itself came from here:

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
