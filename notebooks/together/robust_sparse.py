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
# (together-robust_sparse)=
# # Robust and sparse
#
# One part of this book asks a network for descent at every layer, and hopes for robustness to noise. Another changes the optimizer, and hopes for a network that can be sparse. Neither paper tried both at once. Here you fine-tune one text
# classifier with and without the constraint, with AdamW and with HORST, prune it on the way, and read it through noise. The question is about two gains, not about one: does the one undo the other?
#
# After this you can
#
# - tell an interaction of two ingredients from their gains, and give it an interval from paired seeds;
# - say how large an interaction must be so that five seeds show it;
# - recognise an interaction that is made by the ceiling of accuracy alone, and take it out;
# - compute what noise and pruning do to a linear classifier, from one ratio of norms;
# - predict from it why weights that are good for pruning can be bad under noise;
# - read a heat map over noise and sparsity, and judge eight claims from it.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | random tokens, a tiny encoder, two sparsities | seconds |
# | live | MiniLM: the four corners of the square at 50 % of zeros, 20 steps of 12 snippets | about a minute on one core |
# | laptop | the same corners at three sparsities, 80 steps of 12 snippets, 5 seeds | about 50 core-minutes in all |
# | colab | five sparsities, three epochs | sized for a 16 GB GPU, not measured |

# %% tags=["setup", "hide-input"] packages=["transformers"]
import math
from dataclasses import asdict

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch.testing import assert_close

from unrolled import checks, figures, results
from unrolled.horst.sparsity import magnitude_masks, norm_ratio
from unrolled.together import robust_search, robust_sparse
from unrolled.together.interaction import (
    chance_to_see,
    gains,
    interaction,
    interaction_of_margins,
    margin,
)
from unrolled.together.robust_sparse import averaged_accuracy, sides_at

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The question, and one figure
#
# 1. {cite:t}`porras2026descent` claim that descent across layers makes a classifier more accurate under noise, {cite:t}`jacobs2026horst` that HORST makes it more accurate when sparse. Both are tested on their own in {numref}`descent-text` and {numref}`horst-vision`.
# 2. Nobody claims anything about both. We ask whether the gain of the constraint is smaller with HORST than with AdamW. That question is symmetric, as you will see: it is also whether the gain of HORST is smaller with the constraint.
# 3. Our prediction, written before any rows: both gains are small at this scale, and where both exist HORST takes some of the constraint's away. The reasons follow below.
#
# "Undone" has a meaning only if there is something to undo. So the verdicts come in an order: first whether each gain exists, then whether they add up.
#
# The four *corners* are the two methods, ERM (the loss of the last layer) and the exact Lagrangian {eq}`eq-descent-lagrangian`, each with the two optimizers. The cell below trains them while you read, and looks for the laptop rows. Where there are none, the figures of this page show the live run: one seed and a short training, a picture of the
# question and no evidence. Their titles say which it is.
#
# Twenty steps are few. So that they leave chance behind, the live run gives the fresh head a rate thirty times that of the encoder and drops no activations (the rate was chosen among four on validation texts under ERM, with one seed that is not the one below); and so that the constraint is heard in them, its dual step is ten times that of the rows.


# %%
settings = robust_sparse.EXPERIMENT.settings(PRESET)
live = robust_sparse.EXPERIMENT.run(PRESET, SEED, progress=False)
evidence, searched = (
    results.committed("together.robust_sparse"),
    results.committed("together.robust_search"),
)
scale = "laptop rows" if evidence else "live, one seed"
shown = [row for row in evidence or live if not row["diverged"]]
sparsities = sorted({row["sparsity"] for row in shown})

# %% [markdown]
# The map shows accuracy if there are rows, and for the live run the area under the ROC curve, for a reason that the next cell gives.
#
# **Predict before you look:** in which direction does it fall faster, to the right (noise) or downwards (zeros)? And which of the four corners is best in the last column? The live run has one share of zeros only; it can answer the second question and the first half of the first.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-together-heat", "caption": "Accuracy (laptop rows) or ROC-AUC (live run) of the text classifier on test snippets over the level of Gaussian noise on its embeddings (across) and the share of zeros in its encoder, for the four corners; mean over seeds."}, "image": {"alt": "Heat map of accuracy or ROC-AUC: one column for each noise level, four rows for each sparsity"}}
score = "accuracy" if evidence else "roc_auc"
cells = [
    row | {"gamma": level, "corner": f"{row['sparsity']:.0%}, {optimizer}, {method}", "found": m}
    for row in shown
    for optimizer in [figures.label_of(row["optimizer"])]
    for method in ["exact" if row["method"] == "exact" else "ERM"]
    for level, m in zip(row["gammas"], row[f"{score}_by_gamma"], strict=True)
]
_, ax = plt.subplots(figsize=(8.2, 1.4 + 1.3 * len(sparsities)))
figures.heat_map(ax, cells, "gamma", "corner", "found", label=score.replace("roc_auc", "ROC-AUC"))
ax.set(
    xlabel=r"noise level $\gamma$", ylabel="", title=f"share of zeros, optimizer, method ({scale})"
)
plt.show()

