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
# (descent-theory)=
# # What the theorems say
#
# {cite:t}`porras2026descent` prove two things about networks that descend: with more and more layers they come to the best possible loss, and they go on
# descending when the data change. This chapter states what can be proved, proves it, and then reads the small print: which losses,
# of which samples, under which assumptions, and what is *not* promised. The problem at hand is one whose best loss you know, so that every
# bound can be laid beside the truth.
#
# After this you can
#
# - prove that a share $\alpha$ per layer and a tolerance $\varepsilon$ lead to a floor $\varepsilon / \alpha$: in the mean, and for almost every sample;
# - split the tolerance into what training left, what the samples hide and what the network cannot do;
# - say before any training whether a share can be kept at all, and how deep;
# - bound what a shift of the data does to descent, and find the layers that turn first;
# - name six things that the theorems do not say, each with an example.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | 22 networks of at most 16 layers, 20 steps each | seconds |
# | live | the same for three seeds, 400 steps each | under a minute on one core |
# | laptop, colab | the same for ten seeds, 2,000 steps each | not measured |
#
# Everything here is computed while you read. There are no committed rows: the networks have at most a hundred weights.

# %% tags=["setup", "hide-input"]
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.testing import assert_close

from unrolled import checks, figures, provenance
from unrolled.descent import squared_losses, theory, violations
from unrolled.descent.constraints import ExactConstraint, constant_alphas
from unrolled.descent.networks import gradient_layer
from unrolled.descent.primal_dual import PrimalDual

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# 1. If every layer lowers the expected loss by a share $\alpha$, up to a tolerance $\varepsilon$, the loss falls geometrically to a floor: $\varepsilon / \alpha$.
# 2. Networks that are trained with multipliers keep this bound, where the optimum is known and where the share can be kept at all.
# 3. It is a statement about a mean, and about depth. It does not say that a sample descends, that new data do, that the shares can be kept, or that the
#    output is better than that of ordinary training.
#
# **The problem.** Unknown $x \in \mathbb{R}^d$ are observed through a matrix and noise, $y = A x + \gamma z$, with $x$ and $z$ standard normal. The network does gradient
# descent on ridge regression, $\frac12 \lVert A h - y \rVert^2 + \frac{\gamma^2}{2} \lVert h \rVert^2$, from $h_0 = 0$; all that layer $l$ learns is its step $\theta_l$. The loss is
# $f_l = \frac1d \lVert h_l - x \rVert^2$. We take the coordinates in which $A$ is diagonal, with entries $s_i$; so every direction goes its own way, with the
# curvature $\chi_i = s_i^2 + \gamma^2$. Below we derive that then $h_{l,i} = q_{l,i}\, y_i$ with a *gain* $q_{l,i}$, and that the best expected loss is
# $f^* = \frac1d \sum_i \gamma^2 / \chi_i$.

# %%
sizes = {"smoke": (20, 1), "live": (400, 3)}
STEPS, COUNT = sizes.get(PRESET, (2000, 10))
SEEDS, d, gamma = range(SEED, SEED + COUNT), 8, 0.3
s = torch.linspace(0.5, 1.5, d, dtype=torch.float64)
one, chi = torch.ones_like(s), s**2 + gamma**2
optimum = (gamma**2 / chi).mean().item()
TRUTH = one, s, chi  # E x², E xy, E y² in each direction


# The gains after layers 0 to L, (L + 1, d), for steps (L, 1) or (L, d).
def gains(steps):
    left = torch.cat((one[None], (1 - steps * chi).cumprod(0)))
    return (1 - left) * s / chi


# The loss of each layer, (L + 1,), under some moments: expected ones, or means of samples.
def layer_losses(steps, moments=TRUTH):
    q, (xx, xy, yy) = gains(steps), moments
    return (xx - 2 * q * xy + q**2 * yy).mean(1)


# %%
# Train steps under constraints on the losses above `base`; 0 is ERM. Also returns the prices.
def train(steps, alpha, base, moments=TRUTH, dual_step=1.0, rate=0.02, **options):
    steps, prices = steps.clone().requires_grad_(), []
    dual = PrimalDual(ExactConstraint(constant_alphas(alpha, len(steps))), dual_step, **options)
    adam = torch.optim.Adam([steps], rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS, rate / 50)
    for _ in range(STEPS):
        losses = layer_losses(steps, moments) - base
        prices.append(dual.multipliers.sum().item())
        adam.zero_grad()
        dual.lagrangian(losses).backward()
        adam.step(), cosine.step()
        if alpha:
            dual.update(losses)
    return steps.detach(), prices


# %%
def random_steps(num_layers, seed, width=1):
    random = torch.Generator().manual_seed(seed)
    return 0.2 + 0.6 * torch.rand(num_layers, width, generator=random).double()


def excess(steps):
    return (layer_losses(steps) - optimum).numpy()


DEPTHS, SHARES, trained = (4, 8, 16), (0, 0.2, 0.4, 0.6), {}
for L, alpha, seed in product(DEPTHS, SHARES, SEEDS):
    trained[L, alpha, seed] = train(random_steps(L, seed), alpha, optimum)[0]


# %% [markdown]
# Code: {py:class}`unrolled.descent.primal_dual.PrimalDual`, {py:class}`unrolled.descent.constraints.ExactConstraint`. The first layer's $f_0 = \frac1d \mathbb{E} \lVert x \rVert^2$ cannot
# be moved, so nobody can cheat there ({numref}`descent-dual_ascent`). We constrain the *excess* loss $\bar f_l - f^*$, where $\bar f_l$ is the expected loss; why that is another thing than
# constraining $\bar f_l$ is the subject of a section of its own.
#
# **Predict before you run:** ERM asks only that the last of 8 layers is good. What do its losses do on the way?

# %% mystnb={"figure": {"name": "fig-descent-unrolled-gd", "caption": "Live networks of 8 layers, each layer one learned gradient step: excess loss after each layer; thin lines are seeds, thick ones their mean. Dotted: the bound for a share of 0.4."}, "image": {"alt": "Excess loss over layers on a logarithmic axis: ERM rises far above its start on the way, the constrained networks descend below the bound", "width": "80%"}}
rows = [
    {"training": name, "seed": seed, "excess": excess(trained[8, alpha, seed])}
    for name, alpha in (("erm", 0), ("exact", 0.4))
    for seed in SEEDS
]
_, ax = plt.subplots(figsize=(6.8, 3.4))
labels = {"x": range(9), "xlabel": "layer $l$", "ylabel": "excess loss"}
figures.curves(ax, rows, "excess", by="training", log=True, **labels)
ax.plot(theory.layer_bounds(1 - optimum, [0.4] * 8), ":", color="0.4")
plt.show()

