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
# (together-sparse_loops)=
# # Sparse loops
#
# A looped model stores few weights and uses each of them $K$ times. Pruning leaves fewer still. Do the two savings go together? A weight that is missing is missing in every loop, so it seems that a looped model should lose more by it than a plain one that does the same arithmetic. Here you say what *the same* can mean,
# derive when an error that is made $K$ times is worse than $K$ errors, measure it on a model that you train, and then let training under masks decide. No paper has asked this, so there is no number to reproduce, and the answer may be no.
#
# After this you can
#
# - pair a looped and a plain model by operations, by parameters or by stored weights, and say why no pair is equal in all;
# - write the error of a shared weight as a sum over its uses, and check it by swapping one loop at a time;
# - say from one number, the coherence of the uses, whether sharing amplifies an error or not;
# - measure what pruning costs as a difference of differences, paired by seeds;
# - read curves over sparsity and loops without taking a better dense model for a more robust one.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | 2 loops of width 16, 20 steps, two optimizers | seconds |
# | live | FLT and the plain model with 4 loops, dense and at 90 %, 100 steps of AdamW | under a minute on one core |
# | laptop | 1, 3 and 6 loops, dense to 95 %, AdamW, and HORST and HAM with 1 and 6 loops, three rates each, 300 steps, 5 seeds | about an hour of one core |
# | colab | 1 and 6 loops, 6 layers of width 384, 2,000 steps | sized for a 16 GB GPU, not measured |

# %% tags=["setup", "hide-input"]
import copy
from dataclasses import asdict

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.testing import assert_close

from unrolled import checks, figures, provenance, results
from unrolled.horst.sparsity import magnitude_masks, prunable_weights
from unrolled.together import sparse_loops, sparse_search
from unrolled.together.compression import count_weights
from unrolled.together.interaction import interaction
from unrolled.together.sparse_loops import NOT_PRUNED, coherence, damages, mixed_state, use_errors

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The question, and one figure
#
# 1. Take a looped model (FLT, {eq}`eq-looped-flt`) with $L$ blocks and $K$ loops, and a plain one with $K L$ blocks: the same operations per token. Prune both by the same share. Does the looped one lose more, and more with more loops?
# 2. Is a looped model that is pruned a little better than a plain one that is pruned until it stores as few weights?
# 3. Do the optimizers of {numref}`horst-operators`, made for sparse weights, HAM and HORST, lose less than AdamW here?
#
# A *prediction* that sounds safe: yes to the first, since every error is made $K$ times. Write down whether you believe it. The next cells train the pair dense and under masks ({numref}`horst-vision`), with AdamW, and look for the rows of the larger comparison.


# %%
settings = sparse_loops.EXPERIMENT.settings(PRESET)
K, S, ADAMW = max(settings.num_loops), max(settings.sparsities), settings.optimizers[0]
models, live = {}, []
for case in sparse_loops.cases(settings):
    models[tuple(case.values())] = model = sparse_loops.trained(settings, case, SEED)[0]
    found = {"val_loss": sparse_loops.loss_of(model, settings), **count_weights(model, NOT_PRUNED)}
    live.append({**case, "preset": PRESET, "seed": SEED, **found})

# %%
laptop = sparse_loops.picked(results.committed("together.sparse_loops"))
evidence, scale = (laptop, "laptop") if laptop else (live, PRESET)
panels = [(PRESET, live, K)] + [("laptop", laptop, k) for k in (3, 6) if laptop]

# %% [markdown]
# The *damage* is the validation loss of the sparse model less that of the same model trained dense. **Predict before you look:** which of the two lines is higher?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-together-sparse", "caption": "Damage: what training under masks costs against dense training, over the share of zeros, for the looped model (FLT) and the plain one of equal operations, trained with AdamW. The live run has one seed and two points. Laptop rows, once there are any: mean over paired seeds and 95 % confidence interval."}, "image": {"alt": "Damage over sparsity for the looped and the plain model, one panel for each number of loops"}}
_, axes = plt.subplots(1, len(panels), figsize=(3 + 3 * len(panels), 3.5), squeeze=False)
for ax, (name, rows, loops) in zip(axes[0], panels, strict=True):
    pair = results.select(damages(rows), optimizer=ADAMW, num_loops=loops)
    look = {"ylabel": "damage (nats per token)", "legend": ax is axes[0, -1]}
    figures.mean_with_interval(ax, pair, "sparsity", "damage", **look)
    ax.set_title(f"{name}, $K$ = {loops}")
plt.show()

