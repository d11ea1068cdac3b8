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
# (together-descending_loops)=
# # Descending loops
#
# {cite:t}`fu2026looped` leave a question open: what does a looped model do when you run more loops than it was trained with? {cite:t}`porras2026descent` have a tool
# that nobody has put to it: constraints that make the loss fall from layer to layer. A loop is a layer. Here you put the two together, predict what that can and cannot do, and
# measure it. None of the papers has done this, so there is no number to reproduce; the answer may be no.
#
# After this you can
#
# - read one training run as a model of any number of loops, and write a constraint on each;
# - prove that no demand on loops up to $K$ says anything of loop $K + 1$, and say what would;
# - say why a model that has settled feels no constraint, and what a share asks of it that it cannot give;
# - find loops that were made worse on purpose, and name the forms that cannot do it;
# - let single tokens stop when they are confident, and judge that against the best fixed number of loops.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | FLT, 2 loops, 4 steps, all eight methods | seconds |
# | live | LT, 4 loops, 100 steps, three methods | under a minute on one core |
# | laptop | LT by eight methods and FLT by two, 6 loops, 300 steps, four trials each, 5 seeds | about 70 minutes of one core |
# | colab | FLT, 6 layers of width 384, 1,500 steps, four methods | sized for an hour on a 16 GB GPU, not measured |

# %% tags=["setup", "hide-input"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.optimize import linprog
from torch.testing import assert_close

from unrolled import checks, figures, provenance, results
from unrolled.descent import constraints as forms
from unrolled.looped import instability
from unrolled.together import descending_loops as descending
from unrolled.together.exits import fixed_losses, read_with_exits
from unrolled.together.loops import loop_losses, loop_readouts, read_loops

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The question, and one figure
#
# Let $K$ be the number of loops in training. We train with one inequality per loop, primal and dual as in {numref}`descent-dual_ascent`, and ask three things:
#
# 1. Is the loss then monotone up to loop $K$?
# 2. Does it stay flat, or fall, beyond $K$?
# 3. What does that cost at $K$ itself?
#
# Our prediction, written before there were rows: to the first yes, under every form, but under the exact form in a way that nobody wants; to the second no, by {prf:ref}`prop-together-beyond` below;
# to the third little. (A trial run of the larger preset, with a seed apart from the evidence, has already spoken against the first: the proxy's loss rose at the last loop.) What came out stands below {numref}`fig-together-descending`. The question is worth asking of LT, whose loss has a valley at $K$ and climbs beyond it ({numref}`fig-looped-text-recipes`). FLT hardly moves beyond $K$ anyway.
#
# The next cells train three LT models on text, from the same weights on the same batches: one with the loss on the last loop ("last"), one with the exact constraints, one with their proxy form
# (both defined below).
#
# **Predict before you run:** the constraints ask that each loop lowers the loss. Which loops will they change most, the first, the last, or those beyond $K$?


# %%
evidence = results.committed("together.descending_loops")
settings = descending.EXPERIMENT.settings(PRESET)
models, live = {}, []
for case in descending.EXPERIMENT.cases(settings):
    model, run = descending.trained(settings, case, SEED)
    models[case["method"]] = model
    live.append(case | {"seed": SEED} | descending.columns_of(settings, case, model, run))

# %% mystnb={"figure": {"name": "fig-together-live", "caption": "Live models: loss on test windows after each loop. Dotted: the number of loops in training."}, "image": {"alt": "Test loss over loops for a loss on the last loop, exact constraints and their proxy form", "width": "80%"}}
K = live[0]["num_loops"]


# A column over loops, one line per method; mark the trained K.
def over_loops(ax, rows, y, by="method", **options):
    figures.curves(ax, rows, y, by=by, xlabel="loops at inference $k$", **options)
    ax.axvline(rows[0]["num_loops"], color="0.4", linestyle=":", linewidth=1)
    ax.locator_params(axis="x", integer=True)


_, ax = plt.subplots(figsize=(6.6, 3.3))
over_loops(ax, live, "test_loss_by_loop", ylabel="loss (nats per byte)")
plt.show()

# %% [markdown]
# In our run the methods differ most in the first loops, come close to each other at $K$, and climb together beyond it. The rest of the chapter says why.
#
# ## Loops as layers
#
# The head of a looped model can read any state. Let $x^{(k)}$ be the stream after loop $k$ ({eq}`eq-looped-recurrence`), and $x^{(0)} = e$ the embedding; then
#
# $$
# f_k = \mathbb{E}\, \ell\bigl(\mathrm{head}(\mathrm{norm}(x^{(k)})),\, y\bigr), \qquad k = 0, 1, \dots, K ,
# $$ (eq-together-loop-losses)
#
# with the cross-entropy $\ell$, and $y$ the next byte. These are the losses of layers of the part on descent, with two differences that help. The readout is the model's own, trained norm and head; nothing is
# added. And $f_k$ is *exactly* the loss of the model with $k$ loops: a loop does not know how many follow. So to constrain the losses is to constrain a family of models.
#
# $f_0$ is special. No attention has run: it is the loss of a prediction from the present byte alone.