# %% [markdown]
# Did the live run learn anything? Ask that first of every short training: corners that guess differ by luck alone, and their interaction means nothing. Accuracy is a poor witness, since a classifier that orders the texts well and puts its threshold in the wrong place has the accuracy of a guess. The area under the ROC curve sees the order alone: it is the share of pairs, one text
# of each class, of which the better review has the higher score. Scores that know nothing give one half, with the standard deviation $\sqrt{(n_0 + n_1 + 1) / (12\, n_0 n_1)}$ of the Mann-Whitney statistic for $n_0$ and $n_1$ texts of the two classes; for $n$ texts, half of each class, that is about $1 / \sqrt{3 n}$.
#
# **Predict before you run:** at which noise level does the order go down to chance?

# %%
corners = [row for row in live if not row["diverged"]]
chance = 2 / math.sqrt(3 * settings.text.test_texts)  # two standard deviations
keys = [(f"{r['sparsity']:.0%}", figures.label_of(r["optimizer"]), r["method"]) for r in corners]
found = pd.DataFrame([r["roc_auc_by_gamma"] for r in corners], keys, settings.text.gammas)
beyond = (found > 0.5 + chance).sum()
print(f"live, one seed: ROC-AUC of a guess is 0.50 ± {chance:.2f}; corners beyond it:")
print(*(f"{count} of {len(found)} at gamma = {gamma}" for gamma, count in beyond.items()), sep="; ")
found.round(2)

# %% [markdown]
# If a level has few corners beyond a guess, read its column in the map as luck, and an area as the mean over the others. The corners share their texts, so they are not so many independent findings. An *accuracy* of the live run, and so every area below, is near the share of the larger class: it tells of the threshold more than of what was learnt.

# %% [markdown]
# ## Gains that add up, and gains that do not
#
# Let $m$ be a result, here an accuracy, and A and B two *ingredients* that a run has or has not: the constraint and HORST. Any four results can be written as
#
# $m = \mu + a\,[\mathrm A] + b\,[\mathrm B] + I\,[\mathrm A][\mathrm B]$,
#
# where a bracket is 1 if the run has the ingredient and 0 otherwise: four numbers for four results. Put in the four corners and solve: $\mu = m_0$, the gains alone are $a = m_A - m_0$ and $b = m_B - m_0$, and the **interaction** is
#
# $$
# I = (m_{AB} - m_B) - (m_A - m_0) = m_{AB} - m_A - m_B + m_0 .
# $$ (eq-together-interaction)
#
# It is the gain of A beside B, less the gain of A alone. Exchange A and B and it stays the same: if HORST takes from the gain of the constraint, then the constraint takes from the gain of HORST, and by as much. With $I = 0$ the gains add up. If both gains are positive, $I < 0$ says that together they gain less than their sum,
# and $I = -a$ that nothing of A's gain is left beside B.
#
# All four runs of a seed share batches, initial head and test noise, so $I$ is computed seed by seed, and its mean gets Student's interval. From scratch, on the rows of the page:

# %%
first = sparsities[-1]
both, horst, constraint, neither = (results.select(shown, **side) for side in sides_at(first))
of_seed = [
    {row["seed"]: row["area"] for row in side} for side in (both, horst, constraint, neither)
]
kept = sorted(set.intersection(*map(set, of_seed)))
each = [of_seed[0][s] - of_seed[1][s] - of_seed[2][s] + of_seed[3][s] for s in kept]
found = interaction(shown, "area", sides_at(first))
assert_close(found.mean, float(np.mean(each)))
if len(each) > 1:
    edge = stats.t.ppf(0.975, df=len(each) - 1)
    assert_close(found.half_width, float(edge * np.std(each, ddof=1) / math.sqrt(len(each))))
print(f"interaction in the mean accuracy at {first:.0%} of zeros ({scale}): {found:.3f}")