# %% [markdown]
# In our run ERM rises above its start in every seed, in two of them far above, and yet ends low. The constrained networks descend at every layer,
# stay below the bound, and end about as low. Both facts have the same reason. The output depends on the product of the factors $1 - \theta_l \chi_i$, and a product does not care for its order: a network
# that takes its boldest steps last, or in a bad order, has the same last loss as one that descends. ERM has no reason to choose. The constraint chooses, and it costs nothing where a good order
# exists. Remember this when you read what the theorems promise: the *path* is new, the *end* need not be.
#
# ## What is the paper's, and what is ours
#
# We know the theorems in outline only; their full statements were not at hand. So this chapter keeps three things apart.
#
# | | what our sources report of {cite:t}`porras2026descent` | what we do not know | what you find here |
# |---|---|---|---|
# | Theorem 2 | the constrained network converges asymptotically to the optimal value of the statistical loss; the argument is a supermartingale; the expressivity $\nu$ and the sample complexity $\zeta$ enter | the assumptions, the limit's exact form, whether in mean or for almost every sample, how $\nu$ and $\zeta$ enter, the rate | {prf:ref}`thm-descent-convergence` and {prf:ref}`prop-descent-solution`: our statements, with full proofs |
# | Theorem 4 | descent is kept under shifts of the distribution | which shifts, in which distance, with which constants | {prf:ref}`thm-descent-out-of-distribution`: ours, with full proof, for three distances |
# | the dual problem | its solutions are nearly optimal and nearly feasible, since deep networks have a small duality gap {cite:p}`chamon2023constrained` | the constants for these networks | only what is needed; the gap is a subject of {numref}`descent-dual_ascent` |
#
# An earlier paper of two of the authors, {cite:t}`hadou2023robust`, does the same for networks that unroll an optimizer. Its abstract says that the layers take a descent step *on average*, that the outputs are
# then guaranteed to converge for problems of the same distribution, and that descent is transferable to others "subject to a generalization error". Wherever this chapter says "the theorem", it means
# the one on this page.
#
# ## A problem whose optimum is known
#
# One gradient step in direction $i$ is $h_{l,i} = h_{l-1,i} - \theta_l (\chi_i h_{l-1,i} - s_i y_i)$. It has the fixed point $s_i y_i / \chi_i$, the *ridge* solution, and each layer multiplies the
# distance from it by $1 - \theta_l \chi_i$. So, with what is left of the distance, $\psi_{l,i}$,
#
# $$
# h_{l,i} = q_{l,i}\, y_i, \qquad q_{l,i} = (1 - \psi_{l,i}) \frac{s_i}{\chi_i}, \qquad \psi_{l,i} = \prod_{j \le l} (1 - \theta_j \chi_i) .
# $$ (eq-descent-unrolled-steps)
#
# Put it into the expected loss. The ridge solution is the conditional mean $\mathbb{E}[x_i \mid y_i]$, since $\mathbb{E}[x_i y_i] = s_i$ and $\mathbb{E}[y_i^2] = \chi_i$; what it leaves,
# $x_i - s_i y_i / \chi_i$, has the variance $\gamma^2 / \chi_i$ and is uncorrelated with $y_i$. So no function of $y$ does better than $f^*$, and
#
# $$
# \bar f_l = f^* + \frac1d \sum_i b_i\, \psi_{l,i}^2, \qquad f^* = \frac1d \sum_i \frac{\gamma^2}{\chi_i}, \qquad b_i = \frac{s_i^2}{\chi_i} .
# $$ (eq-descent-excess)
#
# The excess is convex in the state $h_l$, and $\psi_{l,i}$ is a polynomial of degree $l$ in $\chi_i$, whose zeros $1 / \theta_j$ the network learns: the classic problem of {cite:t}`young1953richardson`.


# %%
# Samples (B, d) of x and y.
def sample(count, seed):
    random = torch.Generator().manual_seed(1_000 + seed)
    x, z = torch.randn(2, count, d, generator=random).double()
    return x, s * x + gamma * z


def sample_losses(steps, x, y):
    return squared_losses([q * y for q in gains(steps)], x)  # (L + 1, B)


steps, (x, y) = trained[8, 0.4, SEED], sample(4000, SEED)
ridge, data = torch.cat((s.diag(), gamma * one.diag())), torch.cat((y, 0 * y), 1)
states = [0 * y]
for step in steps:
    states.append(gradient_layer(states[-1], data, ridge, step))
assert_close(squared_losses(states, x), sample_losses(steps, x, y))
assert_close(sample_losses(steps, x, y).mean(1), layer_losses(steps), rtol=0.1, atol=0)

# %% [markdown]
# Code: {py:func}`unrolled.descent.networks.gradient_layer` (the ridge term is a second block of rows, $\gamma I$, with zeros as data), {py:func}`unrolled.descent.readout.squared_losses`.
#
# Which shares can such layers keep? One answer needs no training.
#
# :::{prf:proposition} A share that every layer can keep
# :label: prop-descent-safe-share
# With the step $\theta = 2 / (\chi_{\min} + \chi_{\max})$ in each layer, the excess loss keeps the share
#
# $$
# \alpha = 1 - \Bigl( \frac{\chi_{\max} - \chi_{\min}}{\chi_{\max} + \chi_{\min}} \Bigr)^2 = \frac{4\, \chi_{\min}\, \chi_{\max}}{(\chi_{\min} + \chi_{\max})^2}
# $$ (eq-descent-safe-share)
#
# at every layer, at every depth, for every single $y$.
# :::
#
# :::{prf:proof}
# With this step $\lvert 1 - \theta \chi_i \rvert \le (\chi_{\max} - \chi_{\min}) / (\chi_{\max} + \chi_{\min})$ for all $i$, with equality at both ends. Every term of
# $\frac1d \sum_i (h_{l,i} - s_i y_i / \chi_i)^2$ shrinks by at least the square of that. Its mean over $y$ is the excess. $\square$
# :::

# %%
low, high = chi.min(), chi.max()
safe = (4 * low * high / (low + high) ** 2).item()
fixed = torch.tensor(excess((2 / (low + high)).repeat(16, 1)))
assert ExactConstraint(constant_alphas(safe, 16)).slacks(fixed).max() <= 1e-12
print(f"a share of {safe:.2f} can be kept for ever; f* = {optimum:.3f}, f_0 = 1")

