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
# (looped-inference)=
# # Test-time compute
#
# A looped model has a dial that a plain Transformer lacks: the number of loops. Nothing forces you to
# set it, when you use the model, to the number it was trained with. Here you turn the dial down and up,
# find out why some models get better, some get worse and some go round in circles, and what the
# training would have had to ask for.
#
# After this you can
#
# - read a looped model as a fixed-point iteration, and measure how fast its loops settle;
# - say what a loss on the last loop demands of the other loops, and prove what a random number of loops
#   adds to it;
# - weigh two training recipes of equal cost by the noise of their gradients;
# - tell from rows, with their intervals, where more loops help, where they hurt, and where you cannot tell;
# - write a rule that stops when the prediction stops changing, and judge it honestly.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | one variant, 2 loops, 12 steps | seconds |
# | live | FLT on text, 3 loops, 100 steps, two recipes | under a minute on one core |
# | laptop | text with 6 loops, pointer chasing with 4, three recipes, 3 seeds | forty minutes of one core |
# | colab | two variants on text, 6 layers of width 384, 1,500 steps | sized for an hour on a 16 GB GPU, not measured |

# %% tags=["setup", "hide-input"]
import copy
import warnings

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from unrolled import checks, figures, results
from unrolled.data.text import TokenBatches
from unrolled.looped import inference, instability
from unrolled.looped.model import LABELS

# torch.func.jvp loads a part of torch that warns about another part.
warnings.filterwarnings("ignore", ".*torch.jit.script", FutureWarning)
figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# Let $K$ be the number of loops in training and $k$ the number at inference. Call $k \le K$ *inside* the
# trained range and $k > K$ *beyond* it.
#
# 1. Inside, more loops help. So {cite:t}`fu2026looped` say.
# 2. Beyond, what happens is unpredictable. So they say too, and leave it open.
# 3. What happens beyond depends on whether the loop has a fixed point, and on what the training loss
#    asks of loops other than the last. That is our part.
#
# The figure has the first two, from *laptop* rows: models of one or two layers of width 64, trained at one
# $K$ with the loss on the last loop, as in the paper, and read at other numbers of loops.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-dial", "caption": "Laptop rows: models trained with the loss on the last loop, read at other numbers of loops; thin lines are seeds. Dotted: the trained number. Left: next-byte loss on text, trained at 6 loops. Right: pointer chasing, questions of four hops, trained at 4 loops. On text LT has a valley at the trained number, and LT_i and FLT hardly change beyond it. FLT's accuracy on pointer chasing comes and goes."}, "image": {"alt": "Loss on text and accuracy on pointer chasing over the number of loops at inference, by variant"}}
AT = "_by_inference_loops"
LOSS, NORM = "val_loss" + AT, "residual_norm" + AT
HOPS = "accuracy_of_depth_{}" + AT
evidence = results.select(results.read("looped.inference"), preset="laptop")
text = results.select(evidence, data="text")
chasing = results.select(evidence, data="pointer_chasing")


# Draw a column over the loops at inference, with a dot where we read; mark the trained K.
def over_loops(ax, rows, y, by="recipe", upto=24, **options):
    x = [k for k in rows[0]["inference_loops"] if k <= upto]
    cut = [row | {y: row[y][: len(x)]} for row in rows]
    options = {"xlabel": figures.axis_label("inference_loops"), **options}
    figures.curves(ax, cut, y, x=x, by=by, **options)
    for line in ax.lines:
        line.set(marker=".", markersize=5)
    ax.axvline(rows[0]["num_loops"], color="0.4", linestyle=":", linewidth=1)
    ax.locator_params(axis="x", integer=True)


_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5))
for ax, rows, y in ((left, text, LOSS), (right, chasing, HOPS.format(4))):
    look = {"by": "variant", "upto": 12, "legend": ax is left}
    over_loops(ax, results.select(rows, recipe="fixed"), y, **look)
    ax.set_ylabel("loss (nats per byte)" if ax is left else "accuracy, four hops")
plt.show()

# %% [markdown]
# ## Three recipes, and models to take apart
#
# The last loop is not the only place where a loss can stand. Any state can be asked for a prediction; let
# $\ell^{(k)}$ be the cross-entropy after loop $k$, as in {eq}`eq-looped-loss`. We compare three recipes
# that compute $K$ loops per training step, on average:
#
# - **fixed**: $K$ loops, the loss is $\ell^{(K)}$. This is the paper's.
# - **mean**: $K$ loops, the loss is the mean of $\ell^{(1)}, \dots, \ell^{(K)}$.
# - **random**: in each step a number of loops that is uniform on $1, \dots, 2K - 1$, so $K$ on average;
#   the loss is on the last of them. {cite:t}`geiping2025recurrent` train like this, with a distribution of
#   another shape (an exercise).
#
# Train the first and the last of them now, at $K = 3$ on text.
#
# **Predict before you run:** both are FLT, both see the same bytes in the same order. How does the loss of
# "fixed" change from loop 3 to loop 4, to loop 5, to loop 6?

# %% mystnb={"figure": {"name": "fig-looped-recipes-live", "caption": "Live FLT models, trained on text by two recipes: loss on validation windows at each number of loops. Dotted: the trained number."}, "image": {"alt": "Validation loss over loops at inference for two recipes", "width": "75%"}}
rows = inference.EXPERIMENT.run(PRESET, SEED)
live = results.select(rows, data="text", variant="flt")
_, ax = plt.subplots(figsize=(6.4, 3.2))
over_loops(ax, live, LOSS, ylabel="validation loss (nats per byte)")
plt.show()

# %% [markdown]
# Did you expect a zigzag? In our run "fixed" reads better after three and five loops than after four
# and six. (Further on this preset reads even numbers only.) The number it was trained with is odd. "Random"
# has been trained on both kinds, and its curve is nearly flat from loop 2 on.
#
# To find out why, we need the models themselves. Train them again (the same seed gives the same weights)
# and keep the states that each loop hands on, and the loss after each.

# %%
settings = inference.EXPERIMENT.settings(PRESET)
everything = inference.EXPERIMENT.cases(settings)
cases = results.select(everything, data="text", variant="flt")
models = {c["recipe"]: inference.trained(settings, c, SEED)[0] for c in cases}
K, corpus = cases[0]["num_loops"], instability.text_of(settings)
device = next(models["fixed"].parameters()).device
inputs, targets = (part[:32].to(device) for part in corpus.validation)


# The states h of all loops, (k, B, N, d), the logits, and the loss after each loop.
@torch.no_grad()
def unroll(model, num_loops):
    states = model(inputs, num_loops=num_loops, loop_states=True).loop_states
    logits = [model.logits_from(x) for x in states]
    losses = [F.cross_entropy(u.mT, targets).item() for u in logits]
    return torch.stack([model.norm(x) for x in states]), logits, losses


# %%
for model in models.values():
    theirs = instability.validation_loss(model, inputs, targets, 8, 2 * K)
    assert_close(unroll(model, 2 * K)[2][-1], theirs, rtol=1e-4, atol=1e-4)