# %%
inputs, targets = (part[:8] for part in instability.text_of(settings).validation)
device = next(models["last"].parameters()).device
inputs, targets, model = inputs.to(device), targets.to(device), models["last"]
with torch.no_grad():
    states = [model.embed(inputs)]
    for k in range(2 * K):
        states.append(model.loop(states[0], states[-1] if k else None)[-1])
    mine = torch.stack([F.cross_entropy(model.logits_from(x).mT, targets) for x in states])
    assert_close(mine, loop_losses(model, inputs, targets, 2 * K).mean(dim=1))
    for k in (1, K, 2 * K):
        assert_close(mine[k], model.loss(inputs, targets, num_loops=k))

# %% [markdown]
# Code: {py:func}`unrolled.together.loops.loop_losses`; {py:func}`unrolled.together.loops.read_loops` returns the loss of every token after every loop, and the lengths of the states.
#
# ## What a loss up to $K$ says beyond $K$
#
# "Last" asks something of loop $K$ alone: {numref}`looped-inference` shows what becomes of the others. Constraints ask something of *all* loops up to $K$. Is that enough for the next one?
#
# :::{prf:proposition} Descent ends where it is asked
# :label: prop-together-beyond
# For any losses $f_0 > f_1 > \dots > f_K$, and any number $z \ge 0$, there are a loop $G$ and a readout with these losses and $f_{K+1} = z$.
# :::
#
# :::{prf:proof}
# Take distinct states $s_0, \dots, s_{K+1}$, let $G$ map each to the next, and let the readout have the loss $f_k$ at $s_k$ and $z$ at $s_{K+1}$. $\square$
# :::
#
# So no function of $f_0, \dots, f_K$, be it a mean, a Lagrangian or a price, can tell a model that will climb from one that will not. You may object that $G$ was made up. Then take a smooth
# one: a state in the plane that turns by the angle $\omega$ per loop, and a loss that grows with the angle $\varphi$ to a target,
#
# $$
# f_k = 1 - \cos(\varphi - k\, \omega) .
# $$ (eq-together-turn)
#
# With $\varphi = K \omega \le \pi$ each loop up to $K$ lowers the loss, by a share that grows with $k$, and each of the next $K$ raises it. That is the valley of LT.
#
# What *would* say something is a small last step of a loop that contracts. Let $G$ shrink distances by $q < 1$ ({prf:ref}`thm-looped-contraction`) and let the loss change by at most $\mathrm{Lip}$ times
# the change of $h$. The steps after $K$ have at most the lengths $q, q^2, \dots$ times the last one, $\lVert h^{(K)} - h^{(K-1)} \rVert$; add them up:
#
# $$
# \bigl\lvert f_k - f_K \bigr\rvert \le \mathrm{Lip}\, \frac{q}{1 - q}\, \bigl\lVert h^{(K)} - h^{(K-1)} \bigr\rVert
# \qquad \text{for all } k > K .
# $$ (eq-together-step-bound)
#
# The right side can be measured at $K$. But no loss asks for it to be small.
#
# **Predict before you run:** the next cell has a turning state, and one whose angle to the same target shrinks to a third per loop. Both descend at every loop up to 6. How do they go on, and how large is the right side for the second?

# %% mystnb={"figure": {"name": "fig-together-turn", "caption": "Two loops in the plane with K = 6 (dotted). Turning: a sixth of a quarter turn per loop, towards a target a quarter turn away. Settling: the angle to the same target shrinks to a third per loop. Both descend up to K."}, "image": {"alt": "Loss over loops of a turning and of a settling state", "width": "75%"}}
k, phi = torch.arange(13.0), math.pi / 2
omega, shrink = phi / 6, 1 / 3
angles = {"turning": phi - k * omega, "settling": phi * shrink**k}
f = {name: 1 - torch.cos(angle) for name, angle in angles.items()}
assert all((loss[1:7] < loss[:6]).all() for loss in f.values())
last_step = (angles["settling"][6] - angles["settling"][5]).abs()
bound = shrink / (1 - shrink) * last_step  # Lip = 1: the slope of a cosine
assert ((f["settling"][7:] - f["settling"][6]).abs() <= bound + 1e-6).all()
toys = [{"state": name, "num_loops": 6, "loss": loss.tolist()} for name, loss in f.items()]
_, ax = plt.subplots(figsize=(6.2, 3))
over_loops(ax, toys, "loss", by="state", x=k.tolist(), ylabel="loss")
plt.show()