# %% [markdown]
# Shares below that are safe. A larger one may be possible for some layers and not for all; 0.6 is such a case.
#
# ## The theorem: a share, a tolerance, a floor
#
# Let $f_l(X) \ge 0$ be the loss of a sample $X$ after layer $l$ and $\bar f_l = \mathbb{E}[f_l(X)]$ its *statistical* loss, with $\bar f_0$ finite. Say that the layers descend with share $\alpha$ and tolerance $\varepsilon$ if
#
# $$
# \bar f_l \le (1 - \alpha)\, \bar f_{l-1} + \varepsilon, \qquad l = 1, 2, \dots, \qquad 0 < \alpha < 1, \quad \varepsilon \ge 0 .
# $$ (eq-descent-tolerance)
#
# $\varepsilon = 0$ is the exact constraint {eq}`eq-descent-slack`. You may read $f_l$ as any loss that is not negative; to be of use, it should be one that can become zero, such as the excess.
#
# The assumptions are three: losses that are not negative, a finite start, and layers that keep the constraint. Nothing is asked of the architecture, of convexity or of smoothness; that is all hidden in the third.
#
# :::{prf:theorem} Convergence in depth, in our form of the paper's Theorem 2
# :label: thm-descent-convergence
# **(1) In the mean.** Under {eq}`eq-descent-tolerance`
#
# $$
# \bar f_L \le (1 - \alpha)^L\, \bar f_0 + \frac{\varepsilon}{\alpha} \bigl( 1 - (1 - \alpha)^L \bigr), \qquad \limsup_{L \to \infty} \bar f_L \le \frac{\varepsilon}{\alpha} .
# $$ (eq-descent-floor)
#
# With a share $\alpha_l$ and a tolerance $\varepsilon_l$ for each layer, $\bar f_L \le \rho_L \bar f_0 + \sum_l (\rho_L / \rho_l)\, \varepsilon_l$, with $\rho_l$ as in {eq}`eq-descent-schedule`.
#
# **(2) For almost every sample, from the means alone.** If the tolerances $\varepsilon_l$ differ and $\sum_l \varepsilon_l$ is finite (for example if all are 0), then $f_l(X) \to 0$ with probability 1. With a constant $\varepsilon$,
#
# $$
# \mathbb{E}\bigl[ \liminf_l f_l(X) \bigr] \le \frac{\varepsilon}{\alpha}, \qquad \Pr\bigl( \liminf_l f_l(X) > t \bigr) \le \frac{\varepsilon}{\alpha\, t} \quad (t > 0) .
# $$ (eq-descent-liminf)
#
# **(3) For almost every sample, from the past.** Let $\mathcal{F}_l$ be what is known after layer $l$, with $f_l$ known too, and let the constraint hold *given the past*: $\mathbb{E}[f_l \mid \mathcal{F}_{l-1}] \le (1 - \alpha) f_{l-1} + \varepsilon$. Then
# $\liminf_l f_l \le \varepsilon / \alpha$ with probability 1. And from every layer $k$ on, for every $t > \varepsilon / \alpha$, let $l_t \ge k$ be the first layer with a loss of at most $t$; then
#
# $$
# \mathbb{E}[l_t - k] \le \frac{\bar f_k}{\alpha\, t - \varepsilon} .
# $$ (eq-descent-waiting)
# :::
#
# :::{prf:proof}
# *Outline.* (1) puts the constraint into itself. (2) adds it up over all layers: a finite sum has terms that vanish. (3) follows one path until it comes to $t$: it loses a fixed amount per layer on average and cannot fall below 0, so it
# must arrive.
#
# (1) Insert {eq}`eq-descent-tolerance` into itself $L$ times; the tolerances add up to $\varepsilon\, (1 + (1 - \alpha) + \dots + (1 - \alpha)^{L-1})$, a geometric sum.
#
# (2) Add {eq}`eq-descent-tolerance` over all layers: $\alpha \sum_{l \ge 0} \bar f_l \le \bar f_0 + \sum_l \varepsilon_l < \infty$. Terms are not negative, so sum and expectation may be swapped (Tonelli): $\sum_l f_l(X)$ has a finite mean, so it
# is finite with probability 1, and its terms go to 0. For a constant $\varepsilon$, Fatou's lemma says $\mathbb{E}[\liminf f_l] \le \liminf \bar f_l$; use (1), then Markov's inequality.
#
# (3) Stop at $l_t$. As long as we have not stopped, $f_{l-1} > t$, so $\mathbb{E}[f_l \mid \mathcal{F}_{l-1}] \le f_{l-1} - (\alpha f_{l-1} - \varepsilon) \le f_{l-1} - (\alpha t - \varepsilon)$: the stopped loss is a *supermartingale* that loses at
# least $\alpha t - \varepsilon > 0$ per layer. Take expectations and add up over $l > k$: $(\alpha t - \varepsilon) \sum_{l > k} \Pr(l_t > l - 1) \le \bar f_k$, since what is left is not negative. The sum is $\mathbb{E}[l_t - k]$. So from every $k$ on the
# loss comes to $t$ or below with probability 1, that is, infinitely often; so $\liminf f_l \le t$. Let $t$ go down to $\varepsilon / \alpha$ along a sequence. $\square$
# :::
#
# Three remarks. The general tool for (3), with random shares and tolerances, is the lemma of {cite:t}`robbins1971convergence`; {cite:t}`williams1991probability` has all that we used. Next, (1) holds for each depth on its own, so also if you train a new network for each; (2) and (3) follow the samples through *one* network whose layers have no end. Last, mark the difference between (2) and (3). *Given the past* is a stronger demand than the paper's
# constraint, which is on plain means. In a network without randomness in its layers the sample determines everything, so given the sample the demand of (3) would read $f_l(X) \le (1 - \alpha) f_{l-1}(X) + \varepsilon$: descent of every single sample. A supermartingale therefore needs a smaller past (such as the losses so far), or
# layers with a chance of their own (noise, dropout, batches). With $\varepsilon = 0$ you need none of it: (2) is enough.

# %%
share, epsilon = 0.2, 0.02
bounds = [1.0]
for _ in range(60):
    bounds.append((1 - share) * bounds[-1] + epsilon)
assert_close(bounds, list(theory.layer_bounds(1.0, constant_alphas(share, 60), epsilon)))
floor = epsilon / share
assert abs(bounds[-1] - floor) < 1e-5

# %% [markdown]
# Code: {py:func}`unrolled.descent.theory.layer_bounds`.
#
# ### In the mean
#
# Lay the trained networks beside their bounds. With one caution: multipliers make slacks small, not zero. So read from each network the tolerance that it needs, $\varepsilon_l = \max(g_l, 0)$, and ask the bound for it.
#
# **Predict before you run:** for which of the shares 0.2, 0.4 and 0.6 do the networks end *near* their bound?

# %%
needed = []
for (L, alpha, _), steps in trained.items():
    f, shares = torch.tensor(excess(steps)), constant_alphas(alpha, L)
    tolerances = ExactConstraint(shares).slacks(f).clamp_min(0)
    bound = theory.layer_bounds(f[0].item(), shares, tolerances.tolist())
    assert (f.numpy() <= np.array(bound) + 1e-12).all()
    part = (tolerances / f[:-1]).max().item()
    needed.append({"share": alpha, "tolerance": tolerances.max().item(), "part of the loss": part})
pd.DataFrame(needed).query("share > 0").groupby("share").max()


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-descent-depth", "caption": "Live networks. Left: excess loss after each of 16 layers, one line per share, mean of the seeds. Right: excess loss of the last layer over the depth; points are seeds. Dashed, in the same colours: the bound without tolerance."}, "image": {"alt": "Excess loss over layers, and last excess loss over depth, for ERM and three shares, with the bounds as dashed lines"}}
def mean_excess(L, alpha):
    return np.mean([excess(trained[L, alpha, seed]) for seed in SEEDS], axis=0)


_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for i, alpha in enumerate(SHARES):
    look = {"color": f"C{i}" if alpha else "k", "marker": "o^sD"[i], "markersize": 4}
    left.plot(mean_excess(16, alpha), **look, label=f"share {alpha}" if alpha else "ERM")
    ends = [[excess(trained[L, alpha, seed])[-1] for seed in SEEDS] for L in DEPTHS]
    right.plot(DEPTHS, ends, **look, linestyle="")
    for ax, at in ((left, np.arange(17)), (right, np.array(DEPTHS))):
        if alpha:
            ax.plot(at, (1 - optimum) * (1 - alpha) ** at, "--", color=f"C{i}")
left.set(yscale="log", xlabel="layer $l$", ylabel="excess loss")
right.set(yscale="log", xlabel="layers $L$", ylabel="excess of the last layer", xticks=DEPTHS)
left.legend(loc="lower left")
plt.show()

# %% [markdown]
# The assertion is the check of {eq}`eq-descent-floor`: with its own tolerances, every trained network lies below its bound, at every layer. And deeper networks are geometrically better. But look at the distance. For the shares 0.2 and 0.4
# the networks are far below their dashed lines, so they do not go down *because of* the share; the gradient of $f_L$ drives them. And the networks of 16 layers end about alike, ERM too. The bound is a guarantee, not a forecast.
#
# At 0.6, which is above the share that is safe for ever, the distance shrinks with the depth, and the networks of 16 layers end above the dashed line. In our run some slacks stay positive, there and even at 0.4. The table says how much: the largest tolerance in absolute size, and the largest as a part of the loss before the layer.
# The first is small, the second is not. That is a weakness of the method that {eq}`eq-descent-dual-ascent` shows plainly: a dual
# step is proportional to the slack, the slack of a late layer is a share of a tiny loss, and so its price hardly moves. Late layers are policed in absolute terms. The theorem has the right word for that: tolerance.
#
# ### For single paths
#
# Now part (3), on a caricature of layers with a chance of their own: $f_l = (1 - \alpha) f_{l-1} U_l + \varepsilon\, U'_l$ with independent log-normal factors $U_l, U'_l$ of mean 1. The constraint holds given the past, with equality; we take $\alpha = 0.2$ and $\varepsilon = 0.02$.
#
# **Predict before you run:** the floor is $\varepsilon / \alpha = 0.1$. Does a path come to the floor and stay there?

# %% mystnb={"figure": {"name": "fig-descent-paths", "caption": "Losses of the caricature over 120 layers: four of 4,000 paths (thin), their mean (thick), the bound (dashed) and the floor (dotted)."}, "image": {"alt": "Random paths that swing around a floor; their mean follows the bound", "width": "80%"}}
random = torch.Generator().manual_seed(SEED)
U = (0.7 * torch.randn(2, 120, 4000, generator=random) - 0.7**2 / 2).exp()  # of mean 1
paths = [torch.ones(4000)]
for now, later in zip(*U, strict=True):
    paths.append((1 - share) * paths[-1] * now + epsilon * later)