# %% [markdown]
# Code: {py:func}`unrolled.looped.inference.trained`, {py:func}`unrolled.looped.instability.validation_loss`.
#
# ## A loop as a fixed-point iteration
#
# Fix a text, and with it the embedding $e$. From loop 2 on, one loop with the norm behind it is a function
# of the state alone,
#
# $$
# h^{(k+1)} = G\bigl(h^{(k)}\bigr), \qquad G(h) = \mathrm{norm}\bigl(F_\theta(h, e)\bigr).
# $$ (eq-looped-fixed-point)
#
# It is the same $G$ each time: that is what weight sharing means. A state with $h^* = G(h^*)$ is a *fixed
# point*: once there, further loops change nothing. When do the loops go there?
#
# :::{prf:theorem} Contraction (Banach)
# :label: thm-looped-contraction
# Let $G$ map a closed set $S$ into itself, and let there be a $q < 1$ with
# $\lVert G(h) - G(h') \rVert \le q\, \lVert h - h' \rVert$ for all $h, h'$ in $S$. Then $S$ holds exactly one
# fixed point $h^*$, and from every start $h^{(1)}$ in $S$
#
# $$
# \begin{aligned}
# \bigl\lVert h^{(k)} - h^* \bigr\rVert &\le q^{k-1} \bigl\lVert h^{(1)} - h^* \bigr\rVert , \\
# \bigl\lVert h^{(k)} - h^* \bigr\rVert &\le \frac{q}{1 - q} \bigl\lVert h^{(k)} - h^{(k-1)} \bigr\rVert .
# \end{aligned}
# $$ (eq-looped-contraction)
# :::
#
# :::{prf:proof}
# The steps shrink: $\lVert h^{(k+1)} - h^{(k)} \rVert \le q^{k-1} \lVert h^{(2)} - h^{(1)} \rVert$. Their sum
# is finite, so the states converge, to a point $h^*$ of the closed set. $G$ is continuous, so
# $G(h^*) = h^*$. Two fixed points would be closer to each other than they are, by the factor $q$; so there
# is one. Apply the condition $k - 1$ times with $h' = h^*$ for the first bound. For the second,
# $\lVert h^{(k)} - h^* \rVert \le q \lVert h^{(k-1)} - h^* \rVert \le q \lVert h^{(k-1)} - h^{(k)} \rVert + q
# \lVert h^{(k)} - h^* \rVert$, and solve. $\square$
# :::
#
# The first bound is the rate: the distance falls by $q$ per loop, like a straight line on a logarithmic
# axis. The second is the useful one, because it needs no $h^*$: *two successive states tell how far there
# is to go.*
#
# A small loop shows both, $h \leftarrow \tanh(W h + e)$ with a symmetric $W$. Since $\tanh$ never
# stretches, $q$ is at most the norm of $W$. We give $W$ the eigenvalue $-0.8$, the
# largest in absolute value.

# %%
torch.manual_seed(SEED)
values = torch.tensor([-0.8, 0.5, 0.3, -0.2, 0.1, 0.0], dtype=torch.float64)
Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
W, start, q = Q * values @ Q.T, 0.3 * torch.randn(6, dtype=torch.float64), 0.8
small_loop, states = lambda h: torch.tanh(W @ h + start), [torch.zeros(6).double()]
for _ in range(200):
    states.append(small_loop(states[-1]))
states = torch.stack(states)
far = (states - states[-1]).norm(dim=1)  # entry k - 1 belongs to loop k
step = (states[1:] - states[:-1]).norm(dim=1)
assert (far[:60] <= q ** torch.arange(60).double() * far[0] + 1e-12).all()
assert (far[1:60] <= q / (1 - q) * step[:59] + 1e-12).all()
signs = ((states[:8] - states[-1]) @ Q[:, 0]).sign()
print("side of the limit, loop by loop:", signs.int().tolist())

# %% [markdown]
# The bounds hold, and there is a bonus: the states come closer while they jump from one side of the limit
# to the other. Near a fixed point every smooth loop is nearly linear,
#
# $$
# h^{(k+1)} - h^* \approx J\, \bigl(h^{(k)} - h^*\bigr), \qquad
# J = \frac{\partial G}{\partial h}(h^*),
# $$ (eq-looped-local)
#
# and in the long run the eigenvalue $\lambda$ of $J$ with the largest absolute value wins. Its size
# $\rho(J) = \lvert \lambda \rvert$ is the rate (Gelfand's formula in {eq}`eq-looped-growth`), and its sign is the
# manner: $\lambda > 0$ creeps up from one side, $\lambda < 0$ overshoots in each loop. If $\lambda < -1$ the
# fixed point repels, and the states can settle into a *cycle* of two: odd loops see one, even loops the other.
#
# Two things the theorem does **not** say. That loops converge does not mean that they improve: the limit
# has a loss $\ell^*$, and nothing makes it lower than $\ell^{(K)}$. And that a step is small says that the loss
# changes little, if $\ell$ is smooth; not that the answer is right.
#
# ### Do the models contract?
#
# First the steps themselves, $\lVert h^{(k+1)} - h^{(k)} \rVert / \lVert h^{(k)} \rVert$, averaged over tokens.
#
# **Predict before you run:** for which of the two recipes do the steps die out? What does the zigzag of the
# loss tell you about the steps of "fixed"?

# %% mystnb={"figure": {"name": "fig-looped-steps", "caption": "Live models over 24 loops. Left: relative step of a token's state from loop k to the next, mean over tokens. Right: loss after each loop. Where the steps die out, the loss stands still."}, "image": {"alt": "Relative step by loop on a logarithmic axis, and loss by loop, for the live recipes"}}
FAR = 24
traces = {recipe: unroll(model, FAR) for recipe, model in models.items()}
curves = []
for recipe, (h, _, losses) in traces.items():
    step = (h[1:] - h[:-1]).norm(dim=-1) / h[:-1].norm(dim=-1)  # (k - 1, B, N)
    row = {"recipe": recipe, "step": step.mean(dim=(1, 2)).tolist(), "loss": losses}
    curves.append(row)
_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
options = {"by": "recipe", "xlabel": "loop $k$"}
figures.curves(left, curves, "step", log=True, legend=False, **options)
figures.curves(right, curves, "loss", ylabel="loss (nats per byte)", **options)
left.set_ylabel("relative step $k \\to k + 1$")
plt.show()

# %% [markdown]
# Now the eigenvalue. $J$ has $Nd$ rows for each text, too many to write down, but the product $Jv$ costs
# one pass through the loop in forward mode. Start from a random $v$, replace it by $Jv$ scaled to length 1,
# and repeat: the power iteration again ({eq}`eq-looped-power`). At the end $v^\top J v$ is the winning
# eigenvalue with its sign, if it is real. We do it for a few texts at once; each is a problem of its own.


# %%
# The eigenvalue of each text's Jacobian that wins: h is (B, ...), loop is G.
def winning_eigenvalue(loop, h, rounds=30):
    v, dims = torch.randn_like(h), tuple(range(1, h.ndim))
    for _ in range(rounds):
        v = v / v.square().sum(dims, keepdim=True).sqrt()
        with sdpa_kernel(SDPBackend.MATH):
            _, Jv = torch.func.jvp(loop, (h,), (v,))
        value, v = (v * Jv).sum(dims), Jv
    return value


def loop_of(model, e):
    return lambda h: model.norm(model.loop(e, h)[-1])


J = torch.func.jacrev(small_loop)(states[-1])
mine = winning_eigenvalue(lambda h: torch.tanh(h @ W + start), states[-1:])
assert_close(mine[0], torch.linalg.eigvals(J).real.min(), rtol=1e-3, atol=1e-3)

# %%
for recipe, model in models.items():
    loop = loop_of(model, model.embed(inputs[:6]).detach())
    found = winning_eigenvalue(loop, traces[recipe][0][-1, :6]).detach()
    print(f"{recipe:6s}", *(f"{value:+.2f}" for value in found.sort().values))