# %% [markdown]
# A live run is one seed of a short training: a picture of the question, and no answer. Mind one trap from the start: blocks that have not learned anything yet can be pruned for nothing. A small damage means something only beside a dense loss that is as low.
#
# ## What "the same" means
#
# Let a block have $n = 12\, d^2$ weights in its matrices (the gains and biases that other blocks have are missing here). A weight costs two operations each time it is used, and none if it is zero. The looped model stores $L n$ weights and uses each $K$ times, the plain one stores $K L n$ and uses each once. Attention costs $4 N d$ in each
# block that is run, the head $2 d V$. With the share $s$ of every matrix pruned,
#
# $$
# \begin{aligned}
# C(s) &= K L\, \bigl( 2\, (1 - s)\, n + 4 N d \bigr) + 2 d V \quad \text{for both, and} \\
# (1 - s)\, L n &= (1 - s')\, K L n \quad \Longleftrightarrow \quad s' = 1 - \frac{1 - s}{K} .
# \end{aligned}
# $$ (eq-together-pairing)
#
# So there are three pairs, and each is equal in one thing:
#
# - **the same operations:** looped at $s$, plain with $K L$ blocks at $s$. The plain one keeps $K$ times as many weights. This is the pair of question 1;
# - **the same parameters:** looped with $K$ loops at $s$, and with one loop at $s$. The first does $K$ times the arithmetic. This is "more with more loops";
# - **the same stored numbers:** looped at $s$, plain with $K L$ blocks at $s'$. The looped one does $K$ times the operations on weights. This is question 2.
#
# In all of them embedding and head stay dense, and alike.
#
# **Predict before you run:** a looped model with 6 loops is pruned by 70 %. To which share must the plain one go, to store as little?


# %%
# Operations per token, counted weight by weight, and the weights that are stored.
def cost(model, uses):
    c, blocks = settings.config, K * settings.num_layers
    kept = sum(int((w != 0).sum()) for w in prunable_weights(model, NOT_PRUNED).values())
    attention, head = 4 * settings.length * c.hidden_size, 2 * c.hidden_size * c.vocab_size
    return {"operations": 2 * uses * kept + blocks * attention + head, "stored": kept}


table, (FLT, PLAIN) = {}, sparse_loops.compared(settings, K)
for s in (0.0, S):
    for name, uses in ((FLT, K), (PLAIN, 1)):
        table[name, f"{s:.0%}"] = found = cost(model := models[name, K, ADAMW, s], uses)
        zeros = count_weights(model, NOT_PRUNED)["weights"] - found["stored"]
        theirs = sparse_loops.operations(settings, {"variant": name, "num_loops": K}, zeros)
        assert found["operations"] == theirs["sparse_flops"]

# %%
print({(k, 0.7): round(sparse_loops.equal_weights_sparsity(0.7, k), 3) for k in (1, 3, 6)})
pd.DataFrame(table).T.rename_axis(["model", "pruned"])

# %% [markdown]
# Code: {py:func}`unrolled.together.sparse_loops.operations`, {py:func}`unrolled.together.sparse_loops.equal_weights_sparsity`, {py:func}`unrolled.together.compression.count_weights`. Both models of a pair show the same operations, to the last one. (These are the operations that a kernel for sparse matrices could do with. On most hardware zeros in
# no pattern are multiplied like all other numbers, and what is saved is memory.)
#
# ## An error that is used K times
#
# ### One loop at a time
#
# Let $\theta$ be the weights of the $L$ blocks. Give each loop weights of its own, $\theta_1, \dots, \theta_K$, and call the stream after the last loop $g$:
#
# $$
# x^{(k)} = F_{\theta_k}\bigl(e,\, \mathrm{norm}(x^{(k-1)})\bigr), \qquad x^{(K)} = g(\theta_1, \dots, \theta_K), \qquad \text{looped:} \quad \theta_1 = \dots = \theta_K = \theta .
# $$ (eq-together-untied)
#
# (The first loop has no old state.) Call the model with weights of its own in each loop the **untied twin**. It is built like the looped one, and unlike the plain model it hands its state on in the same way; so it isolates what sharing does. Pruning turns $\theta$ into $\theta - \delta$. Let $\Delta_k$ be the change of the stream at the end if loop $k$
# alone has the pruned weights, and $\Delta$ if all have. The chain rule adds up all ways in which $\theta$ acts:
#
# $$
# \begin{aligned}
# \Delta_k &= g(\theta, \dots, \underbrace{\theta - \delta}_{k}, \dots, \theta) - g(\theta, \dots, \theta) = - \frac{\partial g}{\partial \theta_k}\, \delta + O(\lVert \delta \rVert^2), \\
# \Delta &= g(\theta - \delta, \dots, \theta - \delta) - g(\theta, \dots, \theta) = \sum_{k=1}^K \Delta_k + O(\lVert \delta \rVert^2) .
# \end{aligned}
# $$ (eq-together-shared-error)
#
# The same sum over uses is in {eq}`eq-looped-bptt`, for the gradient. No Jacobian is needed to check it: swap the weights of one loop at a time. In FLT every loop starts at $e$, and the old state only asks:


# %%
# The stream after the loops of FLT, of which loop k has the blocks of loops[k].
@torch.no_grad()
def stream(loops, tokens):
    e, h = loops[0].embed(tokens), None
    for model in loops:
        x = e
        for block in model.blocks:
            x = block(x, h)
        h = model.norm(x)
    return x


# %%
# A copy that has gone the share t of the way to its pruned weights, or as far elsewhere.
def nudged(model, sparsity, t=1.0, random=None):
    other = copy.deepcopy(model)
    weights = prunable_weights(other, NOT_PRUNED)
    for name, mask in magnitude_masks(weights, sparsity).items():
        delta = t * weights[name].detach().masked_fill(mask, 0.0)
        if random:
            delta *= 2 * torch.randint(2, delta.shape, generator=random) - 1
        weights[name].data -= delta
    return other


# %%
dense = {FLT: models[FLT, K, ADAMW, 0.0]}
tokens = sparse_loops.text_of(settings).validation[0][:4]
exact = copy.deepcopy(dense[FLT]).double()
small = nudged(exact, 0.7, t=1e-4)
clean, total = stream([exact] * K, tokens), stream([small] * K, tokens)
parts = [stream([small if j == k else exact for j in range(K)], tokens) for k in range(K)]
parts = torch.stack(parts) - clean
assert_close(total - clean, parts.sum(dim=0), rtol=0, atol=1e-2 * (total - clean).norm().item())
with torch.no_grad():
    assert_close((parts, total - clean), use_errors(exact, small, tokens))
    assert_close(clean, mixed_state([exact] * K, tokens))

# %% [markdown]
# Code: {py:func}`unrolled.together.sparse_loops.mixed_state`, {py:func}`unrolled.together.sparse_loops.use_errors`.
#
# ### Coherence
#
# Is a sum of $K$ equal errors worse than a sum of $K$ different ones? That depends on whether the *changes* agree. Compare the looped model with its twin, in which each loop has been pruned for itself.
#
# :::{prf:proposition} One error for all loops, and one for each
# :label: prop-together-coherence
# Let $\delta_1, \dots, \delta_K$ be independent with mean zero and one distribution. To first order in them, the mean squared change is $\mathbb{E}\, \lVert \sum_k \Delta_k(\delta_1) \rVert^2$ for the looped model and $\sum_k \mathbb{E}\, \lVert \Delta_k(\delta_1) \rVert^2$ for its twin. For each single error
#
# $$
# \mathcal{C} = \frac{\lVert \sum_k \Delta_k \rVert^2}{\sum_k \lVert \Delta_k \rVert^2} \in [0, K] .
# $$ (eq-together-coherence)
#
# $\mathcal{C} = K$ if and only if all $\Delta_k$ are equal; $\mathcal{C} = 1$ if they are orthogonal, and if all but one are zero.
# :::
#
# :::{prf:proof}
# To first order $\Delta_k(\delta) = A_k \delta$ with a matrix $A_k$. In the twin the mixed terms vanish: $\mathbb{E} \langle A_j \delta_j, A_k \delta_k \rangle = \langle A_j\, \mathbb{E} \delta_j, A_k\, \mathbb{E} \delta_k \rangle = 0$ for $j \ne k$. In the looped model both have the same $\delta_1$, and nothing vanishes. By the Cauchy-Schwarz
# inequality $\lVert \sum_k \Delta_k \rVert^2 \le K \sum_k \lVert \Delta_k \rVert^2$, with equality for equal vectors alone. The other two cases follow by expanding the square. $\square$
# :::
#
# And the loss? Near a minimum it rises with the *square* of the change, $\frac12 \langle \Delta, H \Delta \rangle$ with its curvature $H$ in the stream (compare {eq}`eq-horst-pruning-loss`). So if $H$ treats all directions alike, sharing multiplies the damage by $\mathcal{C}$: by $K$ if every loop does the same thing, and not at all if the uses have nothing to do with each other.
# "Every error is made $K$ times" is the worst case.
#
# Which case is FLT? Every loop starts anew at $e$. What earlier loops did reaches the last one through its *queries* alone. In LT_i ({eq}`eq-looped-input`) the old state is part of the stream itself, with everything that went wrong in it.
#
# **Predict before you run:** in which of the two do the errors of the early loops matter more? Guess both coherences, between 0 and $K$.