# %% [markdown]
# Code: {py:func}`unrolled.together.interaction.interaction`. The *area* is the mean accuracy over the noise levels, the quantity that {numref}`descent-text` fixed for its comparison. With $\bar m$ for the area at the sparsity $s$ the question of this page is the sign of
#
# $$
# I_s = \bigl( \bar m^{\text{exact}}_{\text{HORST}} - \bar m^{\text{ERM}}_{\text{HORST}} \bigr) - \bigl( \bar m^{\text{exact}}_{\text{AdamW}} - \bar m^{\text{ERM}}_{\text{AdamW}} \bigr) .
# $$ (eq-together-robust-interaction)
#
# Code: {py:func}`unrolled.together.robust_sparse.sides_at`.
#
# ### What five seeds can see
#
# Let a run deviate by independent errors with standard deviation $\sigma$ from what its seed and its ingredients make of it. A gain has two runs in it and the variance $2\sigma^2$; an interaction has four, and $4\sigma^2$. So its interval is wider by a factor $\sqrt 2$, and for the same width it takes twice as many
# seeds. And interactions are usually smaller than gains: to be worth a name they need not be larger than half of one. Now let $\delta$ be its true value, $\bar I$ the mean over $n$ seeds and $s_I$ their standard deviation. We say *seen* if the interval lies on one side of zero, so if
# $T = \sqrt n\, \bar I / s_I$ is larger than the quantile $t_{n-1}$ of 97.5 %. With normal errors $T$ has the noncentral $t$ distribution, and
#
# $$
# \Pr(\text{seen}) = \Pr\bigl( T > t_{n-1} \bigr), \qquad T \sim t_{n-1}\!\Bigl( \frac{\delta \sqrt n}{2 \sigma} \Bigr) .
# $$ (eq-together-chance)
#
# **Predict before you run:** the interaction is as large as the spread of a single run, $\delta = \sigma$. In what share of such studies do five seeds show it?

# %%
generator = np.random.default_rng(SEED)
runs = generator.normal(size=(20_000, 5, 4))  # studies, seeds, corners; sigma is 1
found = 1.0 + runs @ np.array([1, -1, -1, 1])
T = math.sqrt(5) * found.mean(axis=1) / found.std(axis=1, ddof=1)
edge = stats.t.ppf(0.975, df=4)
mine = (edge < T).mean()
assert_close(mine, chance_to_see(1.0, 1.0, 5), atol=0.01, rtol=0)
print(f"seen in {mine:.0%} of the studies")

# %% mystnb={"figure": {"name": "fig-together-chance", "caption": "How probably an interaction is seen, over its size in standard deviations of a single run, for three numbers of paired seeds. Dotted: four times out of five."}, "image": {"alt": "Three rising curves, the steeper the more seeds", "width": "80%"}}
_, ax = plt.subplots(figsize=(6.6, 3.3))
effects = np.linspace(0, 6, 49)
for n, dash in ((5, "-"), (10, "--"), (20, "-.")):
    ax.plot(effects, [chance_to_see(effect, 1.0, n) for effect in effects], dash, label=f"n = {n}")
ax.axhline(0.8, color="0.4", linestyle=":", linewidth=1)
ax.set(xlabel=r"interaction $\delta / \sigma$", ylabel="probability that it is seen")
ax.legend()
plt.show()

# %% [markdown]
# Code: {py:func}`unrolled.together.interaction.chance_to_see`. At five seeds an interaction must be more than three times the spread of a run to be seen four times out of five. So "not seen" on this page means "smaller than about this", and no more. The table below says what that is here.
#
# ## The ceiling makes interactions
#
# Accuracy cannot pass one. Let each ingredient move the **margin** of a classifier, and the accuracy be what a normal distribution makes of it:
#
# $$
# m = \Phi(x), \qquad x = \Phi^{-1}(m) .
# $$ (eq-together-margin)
#
# ($\Phi$ and $\varphi$ are the distribution function and the density of the standard normal distribution. For an accuracy of 0 or 1 on $n$ texts $x$ would be infinite; such an accuracy is moved by half of a text.) Let the gains in the margin add up exactly: $x$, $x + a$, $x + b$ and $x + a + b$. Then, since $\Phi'' (t) = -t\, \varphi(t)$,
#
# $$
# I = \Phi(x + a + b) - \Phi(x + a) - \Phi(x + b) + \Phi(x) = - \int_0^a \!\! \int_0^b t\, \varphi(t) \Big|_{t = x + u + v} \, dv\, du .
# $$ (eq-together-ceiling)
#
# Above chance, $x \ge 0$, and with positive gains the integrand is positive, so $I < 0$. *Any* two ingredients that help, and know nothing of each other, seem to undo each other's gains. An interaction that a change of scale removes is called removable {cite:p}`loftus1978interactions`; one that changes its sign from scale to scale says little. So
# the verdicts have one claim in margins, too.
#
# **Predict before you run:** at which margin is this false interaction largest, near chance, far above it, or between?

# %% mystnb={"figure": {"name": "fig-together-ceiling", "caption": "Interaction in accuracy of two gains that add up in the margin, over the accuracy with neither; three sizes of the gains."}, "image": {"alt": "Three curves below zero, small at chance and near the ceiling, deepest between", "width": "80%"}}
base = np.linspace(0, 3, 61)
_, ax = plt.subplots(figsize=(6.6, 3.3))
for gain, dash in ((0.1, "-"), (0.2, "--"), (0.4, "-.")):
    found = [interaction_of_margins(x, gain, gain) for x in base]
    ax.plot(stats.norm.cdf(base), found, dash, label=f"a = b = {gain}")