# %% [markdown]
# In our run the eigenvalues of "fixed" are larger than those of "random", and negative. A value of $-0.95$
# leaves $0.95^{10} = 0.6$ of a deviation after ten loops, and puts it on the other side in each: that is
# the zigzag. Nothing in the loss at loop 3 asked for a limit. The state there *is* one side of a swing, and
# the head has learned to read that side. To the random recipe such a swing is a nuisance in every second
# step, and training has damped it.
#
# A word on what is *not* measured here: the theorem asks for a $q$ that bounds all stretching, which is
# the largest singular value of $J$. The last exercise of {numref}`looped-equations` finds gains above 1 for
# all variants. The winning eigenvalue can still be small: a loop may stretch a deviation once and shrink it
# in the long run.
#
# ### Token by token
#
# Which of the $Nd$ directions is it that settles last? A causal model has a tidy answer.
#
# :::{prf:proposition} The rate of a causal loop
# :label: prop-looped-causal-rate
# Let $J_{nm} = \partial G(h)_n / \partial h_m$ be the $d \times d$ block of $J$ that carries a change at token
# $m$ to token $n$. In a causal model the eigenvalues of $J$ are those of the blocks $J_{00}, J_{11}, \dots$ on
# the diagonal, so $\rho(J) = \max_n \rho(J_{nn})$. In FLT $J_{00} = 0$.
# :::
#
# :::{prf:proof}
# No token sees a later one, so $J_{nm} = 0$ for $m > n$. A block triangular matrix has the characteristic
# polynomial $\prod_n \det(\lambda I - J_{nn})$. In FLT the stream at position 0 does not depend on the old
# state at all ({prf:ref}`prop-looped-position-zero`). $\square$
# :::
#
# So each token has a rate of its own, once the tokens before it have settled, and the slowest token sets
# the rate of the text. The mean step in {numref}`fig-looped-steps` is a sum of fast and slow tokens, which is
# why it bends: first the many fast ones die out, then a few slow ones are left.

# %%
N, model = 12, copy.deepcopy(models["fixed"]).double()
state = model(inputs[:1, :N], num_loops=FAR, loop_states=True).loop_states[-1]
h, e = model.norm(state).detach()[0], model.embed(inputs[:1, :N]).detach()
with sdpa_kernel(SDPBackend.MATH):
    J = torch.func.jacfwd(lambda h: loop_of(model, e)(h[None])[0])(h).detach()
assert all((J[n, :, n + 1 :] == 0).all() for n in range(N))  # (N, d, N, d)
rates = [torch.linalg.eigvals(J[n, :, n]).abs().max().item() for n in range(N)]
whole = torch.linalg.eigvals(J.reshape(N * J.shape[1], -1)).abs().max().item()
assert_close(max(rates), whole, rtol=1e-3, atol=1e-6)
assert rates[0] < 1e-6
print("rate of each token:", [round(rate, 2) for rate in rates])

# %% [markdown]
# ## What a loss asks of the loops
#
# All three recipes are special cases of one loss. Draw a number of loops $k$ from a distribution with
# probabilities $\pi_k$; then
#
# $$
# \mathcal{L}_\pi(\theta) = \mathbb{E}_{k \sim \pi}\bigl[\ell^{(k)}(\theta)\bigr]
# = \sum_k \pi_k\, \ell^{(k)}(\theta) .
# $$ (eq-looped-expected-loss)
#
# | recipe | $\pi_k$ | on which loops | loops computed |
# |---|---|---|---|
# | fixed | $1$ | $K$ | $K$ |
# | mean | $1/K$ | $1, \dots, K$ | $K$ |
# | random | $1/(2K-1)$ | $1, \dots, 2K-1$ | $K$ on average |
#
# **A loss constrains the loops that it reads.** "Fixed" has $\pi_k = 0$ for all $k \ne K$. Take two models
# whose states agree after loop $K$, on every text: their losses are the same, whatever they do before or
# after. Earlier loops are trained only for what they do for loop $K$; they need not be readable
# themselves. Later ones are not even computed. If they work, then because they share their weights with
# loops that were asked to: loop $K + 1$ is $G$, applied to a state that $G$ has made.
#
# "Mean" asks the early loops for a prediction too, and still nothing of loop $K + 1$. "Random" asks as much of the loops
# up to $2K - 1$, and of neighbours at once. One way to be right after loop $k$ and after loop $k + 1$ is not to
# move in between, so it invites a fixed point. It does not enforce one.
#
# ### Random loops, the same gradient on average
#
# "Random" runs $k$ loops and reads one loss. It never computes the sum in {eq}`eq-looped-expected-loss`. Why
# is that allowed?
#
# :::{prf:proposition} One random loop stands for all
# :label: prop-looped-random-loops
# Let $k$ be drawn from $\pi$ independently of the batch $b$, and let $g_k(b) = \nabla_\theta \ell^{(k)}(\theta; b)$.
# Then for every batch
#
# $$
# \mathbb{E}_{k \sim \pi}\bigl[g_k(b)\bigr] = \sum_k \pi_k\, g_k(b)
# = \nabla_\theta \sum_k \pi_k\, \ell^{(k)}(\theta; b) .
# $$ (eq-looped-random-loops)
#
# With $\pi$ uniform on $1, \dots, 2K-1$, a step of "random" has on average the gradient of the mean loss over
# $2K - 1$ loops. Its noise is larger. Let $\mathcal{V}[\cdot]$ be the variance summed over all weights and
# $\bar g(b) = \mathbb{E}_k[g_k(b)]$; then
#
# $$
# \mathcal{V}[g_k(b)] = \underbrace{\mathcal{V}_b\bigl[\bar g(b)\bigr]}_{\mathcal{V}_{\text{data}}}
# + \underbrace{\mathbb{E}_b\bigl[\mathcal{V}_k[g_k(b)]\bigr]}_{\mathcal{V}_{\text{loop}}} .
# $$ (eq-looped-random-noise)
# :::
#
# :::{prf:proof}
# The first line is linearity, of the expectation and of the gradient. For the second write
# $g_k - \mathbb{E}\bar g = (g_k - \bar g) + (\bar g - \mathbb{E}\bar g)$. Given the batch the first
# bracket has mean zero, so the mixed term vanishes. $\square$
# :::
#
# Is the noise worth it? The full mean over $2K - 1$ loops has the noise $\mathcal{V}_{\text{data}}$ and runs $2K - 1$
# loops a step; "random" has $\mathcal{V}_{\text{data}} + \mathcal{V}_{\text{loop}}$ and runs $K$ on average. Averaging $m$ steps
# divides the noise by $m$, and a step of half the cost can be taken twice as often. So compare the noise
# times the loops of a step (the head, which "mean" asks once per loop, is left out):
#
# $$
# K\, (\mathcal{V}_{\text{data}} + \mathcal{V}_{\text{loop}}) < (2K - 1)\, \mathcal{V}_{\text{data}}
# \quad \Longleftrightarrow \quad
# \mathcal{V}_{\text{loop}} < \frac{K - 1}{K}\, \mathcal{V}_{\text{data}} .
# $$ (eq-looped-noise-price)
#
# Random loops pay when the loops of a batch agree more with each other than batches do.
#
# **Predict before you run:** in the trained "random" model the states of neighbouring loops are nearly the same.
# Which is larger, $\mathcal{V}_{\text{data}}$ or $\mathcal{V}_{\text{loop}}$?