# %%
case = {"variant": "input", "num_loops": K, "optimizer": ADAMW, "sparsity": 0.0}
dense["input"] = sparse_loops.trained(settings, case, SEED)[0]
ts, uses = (0.01, 0.03, 0.1, 0.3, 1.0), {}
for name, model in dense.items():
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        uses[name] = [use_errors(exact, nudged(exact, 0.7, t), tokens) for t in ts]

# %% mystnb={"figure": {"name": "fig-together-uses", "caption": "Live, dense models on their way to 70 % of zeros. Left: what the sum over the uses leaves unexplained, as a share of the change, against the length of the way; both axes logarithmic. Right: the length of the change that the error makes in one loop alone, for a small step, with the squares adding up to one; in the legend the coherence."}, "image": {"alt": "Left, two rising lines of the relative rest over the step; right, the share of each loop in the change, for FLT and the loop with input injection", "width": "95%"}}
_, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.5))
for name, pairs in uses.items():
    rest = [((total - parts.sum(dim=0)).norm() / total.norm()).item() for parts, total in pairs]
    look = figures.style_of(name).line()
    left.loglog(ts, rest, label=figures.label_of(name), **look)
    sizes = pairs[0][0].flatten(1).norm(dim=1)
    label = rf"{figures.label_of(name)}, $\mathcal{{C}}$ = {coherence(pairs[0][0]):.2f}"
    right.plot(range(1, K + 1), sizes / sizes.norm(), label=label, **look)
left.set(xlabel="share $t$ of the way to the pruned weights", ylabel="rest of first order")
right.set(xlabel="loop $k$ with the error", ylabel="length of its change", xticks=range(1, K + 1))
left.legend(), right.legend()
plt.show()

# %% [markdown]
# Code: {py:func}`unrolled.together.sparse_loops.coherence`. A rest that falls in proportion to the step is of second order, as it should be. At the right end of the left panel the weights are pruned: there the sum over the uses explains what is left to one minus the height of the line, and the derivation is a guide and no more.
#
# The proposition speaks of errors with mean zero, and an error by pruning has the sign of its weight. So compare with random signs: one error for all loops, against an error for each.


# %%
# Squared change by one random error in all loops, over that by an error for each loop.
@torch.no_grad()
def amplification(model, draws=6, t=0.1):
    random, squares = torch.Generator().manual_seed(SEED), torch.zeros(2)
    clean = mixed_state([model] * K, tokens)
    for _ in range(draws):
        own = [nudged(model, 0.7, t, random) for _ in range(K)]
        for i, loops in enumerate(([own[0]] * K, own)):
            squares[i] += (mixed_state(loops, tokens) - clean).square().sum()
    return (squares[0] / squares[1]).item()


found = {name: [coherence(pairs[0][0]), amplification(dense[name])] for name, pairs in uses.items()}
columns = ["coherence of pruning", "amplification, random"]
pd.DataFrame(found, index=columns).T.rename(index=figures.label_of).round(2)

# %% [markdown]
# Both columns lie between 0 and $K$ up to the noise of six draws. Where they differ, the pruned weights are not a random direction: they are the small ones, which training left behind.
#
# ## Masks that come in one shot, and masks in training
#
# The derivation is about an error that *nobody repairs*. That is one-shot pruning ({numref}`horst-language`): train dense, then drop the smallest weights. Under AC/DC ({numref}`horst-vision`, {py:class}`unrolled.horst.sparsity.AcdcSchedule`) masks come and go during training, and the weights that stay learn to do without
# the others. A shared weight then gets the sum of $K$ gradients, and one change of it repairs all loops at once. So sharing can make the error larger and its repair cheaper. Which of the two wins is not to be derived.
#
# **Predict before you look:** the open marks are the networks that were trained with masks. By how much will they lie below the lines at the same share?

# %%
shares, rows = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95), []
for name in (FLT, PLAIN):
    model = models[name, K, ADAMW, 0.0]
    start = sparse_loops.loss_of(model, settings)
    for s in shares:
        lost = sparse_loops.loss_of(nudged(model, s), settings) - start
        rows.append({"variant": name, "sparsity": s, "damage": lost, "seed": SEED})