ax.set(xlabel="accuracy with neither", ylabel="interaction (accuracy)")
ax.legend()
plt.show()

# %%
x, a, b = 0.6, 0.3, 0.4
grid = np.linspace(0, 1, 401)
u, v = np.meshgrid(a * grid, b * grid)
t = x + u + v
area = np.trapezoid(np.trapezoid(-t * stats.norm.pdf(t), dx=a / 400), dx=b / 400)
assert_close(area, interaction_of_margins(x, a, b), atol=1e-5, rtol=0)
margins = [margin(stats.norm.cdf(x + step), count=10**9) for step in (a + b, a, b, 0)]
assert abs(margins[0] - margins[1] - margins[2] + margins[3]) < 1e-9
print(f"in accuracy {area:.3f}, in margins none")

# %% [markdown]
# Code: {py:func}`unrolled.together.interaction.interaction_of_margins`, {py:func}`unrolled.together.interaction.margin`. It is largest between: at chance $\Phi$ is nearly straight, so that small gains nearly add up, and near the ceiling there is nothing left to gain. For gains of a few points it is some thousandths of accuracy: small, and of the size of the differences that such studies report.
#
# ## Why they might be at odds
#
# ### Noise is averaged away, and a sparse reading averages less
#
# Take the simplest case that can be computed. A text has the label $y = \pm 1$ and $d$ features that all say the same, $h_i = \kappa y + \sigma_h \epsilon_i$, with independent standard normal $\epsilon_i$; $\kappa$ is the *signal* of a feature and $\sigma_h$ its *spread*. Noise of level $\gamma$ adds $\gamma z_i$ to each. A linear classifier reads the sign of $\langle w, h \rangle$
# with $w_i \ge 0$; turn features around where a weight is negative. Then $\langle w, h \rangle$ is normal with mean $\kappa y \lVert w \rVert_1$ and variance $(\sigma_h^2 + \gamma^2) \lVert w \rVert_2^2$, and it is right with probability
#
# $$
# m = \Phi\!\left( \frac{\kappa\, \lVert w \rVert_1}{\sqrt{\sigma_h^2 + \gamma^2}\; \lVert w \rVert_2} \right) = \Phi\!\left( \frac{\kappa \sqrt d}{\sqrt{\sigma_h^2 + \gamma^2}}\, R(w) \right) ,
# $$ (eq-together-averaging)
#
# with the norm ratio $R$ of {eq}`eq-horst-norm-ratio`. Read it three times.
#
# - *Scale.* If all weights grow alike, nothing changes: noise passes through them as the signal does. Larger weights as such are no protection, and no danger.
# - *Concentration.* $R \le 1$ with equality for weights of one size. They average over all $d$ features. HORST moves a weight in proportion to $1 + \alpha \lvert w_i \rvert$ ({eq}`eq-horst-flow`), so the large ones outgrow the small ones, $R$ falls, and fewer features are averaged. In the margin the loss is the same factor at
#   every $\gamma$.
# - *Pruning.* Of the weights the $k$ largest stay, and with them $\lVert w_k \rVert_1 / \lVert w_k \rVert_2 \le \sqrt k$. Equal weights lose the factor $\sqrt{k / d}$, concentrated ones next to nothing, but from a lower start. By the same inequality they never come out ahead, at any $k$.
#
# So where features are redundant, concentration has its price under noise and no reward. The reward comes where they are not. If only some features say anything, the good weights are concentrated already, and pruning takes away what carries nothing but noise. Which of the two is true of an encoder we do not know.
#
# **Predict before you run:** equal weights, Gaussian ones and their cubes, with $R$ falling in this order, are pruned to a fifth. Which loses most accuracy? Which is best afterwards?

# %%
torch.manual_seed(SEED)
d, signal, spread = 200, 0.15, 0.5
z = torch.randn(d).abs()
readers = {"equal": torch.ones(d), "Gaussian": z, "cubes": z**3}
pruned = {name: w * magnitude_masks({"w": w}, 0.8)["w"] for name, w in readers.items()}
y = torch.randint(2, (4000,)) * 2.0 - 1
for name, w in readers.items():
    for gamma, weights in ((0.0, w), (2.0, w), (2.0, pruned[name])):
        h = signal * y[:, None] + math.hypot(spread, gamma) * torch.randn(len(y), d)
        mine = ((h @ weights) * y > 0).float().mean().item()
        assert_close(mine, averaged_accuracy(weights, signal, spread, gamma), atol=0.03, rtol=0)
    print(f"{name:8s} R = {norm_ratio(w):.2f}")