paths = torch.stack(paths)
_, ax = plt.subplots(figsize=(6.8, 3.2))
ax.plot(paths[:, :4], linewidth=0.7, color="0.6")
ax.plot(paths.mean(1), label="mean of the paths", color="k")
ax.plot(theory.layer_bounds(1.0, [share] * 120, epsilon), "--", label="bound")
ax.axhline(floor, color="0.3", linestyle=":", label="floor")
ax.set(yscale="log", xlabel="layer $l$", ylabel="loss")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
t = 1.5 * floor
assert (paths.amin(0) <= t).all()
waited, promised = (paths <= t).int().argmax(0).double().mean(), 1 / (share * t - epsilon)
assert waited <= promised
print(f"layers until the loss is at most {t:.2f}: {waited:.1f}, promised {promised:.0f}")
print(f"paths above {t:.2f} at the last layer: {(paths[-1] > t).double().mean():.0%}")

# %% [markdown]
# In our run every path visits the level, long before the theorem says it must, and some are above it again at the end. That is what $\liminf$ means: *again and again*, not *from then on*. A network of $L$ layers stops at layer $L$ and hands out $f_L$, not the lowest loss on the way.
#
# ## Where the tolerance comes from
#
# Nobody trains on $\bar f_l$. There are $S$ samples, and the constraint is on their mean $\hat f_l$. Three errors come in between.
#
# - **Relaxation $u$**: what the slacks on the samples are at the end of training. Multipliers that have not settled, a leak {eq}`eq-descent-resilient`, a duality gap: all end up here.
# - **Sample complexity $\zeta$**: $\lvert \hat f_l - \bar f_l \rvert \le \zeta$ for all layers.
# - **Expressivity $\nu$**: how far the losses of the best network of the given kind are from those of an ideal sequence of maps.
#
# A slack $g_l$ holds $f_l$ with weight 1 and $f_{l-1}$ with weight $1 - \alpha$. So an error of each loss can move it by $2 - \alpha$ times that error.
# The expressivity enters through the relaxation that it forces on you, so the tolerance has two parts.
#
# :::{prf:proposition} The tolerance of a trained network
# :label: prop-descent-tolerance
# Let the slacks on the samples be at most $u$, and $\lvert \hat f_l - \bar f_l \rvert \le \zeta$ for $l = 0, \dots, L$. Then {eq}`eq-descent-tolerance` holds with
#
# $$
# \varepsilon = u + (2 - \alpha)\, \zeta ,
# $$ (eq-descent-statistical-slack)
#
# and so does
#
# $$
# \bar f_L \le (1 - \alpha)^L\, \hat f_0 + \frac{u}{\alpha} + \zeta .
# $$ (eq-descent-pay-once)
# :::
#
# :::{prf:proof}
# $\bar f_l \le \hat f_l + \zeta \le (1 - \alpha) \hat f_{l-1} + u + \zeta \le (1 - \alpha)(\bar f_{l-1} + \zeta) + u + \zeta$. For the second, apply {prf:ref}`thm-descent-convergence` to the means of the samples, with the tolerance $u$, and leave them at the end only: $\bar f_L \le \hat f_L + \zeta$. $\square$
# :::
#
# Code: {py:func}`unrolled.descent.theory.statistical_tolerance`. Compare the two. Through the layers the samples cost $(2 - \alpha)\, \zeta / \alpha$, at $\alpha = 0.05$ that is $39\, \zeta$; at the end they cost $\zeta$. *Telescope first, change the distribution last.* Which way the paper goes we do not know. The first way is needed if you want descent of every layer on new data, the second
# if you care for the output.
#
# :::{prf:proposition} A solution on samples is nearly one
# :label: prop-descent-solution
# Let $P$ be the lowest $\bar f_L$ of all sequences of maps that keep the exact constraints, attained by some sequence $\varphi_0, \dots, \varphi_L$. Let a network of the class have statistical losses within $\nu$ of those of $\varphi_0, \dots, \varphi_L$, and let $\lvert \hat f_l - \bar f_l \rvert \le \zeta$ hold for *all* networks of the
# class at once. Then a network with the lowest $\hat f_L$ among those with slacks on the samples of at most $u = (2 - \alpha)(\nu + \zeta)$ has
#
# $$
# \bar f_L \le P + \nu + 2 \zeta \qquad\text{and}\qquad \bar f_l \le (1 - \alpha)\, \bar f_{l-1} + (2 - \alpha)(\nu + 2 \zeta) .
# $$ (eq-descent-solution)
# :::
#
# :::{prf:proof}
# The network of the assumption has statistical slacks of at most $(2 - \alpha) \nu$, so slacks on the samples of at most $u$: it is allowed. So the best allowed one has $\hat f_L$ no larger than its, which is at most $P + \nu + \zeta$. Once more $\zeta$ for $\bar f_L$. The slacks are {eq}`eq-descent-statistical-slack`. $\square$
# :::
#
# This is our reading of "converges to the optimal statistical loss": up to $\nu$ and $\zeta$, *if the problem on the samples is solved*. Whether training solves it is another question, to which the theory of the dual problem gives an answer for a small duality gap, and stochastic gradients another.
# For one fixed network and fresh samples, with losses in $[0, f_{\max}]$, Hoeffding's inequality and a union bound over the $L + 1$ losses give, with probability $1 - \delta$,
#
# $$
# \zeta = f_{\max} \sqrt{\frac{\ln\bigl( 2 (L + 1) / \delta \bigr)}{2 S}} .
# $$ (eq-descent-hoeffding)
#
# Code: {py:func}`unrolled.descent.theory.sampling_error`. For the training samples that is *not* enough, since the network was chosen with them; $\zeta$ must then hold for the whole class, and grows with its size.
#
# **Predict before you run:** with 12 layers, losses in $[0, 1]$ and a share of 0.05, how many fresh samples does it take until what they cost is below 0.1, paid once and paid at every layer?

# %%
once = pd.Series({10**k: theory.sampling_error(10**k, 12, 1.0) for k in range(3, 7)})
every = [theory.statistical_tolerance(0.05, sampling=zeta) / 0.05 for zeta in once]
pd.DataFrame({"paid once": once, "paid at every layer": every}).rename_axis("samples").round(3)

# %% [markdown]
# Paid once a thousand samples are enough; paid at every layer not even a hundred thousand.
#
# ### The floor, by the number of samples
#
# Give each layer a step for every direction, $d$ numbers. Now the network can follow its samples. It has 12 layers, trained on $S$ samples with the share 0.4 on the excess over the best loss *on the samples*. The last layer then has the gains of least squares, $\hat q_i = \sum y_i x_i / \sum y_i^2$. Given the $y_i$ they are off by a variance of
# $\gamma^2 / \chi_i$ over $\sum y_i^2$, and $\mathbb{E}[1 / \sum y_i^2] = 1 / (\chi_i (S - 2))$ (the mean of an inverse chi-squared variable). So at $\hat f^*$ on the samples the expected excess is
#
# $$
# \mathbb{E}\bigl[ \bar f_L - f^* \bigr] = \frac{f^*}{S - 2} .
# $$ (eq-descent-sample-floor)
#
# First check this by drawing many sets of samples; no network is needed.


# %%
# The excess of least squares on a set of samples.
def least_squares(count, seed):
    x, y = sample(count, seed)
    off = (x * y).mean(0) / (y * y).mean(0) - s / chi
    return (chi * off**2).mean().item()


mean = np.mean([least_squares(64, 100 + k) for k in range(2000)])
assert_close(mean, optimum / 62, rtol=0.05, atol=0)

# %% [markdown]
# **Predict before you run:** on the samples the loss goes on falling by its share. What does the statistical loss do? And how does the measured floor compare with $f^* / (S - 2)$, with $\zeta$ and with $(2 - \alpha)\, \zeta / \alpha$?