# %% mystnb={"figure": {"name": "fig-together-one-shot", "caption": "Live, one seed: damage after one-shot pruning of the dense models (lines), and of networks that were trained with masks (open marks), looped and plain, of equal operations."}, "image": {"alt": "Rising damage over sparsity for the looped and the plain model after one-shot pruning, with an open mark for each trained with masks", "width": "80%"}}
_, ax = plt.subplots(figsize=(6.8, 3.5))
for name in (FLT, PLAIN):
    look = figures.style_of(name).line()
    line = results.frame(results.select(rows, variant=name))
    look |= {"marker": figures.style_of(name).marker}
    ax.plot(line["sparsity"], line["damage"], label=figures.label_of(name), **look)
    held = {"variant": name, "num_loops": K, "optimizer": ADAMW, "sparsity": S}
    (dot,) = results.select(damages(live), **held)
    look |= {"linestyle": "none", "markersize": 11, "fillstyle": "none"}
    ax.plot([S], [dot["damage"]], label=f"{figures.label_of(name)}, with masks", **look)
ax.set(xlabel="sparsity $s$", ylabel="damage (nats per token)"), ax.legend()
plt.show()

# %% [markdown]
# ## What pruning costs
#
# A better model is not a more robust one. A plain network with $K L$ blocks has more weights than the looped one and may be better at every sparsity; that says nothing about pruning. So compare each model with *itself*. With the validation loss $f(s)$ of a model, optimizer and seed,
#
# $$
# D(s) = f(s) - f(0), \qquad \Delta D(s) = D_{\mathrm{looped}}(s) - D_{\mathrm{plain}}(s) .
# $$ (eq-together-damage)
#
# $D$ is the **damage**, and $\Delta D > 0$ says that pruning hurts the looped model more. It is an *interaction*: the effect of looping on the effect of pruning. All four losses of a seed share its batches, so $\Delta D$ is computed seed by seed, and then gets Student's interval ({eq}`eq-looped-paired`).


# %%
# By how much pruning costs the looped model more, for each seed.
def extra_damage(rows, loops, sparsity):
    f = {(r["variant"], r["sparsity"], r["seed"]): r["val_loss"]
         for r in results.select(rows, num_loops=loops, optimizer=ADAMW)}  # fmt: skip
    seeds = sorted({seed for *_, seed in f})
    D = [[f[v, sparsity, seed] - f[v, 0.0, seed] for seed in seeds] for v in (FLT, PLAIN)]
    return pd.Series(D[0], seeds) - pd.Series(D[1], seeds)


# The four sides of the package's interaction.
def sides(loops, sparsity):
    held = {"num_loops": loops, "optimizer": ADAMW}
    shares = [{"sparsity": s} for s in (sparsity, 0.0)]
    return tuple(held | {"variant": v} | share for v in (FLT, PLAIN) for share in shares)


# %%
intervals = {}
for loops in sorted({row["num_loops"] for row in evidence} - {1}):
    for s in sorted({row["sparsity"] for row in evidence} - {0.0}):
        found = interaction(evidence, "val_loss", sides(loops, s))
        assert_close(extra_damage(evidence, loops, s).mean(), found.mean)
        intervals[f"K = {loops}, {s:.0%}"] = found

# %% [markdown]
# Code: {py:func}`unrolled.together.sparse_loops.damages`, {py:func}`unrolled.together.interaction.interaction`.
#
# **Predict before you look:** if the prediction from the beginning is right, on which side of zero do all intervals lie, and how do they move from top to bottom?

# %% mystnb={"figure": {"name": "fig-together-extra", "caption": "Damage of the looped model less that of the plain one of equal operations, AdamW, by the number of loops and the share of zeros. To the right of zero pruning hurts the looped model more. Laptop rows if there are any, with 95 % confidence intervals over paired seeds, and else the live run, one seed without an interval."}, "image": {"alt": "Differences of two damages, one line for each number of loops and sparsity, beside a line at zero", "width": "80%"}}
_, ax = plt.subplots(figsize=(6.8, 1.2 + 0.36 * len(intervals)))
figures.forest(ax, intervals, xlabel="looped minus plain damage (nats per token)")
ax.set_title(scale)
plt.show()

# %% [markdown]
# ## Loops, and optimizers
#
# The second way to ask: the same weights, used once or $K$ times. And the third: on the looped model with the most loops, does an optimizer that multiplies its steps lose less? AdamW, HAM and HORST were given as many trials each, on one loop, where the looped and the plain model are the same and neither is favoured. The values that were found on a GPT ({numref}`horst-language`) do not carry over: these blocks
# divide queries and keys by their length, so the loss does not feel the size of two matrices of each block, and nothing holds a step back that multiplies.