# %%
def flat_gradient(loss, theta):
    parts = torch.autograd.grad(loss, theta, retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


# Gradients of the first block, for the loss after each of 2K - 1 loops: (2K - 1, P).
def gradients_by_loop(model, x, y):
    theta, most = list(model.blocks[0].parameters()), 2 * K - 1
    states = model(x, num_loops=most, loop_states=True).loop_states
    losses = [F.cross_entropy(model.logits_from(s).mT, y) for s in states]
    return torch.stack([flat_gradient(loss, theta) for loss in losses])


# %%
model, most = models["random"], 2 * K - 1
batches = TokenBatches(corpus.train, settings.batch_size, settings.length, SEED)
some = [[part.to(device) for part in batches(10_000 + i)] for i in range(16)]
g = torch.stack([gradients_by_loop(model, *batch) for batch in some])  # (16, 2K - 1, P)
model.loss_loops = "mean"
loss, theta = model.loss(*some[0], num_loops=most), list(model.blocks[0].parameters())
model.loss_loops = "last"
assert_close(g[0].mean(0), flat_gradient(loss, theta), rtol=1e-3, atol=1e-6)
data = g.mean(1).var(0, correction=0).sum()
loops = g.var(1, correction=0).sum(-1).mean()
assert_close(data + loops, g.flatten(0, 1).var(0, correction=0).sum())
print(f"loop / data = {loops / data:.2f}; the limit is {(K - 1) / K:.2f}")

# %% [markdown]
# The expected gradient is that of the mean loss, entry by entry. And the noise that comes from the loops
# is small beside that of the data, in a model whose loops agree: here random loops are a bargain. (Early in
# training, or with weights that do not agree about the loops, it can be otherwise. And the proposition speaks of
# gradients: Muon and clipping are not linear, so equal expected gradients do not make equal expected
# steps.)
#
# The last thing to check is the sampler of the package.

# %%
draws = inference.RandomLoops(batches, K, SEED)
drawn = torch.tensor([int(draws(step)[2][0]) for step in range(600)])
share = torch.bincount(drawn, minlength=2 * K)[1:] / len(drawn)
assert_close(share, torch.full((most,), 1 / most), atol=0.06, rtol=0)

# %% [markdown]
# Code: {py:class}`unrolled.looped.inference.RandomLoops`. The number of loops is a pure function of the seed and
# the step, so that a run can be resumed.
#
# ## Text: three recipes, three variants
#
# Now the evidence: LT, LT_i and FLT, trained on text at $K = 6$ by the three recipes, and read at 1 to 24
# loops.
#
# **Predict before you look:** LT has no embedding in its loops after the first. Do you expect it to have a fixed
# point that still knows the text? What will its curve look like beyond $K$, recipe by recipe?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-text-recipes", "caption": "Laptop rows, text, trained at 6 loops (dotted), read at 1 to 24; thin lines are seeds. Above: validation loss (each panel has its own scale). Below: mean norm of a token's state before the last norm."}, "image": {"alt": "Six panels: validation loss and state norm over loops at inference for LT, LT_i and FLT, one line per recipe"}}
_, axes = plt.subplots(2, 3, figsize=(11, 5.6), sharex=True)
for column, variant in zip(axes.T, ("original", "input", "flt"), strict=True):
    chosen, last = results.select(text, variant=variant), variant == "flt"
    over_loops(column[0], chosen, LOSS, ylabel="loss (nats per byte)", legend=last)
    over_loops(column[1], chosen, NORM, ylabel="norm of the state", legend=False)
    column[0].set(title=figures.label_of(variant), xlabel="")
    column[1].set_ylim(bottom=0)
plt.show()

# %% [markdown]
# Take "fixed" first. Three wirings, three fates.
#
# - **LT drifts.** Its curve is a valley with the floor at the trained number: {result}`looped_inference | mean_ci val_loss_by_inference_loops[2] | preset=laptop data=text variant=original recipe=fixed | .3f` nats per byte
#   after 3 loops, {result}`looped_inference | mean_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=original recipe=fixed | .3f` after 6, {result}`looped_inference | mean_ci val_loss_by_inference_loops[11] | preset=laptop data=text variant=original recipe=fixed | .3f` after 12, {result}`looped_inference | mean_ci val_loss_by_inference_loops[13] | preset=laptop data=text variant=original recipe=fixed | .3f`
#   after 24. In LT the state is all there is. The head has learned to read it after six steps of a journey, and the
#   journey goes on.
# - **LT_i settles.** The embedding comes back in every loop and holds the state: {result}`looped_inference | mean_ci val_loss_by_inference_loops[2] | preset=laptop data=text variant=input recipe=fixed | .3f` after 3 loops,
#   {result}`looped_inference | mean_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=input recipe=fixed | .3f` after 6, {result}`looped_inference | mean_ci val_loss_by_inference_loops[13] | preset=laptop data=text variant=input recipe=fixed | .3f` after 24.
# - **FLT settles sooner.** {result}`looped_inference | mean_ci val_loss_by_inference_loops[0] | preset=laptop data=text variant=flt recipe=fixed | .3f` after one loop, {result}`looped_inference | mean_ci val_loss_by_inference_loops[1] | preset=laptop data=text variant=flt recipe=fixed | .3f` after 2, {result}`looped_inference | mean_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=flt recipe=fixed | .3f`
#   after 6, {result}`looped_inference | mean_ci val_loss_by_inference_loops[13] | preset=laptop data=text variant=flt recipe=fixed | .3f` after 24.
#
# So at $K = 6$ the range beyond is not a riddle: a loop with a fixed point stays where it is, and a loop without one
# leaves.
#
# The other recipes change the picture, each in its way.
#
# - **"Mean" makes the early loops readable.** FLT after one loop is at {result}`looped_inference | mean_ci val_loss_by_inference_loops[0] | preset=laptop data=text variant=flt recipe=mean | .3f`, where "fixed" has
#   {result}`looped_inference | mean_ci val_loss_by_inference_loops[0] | preset=laptop data=text variant=flt recipe=fixed | .3f`. In LT it moves the floor of the valley into the trained range: {result}`looped_inference | mean_ci val_loss_by_inference_loops[2] | preset=laptop data=text variant=original recipe=mean | .3f` after 3
#   loops, {result}`looped_inference | mean_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=original recipe=mean | .3f` after the 6 that it was trained with. A mean over loops can be lowered by being good
#   early. Beyond $K$ it asks for nothing, and LT climbs there as it does with "fixed".
# - **"Random" makes the flattest curves.** Its LT is the one that loses least by 24 loops, {result}`looped_inference | mean_ci val_loss_by_inference_loops[13] | preset=laptop data=text variant=original recipe=random | .3f` beside
#   {result}`looped_inference | mean_ci val_loss_by_inference_loops[13] | preset=laptop data=text variant=original recipe=fixed | .3f` with "fixed". But look at its level at $K$. We come to the price below.
#
# ### A blind spot
#
# The lower row of {numref}`fig-looped-text-recipes` shows what the loss does not see. The head reads
# $\mathrm{norm}(x)$, so the loss after a loop is the same for $x$ and for $c\,x$ with any $c > 0$. Differentiate in $c$
# at $c = 1$:
#
# $$
# \ell(c\,x) = \ell(x) \quad \Longrightarrow \quad
# \Bigl\langle x_n, \frac{\partial \ell}{\partial x_n} \Bigr\rangle = 0 \quad \text{for every token } n .
# $$ (eq-looped-blind-spot)
#
# No loss on no loop pushes the length of a state up or down. {cite:t}`sharma2026dense` call this the *readout blind
# spot*: in models without a norm between the loops they see states of enormous length behind good predictions,
# even with a loss on every loop. Our three variants hand on the *normed* state, so the length is removed
# from the recurrence as well and cannot add up ({prf:ref}`prop-looped-bound`).
#
# The blind spot works both ways. A quiet norm is no sign of a fixed point: LT's loss climbs beyond $K$ while its norm
# stays about where it was inside. Its states move at constant length. Watch the step of the *normed*
# state instead, as in {numref}`fig-looped-steps`.

# %%
x = models["fixed"](inputs[:2], loop_states=True).loop_states[-1].detach()
x.requires_grad_()
F.cross_entropy(models["fixed"].logits_from(x).mT, targets[:2]).backward()
along, size = (x * x.grad).sum(-1), x.norm(dim=-1) * x.grad.norm(dim=-1)
assert (along.abs() <= 1e-3 * size.max()).all()

# %% [markdown]
# ## Pointer chasing: where loops have work to do
#
# Text at this size asks little of depth. Pointer chasing does ({numref}`looped-depth`): $R = 8$ nodes lie on a cycle, the
# arrows $f$ are listed in random order, and a question asks for $f^p(s)$, the node $p$ hops after $s$. The models
# have one block, $K = 4$ loops, and questions of 1 to 4 hops. A guess among the other nodes is right one time in seven.
#
# **Predict before you look:** FLT, trained by "fixed", answers four-hop questions after four loops. What will it answer
# after five? And after twelve?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-chasing-recipes", "caption": "Laptop rows, pointer chasing, one block, trained at 4 loops (dotted): accuracy by the number of hops, over the loops at inference; thin lines are seeds. Above LT, below FLT. A guess is right one time in seven."}, "image": {"alt": "Eight panels: accuracy over loops at inference for one to four hops, for LT and FLT, one line per recipe"}}
_, axes = plt.subplots(2, 4, figsize=(11, 5), sharex=True, sharey=True)
for line, variant in zip(axes, ("original", "flt"), strict=True):
    chosen = results.select(chasing, variant=variant)
    for hops, ax in enumerate(line, start=1):
        last = hops == 4 and variant == "original"
        over_loops(ax, chosen, HOPS.format(hops), ylabel=" ", legend=last, upto=12)
        ax.set_title(f"{figures.label_of(variant)}, {hops} hop{'s' * (hops > 1)}")
        ax.set_xlabel("loops at inference $k$" if variant == "flt" else "")
    line[0].set_ylabel("accuracy")
plt.show()

# %% [markdown]
# FLT with "fixed" is a spike train. On four hops it is right in {result}`looped_inference | mean_ci accuracy_of_depth_4_by_inference_loops[3] | preset=laptop data=pointer_chasing variant=flt recipe=fixed | .2f` of the cases after 4 loops. After 5 loops no
# seed is above {result}`looped_inference | max accuracy_of_depth_4_by_inference_loops[4] | preset=laptop data=pointer_chasing variant=flt recipe=fixed | .2f`, and after 8 none above {result}`looped_inference | max accuracy_of_depth_4_by_inference_loops[7] | preset=laptop data=pointer_chasing variant=flt recipe=fixed | .2f`. After 12 loops none is below {result}`looped_inference | min accuracy_of_depth_4_by_inference_loops[11] | preset=laptop data=pointer_chasing variant=flt recipe=fixed | .2f`.
#
# After five loops that is far below the guess. So the model is not confused there, it is *systematically* wrong: it
# answers with some other node. And it comes back after $12 = 4 + 8$ loops, when eight more arrows lead once around
# the eight nodes.
#
# Our reading: FLT has learned to **walk**, one arrow per loop, and not to stop. After $k$ loops its answer to a
# four-hop question is the node $f^k(s)$. At $k = 4$ this is what was asked; at $k = 5$ it is the right answer to a
# question that nobody put. The accuracies fit, and do not prove it. Here is the test.
#
# :::{tip} Does it walk?
# Train one model (a minute on one core) and compare its answers after $k$ loops with $f^k(s)$.
#
# ```python
# from unrolled.looped import depth
#
# laptop = inference.EXPERIMENT.settings("laptop")
# case = {"data": "pointer_chasing", "variant": "flt"}
# case |= {"num_loops": 4, "recipe": "fixed"}
# walker, _ = inference.trained(laptop, case, SEED)
# asked = depth.held_out("pointer_chasing", 256)
# answers_after = depth.predict(walker, asked, 16)
# arrows, questions = asked.inputs[:, :8], asked.inputs[:, 8:] - 64
# f = torch.empty_like(arrows).scatter_(1, arrows // 8, arrows % 8)
# node, four = questions // 4, questions % 4 == 3  # start; four hops?
# for k in range(1, 17):
#     node = f.gather(1, node)
#     print(k, (answers_after[k][:, 8:] == node)[four].float().mean().item())
# ```
# :::
#
# No loss on loop 4 can tell a walker from a model that arrives and stays. A loss on loops 3, 4 and 5 can: the
# walker is wrong on two of them. In the rows "mean" reads four loops, one after the other, and its FLT does not come back
# at twelve: beyond $K$ its accuracy on four hops decays, from {result}`looped_inference | mean_ci accuracy_of_depth_4_by_inference_loops[3] | preset=laptop data=pointer_chasing variant=flt recipe=mean | .2f` after 4 loops to {result}`looped_inference | mean_ci accuracy_of_depth_4_by_inference_loops[11] | preset=laptop data=pointer_chasing variant=flt recipe=mean | .2f`
# after 12. It reaches four hops early, with {result}`looped_inference | mean_ci accuracy_of_depth_4_by_inference_loops[2] | preset=laptop data=pointer_chasing variant=flt recipe=mean | .2f` after 3 loops.
#
# "Random" reads up to seven loops, and its curves move little beyond $K$. But they lie low: with FLT four
# hops stay at
# {result}`looped_inference | mean_ci accuracy_of_depth_4_by_inference_loops[3] | preset=laptop data=pointer_chasing variant=flt recipe=random | .2f`.
# In this budget it has not learned the long questions, and what is not computed cannot be lost. It would be too easy to
# say that it was asked to answer too early: "mean" has half of its weight on loops 1 and 2, "random" two
# sevenths. Whether the noise of one loop at a time is to blame, or the loops beyond $K$, these rows do not tell.
#
# ## The price at the trained number
#
# A recipe that serves many numbers of loops has less to spend on each. What does it cost at $K$ itself? All recipes have
# the same seeds, weights at the start, data and loops per step on average, so compare seed by seed.
#
# **Predict before you look:** "random" spends about half of its steps on fewer loops than $K$, and half on
# more. Where does that cost more, on text or on pointer chasing?


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-recipe-price", "caption": "Laptop rows: each recipe minus 'fixed', both read at the trained number of loops, paired by seed, with 95 % confidence intervals. Left: loss on text at 6 loops; to the left of the line the recipe is better. Right: accuracy on pointer chasing at 4 loops; to the right of the line it is better."}, "image": {"alt": "Two forest plots of paired differences between recipes"}}
def by_variant_and_recipe(rows):
    names = dict.fromkeys((row["variant"], row["recipe"]) for row in rows)
    return {(v, r): results.select(rows, variant=v, recipe=r) for v, r in names}


def prices(rows, metric):
    found, groups = {}, by_variant_and_recipe(rows)
    for (v, r), side in groups.items():
        price = results.paired_difference(side, groups[v, "fixed"], metric)
        found |= {} if r == "fixed" else {f"{figures.label_of(v)}, {r}": price}
    return found


_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2))
on_text, on_task = prices(text, f"{LOSS}[5]"), prices(chasing, "accuracy")
figures.forest(left, on_text, xlabel="loss at 6 loops, minus fixed (nats per byte)")
figures.forest(right, on_task, xlabel="accuracy at 4 loops, minus fixed")
plt.show()