# %%
# Train on samples; return the excess there and in truth, (L + 1,) each.
def train_on(count, seed, alpha=0.4, num_layers=12):
    x, y = sample(count, seed)
    moments = [(x * x).mean(0), (x * y).mean(0), (y * y).mean(0)]
    base = (moments[0] - moments[1] ** 2 / moments[2]).mean()  # the optimum there
    steps = 0.6 * random_steps(num_layers, seed, d)
    steps, _ = train(steps, alpha, base, moments)
    return (layer_losses(steps, moments) - base).numpy(), excess(steps)


COUNTS = (16, 64, 256, 1024)
curves = {(S, seed): train_on(S, seed) for S in COUNTS for seed in SEEDS}

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-descent-samples", "caption": "Live networks of 12 layers with a step for every direction, trained on S samples. Left: excess loss by layer, mean of the seeds; solid in truth, dashed on the samples. Right: excess of the last layer in truth (points: seeds), that of least squares on the same samples (dashes), its expectation, and two bounds from the measured error of the layer losses (mean of the seeds)."}, "image": {"alt": "Left: excess loss over layers with floors that fall with the number of samples. Right: floor over number of samples on two logarithmic axes, far below the bounds"}}
(_, (left, right)), zeta = plt.subplots(1, 2, figsize=(10, 3.6)), []
for i, S in enumerate(COUNTS):
    on_samples, truth = np.stack([curves[S, seed] for seed in SEEDS], axis=1)
    look = {"color": f"C{i}", "marker": "os^D"[i], "markersize": 4}
    left.plot(truth.mean(0), **look, label=f"$S$ = {S}")
    left.plot(on_samples.mean(0), "--", color=f"C{i}")
    right.plot([S] * COUNT, truth[:, -1], **look, linestyle="")
    right.plot([S] * COUNT, [least_squares(S, seed) for seed in SEEDS], "k_", markersize=12)
    zeta.append(np.abs(truth - on_samples).max(1).mean())
right.plot(COUNTS, [optimum / (S - 2) for S in COUNTS], "k-", label="least squares, expected")
right.plot(COUNTS, zeta, "k--", label="$\\zeta$: paid once")
right.plot(COUNTS, [1.6 / 0.4 * z for z in zeta], "k:", label="paid at every layer")
left.set(yscale="log", xlabel="layer $l$", ylabel="excess loss", xticks=range(0, 13, 2))
right.set(xscale="log", yscale="log", xlabel="samples $S$", ylabel="excess of the last layer")
left.legend(loc="lower left", fontsize=9)
right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# In our run the floor falls with $S$. With 64 samples and more the networks end about where least squares on the same samples ends, and both scatter around the expectation: single draws do. At 16 samples the networks end *below* least squares, because they have not arrived there (on the
# samples, too, their excess is not near 0), and a network that stops short is closer to the truth here.
#
# Everything lies far below both bounds. There are two reasons. $\zeta$ here is the largest error of any layer, in our run mostly that of $f_0$: the samples happen to be longer or shorter than expected, by an amount that falls like $1 / \sqrt S$, which no step
# can change. And near an optimum errors of the weights enter squared. So $\zeta$ and $\nu$ tell you *what* a guarantee depends on. They do not tell you how good a network is.
#
# Also see what "descends" has become: below the floor the networks go on descending *on their samples*, and in truth the late layers stand still or, at 16 samples, get worse. A constraint on training data is a constraint on training data.
#
# ## Can the constraint be kept?
#
# All of this assumed {eq}`eq-descent-tolerance`. Now leave the excess and take the loss itself, as the paper's constraint does. Then there is a wall: no loss is below $f^*$.
#
# :::{prf:proposition} The corridor
# :label: prop-descent-corridor
# Let all $\bar f_l \ge f^*$. A network that keeps the exact constraints with shares $\alpha_1, \dots, \alpha_L$ stays, with $\rho_0 = 1$, in
#
# $$
# \frac{\rho_l}{\rho_L}\, f^* \le \bar f_l \le \rho_l\, \bar f_0, \qquad l = 0, \dots, L .
# $$ (eq-descent-corridor)
#
# So it must have $\rho_L \ge f^* / \bar f_0$. A constant share can be kept only if
#
# $$
# \alpha \le \alpha_{\max} = 1 - \Bigl( \frac{f^*}{\bar f_0} \Bigr)^{1/L} \approx \frac1L \ln \frac{\bar f_0}{f^*} ,
# $$ (eq-descent-largest-share)
#
# and a sequence of shares can be kept at every depth only if $\sum_l \alpha_l \le \ln(\bar f_0 / f^*)$. If $f^* > 0$, no constant share can.
# :::
#
# :::{prf:proof}
# Apply the constraints from 0 to $l$ for the upper line, and from $l$ to $L$ for the lower: $f^* \le \bar f_L \le (\rho_L / \rho_l)\, \bar f_l$. At $l = 0$ the lower line must not exceed $\bar f_0$. The last claim is $\alpha_l \le -\ln(1 - \alpha_l)$, added up. $\square$
# :::
#
# Read the lower line twice. It says that *early layers must not be too good*. A layer with $\bar f_l = f^*$ before the end makes its successor infeasible: it cannot take away a share of what nobody can remove. The same holds for every converged network: at a fixed point of the layers
# $\bar f_l = \bar f_{l-1}$, so the slack is $\alpha \bar f_l > 0$, whatever the share. The constraint asks for layers that are spread evenly between start and optimum (on a logarithmic scale), and forbids early ones that do well. Sabotage is not only a trick of the multipliers
# ({eq}`eq-descent-sabotage`); with a tight corridor it is an order.
#
# With loss of $\ln 2$ at the start, as for two classes, and $f^*$ unknown, the final loss $f_L$ of an ERM network gives a hint how tight the corridor of *your* problem is. And the rule for shares is not "0.05 is small" but *the shares of all layers together must be well below* $\ln(\bar f_0 / f^*)$.
#
# ### A trap for multipliers
#
# A corridor that is open does not mean that training finds it. Let a network have all its layers $1, \dots, L$ at the lowest loss. Then each $\bar f_l$ is at a minimum in the weights, so *every* gradient $\nabla \bar f_l$ vanishes, and with it the gradient of the Lagrangian, for all multipliers. The prices
# rise without end, and nothing moves.

# %%
arrived = torch.zeros(8, d, dtype=torch.float64)
arrived[0] = 1 / chi  # the first layer is perfect, the others do nothing
J = torch.autograd.functional.jacobian(layer_losses, arrived)
assert_close(J[1:], torch.zeros_like(J[1:]))
limit = theory.largest_share(1.0, optimum, 8)
print(f"largest share: {limit:.3f}; slack where all have arrived: {limit * optimum:.3f}")

# %% [markdown]
# Code: {py:func}`unrolled.descent.theory.largest_share`, {py:func}`unrolled.descent.theory.corridor`.
#
# Now train networks with a step per direction on the plain losses, once with 0.8 of the largest share and once with 1.3 times of it, all with the dual step 3, in three ways: with plain multipliers; with a leak of cost $c = 20$ ({eq}`eq-descent-resilient`); and
# plain, but *slow*, at an eighth of the learning rate.
#
# **Predict before you run:** in which of the six cases are the constraints kept in the end, and in which do the multipliers settle?

# %%
ways, runs = {"plain": {}, "leak": {"relaxation_cost": 20.0}, "slow": {"rate": 0.0025}}, {}
for part in (0.8, 1.3):
    shares = ExactConstraint(constant_alphas(part * limit, 8))
    for (way, options), seed in product(ways.items(), SEEDS):
        start = 0.2 + (random_steps(8, seed, d) - 0.2) / 3
        steps, prices = train(start, part * limit, 0.0, dual_step=3.0, **options)
        f = layer_losses(steps)
        runs[part, way, seed] = f, prices, shares.slacks(f).max().item()