# %% mystnb={"figure": {"name": "fig-together-averaging", "caption": "The computed case: accuracy over the noise level with three kinds of weights on 200 features that all say the same. Left: all weights. Right: the fifth of largest size."}, "image": {"alt": "Two panels of falling curves; equal weights are best on the left, and never worse than the others on the right"}}
levels = np.linspace(0, 4, 41)
_, axes = plt.subplots(1, 2, figsize=(9.2, 3.3), sharey=True)
for ax, (title, those) in zip(axes, {"dense": readers, "80% pruned": pruned}.items(), strict=True):
    for (name, w), dash in zip(those.items(), ("-", "--", "-."), strict=True):
        values = [averaged_accuracy(w, signal, spread, gamma) for gamma in levels]
        ax.plot(levels, values, dash, label=name)
    ax.set(title=title, xlabel=r"noise level $\gamma$")
axes[0].set(ylabel="accuracy"), axes[1].legend()
plt.show()

# %% [markdown]
# Code: {py:func}`unrolled.together.robust_sparse.averaged_accuracy`. Equal weights lose most, and are still best: after pruning they average over forty features, and so would anybody at best.
#
# ### A constraint needs capacity
#
# The constraint asks *every* layer for its share, $f_l \le (1 - \alpha) f_{l-1}$, and a layer has a fifth of its weights left at 80 % of zeros. If it cannot keep its share, its slack $g_l$ stays positive, and by {eq}`eq-descent-dual-ascent` its price grows in each step by $\eta g_l$, without end: first it
# competes with the weight 1 of the last loss, then it makes the layer before worse, since that helps the share as well ({eq}`eq-descent-effective-weights`). How far does it get? With $\eta = 0.1$ and a slack of a few hundredths a price needs several hundred steps to reach one. The 80 steps of the rows are on the safe side of that, and that cuts
# both ways: prices that do no harm do little good. The live run, with $\eta = 1$, leaves that side; the column *largest price* further down says how far.
#
# There is an argument for help, too. A layer that has to lower the loss by itself leaves less to the others; the state carries the answer early, and a layer that pruning has damaged is added to a state that is good without it. We know of no computation that decides between the two. So: run it.
#
# ## A fair square
#
# What is the same in the four corners: the encoder, the snippets of each batch, the initial head, the frozen table of embeddings, the schedule of the rate, the steps, and the draws of noise at test. *Masks*: dense for two fifths of the steps, in the live run for half; then each matrix of the encoder loses the share $s$ of its weights, by magnitude {eq}`eq-horst-magnitude`, and the
# masks hold to the end. That is one phase of compression and not the alternation of {numref}`horst-vision`. A phase of it would be four steps here, shorter than Adam's memory. *The constraint* has the share and, but for the live run, the dual step that {numref}`descent-text` found, $\alpha = 0.05$ and $\eta = 0.1$.
#
# *The optimizers* get a search of their own, with eight trials for each, AdamW over rate and decay, HORST over these and $\alpha$ and $\beta$ of its mirror: points of a Sobol sequence, ERM at 50 % of zeros, seeds apart. Equal trials are a handicap for the one with more values. The rule takes the lowest validation loss *without* noise, so that what is compared has not
# been tuned for. Code: {py:mod}`unrolled.together.robust_search`.

# %%
table = {}
for name in sorted({row["optimizer"] for row in searched}):
    costs = pd.Series([r.get("cost") for r in searched if r["optimizer"] == name], dtype=float)
    best = asdict(robust_search.best_values(searched, name))
    used = asdict(getattr(robust_sparse.EXPERIMENT.settings("laptop"), name)) == best
    table[name] = {"trials": len(costs), "failed": costs.isna().sum(), "best": costs.min()}
    table[name] |= {"median": costs.median(), **best, "used": used}
used = {name: asdict(getattr(settings, name)) for name in settings.optimizers}
pd.DataFrame(table or used).T

# %% [markdown]
# *best* and *median* are validation losses, and *used* says whether the preset laptop has the chosen values. If the table has four columns only, the trials are not at hand, and these are the values of the preset that runs. The search chose for HORST about half of AdamW's rate and a mild mirror, at the lower end of what it could choose; the trials with a strong one ended near chance. The live run has values of its own.
#
# ## What happened
#
# First the two premises. Is there a gain of the constraint, and one of HORST, to be undone? Then the interaction. All paired by seed; a point to the right of the line is a gain.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-together-gains", "caption": "Paired differences in area, the mean accuracy over the noise levels, with 95 % confidence intervals (one seed has none), at each share of zeros. The first four are gains of one ingredient beside the other or without it; the fifth is the interaction."}, "image": {"alt": "For each sparsity five differences with their intervals beside a line at zero"}}
_, axes = plt.subplots(
    1, len(sparsities), figsize=(3.4 + 2.4 * len(sparsities), 2.9), sharey=True, squeeze=False
)
for ax, s in zip(axes[0], sparsities, strict=True):
    both, horst, constraint, neither = sides_at(s)
    pairs = {
        "constraint, with AdamW": (constraint, neither),
        "constraint, with HORST": (both, horst),
    }
    pairs |= {"HORST, with ERM": (horst, neither), "HORST, with constraint": (both, constraint)}
    found = {
        name: results.mean_ci(row["gain"] for row in gains(shown, "area", *pair))
        for name, pair in pairs.items()
    }
    found["interaction"] = interaction(shown, "area", sides_at(s))
    figures.forest(ax, found, xlabel="accuracy")
    ax.set_title(f"{s:.0%} zeros ({scale})", fontsize=10)