# %% [markdown]
# The difference in loss at six loops, in nats per byte:
#
# - "mean" minus "fixed": LT {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=original recipe=mean~fixed | z.3f`, LT_i {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=input recipe=mean~fixed | z.3f`, FLT
#   {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=flt recipe=mean~fixed | z.3f`;
# - "random" minus "fixed": LT {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=original recipe=random~fixed | z.3f`, LT_i
#   {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=input recipe=random~fixed | z.3f`, FLT {result}`looped_inference | difference_ci val_loss_by_inference_loops[5] | preset=laptop data=text variant=flt recipe=random~fixed | z.3f`.
#
# And in accuracy over all questions of pointer chasing, at four loops:
#
# - "mean" minus "fixed": LT {result}`looped_inference | difference_ci accuracy | preset=laptop data=pointer_chasing variant=original recipe=mean~fixed | .2f`, FLT {result}`looped_inference | difference_ci accuracy | preset=laptop data=pointer_chasing variant=flt recipe=mean~fixed | .2f`;
# - "random" minus "fixed": LT {result}`looped_inference | difference_ci accuracy | preset=laptop data=pointer_chasing variant=original recipe=random~fixed | .2f`, FLT {result}`looped_inference | difference_ci accuracy | preset=laptop data=pointer_chasing variant=flt recipe=random~fixed | .2f`.
#
# An interval that contains zero says that the seeds cannot tell. On text the one large price is the one that LT pays for
# "random"; in LT_i and FLT no recipe is far from another. On pointer chasing "random" costs FLT much of its accuracy. LT with
# "fixed" is a lottery there, from {result}`looped_inference | min accuracy | preset=laptop data=pointer_chasing variant=original recipe=fixed | .2f` to {result}`looped_inference | max accuracy | preset=laptop data=pointer_chasing variant=original recipe=fixed | .2f` over the seeds; with "mean"
# it reaches {result}`looped_inference | min accuracy | preset=laptop data=pointer_chasing variant=original recipe=mean | .2f` to {result}`looped_inference | max accuracy | preset=laptop data=pointer_chasing variant=original recipe=mean | .2f`. A loss on every loop gives the early loops a
# gradient that has not travelled ({eq}`eq-looped-bptt`), and LT is the variant in which the travelling is hard
# ({numref}`looped-instability`).
#
# ## Trained at one number, read at another
#
# The committed models of {numref}`looped-pretraining` were trained with the loss on the last loop at $K$ = 3, 6, 9 and 12, and
# read at each of these numbers.
#
# **Predict before you look:** which cells of the FLT panel will differ from zero? Think of the zigzag of
# {numref}`fig-looped-recipes-live`.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-trained-read", "caption": "Laptop rows of looped.pretraining (Muon, text): loss above that at the model's own number of loops, in nats per byte, mean over seeds. Each row is a model trained at K; each column a number of loops at inference. Each panel has its own colours."}, "image": {"alt": "Three heat maps of excess loss over trained and inference loops for LT, LT_i and FLT"}}
def excess(row):
    at = dict(zip(row["inference_loops"], row[LOSS], strict=True))
    own = row["num_loops"]
    place = {"seed": row["seed"], "trained_loops": own}
    return [place | {"inference_loops": k, "excess": at[k] - at[own]} for k in at]