# %% mystnb={"figure": {"name": "fig-together-optimizers", "caption": "The looped model. Left: damage over the share of zeros with AdamW, by the number of loops; one loop is the plain model. Right: loss with the most loops, by optimizer. Laptop rows if there are any, mean over seeds and 95 % confidence interval, and else the live run."}, "image": {"alt": "Two panels over sparsity: damage by number of loops, and loss by optimizer"}}
looped = [row for row in damages(evidence) if row["variant"] == FLT or row["num_loops"] == 1]
most = max(row["num_loops"] for row in looped)
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
look = {"by": "num_loops", "ylabel": "damage (nats per token)"}
figures.mean_with_interval(
    left, results.select(looped, optimizer=ADAMW), "sparsity", "damage", **look
)
at_most = results.select(looped, num_loops=most)
figures.mean_with_interval(right, at_most, "sparsity", "val_loss", by="optimizer")
left.set_title(f"{scale}, AdamW"), right.set_title(f"{scale}, $K$ = {most}")
plt.show()

# %% [markdown]
# Read the right panel from its left end. A line that lies lower everywhere is a better optimizer for this model; a line that *rises less* belongs to one that leaves weights which can go.
#
# ### As many weights
#
# The last question is the one of a memory budget: the loss against the number of weights that are stored. **Predict before you look:** at the same place on the horizontal axis, which line is lower?

# %% mystnb={"figure": {"name": "fig-together-memory", "caption": "Loss against the weights of the blocks that are not zero, AdamW; logarithmic axis. Each line is one model at all its sparsities, the dense one at its right end. Laptop rows if there are any, mean over seeds and 95 % confidence interval, and else the live run."}, "image": {"alt": "Validation loss over the number of stored weights, one line for each looped and plain model", "width": "80%"}}
_, ax = plt.subplots(figsize=(7.2, 3.6))
for (name, loops), rows in results.frame(evidence).groupby(["variant", "num_loops"]):
    groups = rows[rows["optimizer"] == ADAMW].groupby("kept_weights")["val_loss"]
    found = {kept: results.mean_ci(losses) for kept, losses in groups}
    means, widths = ([getattr(i, part) for i in found.values()] for part in ("mean", "half_width"))
    look = figures.style_of(name).line() | {"marker": figures.style_of(name).marker}
    look["alpha"] = (1 + loops) / (1 + most)
    label = f"{figures.label_of(name)}, $K$ = {loops}"
    ax.errorbar(list(found), means, yerr=widths, capsize=3, label=label, **look)
ax.set(xscale="log", xlabel="weights that are not zero", ylabel=figures.axis_label("val_loss"))
ax.legend(loc="upper left", bbox_to_anchor=(1, 1)), ax.set_title(scale)
plt.show()

# %% [markdown]
# ## The same budget for everyone
#
# Each optimizer got 16 points of a Sobol sequence in the logarithms of its ranges, at 90 % of zeros, with a seed that is used for nothing else; the rule takes the lowest validation loss of the sparse model. In a first search, with the ranges of the GPT, AdamW and HAM were best at their highest rates. So all rates were moved up by a factor, and the strength $\alpha$ of HORST down by the same:
# the product $\alpha \eta$, by which a large weight is multiplied in a step ({eq}`eq-horst-relative`), keeps its range. Code: {py:data}`unrolled.together.sparse_search.MOVED`, {py:func}`unrolled.together.sparse_search.best_values`.

# %%
chosen, trials = {}, results.committed("together.sparse_search")
for name in sorted({row["optimizer"] for row in trials}):
    costs = pd.Series([r.get("cost") for r in trials if r["optimizer"] == name], dtype=float)
    best = sparse_search.best_values(trials, name)
    used = getattr(sparse_loops.EXPERIMENT.settings("laptop"), name) == best
    chosen[name] = {"trials": len(costs), "failed": costs.isna().sum(), "best": costs.min()}
    chosen[name] |= {"median": costs.median(), **asdict(best), "used": used}
pd.DataFrame(chosen).T

# %% [markdown]
# *failed* counts runs that diverged; *best* and *median* are losses of the sparse model in nats per token; *used* says whether the preset laptop has these values. AdamW has two values to choose and the others four, so equal trials are a handicap for HAM and HORST.
#
# ## What we asked, and what we saw
#
# The rule was fixed before the rows: a claim says which of two numbers is larger. *Reproduced* means that the mean over paired seeds has the claimed sign and its 95 % interval leaves out zero; *trend* that only the standard error does; *not seen* is everything else. As long as there are no rows, nothing was attempted.

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
table = results.comparison_table("together.sparse_loops", sparse_loops.EXPERIMENT.claims)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence"]]