table = [[*key, prices[-1], slack] for key, (_, prices, slack) in runs.items()]
names = ["part of the largest share", "way", "seed", "prices at the end", "largest slack"]
pd.DataFrame(table, columns=names).groupby(names[:2])[names[3:]].agg(["min", "max"]).round(4)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-descent-corridor", "caption": "Live networks of 8 layers with a step for every direction, constrained on the loss itself; first seed. Left: the corridor for 0.8 of the largest share (grey), and the trained networks. Right: sum of the multipliers over training (linear below 1, logarithmic above); solid for 0.8, dashed for 1.3 times the largest share."}, "image": {"alt": "Left: a grey corridor; the losses of the plain network lie below it, those of the leaky and the slow one inside. Right: sums of multipliers that rise without end, or go back to zero"}}
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
lines = theory.corridor(1.0, optimum, constant_alphas(0.8 * limit, 8))
left.fill_between(range(9), *lines, color="0.85", label="corridor")
for way, colour, marker in zip(ways, ("#D55E00", "#0072B2", "#009E73"), "so^", strict=True):
    (f, prices, _), (_, high, _) = runs[0.8, way, SEED], runs[1.3, way, SEED]
    left.plot(f, marker=marker, markersize=4, color=colour, label=way)
    right.plot(prices, color=colour, label=f"{way}, 0.8")
    right.plot(high, "--", color=colour, label=f"{way}, 1.3")
left.set(xlabel="layer $l$", ylabel="loss", yscale="log")
left.legend(loc="lower left")
right.set(xlabel="training step", ylabel="sum of the multipliers", yscale="symlog")
right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# In our run the plain multipliers end high in both cases: where there is no solution, as they must, and where there is one, because the layers have fallen into the trap, below the corridor. The leak keeps prices small while the layers are still on their way. With the share that can be kept, its networks
# walk down the corridor: no slack is positive, and the prices have gone back to zero. The slow networks come almost as far, with slacks a small fraction of those of the plain ones: weights that are slow against the prices are steered before they arrive. With the share that is too large the leak
# settles as well, with slacks that it pays for, while plain and slow prices rise on. "Feasible" is a property of the problem; whether training arrives is one of training. The theorems assume that it does.
#
# ## Out of distribution
#
# Let the data come from another distribution $\mathcal{D}'$, and write $\bar f'_l$ for the expected losses of the *same* network there. Suppose we know how far each can move:
#
# $$
# \lvert \bar f'_l - \bar f_l \rvert \le \xi_l, \qquad l = 0, \dots, L .
# $$ (eq-descent-shift)
#
# :::{prf:theorem} Descent out of distribution, in our form of the paper's Theorem 4
# :label: thm-descent-out-of-distribution
# Let {eq}`eq-descent-tolerance` and {eq}`eq-descent-shift` hold. Then
#
# $$
# \bar f'_l \le (1 - \alpha)\, \bar f'_{l-1} + \varepsilon + \xi_l + (1 - \alpha)\, \xi_{l-1}, \qquad
# \bar f'_L \le (1 - \alpha)^L \bar f_0 + \frac{\varepsilon}{\alpha} + \xi_L .
# $$ (eq-descent-shifted)
#
# The loss still does not rise from layer $l - 1$ to $l$, $\bar f'_l \le \bar f'_{l-1}$, wherever
#
# $$
# \bar f_{l-1} - \bar f_l \ge \xi_l + \xi_{l-1}, \qquad\text{for example if}\qquad \alpha\, \bar f_{l-1} \ge \varepsilon + \xi_l + \xi_{l-1} .
# $$ (eq-descent-kept)
#
# And the shifts are bounded as follows.
#
# **(a)** Losses in $[0, f_{\max}]$, total variation $\mathrm{TV} = \sup_E \lvert \mathcal{D}'(E) - \mathcal{D}(E) \rvert$:
#
# $$
# \xi_l = f_{\max}\, \mathrm{TV}(\mathcal{D}, \mathcal{D}') .
# $$ (eq-descent-total-variation)
#
# **(b)** $f_l(X)$ Lipschitz in the sample, with constant $\mathrm{Lip}_l$: $\xi_l = \mathrm{Lip}_l\, \mathcal{W}_1(\mathcal{D}, \mathcal{D}')$, the first Wasserstein distance.
#
# **(c)** A squared loss $f_l = \frac1d \lVert h_l - x \rVert^2$ whose error $h_l - x$ is Lipschitz in the sample with constant $\mathrm{Lip}_l$, and the second Wasserstein distance:
#
# $$
# \sqrt{\bar f'_l} \le \sqrt{\bar f_l} + \mathrm{Lip}_l\, \frac{\mathcal{W}_2(\mathcal{D}, \mathcal{D}')}{\sqrt d} .
# $$ (eq-descent-wasserstein)
# :::
#
# :::{prf:proof}
# *Outline.* A loss moves by at most its $\xi_l$; a slack holds two losses. What is left is to bound one expectation under two distributions.
#
# $\bar f'_l \le \bar f_l + \xi_l \le (1 - \alpha) \bar f_{l-1} + \varepsilon + \xi_l$, and $\bar f_{l-1} \le \bar f'_{l-1} + \xi_{l-1}$. The second claim is {eq}`eq-descent-floor` plus $\xi_L$. For {eq}`eq-descent-kept`, $\bar f'_l \le \bar f_l + \xi_l \le \bar f_{l-1} - \xi_{l-1} \le \bar f'_{l-1}$. (a) The expectation of a loss in $[0, f_{\max}]$ is
# $\int_0^{f_{\max}} \Pr(f > t)\, dt$; the integrand changes by at most TV. (b) For every joint distribution of $X$ and $X'$ with the right margins, $\mathbb{E} \lvert f_l(X') - f_l(X) \rvert \le \mathrm{Lip}_l\, \mathbb{E} \lVert X' - X \rVert$; the smallest right side is $\mathcal{W}_1$. (c) In the same way, with the triangle inequality of
# $\sqrt{\mathbb{E} \lVert \cdot \rVert^2}$. $\square$
# :::
#
# TV, $\mathcal{W}_1$ and $\mathcal{W}_2$ are standard ({cite:t}`villani2009optimal`). What does {eq}`eq-descent-kept` tell? A layer keeps descending as long as its own step is larger than what the shift does to it and its predecessor. Early layers have large steps. *Late layers descend by little, so they turn first*, at losses below about
# $2 \xi / \alpha$. And with each layer the map can become steeper, so $\xi_l$ tends to grow with $l$.
#
# In our problem the shift can be computed. Change the noise level from $\gamma$ to $\gamma'$ and keep the network. Only $\mathbb{E}[y_i^2]$ changes, so
#
# $$
# \bar f'_l = \bar f_l + (\gamma'^2 - \gamma^2)\, \frac1d \sum_i q_{l,i}^2 .
# $$ (eq-descent-shifted-noise)
#
# For the bound, take $x$ and the noise as the sample: under the shift the noise moves by $(\gamma' - \gamma) z$, which is $\lvert \gamma' - \gamma \rvert \sqrt d$ in root mean square, and the error $h_l - x$ moves by $q_{l,i}$ times as much in direction $i$. So {eq}`eq-descent-wasserstein` reads $\sqrt{\bar f'_l} \le \sqrt{\bar f_l} + \max_i \lvert q_{l,i} \rvert\, \lvert \gamma' - \gamma \rvert$.
#
# **Predict before you run:** the constrained networks of {numref}`fig-descent-unrolled-gd` at a third more noise, at twice and at three times the noise: which layers still descend? And is the last loss lower than that of ERM?

# %%
LEVELS, shifted, kept = (0.3, 0.32, 0.4, 0.6, 0.9), {}, {}
for level, seed in product(LEVELS, SEEDS):
    steps = trained[8, 0.4, seed]
    f, q = layer_losses(steps), gains(steps)
    far = layer_losses(steps, (one, s, s**2 + level**2))
    assert_close(far, f + (level**2 - gamma**2) * (q**2).mean(1))
    xi = (f.sqrt() + q.abs().amax(1) * (level - gamma)) ** 2 - f
    assert (far <= f + xi + 1e-12).all()
    kept[level, seed] = -f.diff() >= xi[1:] + xi[:-1]
    assert (far.diff() <= 0)[kept[level, seed]].all()
    shifted[level, seed] = far