pretrained = results.read("looped.pretraining")
pretrained = results.select(pretrained, preset="laptop", optimizer="muon")
_, axes = plt.subplots(1, 3, figsize=(13, 3.3))
for ax, variant in zip(axes, ("original", "input", "flt"), strict=True):
    chosen = results.select(pretrained, variant=variant)
    cells = [cell for row in chosen if row.get(LOSS) for cell in excess(row)]
    where = "inference_loops", "trained_loops", "excess"
    figures.heat_map(ax, cells, *where, label="loss above its own", spec="z.3f")
    ax.set_title(figures.label_of(variant))
    plt.setp(ax.texts, fontsize=9)
plt.show()

# %% [markdown]
# In each panel the diagonal is zero by definition. LT has its smallest loss there, or near it: a model for every number of loops. LT_i
# forgives everything from 3 loops on. And look at the first row of FLT, the model trained at three loops. At nine loops it
# is back where it was; at six and at twelve it is not. Odd and even: the zigzag of the live model, in laptop
# rows. To judge it we need the change *within* each model, from one number of loops to another, and its
# interval over the seeds.


# %%
# How a metric changes from one number of loops to another: mean and 95 % interval.
def change(rows, metric, first, second):
    at = [rows[0]["inference_loops"].index(k) for k in (first, second)]
    return results.mean_ci(row[metric][at[1]] - row[metric][at[0]] for row in rows)


# In words: does the change help, hurt, or can the seeds not tell?
def verdict(interval, better):
    low, high = sorted((better * interval.low, better * interval.high))
    word = "helps" if low > 0 else "hurts" if high < 0 else "cannot tell"
    return f"{word}: {interval.mean:+.4f} ± {interval.half_width:.4f}"


# %%
def table_of_changes(groups, metric, spans, better):
    table = {}
    for name, rows in groups.items():
        found = {f"{a} to {b}": change(rows, metric, a, b) for a, b in spans}
        table[name] = {span: verdict(found[span], better) for span in found}
    return pd.DataFrame(table).T


spans, ones = [(3, 6), (3, 9), (3, 12)], ("input", "attention", "flt")
three = results.select(pretrained, num_loops=3)
groups = {LABELS[v]: results.select(three, variant=v) for v in ones}
table_of_changes(groups, LOSS, spans, better=-1)

# %% [markdown]
# The changes are in nats per byte; "hurts" and "helps" are said only where the whole 95 % interval lies on one side. In LT_ia and
# FLT, the two that let the state in through the query alone, six and twelve loops cost hundredths on average, and nine loops, three
# times as many as were trained, about a thousandth. At a fixed point one loop more or less makes no difference
# ({prf:ref}`thm-looped-contraction`). Here it does, so these models do not sit at one.
#
# ## When does more compute help?
#
# The same table for the models of this chapter: how does the loss on text change from half the trained number to the trained
# number (inside), and on to twice and four times as many (beyond)? Now for all three recipes.


# %%
spans = [(3, 6), (6, 12), (6, 24)]
table_of_changes(by_variant_and_recipe(text), LOSS, spans, -1).rename(index=LABELS)

# %% [markdown]
# And the accuracy of four-hop questions in pointer chasing, where $K = 4$:

# %%
spans, four = [(2, 4), (4, 5), (4, 8), (8, 12)], HOPS.format(4)
table_of_changes(by_variant_and_recipe(chasing), four, spans, 1).rename(index=LABELS)