plt.show()

# %% [markdown]
# Two of the four gains and the interaction determine the others: the lines two and four are the lines one and three, each moved by the fifth.
#
# What could have been seen? The spread of the interactions over the seeds is an estimate of $2 \sigma$, and {eq}`eq-together-chance` gives the smallest interaction that as many seeds show four times out of five.

# %% tags=["hide-input"]
table = {}
for s in sparsities:
    line = {}
    for metric in ("area", "high", "area_margin"):
        found = interaction(shown, metric, sides_at(s))
        line[metric] = f"{found:.3f}"
        if found.n > 1 and metric == "area":
            sigma = found.standard_error * math.sqrt(found.n) / 2
            sizes = np.linspace(0, 20 * sigma, 401)
            seen = [chance_to_see(size, sigma, found.n) > 0.8 for size in sizes]
            line["visible in area from"] = f"{sizes[np.argmax(seen)]:.3f}"
    table[f"{s:.0%} zeros"] = line
pd.DataFrame(table).T.rename_axis(f"interaction ({scale})")

# %% [markdown]
# *high* is the mean accuracy at levels of at least 1, and *area_margin* the mean of the margins {eq}`eq-together-margin`, where the ceiling has been taken out.
#
# ### Does it still descend?
#
# A constraint that fails at the layers that have been pruned would be a plain reason for a lost gain.
#
# **Predict before you look:** does pruning raise the loss of the early layers or of the late ones?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-together-layers", "caption": "Test loss of the shared head at each layer, for the four corners, at the largest share of zeros shown; thin lines are seeds. Layer 0 is the embedding."}, "image": {"alt": "Two panels, one for each optimizer, of loss by layer with and without constraint"}}
_, axes = plt.subplots(1, 2, figsize=(9.4, 3.4), sharey=True)
for ax, name in zip(axes, settings.optimizers, strict=True):
    rows = results.select(shown, optimizer=name, sparsity=sparsities[-1])
    layers = range(len(rows[0]["test_loss_by_layer"]))
    look = {"x": list(layers), "xlabel": "layer", "legend": ax is axes[1]}
    look["ylabel"] = "test loss (nats)" if ax is axes[0] else " "
    figures.curves(ax, rows, "test_loss_by_layer", by="method", **look)
    ax.set_title(f"{figures.label_of(name)}, {sparsities[-1]:.0%} zeros ({scale})", fontsize=10)
plt.show()

# %% tags=["hide-input"]
columns = ["dense_val_accuracy", "test_accuracy", "test_ascents", "dense_norm_ratio", "area"]
keys = ["sparsity", "method", "optimizer"]
frame = pd.DataFrame(shown)
frame["largest price"] = [max(row.get("multiplier_by_layer", [0.0])) for row in shown]
means = frame.groupby(keys)[[*columns, "largest price"]].mean()
means["seeds"] = frame.groupby(keys)["seed"].nunique()
means.round(3)

# %% [markdown]
# `dense_val_accuracy` is measured just before the masks, on validation texts; `test_ascents` counts the layers at which the mean loss rises; `dense_norm_ratio` is the mean of {eq}`eq-horst-norm-ratio` over the matrices, just before the masks. The encoder is pretrained, and its weights have their sizes from there; look whether a short fine-tuning with HORST has moved
# the ratio at all, since that is the road on which {eq}`eq-together-averaging` sends its effects. The last price says how loudly the constraint has spoken, beside the weight 1 of the last loss.
#
# ## The verdicts
#
# The rules were fixed before the rows. A gain is *reproduced* if its interval lies above zero, a *trend* if its mean is above zero by more than its standard error, and otherwise *not seen*. An interaction is judged by the same rule in the claimed direction, below zero. We say that **HORST undoes the gain of the constraint** if its two premises are at least a trend at that sparsity and
# the interaction is reproduced in accuracy *and* in margins; that they **add up as far as we can see** if the premises hold and it is not; and that the question **does not arise** if a premise fails. A claim without rows is *not attempted*, whatever the live run did.

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
claims = robust_sparse.EXPERIMENT.claims
table = results.comparison_table("together.robust_sparse", claims, rows=evidence)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence", "ours"]]