# %% [markdown]
# The claims about damage test the prediction from the beginning; "not seen" there is an answer, too, and the derivation above says how it could come about. An interval that is wide says something else: that five seeds cannot tell.
#
# ### In plain words
#
# *Pruning hurts the looped model more.* The prediction from the beginning holds at 90 and 95 % of zeros with 6 loops, and at 95 % with 3; at 90 % with 3 loops it is a trend. With 6 loops the model also loses more than with 1, on the same weights. Repair by a shared gradient does not make up for errors in every loop, at this scale.
#
# *Per stored weight loops win all the same.* A looped model that keeps three weights in ten is better than a plain one that keeps as many numbers in three or six times the blocks. Its damage is larger, and it is pruned less.
#
# *HORST is not ahead of AdamW or of HAM* on the looped model, and it does not lose less. HAM has the lowest means at six loops, dense and sparse; nobody claimed that beforehand, so it is an observation, and one for new seeds to test.
#
# The rates matter for the first answer. At the searched rates, which suit sparse models, the dense plain models with one and three blocks and the dense looped one with six are worse than they need be, and damages measured from there lie too low. That was our first round, and the second, with two smaller rates for every cell, was made because of it.
#
# ## Deviations and choices
#
# No paper sets a standard here, so everything is a choice.
#
# | what | here | why |
# |---|---|---|
# | loop | FLT | the plain loop LT hardly trains with AdamW ({numref}`looped-pretraining`) |
# | core | one block of width 64, bytes of the State of the Union | 108 runs a seed on a laptop |
# | pruning | AC/DC, the same share of each matrix, moments kept | exact pairs: {eq}`eq-together-pairing` holds to the last operation |
# | what stays dense | embedding and head, at the rate that was chosen for AdamW in {numref}`looped-pretraining` | they are tables, and most of a small model |
# | values | searched with one loop, at 90 %; then each cell at the whole, half and a quarter of that rate | neither side is favoured, and each has a rate for its own $K$ and sparsity |
# | which rate counts | the lowest mean validation loss over the seeds, on the windows that are reported | the same for all cells; a little too kind to all of them |
# | HAM, HORST | on looped models alone, with 1 and 6 loops | no claim needs more |
#
# - A model that learns late has little to lose. The plain one has more weights to train in as many steps; if its dense loss is the higher one, part of its small damage may be that.
# - In a loop a step of the optimizer acts $K$ times, too. A rate that is right for one loop can be too high for six, and this would count as dense loss. So each cell has three rates to choose from.
# - The coherence is measured on models that were trained dense and shortly, with one loop swapped for a pruned one. It describes those, and not the networks that grew up with masks.
# - The plain model is not the untied twin: it hands its stream on from block to block. The derivation explains what sharing does; the comparison with the plain model asks what a user would ask.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: as many weights
# :label: ex-together-equal-weights
# A looped model with four loops is pruned by 80 %. To which share (between 0 and 1) must the plain model with four times the blocks be pruned to store as many weights? And how many times its operations on weights does the looped model then do?
# :::

# %% tags=["exercise"]
answer = None  # (share, factor)
checks.together_equal_weights(answer)

# %% [markdown]
# :::{solution} ex-together-equal-weights
# :class: dropdown
# By {eq}`eq-together-pairing` $s' = 1 - 0.2 / 4$. Both store as many weights, and the looped model uses each of them four times.
#
# ```python
# answer = (1 - (1 - 0.8) / 4, 4)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: coherence
# :label: ex-together-coherence
# Write {eq}`eq-together-coherence` for `changes` of the shape (K, N, d), the changes of the stream by an error in each of the K loops.
# :::


# %% tags=["exercise"]
def coherence_of(changes): ...  # a number


checks.together_coherence(coherence_of)

# %% [markdown]
# :::{solution} ex-together-coherence
# :class: dropdown
# ```python
# def coherence_of(changes):
#     return changes.sum(dim=0).norm() ** 2 / changes.norm() ** 2
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: one angle between all uses
# :label: ex-together-angle
# All $\Delta_k$ have one length, and each two of them have the cosine $c$. What is $\mathcal{C}$? For which $c$ is it zero, and why can $c$ not be smaller?
# :::


# %% tags=["exercise"]
def coherence_of_angle(K, c): ...  # a number


checks.together_coherence_of_angle(coherence_of_angle)

# %% [markdown]
# :::{solution} ex-together-angle
# :class: dropdown
# The square of the sum has $K$ terms $\lVert \Delta_k \rVert^2$ and $K (K - 1)$ terms $c\, \lVert \Delta_k \rVert^2$. At $c = -1 / (K - 1)$ the changes add up to zero; a squared length cannot be negative. With many loops a small common part is enough: at $c = 1 / K$ the damage of an error is nearly doubled.
#
# ```python
# def coherence_of_angle(K, c):
#     return 1 + (K - 1) * c
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the uses of a linear loop
# :label: ex-together-linear-uses
# The loop $h_k = w\, (h_{k-1} + e)$ with numbers $w, e$ and $h_0 = 0$ is as simple as a loop with input injection can be. Return the $K$ derivatives of $h_K$ by the weight of loop 1, ..., K, for equal weights. When the checker is content: which coherence has such a loop for $0 < w < 1$ and many loops?
# :::