# %% [markdown]
# Read the two tables together.
#
# - **Inside, with the loss on the last loop, more loops help**, where the seeds can tell. On text they help LT most, which can be
#   read nowhere else, and FLT least, which has nearly settled after two or three loops.
# - **Inside, with the mean loss, they need not.** LT trained by "mean" loses on text from loop 3 to loop 6: its
#   training was content with an average.
# - **Beyond, no recipe makes more loops help.** No cell for a step from $K$ to more says so. LT drifts off and loses much. LT_i and
#   FLT on text rest; where a change is certain there, look at its size: a difference of a thousandth of a nat can be certain and
#   not worth a loop. FLT on pointer chasing goes round.
# - **What "random" buys is robustness.** It is the recipe under which LT loses least on text from 6 to 24 loops. The price is paid at $K$.
#
# So "unpredictable" comes apart into three kinds, *drift*, *rest* and *cycle*, and {eq}`eq-looped-local` says which numbers to
# look at. More compute than in training bought nothing in these rows. One case stays open: by our reading a walker runs on along
# the arrows, so it computes what longer questions would ask for; but our task has no word for five hops,
# and we could not ask.
#
# ## Stopping by a rule
#
# If a model has a fixed point, it need not be told how many loops to run: it can stop when nothing changes
# any more. The second bound of {eq}`eq-looped-contraction` is such a rule for states. What counts for a
# reader is the prediction, so let $p^{(k)}_n$ be the distribution over the next byte at token $n$ after loop
# $k$, and stop a text at the first loop $k \ge 2$ at which
#
# $$
# \frac1N \sum_n \mathrm{KL}\bigl(p^{(k)}_n \,\big\Vert\, p^{(k-1)}_n\bigr) < \tau ,
# \qquad
# \mathrm{KL}(p \,\Vert\, p') = \sum_v p_v \ln \frac{p_v}{p'_v} ,
# $$ (eq-looped-exit)
#
# for a threshold $\tau$, in nats. The Kullback-Leibler divergence KL is zero for equal distributions and positive
# otherwise. We stop whole texts, since that saves loops for certain; to stop single tokens one must say
# what later tokens read of them (part `together` does).
#
# The honest rival is not "all 12 loops". It is *the same average number of loops for every text*.
#
# **Predict before you run:** on the "random" model, how much does the rule gain over a fixed number of
# loops? On "fixed", when does it stop at all?


# %%
# The change of the prediction from loop to loop, per text: (k - 1, B).
def divergence(logits):
    log_p = torch.stack(logits).log_softmax(dim=-1)
    return (log_p[1:].exp() * (log_p[1:] - log_p[:-1])).sum(-1).mean(-1)


# Mean loops and mean loss when each text stops by the rule.
def stopped(logits, tau):
    quiet = divergence(logits) < tau
    quiet[-1] = True  # out of loops
    last = 1 + quiet.int().argmax(dim=0)  # index of the loop at which a text stops
    u = torch.stack(logits)[last, torch.arange(len(last))]
    loss = F.cross_entropy(u.mT, targets).item()
    return {"mean loops": 1 + last.float().mean().item(), "loss": loss}


# %% mystnb={"figure": {"name": "fig-looped-exit", "caption": "Live models, at most 12 loops. Lines: the same number of loops for every text. Points: texts that stop by the rule, one point per threshold from 1 to 0.00001 nats."}, "image": {"alt": "Loss against mean number of loops: a line for fixed numbers of loops and points for the stopping rule, for each live model", "width": "75%"}}
_, ax = plt.subplots(figsize=(6.4, 3.4))
short = [row | {"loss": row["loss"][:12]} for row in curves]
figures.curves(ax, short, "loss", by="recipe", xlabel="mean loops per text")
for recipe, line in zip(sorted(models), ax.lines, strict=True):
    logits = traces[recipe][1][:12]
    rule = pd.DataFrame([stopped(logits, 10 ** (-x / 2)) for x in range(11)])
    ax.plot(rule["mean loops"], rule["loss"], "o", color=line.get_color())
ax.set_ylabel("loss (nats per byte)")
plt.show()

# %% [markdown]
# Be sober about it. In our run the points of "random" lie close to its line: the rule stops texts after fewer than
# 12 loops and loses nothing by it, and so does the order "two loops for everybody", without computing a single
# divergence. On text of this kind the loops that matter are the same for all texts, and there is nothing to
# adapt to. On "fixed" the rule fails in an instructive way. The prediction swings, so the divergence stays
# large until the swing has died out; by then the text has paid for many loops, and stops on whichever side it
# happens to be.
#
# The rule asks "has it stopped moving?". It does not ask "is it right?". Where the two go together, and where texts differ in what
# they need, it can earn its price; part `together` looks for that.
#
# ## What the paper says, and what we saw

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
claims = inference.EXPERIMENT.claims
table = results.comparison_table("looped.inference", claims, rows=evidence)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence", "ours"]]

# %% [markdown]
# The claims are judged with the loss on the last loop, as in the paper, and by the change within each model.
#
# - *Inside*: the paper's "more loops help" holds for FLT where there is something to gain. Its step from one loop to three is
#   plain; from three to six it is a matter of thousandths, and the verdict says how far our seeds can tell.
# - *Beyond*: "unpredictable" is no statement that one number can test. We ask instead whether more loops are *worse*. For LT at
#   $K = 6$ they are. For FLT at $K = 6$ the change is too small to matter either way; at an odd $K$ the same model
#   gets worse after an even number of loops, and on pointer chasing its accuracy comes and goes.
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | loss | last loop | last loop ("fixed"), and two recipes of our own choice beside it | the paper leaves the range beyond $K$ open; a recipe is the first thing to try |
# | random number of loops | not in the paper | uniform on $1, \dots, 2K - 1$ | mean $K$ without a parameter; {cite:t}`geiping2025recurrent` use a Poisson number with a log-normal rate, and cut the gradient after the last few loops; we do not |
# | size | 6 and 12 layers | 2 layers of width 64 on text, 1 on pointer chasing | a run in a minute on one core |
# | text | FineWeb-Edu, a vocabulary of about 151,680 | State of the Union, bytes | it is shipped with the package |
# | tasks | language only | pointer chasing too | a task where the number of steps is known |
# | budget | | the same optimizer, rate, steps, and loops per step on average for all recipes; none was tuned by itself | a comparison at equal cost |
#
# - With one block in the loop, as in our pointer chasing, "the query of every block" is the query of the first: there
#   FLT is LT_ia ({numref}`looped-equations`).
# - The recipes differ in two things at once: "random" reads loops up to $2K - 1$, "mean" up to $K$; and "random"
#   has the noise $\mathcal{V}_{\text{loop}}$ on top. The rows do not separate the two.
# - The eigenvalues, the gradient noise and the stopping rule were measured on live models of one seed.
#   They are illustrations of the theory and no evidence about other models.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: how many loops?
# :label: ex-looped-loops-needed
# A loop contracts by the factor $q = 0.8$. After the first loop the state is at distance 1 from the fixed
# point. After how many loops (the first one counted) is it closer than 0.01 for the first time?
# :::

# %% tags=["exercise"]
answer = None  # your number of loops
checks.looped_loops_needed(answer)

# %% [markdown]
# :::{solution} ex-looped-loops-needed
# :class: dropdown
# By {eq}`eq-looped-contraction` the distance after loop $k$ is $0.8^{k-1}$. It is below 0.01 when
# $k - 1 > \ln 0.01 / \ln 0.8 = 20.6$.
#
# ```python
# answer = next(k for k in range(1, 100) if 0.8 ** (k - 1) < 0.01)
# ```
# :::

# %% [markdown]
# :::{exercise} Predict: the best place to stop
# :label: ex-looped-best-loop
# A scalar loop has the fixed point 1 and the eigenvalue $-0.8$: $h^{(k+1)} - 1 = -0.8\,(h^{(k)} - 1)$, from
# $h^{(1)} = 0$. The loss is $(h - 1.2)^2$. After which loop is it smallest? What does that say about "loop until
# it has converged"?
# :::

# %% tags=["exercise"]
answer = None  # the number of the loop
checks.looped_best_loop(answer)

# %% [markdown]
# :::{solution} ex-looped-best-loop
# :class: dropdown
# $h^{(k)} = 1 - (-0.8)^{k-1}$. Even loops are above 1, on the side of the target: 1.8, 1.51, 1.33, 1.21, 1.13, ...
# The loss at the limit is 0.04; one loop on the way there comes within a hundredth of the target, and neither its
# neighbours nor the limit do. A trained head finds such loops.
#
# ```python
# answer = min(range(1, 100), key=lambda k: (1 - (-0.8) ** (k - 1) - 1.2) ** 2)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the weight of a loop
# :label: ex-looped-loop-weights
# Combine two recipes: draw $k$ with probability $\pi_k$, run $k$ loops, and take the *mean* loss of all $k$. In
# expectation that is $\sum_j w_j\, \ell^{(j)}$. Find $w_j$. Write it for a tensor `p` of the
# probabilities, whose entry 0 belongs to $k = 1$.
# :::