# %% [markdown]
# ### In plain words
#
# The question does not arise: both premises fail. Dense, the constraint changes the area with AdamW by {result}`together_robust_sparse | difference_ci area | preset=laptop method=exact~erm optimizer=adamw sparsity=0.0 | .4f`; at 80 % of zeros HORST changes it with ERM by {result}`together_robust_sparse | difference_ci area | preset=laptop method=erm optimizer=horst~adamw sparsity=0.8 | .4f`, which is to the other side. What is left to add adds up, within intervals of a few thousandths.
#
# The constraint is heard where it speaks: at 80 % of zeros ERM rises at {result}`together_robust_sparse | mean_ci test_ascents | preset=laptop method=erm optimizer=horst sparsity=0.8 | .1f` of the six layers, and the exact form at none, in all seeds. Fewer rises do not buy accuracy under noise here. As to HORST, the ratio of norms is {result}`together_robust_sparse | mean_ci dense_norm_ratio | preset=laptop method=erm optimizer=horst sparsity=0.8 | .3f` with it and {result}`together_robust_sparse | mean_ci dense_norm_ratio | preset=laptop method=erm optimizer=adamw sparsity=0.8 | .3f` with AdamW: thirty-two small steps before the masks have not moved the sizes of pretrained weights, and pruning takes the
# same ones. Zeros themselves cost far more than either ingredient could give: the area falls from {result}`together_robust_sparse | mean_ci area | preset=laptop method=erm optimizer=adamw sparsity=0.0 | .3f` to {result}`together_robust_sparse | mean_ci area | preset=laptop method=erm optimizer=adamw sparsity=0.8 | .3f`, and at 80 % no method is far from the larger class. Training from scratch, where HORST has a say ({numref}`horst-language`), is the place to ask again.
#
# ## Deviations and choices
#
# | what | the papers | here | why |
# |---|---|---|---|
# | both at once | not done | the four corners | our question |
# | model, data | DistilBERT and RoBERTa on IMDb and MNLI; DeiT on ImageNet and GPT-2 on SlimPajama for HORST | MiniLM, 6 layers, on snippets of film reviews | a run in under a minute |
# | start | HORST trains from scratch | a pretrained encoder | the text classifier of the part on descent |
# | sparsity | alternating masks, or one shot after training | one shot after two fifths of the steps, then masks | phases would be four steps long |
# | readout | not said for inner layers; [CLS] | the mean of the tokens | with it descent is not impossible at layer 0, {numref}`descent-text` |
# | noise | Gaussian, uniform, discrete; its unit not known to us | Gaussian, in units of $\sigma_e$ {eq}`eq-descent-noise` | the area was fixed for it |
# | constraint | the exact one; share and dual step not known to us | the exact one, at the searched share and dual step | one form, so that there is one question |
# | deep supervision | a rival in {numref}`descent-text` | left out | a gain of the constraint is not claimed here against it |
# | values of the optimizers | not known to us | as many trials for both optimizers, at one sparsity and without constraint | the constraint could have wanted others |
#
# - A pretrained encoder is where HORST has least to say: its steps change sizes by a few percent of what is there. A null result here says nothing about training from scratch.
# - 200 test texts: two of them are one point of accuracy. All corners read the same texts with the same noise, so the error of the sample largely cancels, and the seeds vary the training.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: two gains below a ceiling
# :label: ex-together-both-gains
# The accuracy is 0.70 with neither ingredient and 0.80 with each alone. What is it with both, if the gains add up in the margin?
# :::

# %% tags=["exercise"]
answer = None  # an accuracy, to three digits
checks.together_both_gains(answer)

# %% [markdown]
# :::{solution} ex-together-both-gains
# :class: dropdown
# Not 0.90. The interaction in accuracy is negative though nothing interacts.
#
# ```python
# base, single = stats.norm.ppf((0.70, 0.80))
# answer = stats.norm.cdf(base + 2 * (single - base))
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: an interaction, seed by seed
# :label: ex-together-interactions
# `runs` holds for each of "both", "first", "second" and "neither" a dictionary from seed to accuracy. Return the list of interactions in the order of the seeds. The dictionaries are not sorted: runs end when they end.
# :::


# %% tags=["exercise"]
def interactions(runs): ...  # a list with one number for each seed


checks.together_interactions(interactions)

# %% [markdown]
# :::{solution} ex-together-interactions
# :class: dropdown
#
# ```python
# def interactions(runs):
#     both, first, second, neither = (runs[k] for k in ("both", "first", "second", "neither"))
#     return [both[s] - first[s] - second[s] + neither[s] for s in sorted(both)]
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the width of an interaction
# :label: ex-together-half-width
# A run has independent errors with standard deviation `sigma`. Write the half width of the 95 % interval of an interaction from `n` seeds, with $2\sigma$ for the standard deviation of the interactions of single seeds.
# :::


# %% tags=["exercise"]
def half_width(sigma, n): ...  # a number


checks.together_half_width(half_width)