# %%
def rising(losses):  # the layers, counted from 1, at which the loss rises
    return " ".join(str(1 + i) for i in (losses.diff() > 0).nonzero().flatten().tolist())


table = [[rising(shifted[level, seed]) for seed in SEEDS] for level in LEVELS]
pd.DataFrame(table, index=LEVELS, columns=[f"rises in seed {seed} at" for seed in SEEDS])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-descent-shift", "caption": "The live networks of the first seed at other noise levels. Left: expected loss of the constrained network by layer; filled marks: layers at which the theorem promises descent. Right: loss of the last layer over the noise level, of both networks, and the Wasserstein bound of the constrained one."}, "image": {"alt": "Left: losses that descend at the training noise and rise in the late layers at larger noise. Right: last losses of ERM and constrained networks, which lie on each other"}}
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for i, level in enumerate(LEVELS):
    far, where = shifted[level, SEED], 1 + kept[level, SEED].nonzero().flatten()
    left.plot(far, "o-", color=f"C{i}", mfc="none", label=f"$\\gamma'$ = {level}")
    left.plot(where, far[where], "o", color=f"C{i}")
levels = torch.linspace(0.1, 0.9, 45)
for name, alpha in (("erm", 0), ("exact", 0.4)):
    steps = trained[8, alpha, SEED]
    last = [layer_losses(steps, (one, s, s**2 + v**2))[-1] for v in levels]
    right.plot(levels, last, **figures.style_of(name).line(), label=figures.label_of(name))
reach = gains(steps)[-1].max() * (levels - gamma).abs()
bound = (layer_losses(steps)[-1].sqrt() + reach) ** 2
right.plot(levels, bound, "--", color="0.5", label="Wasserstein bound")
left.set(xlabel="layer $l$", ylabel="loss")
left.legend(loc="center left", bbox_to_anchor=(1, 0.5))
right.set(xlabel="noise level $\\gamma'$", ylabel="loss of the last layer")
right.legend()
plt.show()

# %% [markdown]
# In our run the late layers turn first. At a third more noise only layers of the second half rise, at twice the noise all from the fourth on, in every seed. At three times the noise even a first layer rises, in one seed, whose first step is large. The promise (the filled marks) holds wherever it is made, and it ends much
# sooner than descent itself does. So the theorem is seen at work: descent is kept for small shifts, where there is much of it.
#
# Now the right side. ERM and the constrained network lie on each other, at every noise level. They must: both have found the ridge gains in their last layer, and nothing else enters. ERM may wander on the way, the constrained network may descend like a textbook; what comes out is the same estimate. *Nothing in the theorem compares the two.* It bounds $\bar f'_L$ by
# $\bar f_L + \xi_L$, for any network, and the constraint has no hold on $\xi_L$, the steepness of the map. If constrained networks are more robust in practice, as the paper reports, then for a reason that is not in this theorem. The loss at an *earlier* layer is lower at large noise than the last one: there the gains are still small. That is early stopping, in depth.
#
# ## What the theorems do not say
#
# **1. They speak of the mean, not of the sample.** Ten samples with a loss of 1. At each layer one of them is solved, and all others get one percent worse.

# %%
f = torch.ones(6, 10)
for layer in range(1, 6):
    f[layer] = 1.01 * f[layer - 1]
    f[layer, :layer] = 0.01
live = sample_losses(trained[8, 0.4, SEED], x, y)
toy, ours = (violations(g, ExactConstraint([0.0] * (len(g) - 1))).per_layer for g in (f, live))
print("rising share in the constrained network:", [round(v, 2) for v in ours.tolist()])
table = {"mean loss": f.mean(1)[1:], "share of samples that rise": toy}
pd.DataFrame(table, index=pd.Index(range(1, 6), name="layer"))

# %% [markdown]
# The mean falls by nine percent or more at every layer, and at four of the five layers most samples get worse. The printed line is the same count for our constrained network, on samples of the right distribution: in our run hardly a sample rises in the first layers, and nearly half of them do in the last. An expected loss can fall because a few samples fall. All that the theorem says of
# single samples in a finite network is Markov's inequality, $\Pr(f_L(X) > t) \le \bar f_L / t$.
#
# **2. They hold where the constraint holds.** On the training samples you can check it. On others it holds up to $(2 - \alpha)\, \zeta$, which for late layers is more than all they do ({numref}`fig-descent-samples`). Measure slacks on validation data; {eq}`eq-descent-hoeffding` says how many samples that takes.
#
# **3. They assume that the shares can be kept.** With $f^* > 0$ no constant share can be kept at every depth, and every early layer has a *lower* bound ({eq}`eq-descent-corridor`). So "$L \to \infty$ with the share $\alpha$" is a statement about the excess, about $f^* = 0$, or about nothing.
#
# **4. They assume that training has arrived.** Prices can rise for ever where a solution exists ({numref}`fig-descent-corridor`). A final slack is an observation, to be reported with every result.
#
# **5. They do not compare.** A bound of the constrained network's loss is no statement about ERM, whose loss is usually at least as low on the distribution of training, since it asks for nothing else.
#
# **6. They do not speak of 6 or 24 layers.** At $\alpha = 0.05$ and $L = 12$ the guarantee is $0.95^{12} = 0.54$ of the start. For two classes that is 0.37 nats, a loss that many a network of that depth has with or without constraints.
#
# What remains is worth having: a *checkable* condition on the layers (measure $\hat f_l$, read the slacks), from which follow a floor, a rate and a range of shifts. It is a certificate for the path.
#
# ## What the paper says, and what we saw
#
# What our sources report of the theorems contains no number that we could compare. So each line names the figure that shows it.
#
# | claim | paper | ours | scale | verdict |
# |---|---|---|---|---|
# | convergence to the optimal statistical loss | Theorem 2 | proved here in our form; every live network keeps its bound, deeper ones end lower ({numref}`fig-descent-depth`), and the floor falls with the number of samples ({numref}`fig-descent-samples`) | linear toy, live | illustrated; a theorem needs no reproduction |
# | descent out of distribution | Theorem 4 | proved here in our form; descent holds in the first half of the layers at a third more noise, and is lost in the last ({numref}`fig-descent-shift`) | linear toy, live | illustrated |
# | small duality gap | from {cite:t}`chamon2023constrained` | | | not attempted here; see {numref}`descent-dual_ascent` |
# | lower loss than ERM out of distribution | seen in experiments, not in a theorem | equal to within the width of a line ({numref}`fig-descent-shift`) | linear toy, live | not seen; a toy is no evidence against it |
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | statements and proofs | full versions not known to us | our own, elementary | a proof you can check is better than a citation of what we have not read |
# | what is constrained | the loss itself | the excess, and the loss in the section on the corridor | with $f^* > 0$ a constant share cannot be kept in the limit |
# | where $\zeta$ and $\nu$ enter | not known to us | {eq}`eq-descent-statistical-slack`, {eq}`eq-descent-solution` | the smallest assumptions that do the work |
# | network | Transformers | one learned number per layer, or one per direction | the optimum, the expected losses and the shift are known exactly |
# | training | stochastic gradients | Adam on exact expectations or on all samples | no noise of batches; the dual step is plain ascent |
# | start of the steps | | random | with equal steps the gradient of $f_L$ is equal in all layers, and they stay equal |
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: how deep?
# :label: ex-descent-depth-needed
# The layers descend with the share $\alpha = 0.2$ and the tolerance $\varepsilon = 0.01$, from $\bar f_0 = 1$. From which depth on does {eq}`eq-descent-floor` promise a loss of at most 0.08?
# :::

# %% tags=["exercise"]
answer = None  # your number of layers
checks.descent_depth_needed(answer)