# %% [markdown]
# ## Each loop must lower the loss
#
# With a share $\alpha \in [0, 1)$ the problem of {numref}`descent-dual_ascent` is, for loops,
#
# $$
# \min_\theta\; f_K \quad\text{subject to}\quad f_k \le (1 - \alpha)\, f_{k-1}, \qquad k = 1, \dots, K .
# $$ (eq-together-descending-loops)
#
# One price $\lambda_k \ge 0$ per loop, raised while its slack is positive ({eq}`eq-descent-dual-ascent`). We derive nothing anew: the forms are those of that chapter, with $V$ bytes in the place of $C$ classes.
#
# | form | slack of loop $k$ | losses that training may raise |
# |---|---|---|
# | exact, {eq}`eq-descent-slack` | $f_k - (1 - \alpha) f_{k-1}$ | $f_0, \dots, f_{K-1}$; $f_0$ always |
# | anchored, {eq}`eq-descent-anchored` | the same, with $\ln V$ for $f_0$ | $f_1, \dots, f_{K-1}$ |
# | cumulative, {eq}`eq-descent-cumulative` | $f_k - (1 - \alpha)^k \ln V$ | none |
# | proxy, {eq}`eq-descent-proxy` | exact; no gradient through $f_{k-1}$ | none |
# | resilient, {eq}`eq-descent-resilient` | exact; prices leak with the cost $c$ | as exact, less |
#
# Their rivals have the same steps, batches and initial weights, and compute $K$ loops a step on average ({eq}`eq-looped-expected-loss`): the loss on the **last** loop; the **mean** over loops $1, \dots, K$; the last of a **random** number of loops,
# uniform on $1, \dots, 2K - 1$. Mind that only "random" ever sees loops beyond $K$.

# %%
f, uniform, keep = mine[: K + 1], math.log(settings.vocab_size), 1 - 0.02
expected = {
    "exact": f[1:] - keep * f[:-1],
    "anchored": f[1:] - keep * torch.cat((torch.full_like(f[:1], uniform), f[1:-1])),
    "cumulative": f[1:] - keep ** torch.arange(1, K + 1, device=device) * uniform,
}
for method, slacks in expected.items():
    asked = {"method": method, "num_loops": K, "alpha": 0.02}
    assert_close(descending.build_constraint(settings, asked).slacks(f), slacks)

# %% [markdown]
# Code: {py:func}`unrolled.together.descending_loops.build_constraint`.
#
# ### How large may a share be?
#
# Together the constraints give $f_K \le (1 - \alpha)^K f_0$. Let $f^*$ be the lowest loss that the model can reach. Then they can all be kept only if
#
# $$
# \alpha \le 1 - \Bigl(\frac{f^*}{f_0}\Bigr)^{1/K} .
# $$ (eq-together-largest-share)
#
# Text leaves little room; the cell below prints how little, with the live model's own loss in the place of $f^*$. Unless, of course, $f_0$ were *larger*.
#
# ### A settled loop feels no constraint
#
# Layers have weights of their own; loops share theirs. The gradient of the exact Lagrangian in the weights is $\sum_k w_k \nabla f_k$, with the effective weights of {eq}`eq-descent-effective-weights`. All of
# it goes into the same $\theta$.
#
# :::{prf:proposition} Settled loops
# :label: prop-together-settled
# If the losses of loops $1, \dots, K$ have one and the same gradient $\nabla f$, then for any shares $\alpha_k$
#
# $$
# \nabla \mathcal{L} = \Bigl(1 + \lambda_1 + \sum_{k=2}^{K} \alpha_k \lambda_k\Bigr) \nabla f \;-\; (1 - \alpha_1)\, \lambda_1 \nabla f_0 .
# $$ (eq-together-settled)
# :::
#
# :::{prf:proof}
# $w_k = \lambda_k - (1 - \alpha_{k+1}) \lambda_{k+1} + [k = K]$ for $k \ge 1$. In the sum over $k = 1, \dots, K$ each price from $\lambda_2$ on appears once with the factor 1 and once with $-(1 - \alpha_k)$, and $\lambda_1$ once with 1. What is left is $w_0 = -(1 - \alpha_1) \lambda_1$. $\square$
# :::
#
# Read it for FLT, whose states hardly change after two or three loops. The constraints scale the gradient that is there already, and Muon and AdamW are nearly blind to scale; only loop 1 against the embedding pushes in a direction of its own. We expect FLT to be
# much the same with constraints and without.
#
# And a share asks for what cannot be given. If the losses of a settled model are all $f$, the slack of each loop from the second on is $\alpha f > 0$, at rest, for ever: plain prices grow by $\eta\, \alpha f$ a step, resilient ones up to $c\, \alpha f$.
# *A share forbids rest.* By {eq}`eq-together-step-bound` rest at $K$ is just what we would want. So $\alpha = 0$, "no loop may raise the loss", is among our trials.

# %%
shares, prices = torch.rand(2, K, generator=torch.Generator().manual_seed(SEED))
weights = forms.ExactConstraint(tuple(shares.tolist())).weights(prices)
assert_close(weights[1:].sum(), 1 + prices[0] + (shares[1:] * prices[1:]).sum())
assert_close(weights[0], -(1 - shares[0]) * prices[0])
stuck = forms.ExactConstraint(forms.constant_alphas(0.02, K)).slacks(torch.full((K + 1,), 2.0))
assert_close(stuck, torch.full((K,), 0.02 * 2.0))
print("largest share of the live model:", round(1 - (f[K] / f[0]).item() ** (1 / K), 3))