# %% [markdown]
# :::{solution} ex-together-half-width
# :class: dropdown
# Four runs are added and subtracted, so the variance is $4\sigma^2$ a seed and $4\sigma^2 / n$ in the mean.
#
# ```python
# def half_width(sigma, n):
#     return stats.t.ppf(0.975, df=n - 1) * 2 * sigma / math.sqrt(n)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how much noise it bears
# :label: ex-together-bearable-noise
# Up to which level $\gamma$ does the classifier of {eq}`eq-together-averaging` keep the accuracy `accuracy`, above one half? It is there without noise.
# :::


# %% tags=["exercise"]
def bearable(accuracy, signal, spread, d, ratio): ...  # gamma


checks.together_bearable_noise(bearable)

# %% [markdown]
# :::{solution} ex-together-bearable-noise
# :class: dropdown
# Solve for $\sigma_h^2 + \gamma^2$. Where $\sigma_h$ is small, the level is proportional to $R$: half the ratio bears half the noise.
#
# ```python
# def bearable(accuracy, signal, spread, d, ratio):
#     deviation = signal * math.sqrt(d) * ratio / stats.norm.ppf(accuracy)
#     return math.sqrt(deviation**2 - spread**2)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: what pruning leaves of the margin
# :label: ex-together-signal-left
# Very many Gaussian weights read features that all say the same, {eq}`eq-together-averaging`, and the share `kept` of them, those of largest size, stays. By which factor does the margin change? (`stats.norm` has `ppf`, the inverse of $\Phi$, and `pdf`.)
# :::


# %% tags=["exercise"]
def signal_left(kept): ...  # the margin after pruning, over the one before


checks.together_signal_left(signal_left)

# %% [markdown]
# :::{solution} ex-together-signal-left
# :class: dropdown
# With the edge $q = \Phi^{-1}(1 - \mathtt{kept} / 2)$ the sums of the kept sizes and of their squares are, over the number of all weights, $2 \varphi(q)$ and $\mathtt{kept} + 2 q\, \varphi(q)$. Before pruning they are $\sqrt{2 / \pi}$ and 1.
#
# ```python
# def signal_left(kept):
#     q = stats.norm.ppf(1 - kept / 2)
#     density = stats.norm.pdf(q)
#     return 2 * density / math.sqrt(kept + 2 * q * density) / math.sqrt(2 / math.pi)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: pruning that helps
# :label: ex-together-helpful-pruning
# Leave the redundant case. Give weights $w$ and means $\kappa_i$ of an even number of features (at least four) with unit deviation, so that dropping the half of the weights with the smallest size *raises* the accuracy $\Phi(\langle w, \kappa \rangle / \lVert w \rVert_2)$ by at least 0.05.
# :::

# %% tags=["exercise"]
answer = None  # a pair of tensors: the weights, and the means of the features
checks.together_helpful_pruning(answer)

# %% [markdown]
# :::{solution} ex-together-helpful-pruning
# :class: dropdown
# The small weights must sit on features that say nothing, and be nearly as large as the others: then they add noise and no signal. This is the case in which sparsity and robustness are friends.
#
# ```python
# weights = torch.tensor([1.0, 1.0, 0.9, 0.9])
# answer = weights, torch.tensor([0.6, 0.6, 0.0, 0.0])
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** HORST takes a point from the gain of the constraint. What does the constraint do to the gain of HORST?
#
# :::{dropdown} Answer
# It takes a point from it. The interaction {eq}`eq-together-interaction` does not change if the two ingredients change places.
# :::
#
# **2.** Two gains have intervals above zero, and the interaction has one that contains zero. May you say that the gains add up?
#
# :::{dropdown} Answer
# Only within the interval. An interaction has twice the variance of a gain, and with five seeds it must be more than three times the spread of a run to be seen reliably.
# :::
#
# **3.** In accuracy the interaction is negative, in margins it is zero. Which ingredient is to blame?
#
# :::{dropdown} Answer
# None. Gains that add up in the margin shrink below the ceiling of accuracy, {eq}`eq-together-ceiling`.
# :::
#
# **4.** An optimizer doubles all weights of a linear classifier. What does that do under noise on its inputs?
#
# :::{dropdown} Answer
# Nothing: signal and noise are doubled alike, and {eq}`eq-together-averaging` has only the ratio of two norms in it. It matters how the weights are spread, and over features of which kind.
# :::
#
# **5.** Why is the search judged without noise, and by ERM?
#
# :::{dropdown} Answer
# So that what is compared was not tuned for: neither robustness nor the constraint had a say in the values. The price is that either might have wanted others.
# :::

# %% [markdown]
# ## Where this came from

# %% tags=["hide-input"]
columns = ["experiment", "preset", "torch", "version", "commit", "device"]
results.frame([live[0], *evidence[:1], *searched[:1]])[columns]