# %% tags=["exercise"]
def loop_weights(p): ...  # the weights, of the same shape


checks.looped_loop_weights(loop_weights)

# %% [markdown]
# :::{solution} ex-looped-loop-weights
# :class: dropdown
# A step with $k$ loops gives $1/k$ to each loop $j \le k$, so $w_j = \sum_{k \ge j} \pi_k / k$: a cumulative sum from the
# far end.
#
# ```python
# def loop_weights(p):
#     share = p / torch.arange(1, len(p) + 1)
#     return share.flip(0).cumsum(0).flip(0)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how far is the limit?
# :label: ex-looped-limit-distance
# You see three successive states, stacked in a tensor of shape $(3, \dots)$, and know that the loop contracts by a
# constant factor. Bound the distance of the *last* of them from the fixed point, which you do not know.
# :::


# %% tags=["exercise"]
def limit_distance(states): ...  # one number


checks.looped_limit_distance(limit_distance)

# %% [markdown]
# :::{solution} ex-looped-limit-distance
# :class: dropdown
# The two steps give the factor, $q = \lVert h_3 - h_2 \rVert / \lVert h_2 - h_1 \rVert$, and the second line of
# {eq}`eq-looped-contraction` gives the bound. At $q = 0.9$ it is nine times the last step: a small step alone says
# little.
#
# ```python
# def limit_distance(states):
#     first, second = (states[1] - states[0]).norm(), (states[2] - states[1]).norm()
#     q = second / first
#     return q / (1 - q) * second
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: a sampler with a long tail
# :label: ex-looped-loop-sampler
# {cite:t}`geiping2025recurrent` draw a Poisson number of loops whose rate is itself random. Do it with the
# mean exactly $K$: $k = 1 + \mathrm{Poisson}(\Lambda)$, with $\ln \Lambda$ normal of deviation $\sigma$ and $\mathbb{E}[\Lambda] =
# K - 1$. Return `count` draws, all of them from `generator` (`torch.randn` and `torch.poisson` take one).
# :::


# %% tags=["exercise"]
def sample_loops(mean, sigma, count, generator): ...  # a tensor (count,)


checks.looped_loop_sampler(sample_loops)

# %% [markdown]
# :::{solution} ex-looped-loop-sampler
# :class: dropdown
# A log-normal number has the mean $e^{\mu + \sigma^2/2}$, so $\mu = \ln(K - 1) - \sigma^2/2$. Most steps are then
# shorter than $K$, and a few are much longer: the tail shows the model what lies far beyond $K$, and is paid
# for by the many short steps.
#
# ```python
# def sample_loops(mean, sigma, count, generator):
#     normal = torch.randn(count, generator=generator)
#     log_rate = torch.tensor(mean - 1.0).log() - sigma**2 / 2 + sigma * normal
#     return 1 + torch.poisson(log_rate.exp(), generator=generator)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: stop token by token
# :label: ex-looped-exit-loop
# Write the rule {eq}`eq-looped-exit` for single tokens, without the mean over $n$. `logits` is $(K, N, V)$, one
# entry per loop. Return for each token the first loop $k \ge 2$ at which
# $\mathrm{KL}(p^{(k)}_n \Vert p^{(k-1)}_n)$ is below the threshold, and $K$ if there is none.
# :::


# %% tags=["exercise"]
def exit_loop(logits, threshold): ...  # a tensor (N,) of loop numbers


checks.looped_exit_loop(exit_loop)

# %% [markdown]
# :::{solution} ex-looped-exit-loop
# :class: dropdown
# Take logarithms first, then the sum over the vocabulary. The last loop counts as quiet, so that `argmax`
# finds it where nothing else is.
#
# ```python
# def exit_loop(logits, threshold):
#     log_p = logits.log_softmax(dim=-1)
#     kl = (log_p[1:].exp() * (log_p[1:] - log_p[:-1])).sum(dim=-1)
#     quiet = kl < threshold
#     quiet[-1] = True
#     return 2 + quiet.int().argmax(dim=0)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: a weight for every loop
# :label: ex-looped-weighted-loss
# The three recipes are three choices of $\pi$ in {eq}`eq-looped-expected-loss`. Make room for all others: write a loss that
# runs as many loops as there are weights and returns $\sum_k w_k \ell^{(k)} / \sum_k w_k$. When the checker is content,
# train with it. Do weights that grow with $k$ give you the flat curve of "mean" and the loss of "fixed" at $K$?
#
# ```python
# def loss_fn(model, batch):
#     return weighted_loss(model, *batch, torch.arange(1.0, 2 * K))
# ```
#
# ({py:func}`unrolled.training.fit` takes such a `loss_fn`.)
# :::


# %% tags=["exercise"]
def weighted_loss(model, inputs, targets, weights): ...  # a scalar with a graph


checks.looped_weighted_loss(weighted_loss)

# %% [markdown]
# :::{solution} ex-looped-weighted-loss
# :class: dropdown
# One forward pass has all the states; the head reads each of them.
#
# ```python
# def weighted_loss(model, inputs, targets, weights):
#     states = model(inputs, num_loops=len(weights), loop_states=True).loop_states
#     logits = [model.logits_from(x).flatten(0, 1) for x in states]
#     losses = torch.stack([F.cross_entropy(u, targets.flatten()) for u in logits])
#     return (weights * losses).sum() / weights.sum()
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** The loops of a model contract with $q = 0.5$, and the last step had the length 0.1. How far is the limit at most, and does the limit have a lower loss?
#
# :::{dropdown} Answer
# $\frac{q}{1-q} \cdot 0.1 = 0.1$ at most ({eq}`eq-looped-contraction`). About its loss the theorem says nothing: that loops converge does not mean that they improve.
# :::
#
# **2.** The loss of a model zigzags beyond the trained number of loops. What is the sign of the eigenvalue that wins, and what has the head learned to read?
#
# :::{dropdown} Answer
# Negative: each loop overshoots the limit. The head has learned to read one side of the swing, that of the trained number.
# :::
#
# **3.** "Fixed" and "random" both cost $K$ loops a step on average. Of which loops does each loss ask anything?
#
# :::{dropdown} Answer
# "Fixed" of loop $K$ alone; earlier ones are trained only for what they do for it, later ones are not even computed. "Random" of all loops from 1 to $2K - 1$, so of neighbours at once, which invites a fixed point.
# :::
#
# **4.** When do random loops pay, measured by the noise of the gradient?
#
# :::{dropdown} Answer
# When the loops of a batch agree more with each other than batches do: {eq}`eq-looped-noise-price`.
# :::
#
# **5.** An exit rule stops when predictions no longer change. Which rival must it beat, and which question does it not ask?
#
# :::{dropdown} Answer
# The same mean number of loops for every text. And it asks whether the prediction has stopped moving, not whether it is right.
# :::

# %% [markdown]
# ## Where this came from
#
# The laptop rows were made by `python -m unrolled run looped.inference --preset laptop --seeds 0-2`, those of
# {numref}`fig-looped-trained-read` by `python -m unrolled run looped.pretraining --preset laptop --seeds 0-4`;
# each row names the command that makes it alone.

# %% tags=["hide-input"]
columns = ["experiment", "preset", "torch", "version", "commit", "device"]
results.frame([rows[0], evidence[0], pretrained[0]])[columns]