# %% [markdown]
# ## Sabotage
#
# In the exact form $w_0 = -(1 - \alpha) \lambda_1 \le 0$, and $w_k < 0$ wherever prices grow from loop to loop by enough. Then training raises the loss of an early loop, since a bad start is easy to descend from. {eq}`eq-descent-sabotage` says when we call a loop
# sabotaged; our reference is the *unigram loss*, that of the best prediction without any context ({eq}`eq-looped-collapse`). A head that knows nothing but how often each byte occurs reaches it.
#
# **Predict before you run:** the weights below are taken at the largest price that each loop had in training. In which of the two constrained models can they be negative? Which loops end above the dotted line?

# %% mystnb={"figure": {"name": "fig-together-sabotage", "caption": "Live models. Left: test loss after loops 0 to K; dotted: the unigram loss. Right: effective weight of each loop's loss, at the largest prices of the run."}, "image": {"alt": "Loss from the embedding to loop K by method, and effective weights of the constrained methods"}}
priced, started = [], []
for row in live:
    started.append(row | {"whole": [row["test_start_loss"], *row["test_loss_by_loop"][:K]]})
    if "largest_multiplier_by_loop" in row:
        most = torch.tensor(row["largest_multiplier_by_loop"])
        w = descending.build_constraint(settings, row).weights(most)
        priced.append(row | {"weight": w.tolist()})
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.3))
axis = {"by": "method", "x": range(K + 1), "xlabel": "loop $k$"}
figures.curves(left, started, "whole", ylabel="loss (nats per byte)", legend=False, **axis)
left.axhline(instability.text_of(settings).unigram_loss, color="0.4", linestyle=":")
figures.curves(right, priced, "weight", ylabel="effective weight $w_k$", **axis)
right.axhline(0, color="0.4", linewidth=1)
right.legend(*left.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% tags=["hide-input"]
columns = {"test_start_loss": "loss of the embedding", "test_loss": "loss at K"}
columns |= {
    "sabotaged_loops": "sabotaged loops",
    "test_drift": "mean loss beyond K, less that at K",
}
pd.DataFrame(live).set_index("method").reindex(columns=[*columns]).rename(columns=columns).round(3)

# %% [markdown]
# In our run the exact form lifts the embedding far above the unigram loss, and its first loops start from there; the proxy lowers the first loops and leaves the rest. The column on the right is the answer to our second question on this one seed, and a poor one: beyond $K$
# all three climb, as {prf:ref}`prop-together-beyond` allows.
#
# ## A blind spot
#
# All constraints are functions of losses, and the readout divides each state by its length, so a loss cannot see lengths ({eq}`eq-looped-blind-spot`). {cite:t}`sharma2026dense` warn of this *readout blind spot*: a loss on every loop does not keep states from growing. So we
# keep the lengths beside the losses.
#
# **Predict before you run:** LT hands on the *normed* state. Do lengths grow beyond $K$, where the loss climbs?

# %% mystnb={"figure": {"name": "fig-together-norms", "caption": "Live models: mean length of a token's state before the last norm, over loops at inference. Dotted: the number of loops in training. Compare with the losses above."}, "image": {"alt": "State norm over loops by method", "width": "80%"}}
state, read = loop_readouts(models["last"], inputs)[-1]
assert_close(read(7 * state), read(state), rtol=1e-3, atol=1e-3)
_, ax = plt.subplots(figsize=(6.6, 3))
over_loops(ax, live, "state_norm_by_loop", ylabel="length of a state")
ax.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# They need not, and in our run they do not: the norm between the loops keeps them in bounds ({prf:ref}`prop-looped-bound`). The states go astray at constant length. Here the blind spot hides nothing, and quiet lengths prove nothing.
#
# ## Exits: each token its own number of loops
#
# If early loops are readable, why run them all? After loop $k$ token $n$ has a distribution $p^{(k)}_n$ over the next byte. Let it stop at the first loop at which it is *confident*, for a threshold $\tau$:
#
# $$
# k_n = \min \Bigl\{ k \le K :\; \max_v p^{(k)}_n(v) > \tau \;\text{ or }\; k = K \Bigr\} .
# $$ (eq-together-exit)
#
# With $\tau = 0$ all stop after one loop, with $\tau = 1$ none before the last. {numref}`looped-inference` stopped whole texts. For single tokens one must say what the *others* then read of them: in
# {py:func}`unrolled.together.exits.read_with_exits` they find the keys and values of the last loop that it ran, as a cache would hold them. So a stopped token changes those behind it, and exits are no mere choice among numbers that were computed anyway. Only a text of one token has nobody to disturb:

# %%
model, tau = models["proxy"], 0.3
with torch.no_grad():
    readouts = loop_readouts(model, inputs[:, :1], K)[1:]
    p = torch.stack([read(x) for x, read in readouts]).softmax(dim=-1)  # (K, B, 1, V)
confident = p.amax(dim=-1) > tau
confident[-1] = True  # out of loops
mine = 1 + confident.int().argmax(dim=0)
assert torch.equal(mine, read_with_exits(model, inputs[:, :1], tau, K).loops)

# %% [markdown]
# ### The rival
#
# A rule that uses two loops on average must beat the best *fixed* number of at most two, or a lot between two numbers that decides for each text: a share $r$ gets $j$ loops, the others $i$. The lowest loss at a mean of at most $k$ is
#
# $$
# f_{\text{fix}}(k) = \min \bigl\{ (1 - r) f_i + r f_j \;:\; (1 - r)\, i + r\, j \le k, \; 0 \le r \le 1 \bigr\} .
# $$ (eq-together-exit-rival)
#
# Two numbers are enough: the shares of all numbers solve a linear program with two constraints (they add up to one, their mean is at most $k$), and such a program has a solution with at most two shares that are not zero. Let a solver that knows no such theorem check it.


# %%
# The best shares of all numbers of loops with a mean of at most k.
def best_lot(losses, k):
    numbers, ones = [list(range(1, len(losses) + 1))], [[1] * len(losses)]
    return linprog(losses, A_ub=numbers, b_ub=[k], A_eq=ones, b_eq=[1]).fun


valley = live[0]["test_loss_by_loop"]
for k in (1, 1.5, 2.2, 3):
    assert math.isclose(best_lot(valley, k), fixed_losses(valley, [k])[0], rel_tol=1e-6)

# %% [markdown]
# **Predict before you run:** a byte in the middle of a word is easy after one loop; one at the start of a word is hard after any number. Which of them keeps looping? Will the points lie below the line of their colour?

# %% mystnb={"figure": {"name": "fig-together-exits", "caption": "Live models: test loss against the mean number of loops per token. Lines: the best fixed numbers of loops. Points: tokens that stop by themselves, one point per threshold. A point below its line would be a gain."}, "image": {"alt": "Frontier of early exits against fixed numbers of loops, by method", "width": "80%"}}
_, ax = plt.subplots(figsize=(6.6, 3.5))
compute = torch.linspace(1, K, 60).tolist()
axis = {"x": compute, "xlabel": "mean loops per token", "ylabel": "loss (nats per byte)"}
for row in live:
    lot = fixed_losses(row["test_loss_by_loop"][:K], compute)
    figures.curves(ax, [row | {"lot": lot}], "lot", by="method", **axis)
    exits = row["test_loops_by_threshold"], row["test_loss_by_threshold"]
    ax.plot(*exits, "o", color=ax.lines[-1].get_color())
plt.show()

# %% [markdown]
# In our run no point lies below its line, and most lie above it: where the rule saves loops, a fixed number saves them at a lower loss. Two things go wrong. The first is the disturbance: this model has never read states of mixed loops. The second is the rule itself, and the next cell shows it. It reads every token after every loop, without exits,
# and groups the tokens by the loop at which they *would* stop.

# %%
reading = read_loops(model, inputs, targets, K)
with torch.no_grad():
    top = [u(x).softmax(-1).amax(-1).flatten() for x, u in loop_readouts(model, inputs, K)[1:]]
confident = torch.stack(top).cpu() > 0.4
confident[-1] = True
tokens = pd.DataFrame({"stops at loop": (1 + confident.int().argmax(dim=0)).tolist()})
tokens["loss after 1"], tokens["loss after K"] = reading.losses[1], reading.losses[K]
tokens["gain of the other loops"] = tokens["loss after 1"] - tokens["loss after K"]
groups = tokens.groupby("stops at loop")
groups.mean().assign(share=groups.size() / len(tokens)).round(3)

# %% [markdown]
# Tokens that run all loops are those with a high loss *at the end*, too. The rule asks "do I know the answer?" where it should ask "would another loop tell me more?". A byte that nobody can foresee never becomes confident, and pays for all its loops. An exercise measures how much the best rule there is could gain.
#
# ## The experiment
#
# | | |
# |---|---|
# | models | LT and FLT, 2 layers of width 64, $K = 6$ |
# | data | State of the Union, bytes; trained, picked and reported on three disjoint splits |
# | training | 300 steps of Muon, 4 windows of 64 bytes |
# | methods | LT: last, mean, random, and five forms; FLT: last, proxy |
# | trials | four per method: of last, mean and random four learning rates (0.02, 0.01, 0.005, 0.0025); of the forms the first three of them with one share (0; proxy 0.02; cumulative 0.3), and the first with one share more (0.02; proxy 0; cumulative 0.2) |
# | picked | on the validation text, by the mean loss over 1 to 12 loops; a rival that is judged at $K$, by its loss there |
# | seeds | five, paired |
#
# Every method has as many trials as the next. It was not so at first: a first round had two trials for each, two rates for the rivals, two shares at the higher rate for the forms. Its rows said that the proxy costs much at $K$ and that the exact form sabotages, and both were the work of the rate. So all methods got the smaller rates; what the claims say was
# not changed. One form speaks for the others where a claim needs one: the proxy, named before there were rows, since it compares neighbours and cannot sabotage.

# %% mystnb={"figure": {"name": "fig-together-descending", "caption": "The trial of each method that the validation text picks: test loss over loops at inference, by variant; thin lines are seeds. Dotted: the number of loops in training. Each title says whether these are laptop rows or the live models."}, "image": {"alt": "Test loss over loops for all methods, one panel per variant"}}
shown, scale = evidence or live, "laptop rows" if evidence else "live, one seed"
variants = dict.fromkeys(row["variant"] for row in shown)
_, axes = plt.subplots(1, len(variants), figsize=(5.8 * len(variants), 3.6), squeeze=False)
for ax, variant in zip(axes[0], variants, strict=True):
    chosen = results.select(shown, variant=variant)
    names = dict.fromkeys(row["method"] for row in chosen)
    best = [row for name in names for row in descending.picked(shown, variant, name)]
    first = variant == next(iter(variants))  # which has all methods
    over_loops(ax, best, "test_loss_by_loop", ylabel="loss (nats per byte)", legend=first)
    ax.set_title(f"{figures.label_of(variant)} ({scale})")
plt.show()

# %% [markdown]
# ### Three answers
#
# All numbers are test losses in nats per byte, means over the seeds with 95 % intervals, at the picked trial unless a rate is named.
#
# *Monotone up to $K$?* Yes, where nothing had to be done for it. "Last" by itself descends at every loop, in every seed. The exact, the anchored and the resilient form, whose picked share is 0, have next to nothing to price then, and end where "last" ends: {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=exact learning_rate=0.01 alpha=0.0 | .3f`, {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=anchored learning_rate=0.01 alpha=0.0 | .3f` and {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=resilient learning_rate=0.01 alpha=0.0 | .3f` at $K$, "last" {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .3f`. The two forms that change something, the proxy with a positive share and the cumulative form,
# lower the first loops (after one loop {result}`together_descending_loops | mean_ci test_loss_by_loop[0] | preset=laptop variant=original method=proxy learning_rate=0.01 alpha=0.02 | .3f` with the proxy, {result}`together_descending_loops | mean_ci test_loss_by_loop[0] | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .3f` with "last") and rise a little at the last: the valley moves forward. So on LT, at the picked trials, a constraint is either nearly idle or broken, and on this question we were wrong.
#
# *Flat beyond $K$?* No. The mean loss over loops 7 to 12 lies above that at $K$ by {result}`together_descending_loops | mean_ci test_drift | preset=laptop variant=original method=proxy learning_rate=0.01 alpha=0.02 | .3f` with the proxy and {result}`together_descending_loops | mean_ci test_drift | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .3f` with "last", as {prf:ref}`prop-together-beyond` allows. "Random", which has seen such loops, rises least of all methods on LT, by {result}`together_descending_loops | mean_ci test_drift | preset=laptop variant=original method=random learning_rate=0.01 alpha=0.0 | .3f`, and pays for it at $K$: {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=random learning_rate=0.01 alpha=0.0 | .3f`. FLT rises by less than a thousandth, and the constraint has nothing to add there.
#
# *The cost at $K$?* None that we see for the proxy: {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=proxy learning_rate=0.01 alpha=0.02 | .3f` against {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .3f`. Over 1 to 12 loops its mean loss, {result}`together_descending_loops | mean_ci test_area | preset=laptop variant=original method=proxy learning_rate=0.01 alpha=0.02 | .3f`, is below those of "last", {result}`together_descending_loops | mean_ci test_area | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .3f`, and "random", {result}`together_descending_loops | mean_ci test_area | preset=laptop variant=original method=random learning_rate=0.01 alpha=0.0 | .3f`; but plain "mean", without a multiplier, is lower still: {result}`together_descending_loops | mean_ci test_area | preset=laptop variant=original method=mean learning_rate=0.01 alpha=0.0 | .3f`. It gives more at $K$: {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=mean learning_rate=0.01 alpha=0.0 | .3f`.
#
# *Sabotage* came only at the largest rate, and the share 0.02 was tried with the exact form at that rate alone. At the rate 0.02 and the share 0.02 the exact form lifts the loss of the embedding to {result}`together_descending_loops | mean_ci test_start_loss | preset=laptop variant=original method=exact learning_rate=0.02 alpha=0.02 | .1f` nats, and all seeds are sabotaged; without a share it lies at {result}`together_descending_loops | mean_ci test_start_loss | preset=laptop variant=original method=exact learning_rate=0.02 alpha=0.0 | .2f` there, and that of "last", which prices nothing, at {result}`together_descending_loops | mean_ci test_start_loss | preset=laptop variant=original method=last learning_rate=0.02 alpha=0.0 | .2f`. At the picked rate and without a share it stays at {result}`together_descending_loops | mean_ci test_start_loss | preset=laptop variant=original method=exact learning_rate=0.01 alpha=0.0 | .2f`, where "last" has it too, {result}`together_descending_loops | mean_ci test_start_loss | preset=laptop variant=original method=last learning_rate=0.01 alpha=0.0 | .2f`, and no loop is sabotaged. And the rate outweighs the methods: "last" at 0.02 reaches {result}`together_descending_loops | mean_ci test_loss | preset=laptop variant=original method=last learning_rate=0.02 alpha=0.0 | .3f` at $K$.
#
# ## What we asked, and what we saw
#
# The papers claim nothing here; each line is a question of ours as a statement that rows can contradict. The rules:
#
# - a statement of "more", "less" or "fewer" is *reproduced* if the whole 95 % interval over the seeds lies on its side, a *trend* if the mean does by more than its standard error;
# - a yes or no, such as "never rises", must hold in every seed of every method that is named, and is a trend if it holds in more than half;
# - 0.01 nats per byte is what we call noticeable, and a rise from one loop to the next counts from 0.002 on.

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
claims = descending.EXPERIMENT.claims
table = results.comparison_table("together.descending_loops", claims, rows=evidence)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence"]]

# %% [markdown]
# How to read it. The first line is the reason to try at all: LT climbs beyond $K$. The next three are question 1, monotone and how. Lines 5 and 6 are question 2: flat, or at least flatter. Line 7 is question 3, the cost at $K$, and line 8 the comparison with the one rival that trains beyond $K$. Two lines are on FLT, where there is
# little to mend. The last two are on exits: do constraints make them cheaper, and are they worth it?
#
# ## Deviations and choices
#
# | what | papers | here | why |
# |---|---|---|---|
# | constraints on loops | not in any of them | one per loop, $f_0$ included | a loop is a layer |
# | shares, dual step | not known to us | $\alpha$ = 0 and 0.02, cumulative 0.3 and 0.2; $\eta = 0.1$, every step | 0.02 is below the limit of {eq}`eq-together-largest-share`; the cumulative shares cannot be kept at the last loops ($0.8^6 \ln 256 = 1.45$ nats), where they act as a weight that grows |
# | primal optimizer | stochastic gradient steps (descent); Muon (loops) | Muon | that of the looped models |
# | anchored, cumulative, proxy | not in what we know of them | beside the exact form | {numref}`descent-dual_ascent` |
# | exits | none | confidence of single tokens | our choice; {cite:t}`geiping2025recurrent` stop by the change of the prediction |
# | size | 6 and 12 layers (loops) | 2 layers of width 64 | a run in half a minute on one core |
#
# - "Random" reads loops up to $2K - 1$. A constraint on these loops too would be a fair next step, and another budget.
# - The forms and "mean" read the head $K$ times a step, "last" and "random" once. At this size that is a seventh of a step; we have not given it back as steps.
# - The sizes of the dual step and of $c$ were not tuned.
# - What happens in one seed of live models is illustration, and no evidence.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: the largest share
# :label: ex-together-largest-share
# The loss of the embedding is 2.6 nats, and no model of this size gets below 1.9. Which constant share can six loops keep at most, by {eq}`eq-together-largest-share`?
# :::

# %% tags=["exercise"]
answer = None  # a number between 0 and 1
checks.together_largest_share(answer)

# %% [markdown]
# :::{solution} ex-together-largest-share
# :class: dropdown
# About five per cent per loop. With a larger share prices grow without end, unless training finds a way to raise 2.6.
#
# ```python
# answer = 1 - (1.9 / 2.6) ** (1 / 6)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: where a turning loop turns back
# :label: ex-together-turning-point
# In {eq}`eq-together-turn` let $0 < \omega < \varphi \le \pi$. After which loop is the loss lowest, if you read all loops $k \ge 0$ up to one full turn? Write it for numbers `phi` and `omega` (no two loops tie in the hidden cases).
# :::


# %% tags=["exercise"]
def turning_point(phi, omega): ...  # a whole number


checks.together_turning_point(turning_point)

# %% [markdown]
# :::{solution} ex-together-turning-point
# :class: dropdown
# The loss grows with the distance of $k \omega$ from $\varphi$, so take the nearest whole number. A model that was trained at $K$ has $\omega = \varphi / K$: it turns back exactly there.
#
# ```python
# def turning_point(phi, omega):
#     return round(phi / omega)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the push on the embedding
# :label: ex-together-embedding-push
# In {eq}`eq-together-settled` divide by the factor of $\nabla f$: training descends along $\nabla f - \beta\, \nabla f_0$. Write $\beta$ for tensors `prices` and `shares` of $K$ numbers. How large can it become, if only $\lambda_1$ grows?
# :::


# %% tags=["exercise"]
def embedding_push(prices, shares): ...  # a number


checks.together_embedding_push(embedding_push)

# %% [markdown]
# :::{solution} ex-together-embedding-push
# :class: dropdown
# It stays below $1 - \alpha_1$. An optimizer that is blind to scale sees a mixture of two gradients, with at most about as much of "make the embedding worse" as of "make the loops better".
#
# ```python
# def embedding_push(prices, shares):
#     scale = 1 + prices[0] + (shares[1:] * prices[1:]).sum()
#     return (1 - shares[0]) * prices[0] / scale
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: confident exits
# :label: ex-together-exit-loops
# Write {eq}`eq-together-exit` for logits $(K, N, V)$ of all loops, as if stopped tokens disturbed nobody: for each token the loop at which it stops, from 1 to $K$.
# :::


# %% tags=["exercise"]
def exit_loops(logits, threshold): ...  # a tensor (N,) of loop numbers


checks.together_exit_loops(exit_loops)

# %% [markdown]
# :::{solution} ex-together-exit-loops
# :class: dropdown
# `argmax` finds the first True; the last loop counts as confident.
#
# ```python
# def exit_loops(logits, threshold):
#     confident = logits.softmax(dim=-1).amax(dim=-1) > threshold
#     confident[-1] = True
#     return 1 + confident.int().argmax(dim=0)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: the best lot, without a solver
# :label: ex-together-best-fixed
# Write {eq}`eq-together-exit-rival` for a tensor of losses $f_1, \dots, f_K$ and a mean number of loops $k \in [1, K]$.
# :::


# %% tags=["exercise"]
def best_fixed(losses, k): ...  # a number


checks.together_best_fixed(best_fixed)

# %% [markdown]
# :::{solution} ex-together-best-fixed
# :class: dropdown
# Whoever may run $i$ loops may run fewer, so take the running minimum first. Then try all pairs on both sides of $k$. Next to a valley a lot between its two sides is worse than its floor: the running minimum takes care of that, too.
#
# ```python
# def best_fixed(losses, k):
#     best = losses.cummin(dim=0).values
#     found = []
#     for i in range(1, len(best) + 1):
#         for j in range(i, len(best) + 1):
#             if i <= k <= j:
#                 r = (k - i) / max(j - i, 1)
#                 found.append((1 - r) * best[i - 1] + r * best[j - 1])
#     return min(found)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: the best rule there is
# :label: ex-together-oracle
# How much could any rule gain? Let an oracle that knows the loss of every token after every loop, `losses` $(K, N)$, stop each token at its lowest loss, and at the first such loop. Return the pair (mean number of loops, mean loss). Then give it `reading.losses[1:]` and compare with the figure. Why is this bound too good to be true
# even for an oracle of *difficulty*, which knows everything but the next byte?
# :::


# %% tags=["exercise"]
def oracle(losses): ...  # two numbers


checks.together_oracle(oracle)

# %% [markdown]
# :::{solution} ex-together-oracle
# :class: dropdown
# It picks by the byte that came, so it also harvests luck: of $K$ guesses that differ by noise the best looks better than any of them is.
#
# ```python
# def oracle(losses):
#     lowest = losses.min(dim=0).values
#     first = (losses == lowest).int().argmax(dim=0)
#     return (1 + first.double()).mean(), lowest.mean()
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** One training run, and you know the loss of models with 1, 2, ..., 12 loops. Why is no second run needed?
#
# :::{dropdown} Answer
# A loop does not know how many follow, so $f_k$ of a long run *is* the loss of the model with $k$ loops ({eq}`eq-together-loop-losses`).
# :::
#
# **2.** All constraints up to $K = 6$ are kept with room to spare. What do you know of loop 7?
#
# :::{dropdown} Answer
# Nothing ({prf:ref}`prop-together-beyond`). If the loop contracts and its last step is small, {eq}`eq-together-step-bound` bounds the change; but the constraints ask for neither.
# :::
#
# **3.** Why should FLT be nearly the same with constraints and without?
#
# :::{dropdown} Answer
# Its loops have settled, so their losses have nearly one gradient. The Lagrangian then scales that gradient ({eq}`eq-together-settled`), and an optimizer that is nearly blind to scale takes nearly the same step.
# :::
#
# **4.** Why are the cumulative form and the proxy safe from sabotage, and what did the exact form do to the embedding?
#
# :::{dropdown} Answer
# No loss has a negative weight in them. In the exact form $w_0 = -(1 - \alpha) \lambda_1$, so training makes the embedding worse: a bad start is easy to descend from.
# :::
#
# **5.** A rule lets tokens stop when they are confident, and its loss at 3 loops on average equals that at $K = 6$. Has it saved half of the compute?
#
# :::{dropdown} Answer
# Only if no fixed number of at most 3 loops, and no lot between two, has that loss as well ({eq}`eq-together-exit-rival`). And confident is not the same as finished: tokens that cannot be foreseen run all loops for nothing.
# :::

# %% [markdown]
# ## Where this came from
#
# The laptop rows are made by `python -m unrolled run together.descending_loops --preset laptop --seeds 0-4`; each row names the command that makes it alone. Everything else on this page was computed while it was built.

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