# %% [markdown]
# :::{solution} ex-descent-depth-needed
# :class: dropdown
# The floor is 0.05, and $0.05 + 0.95 \cdot 0.8^L \le 0.08$ when $L \ge \ln(0.03 / 0.95) / \ln 0.8 = 15.5$.
#
# ```python
# bounds = theory.layer_bounds(1.0, constant_alphas(0.2, 40), 0.01)
# answer = next(l for l, bound in enumerate(bounds) if bound <= 0.08)
# ```
# :::

# %% [markdown]
# :::{exercise} Predict: too deep
# :label: ex-descent-deepest
# A classifier of two classes starts at $\bar f_0 = \ln 2$, and no network gets below $f^* = 0.44$. With how many layers at most can it keep the share 0.05 in each? Compare with the 12 layers of a common encoder.
# :::

# %% tags=["exercise"]
answer = None  # your number of layers
checks.descent_deepest(answer)

# %% [markdown]
# :::{solution} ex-descent-deepest
# :class: dropdown
# By {eq}`eq-descent-corridor` $0.95^L \ge 0.44 / \ln 2$, so $L \le 8.9$. With 12 layers the share must be below 0.037.
#
# ```python
# fits = [L for L in range(1, 99) if 0.95**L * np.log(2) >= 0.44]
# answer = max(fits)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: what one step can do
# :label: ex-descent-step-share
# The layer class limits the share: that is $\nu$ at work. In {eq}`eq-descent-excess`, from the excess $\sum_i b_i$ (leave out the $1/d$), what is the largest share that *one* step $\theta$ can keep? Write it for tensors `b` and `curvature`, which holds the $\chi_i$. Which step gives it?
# :::


# %% tags=["exercise"]
def step_share(b, curvature): ...  # the largest share


checks.descent_step_share(step_share)

# %% [markdown]
# :::{solution} ex-descent-step-share
# :class: dropdown
# $\sum_i b_i (1 - \theta \chi_i)^2$ is lowest at $\theta = \sum b_i \chi_i / \sum b_i \chi_i^2$, where it is $\sum b_i - (\sum b_i \chi_i)^2 / \sum b_i \chi_i^2$. The worst case over all $b$ is {eq}`eq-descent-safe-share` (Kantorovich's inequality).
#
# ```python
# def step_share(b, curvature):
#     first, second = (b * curvature).sum(), (b * curvature**2).sum()
#     return first**2 / (b.sum() * second)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how many validation samples?
# :label: ex-descent-samples-needed
# You want to know the statistical slacks of a trained network of $L$ layers to within `tolerance`, with probability $1 - \delta$ for all of them at once. How many fresh samples does {eq}`eq-descent-hoeffding` ask for? Try it with $L = 12$, $f_{\max} = 1$, $\alpha = 0.05$, $\delta = 0.05$ and a tolerance of 0.01.
# :::


# %% tags=["exercise"]
def samples_needed(num_layers, largest_loss, alpha, tolerance, failure): ...  # S


checks.descent_samples_needed(samples_needed)

# %% [markdown]
# :::{solution} ex-descent-samples-needed
# :class: dropdown
# The tolerance is $(2 - \alpha)\, \zeta$. Solve for $S$. The example asks for 118,901 samples: more than most validation sets have, for a tolerance that is a fifth of the share of a loss of 1.
#
# ```python
# def samples_needed(num_layers, largest_loss, alpha, tolerance, failure):
#     zeta = tolerance / (2 - alpha)
#     return largest_loss**2 * np.log(2 * (num_layers + 1) / failure) / (2 * zeta**2)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: the layers that hold
# :label: ex-descent-kept-layers
# Given expected losses and bounds on their shifts, both $(L + 1)$, return for layers $1, \dots, L$ whether {eq}`eq-descent-kept` promises that the loss does not rise.
# :::


# %% tags=["exercise"]
def kept_layers(losses, shifts): ...  # a boolean tensor (L,)


checks.descent_kept_layers(kept_layers)

# %% [markdown]
# :::{solution} ex-descent-kept-layers
# :class: dropdown
# The worst case: this loss rises by its shift, the one before falls by its own.
#
# ```python
# def kept_layers(losses, shifts):
#     return losses[1:] + shifts[1:] <= losses[:-1] - shifts[:-1]
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how much shift?
# :label: ex-descent-largest-shift
# The losses lie in $[0, f_{\max}]$. Up to which total variation distance do {eq}`eq-descent-kept` and {eq}`eq-descent-total-variation` promise descent at *every* layer? Return 0 if some layer rises already.
# :::


# %% tags=["exercise"]
def largest_shift(losses, largest_loss): ...  # a distance


checks.descent_largest_shift(largest_shift)

# %% [markdown]
# :::{solution} ex-descent-largest-shift
# :class: dropdown
# Both shifts are $f_{\max} \mathrm{TV}$, so each drop must be at least $2 f_{\max} \mathrm{TV}$. The layer that descends least decides.
#
# ```python
# def largest_shift(losses, largest_loss):
#     drop = (losses[:-1] - losses[1:]).min()
#     return drop.clamp_min(0) / (2 * largest_loss)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: shares that never run out
# :label: ex-descent-decaying-shares
# A constant share cannot be kept at every depth, a decaying one can. Return shares $\alpha_1, \dots, \alpha_L$ with $-\ln(1 - \alpha_l)$ in proportion to $l^{-p}$ that use up the corridor exactly: $\rho_L \bar f_0 = f^*$. For which $p$ does the first share stay away from 0 as $L$ grows? When the checker is content, scale the logarithms by
# 0.8, give them to `ExactConstraint` in `train`, and see whether plain multipliers find this corridor.
# :::


# %% tags=["exercise"]
def decaying_shares(start, optimum, num_layers, power): ...  # L numbers


checks.descent_decaying_shares(decaying_shares)

# %% [markdown]
# :::{solution} ex-descent-decaying-shares
# :class: dropdown
# Logarithms add up: split $\ln(\bar f_0 / f^*)$ in proportion to $l^{-p}$. The sum of $l^{-p}$ stays finite for $p > 1$, and then the first share has a limit above 0.
#
# ```python
# def decaying_shares(start, optimum, num_layers, power):
#     parts = torch.arange(1.0, num_layers + 1) ** -power
#     return 1 - (optimum / start) ** (parts / parts.sum())
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** From a start far above, layers descend by the share $\alpha = 0.1$ up to the tolerance $\varepsilon = 0.01$. Where does the bound end, and does more depth help below it?
#
# :::{dropdown} Answer
# At the floor $\varepsilon / \alpha = 0.1$ ({eq}`eq-descent-floor`). More layers bring the bound closer to the floor and never below it.
# :::
#
# **2.** Each sample comes below a level again and again. What does the output of a network with a given number of layers promise?
#
# :::{dropdown} Answer
# Nothing by that: $\liminf$ is about infinitely many layers, and a path may be above the level at any one of them. For a given depth there is the bound on the mean, and Markov's inequality with it.
# :::
#
# **3.** Why can no constant share be kept at every depth if the lowest loss $f^*$ is positive? What is the way out?
#
# :::{dropdown} Answer
# The constraints together demand $f_L \le (1 - \alpha)^L f_0$, which falls below $f^*$. Constrain the excess $\bar f_l - f^*$, or take shares whose sum is at most $\ln(\bar f_0 / f^*)$ ({prf:ref}`prop-descent-corridor`).
# :::
#
# **4.** Which layers stop descending first when the data shift, and why?
#
# :::{dropdown} Answer
# The late ones. A layer goes on descending as long as its own step is larger than what the shift does to it and to the layer before ({eq}`eq-descent-kept`), and late layers take small steps.
# :::
#
# **5.** Does the theorem say that a constrained network has a lower loss on shifted data than ERM?
#
# :::{dropdown} Answer
# No. It bounds the loss of any network by its own loss at home and the shift $\xi_L$, and the constraint has no hold on $\xi_L$. In the chapter's own problem both networks give the same estimate.
# :::

# %% [markdown]
# ## Where this came from

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