# %% tags=["exercise"]
def linear_uses(w, e, K): ...  # a list of K numbers


checks.together_linear_uses(linear_uses)

# %% [markdown]
# :::{solution} ex-together-linear-uses
# :class: dropdown
# The weight of loop $k$ multiplies $h_{k-1} + e$, and $K - k$ loops behind it multiply the result by $w$ each. The old states settle at $h + e = e / (1 - w)$, so the derivatives are nearly a geometric series, and $\mathcal{C} \to (1 + w) / (1 - w)$: the better a loop remembers, the more its errors add up, whatever $K$ is.
#
# ```python
# def linear_uses(w, e, K):
#     h, uses = 0.0, []
#     for k in range(1, K + 1):
#         uses.append(w ** (K - k) * (h + e))
#         h = w * (h + e)
#     return uses
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: the difference of two damages
# :label: ex-together-extra-damage
# Return the mean over seeds of $\Delta D$, {eq}`eq-together-damage`, and the half width of its 95 % interval. The arguments are lists of losses: of the looped model sparse and dense, and of the plain one sparse and dense. Entries at the same place belong to the same seed.
# :::


# %% tags=["exercise"]
def extra_damage_of(loop, loop_dense, plain, plain_dense): ...  # (mean, half width)


checks.together_extra_damage(extra_damage_of)

# %% [markdown]
# :::{solution} ex-together-extra-damage
# :class: dropdown
# First one number for each seed, then Student's interval of these numbers. What a seed does to all four runs cancels.
#
# ```python
# def extra_damage_of(loop, loop_dense, plain, plain_dense):
#     runs = zip(loop, loop_dense, plain, plain_dense)
#     interval = results.mean_ci([(a - b) - (c - d) for a, b, c, d in runs])
#     return interval.mean, interval.half_width
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: the mask is stored, too
# :label: ex-together-mask-bits
# {eq}`eq-together-pairing` counts kept weights. A file must also say which ones they are, for example by one bit for *each* weight, kept or not; a kept one takes `bits` more. At which $s'$ does the plain model with $K L$ blocks take as many bits as the looped one at $s$? Return 1 if it takes more at any sparsity.
# :::


# %% tags=["exercise"]
def mask_sparsity(s, K, bits): ...  # a number


checks.together_mask_bits(mask_sparsity)

# %% [markdown]
# :::{solution} ex-together-mask-bits
# :class: dropdown
# $1 + b\, (1 - s) = K\, \bigl(1 + b\, (1 - s') \bigr)$ for each weight of the looped model, with $b$ bits. If the right side exceeds the left even at $s' = 1$, the mask alone is too large: that happens for $K > 1 + b\, (1 - s)$.
#
# ```python
# def mask_sparsity(s, K, bits):
#     kept = ((1 + bits * (1 - s)) / K - 1) / bits
#     return min(1.0, 1 - kept)
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** A looped and a plain model do the same operations at the same sparsity. In what do they differ?
#
# :::{dropdown} Answer
# The plain one stores $K$ times as many weights that are not zero. With as many stored weights the looped one would do $K$ times the operations on them ({eq}`eq-together-pairing`).
# :::
#
# **2.** Why is "every error is made $K$ times" no proof that looped models lose more?
#
# :::{dropdown} Answer
# The changes of the uses add up as vectors. Only if they agree is the sum $K$ times as long; if they are orthogonal, the squared change is that of $K$ different errors ({eq}`eq-together-coherence`).
# :::
#
# **3.** What keeps the errors of early loops small in FLT?
#
# :::{dropdown} Answer
# Every loop starts at the embedding anew. The old state enters by the queries, so an error of it can only change where attention looks.
# :::
#
# **4.** At 90 % the looped model has a higher loss than the plain one. Has pruning hurt it more?
#
# :::{dropdown} Answer
# That cannot be told. It may have been as much worse when dense. Compare the damages, {eq}`eq-together-damage`, seed by seed.
# :::
#
# **5.** The first-order argument and the experiment disagree. Name two reasons that leave both right.
#
# :::{dropdown} Answer
# At 90 % the error is not small, and what the sum over the uses leaves out grows with it ({numref}`fig-together-uses`). And training under masks repairs errors; a shared weight repairs $K$ uses at once.
# :::

# %% [markdown]
# ## Where this came from
#
# The rows name their commit, device and command. What this page computed itself came from here:

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
