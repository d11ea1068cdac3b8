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
# (looped-equations)=
# # Looping as recurrence
#
# A Transformer with twelve layers has twelve sets of weights. A *looped* Transformer has fewer and
# runs them again and again: its depth is a matter of patience, not of memory. This chapter takes
# the Fully Looped Transformer of {cite:t}`fu2026looped` apart, equation by equation. You will see
# why a loop is a recurrent network lying on its side, what goes wrong when it gets long, and how a
# rewiring without a single new weight puts it right.
#
# After this you can
#
# - write a looped Transformer as a recurrence, and its five variants in five lines each;
# - derive the gradient through shared blocks, and say how often each variant counts it;
# - explain why sharing weights turns slow growth into fast growth, and what a norm between the
#   loops does and does not cure;
# - prove that the Fully Looped Transformer cannot change its output at position 0;
# - count what looping costs in parameters, arithmetic and memory.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | the smallest model that has every part | seconds |
# | live | 2 layers of width 64, 12 loops | under half a minute on one core |
# | laptop | 6 layers of width 64, 12 loops | a minute or two on one core |
# | colab, paper | the blocks of the paper's Small model, on bytes | minutes on a CPU, 8 GB |
#
# Nothing is trained here. The next chapter trains.

# %% tags=["setup", "hide-input"]
from dataclasses import replace
from itertools import combinations

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from unrolled import checks, figures, provenance
from unrolled.data.text import ByteTokenizer, state_of_the_union
from unrolled.looped import diagnostics, theory
from unrolled.looped.model import BASE, INJECTIONS, LABELS, SMALL, LoopedTransformer
from unrolled.transformer import TransformerConfig, count_parameters, flops_per_token

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0
NUM_LOOPS = 12

# %% [markdown]
# ## The claim, and one figure
#
# 1. A stack of $L$ blocks that is run $K$ times computes like $KL$ layers and stores $L$.
# 2. The plain way to loop, feeding the output back in as the input, makes training break as $K$
#    grows: the gradient oscillates and the residual state explodes.
# 3. Restart every loop from the embedding, and let the old state in only as the *query* of every
#    block's attention: then many loops train, at the price of no parameter and no arithmetic.
#
# The figure shows the mechanism before any training. Every model has the *same* random weights
# and reads the same text, from the State of the Union addresses; only the wiring differs. How
# large does the state get on its way through the blocks, and how much of the gradient still
# arrives at the early loops?

# %%
sizes = {"smoke": (2, 32, 2, 2, 32), "live": (2, 64, 2, 4, 64), "laptop": (6, 64, 2, 4, 64)}
LAYERS, WIDTH, HEADS, BATCH, LENGTH = sizes.get(PRESET, (6, 384, 3, 2, 64))
shape = {"num_layers": LAYERS, "hidden_size": WIDTH, "num_heads": HEADS}
config = TransformerConfig(**shape, max_length=LENGTH, zero_output=False)
text = state_of_the_union().text("validation")[: 2 * BATCH * LENGTH]
tokens = ByteTokenizer().encode(text)[: BATCH * (LENGTH + 1)].view(BATCH, LENGTH + 1)
inputs, targets = tokens[:, :-1], tokens[:, 1:]  # (B, N) each


# Build a model; the same seed gives every variant the same weights.
def make(injection, num_loops=NUM_LOOPS, config=config, **options):
    torch.manual_seed(SEED)
    return LoopedTransformer(config, num_loops, injection, **options)


models = {name: make(name) for name in INJECTIONS}


# %%
# The norm of the stream and of the gradient at the end of every loop.
def trace(model):
    out = model(inputs, loop_states=True, targets=targets)
    gradients = torch.autograd.grad(out.loss, out.loop_states)
    norms = diagnostics.residual_norms(out.loop_states).tolist()
    relative = [(g.norm() / gradients[-1].norm()).item() for g in gradients]
    return {"norm": norms, "gradient": relative}


# Draw columns of the rows side by side, one line per variant.
def show(rows, *columns, xlabel="loop $k$", **options):
    size = (2 + 3.8 * len(columns), 3.4)
    _, axes = plt.subplots(1, len(columns), figsize=size, squeeze=False)
    for ax, (column, ylabel, *log) in zip(axes[0], columns, strict=True):
        options |= {"xlabel": xlabel, "ylabel": ylabel, "legend": ax is axes[0, -1]}
        figures.curves(ax, rows, column, log=bool(log), **options)
        ax.locator_params(axis="x", integer=True)
    plt.show()


# %% mystnb={"figure": {"name": "fig-looped-claim", "caption": "Same weights, same text, six ways to loop, untrained. Left: mean norm of a token's state at the end of each loop. Right: norm of the gradient of the loss at the end of each loop, relative to the last. Without a norm between the loops LT's state grows from loop to loop. LT, LT_i and FLA send a good part of the gradient through all loops. In FLT little of it goes further back than a few loops; LT_ia lies under it."}, "image": {"alt": "Two line plots by loop, for six variants: norm of the state, and norm of the gradient"}}
rows = [{"variant": name, **trace(model)} for name, model in models.items()]
show(rows, ("norm", "norm of the state"), ("gradient", "gradient / the last", "log"))

# %% [markdown]
# ## One block, many times
#
# Write $e \in \mathbb{R}^{N \times d}$ for the embedded text: $N$ tokens, each a vector of $d$
# numbers, normed. Write $h^{(k)}$ for the *state* that loop $k$ hands to the next. One loop runs
# the $L$ blocks once; let $F_\theta$ stand for that, $\theta$ being their weights. Then a looped
# Transformer is
#
# $$
# h^{(1)} = F_\theta(\varnothing, e), \qquad
# h^{(k)} = F_\theta\bigl(h^{(k-1)}, e\bigr), \quad k = 2, \dots, K,
# $$ (eq-looped-recurrence)
#
# and the logits are read off $h^{(K)}$ by a linear head. In the first loop there is no old state
# (that is what $\varnothing$ says), and the model is a plain Transformer of $L$ layers.
#
# You have seen {eq}`eq-looped-recurrence` before. It is a recurrent network whose clock counts
# *depth* instead of words, with the same input $e$ at each tick. The idea is that of the Universal
# Transformer ({cite:t}`dehghani2019universal`); let $K$ go to infinity and, if the states settle,
# you have a deep equilibrium model ({cite:t}`bai2019deq`). What recurrent networks suffer from is
# therefore what we should look for.
#
# Between two loops the state is *normed*. The norm is RMSNorm without a gain
# ({cite:t}`zhang2019rmsnorm`): it scales a vector to the length $\sqrt d$ and leaves its direction
# alone,
#
# $$
# \mathrm{norm}(x) = \sqrt{d}\, \frac{x}{\lVert x \rVert}.
# $$ (eq-looped-norm)
#
# In the plain variant, **LT**, the old state *is* where the next loop starts. Here is the
# recurrence in code, with the loop as an argument, and LT as a loop. The last function compares us
# with the package, state by state.


# %%
# Scale the last axis to length sqrt(d).
def norm(x):
    return x * x.square().mean(dim=-1, keepdim=True).rsqrt()


# Run `loop(blocks, e, h)` again and again; return the stream at the end of each.
def unroll(model, loop, num_loops=NUM_LOOPS):
    e, h, states = model.embed(inputs), None, []
    for _ in range(num_loops):
        states.append(loop(model.blocks, e, h))
        h = norm(states[-1])
    return states


# %%
# LT: start where the last loop stopped.
def original(blocks, e, h):
    x = e if h is None else h
    for block in blocks:
        x = block(x)
    return x


def same_states(injection, loop):
    theirs = models[injection](inputs, loop_states=True).loop_states
    assert_close(unroll(models[injection], loop), theirs, rtol=1e-3, atol=1e-3)


same_states("original", original)

# %% [markdown]
# Code: {py:class}`unrolled.looped.model.LoopedTransformer` with `injection="original"`.
#
# **Predict before you run:** the authors' implementation starts every output projection (the last
# matrix of the attention and of the MLP) at zero. How does the loss of a fresh model depend on the
# number of loops, for each variant?

# %%
official = replace(config, zero_output=True)


def first_loss(name, num_loops):
    return make(name, num_loops, official).loss(inputs, targets).item()


table = {f"K = {K}": [first_loss(name, K) for name in INJECTIONS] for K in (1, 3, 12)}
pd.DataFrame(table, index=[LABELS[name] for name in INJECTIONS]).round(6)

# %% [markdown]
# It does not. With a zero output projection a block adds nothing, so every loop returns $e$
# whatever the wiring: all loops of all variants agree. The loss is close to that of the uniform
# guess, $\log V$ for a vocabulary of $V$ tokens, since the head starts small. Training starts from the same point for everybody, and
# whatever goes wrong later is the *gradient's* doing. We come back to this start, because there
# the gradient can be computed exactly.
#
# For the figures of this chapter the output projections are random, as if training had already
# moved them.
#
# ## The block
#
# A block reads the residual stream $x$ and adds to it twice:
#
# $$
# \begin{aligned}
# z &= \mathrm{norm}(x), \qquad
# x \leftarrow x + \mathrm{Attn}\bigl(q = \mathrm{norm}(h \text{ or } x),\; k = v = z\bigr), \\
# x &\leftarrow x + W_\downarrow \, \mathrm{relu}\bigl(W_\uparrow\, \mathrm{norm}(x)\bigr)^2 .
# \end{aligned}
# $$ (eq-looped-block)
#
# Both sub-layers see a *normed* copy of the stream (the pre-norm Transformer,
# {cite:t}`xiong2020preln`). The second line is the MLP: four times wider inside, with a squared
# ReLU ({cite:t}`so2021primer`). The attention is that of {cite:t}`vaswani2017attention`. Each head
# projects the normed vectors to queries $q_n$, keys $k_m$ and values $v_m$ of size $D$ = $d$ over
# the number of heads, and token $n$ receives
#
# $$
# o_n = \sum_{m \le n} a_{nm} v_m, \qquad
# a_{nm} = \frac{\exp(q_n^\top k_m / \sqrt D)}{\sum_{j \le n} \exp(q_n^\top k_j / \sqrt D)} ,
# $$ (eq-looped-softmax)
#
# so a token sees itself and what came before. Queries and keys are rotated by an angle that
# depends on the position ({cite:t}`su2024rope`) and then normed ({cite:t}`henry2020qknorm`). There
# are no biases. The words "$h$ or $x$" are the only place where another state may put the
# question: leave them for a moment.
#
# Written out, a block fits one cell.


# %%
# One block: attention, then MLP, each on a normed input and added to the stream.
def my_block(block, x, query=None):
    z, attention = norm(x), block.attention
    heads = lambda y: y.unflatten(-1, (HEADS, -1))  # noqa: E731  (B, N, H, D)
    asking = z if query is None else norm(query)
    q = norm(attention.rotary(heads(attention.query(asking))))
    k, v = norm(attention.rotary(heads(attention.key(z)))), heads(attention.value(z))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    a = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    x = x + attention.output(torch.einsum("bhnm,bmhd->bnhd", a, v).flatten(2))
    return x + block.mlp.output(block.mlp.hidden(norm(x)).relu() ** 2)


block, (x, h) = models["original"].blocks[0], torch.randn(2, BATCH, LENGTH, WIDTH)
assert_close(my_block(block, x), block(x), rtol=1e-4, atol=1e-4)
assert_close(my_block(block, x, query=h), block(x, query=h), rtol=1e-4, atol=1e-4)

# %% [markdown]
# Code: {py:class}`unrolled.transformer.Block`. One more detail sits behind the last loop: the
# logits $u$ are capped softly, $15 \tanh(u / 15)$ (as in {cite:t}`gemma2024`, who cap at 30).
#
# ## Five ways to let the past in
#
# All variants share $\theta$ and differ in one decision: *where does the old state enter the next
# loop?* From here on $h$ is the normed old state, $h = h^{(k-1)} = \mathrm{norm}(x^{(k-1)})$, where
# $x^{(k-1)}$ is the stream at the end of loop $k-1$. In loop 1 there is no $h$: every variant
# starts from $e$ and runs its blocks plainly.
#
# ### Input injection
#
# LT forgets its input: after loop 1 the text is present only in what the state has kept of it.
# The oldest remedy is to add $e$ again before each loop. **LT_i** starts from
#
# $$
# x_0 = \mathrm{norm}(e + h).
# $$ (eq-looped-input)


# %%
# LT_i: add the old state to the embedding, once per loop.
def input_injection(blocks, e, h):
    x = e if h is None else norm(e + h)
    for block in blocks:
        x = block(x)
    return x


same_states("input", input_injection)

# %% [markdown]
# ### Attention injection, in the first block
#
# **LT_ia** starts every loop from $e$ itself. The old state puts the question to the first block,
# and nothing else: with $z = \mathrm{norm}(x)$,
#
# $$
# x_0 = e, \qquad
# x \leftarrow x + \mathrm{Attn}\bigl(q = h,\; k = v = z\bigr) \quad \text{in block 1 only.}
# $$ (eq-looped-attention)


# %%
# LT_ia: start from the embedding; the old state is the first block's query.
def attention_injection(blocks, e, h):
    x = e
    for index, block in enumerate(blocks):
        x = block(x, query=h if index == 0 else None)
    return x


same_states("attention", attention_injection)

# %% [markdown]
# ### The fully looped architecture
#
# In the three variants so far the old state enters at the bottom, and block $L$ hears of it only
# through blocks $1, \dots, L-1$. The paper's first idea is to give it to *every* block: if block
# $l$ maps its input and the last loop's state to $x_l = f_l(x_{l-1}, h)$, then every block is one
# step away from the past. That is the *fully looped architecture*, **FLA**. Without the second idea
# below, the authors' implementation simply adds the state before each block,
#
# $$
# x_0 = e, \qquad
# x \leftarrow \mathrm{norm}(x + h), \quad x \leftarrow \mathrm{block}_l(x),
# \qquad l = 1, \dots, L.
# $$ (eq-looped-fla)


# %%
# FLA: add the old state in front of every block.
def fully_looped(blocks, e, h):
    x = e
    for block in blocks:
        x = block(x if h is None else norm(x + h))
    return x


same_states("fla", fully_looped)

# %% [markdown]
# ### The Fully Looped Transformer
#
# The second idea is to let the state in through a *gate*. LSTM and GRU cells
# ({cite:t}`hochreiter1997lstm`, {cite:t}`cho2014gru`) tamed recurrent networks by gates, which
# have weights of their own. Attention already is a gate: the query decides how much of each value
# gets through. So let $h$ be the query of every block, and nothing but the query:
#
# $$
# \begin{aligned}
# x_0 &= e, \qquad \text{and in every block} \\
# x &\leftarrow x + \mathrm{Attn}\bigl(q = h,\; k = v = \mathrm{norm}(x)\bigr), \qquad
# x \leftarrow x + \mathrm{MLP}\bigl(\mathrm{norm}(x)\bigr).
# \end{aligned}
# $$ (eq-looped-flt)
#
# That is **FLT**: FLA with *attention injection* (AI). Look at what is missing. Nothing in
# {eq}`eq-looped-flt` adds $h$ to anything. The state of loop $k-1$ does not flow into loop $k$;
# it only decides what loop $k$ looks at.


# %%
# FLT: start from the embedding; the old state is the query of every block.
def fully_looped_transformer(blocks, e, h):
    x = e
    for block in blocks:
        x = block(x, query=h)
    return x


same_states("flt", fully_looped_transformer)

# %% [markdown]
# Five short functions. Side by side, with a sixth that leaves out the norm between the
# loops (our own, to show what this norm is for):
#
# | name | `injection` | loops $k > 1$ start from | where $h$ enters | is $h$ added? |
# |---|---|---|---|---|
# | LT | `"original"` | $h$ | it is the stream | yes |
# | LT_i | `"input"` | $\mathrm{norm}(e + h)$ | once, at the start | yes |
# | LT_ia | `"attention"` | $e$ | query of block 1 | no |
# | FLA | `"fla"` | $e$ | before every block | yes |
# | FLT | `"flt"` | $e$ | query of every block | no |
# | LT, no norm | `"original_no_norm"` | $x^{(k-1)}$ | it is the stream | yes |
#
# **Predict before you run:** with a single block, $L = 1$, how many different models are left of
# the first five?

# %%
single = replace(config, num_layers=1)
logits = {name: make(name, config=single)(inputs).logits for name in INJECTIONS[:5]}
for a, b in combinations(logits, 2):
    if torch.allclose(logits[a], logits[b], atol=1e-4):
        print(f"{LABELS[a]} and {LABELS[b]} are the same")

# %% [markdown]
# Three. With one block "before every block" is "once at the start", so FLA is LT_i; and "the
# query of every block" is "the query of block 1", so FLT is LT_ia. *Fully* looped has a meaning
# only when there is more than one layer to be reached, which is why small experiments with few
# layers separate the variants so poorly.
#
# ## What a query lets through
#
# How strong is the path through the query? Fix one head and one token, and let the query $q$
# move. By {eq}`eq-looped-softmax`, $\partial a_m / \partial q = a_m (k_m - \bar k) / \sqrt D$ with
# $\bar k = \sum_j a_j k_j$ the mean key, so
#
# $$
# \frac{\partial o}{\partial q}
# = \frac{1}{\sqrt D} \sum_m a_m\, v_m (k_m - \bar k)^\top
# = \frac{1}{\sqrt D} \sum_m a_m\, (v_m - o)(k_m - \bar k)^\top .
# $$ (eq-looped-covariance)
#
# (The second form is the first, since $\sum_m a_m (k_m - \bar k) = 0$.) The Jacobian of attention
# in its query is the **covariance of values and keys** under the attention weights. Let us check
# it against automatic differentiation.


# %%
q, k, v = torch.randn(8), torch.randn(20, 8), torch.randn(20, 8)


# One head, one token: mix 20 values by the softmax of 20 keys.
def attend(q):
    return (k @ q / 8**0.5).softmax(dim=-1) @ v


a = (k @ q / 8**0.5).softmax(dim=-1)
covariance = (v - a @ v).T @ (a[:, None] * (k - a @ k)) / 8**0.5
assert_close(covariance, torch.autograd.functional.jacobian(attend, q))
assert_close(covariance, theory.query_jacobian(q, k, v))

# %% [markdown]
# A covariance is a gate. It closes when the attention is sure (all weight on one $m$) and when the
# values agree. And it bounds what can pass: by the Cauchy-Schwarz inequality it is at most the
# spread of the values times the spread of the keys over $\sqrt D$, and normed keys have length
# $\sqrt D$, so what is left is the spread of the values. The old state can *redistribute* what is in
# the stream; it cannot add itself to it. Compare LT, where the path from $h^{(k-1)}$ to $x^{(k)}$
# contains the identity.
#
# ### Position 0 stands still
#
# :::{prf:proposition} FLT cannot change position 0
# :label: prop-looped-position-zero
# In a causal FLT the stream at position 0 is the same in every loop. So the logits at position 0
# do not depend on $K$.
# :::
#
# :::{prf:proof}
# We show by induction over the blocks that after each block the stream at position 0 does not
# depend on $h$. Before block 1 it is $e_0$ in every loop. In a block, token 0 sees one key, its
# own. A softmax over one number is 1, whatever the query: by {eq}`eq-looped-softmax`
# $o_0 = v_0$. The value $v_0$ and the MLP are functions of the stream at position 0 before the
# block, which by assumption does not depend on $h$. So neither does the stream after it. $\square$
# :::
#
# It is {eq}`eq-looped-covariance` in its extreme form: the covariance of one pair is zero.
#
# **Predict before you run:** over the *positions*, how does the change of the FLT logits from
# $K = 1$ to $K$ = `NUM_LOOPS` look? And over the first positions of LT?

# %% mystnb={"figure": {"name": "fig-looped-position", "caption": "How far the logits at each position move between one loop and all of them (largest change over the texts of the batch). FLT starts at exactly zero."}, "image": {"alt": "Two lines over positions; the FLT line starts at zero, the LT line does not", "width": "75%"}}
rows = []
for name in ("original", "flt"):
    change = models[name](inputs).logits - models[name](inputs, num_loops=1).logits
    largest = change.abs().amax(dim=(0, 2))  # (N,)
    rows.append({"variant": name, "change": largest[:24].tolist()})
assert rows[1]["change"][0] == 0
show(rows, ("change", "largest change of a logit"), xlabel="position", x=range(24))

# %% [markdown]
# Zero at position 0, and not merely small; from position 1 on there is something to choose from. A
# second look turns the curiosity into an explanation: looping in FLT is *choosing again*. Where
# there is nothing to choose, more loops are wasted.
#
# ## The growth of the state
#
# Why does the plain loop explode? Take everything away but the residual connection. Let each block
# be linear, $x \leftarrow (I + A_l)\,x$ with a matrix $A_l$, and have no norm. Then one loop is the
# matrix $M = (I + A_L) \cdots (I + A_1)$ and $K$ loops are its power:
#
# $$
# h^{(K)} = M^K e, \qquad
# \lim_{K \to \infty} \lVert M^K \rVert^{1/K} = \rho(M),
# $$ (eq-looped-growth)
#
# where $\rho(M)$, the *spectral radius*, is the largest absolute value of an eigenvalue (the limit
# is Gelfand's formula). The state grows or dies geometrically, and the identity in $I + A$ decides
# which: an eigenvalue $\lambda$ of $A$ becomes $1 + \lambda$. Unless $A$ pushes *every* direction
# backwards, some direction grows.
#
# A deep stack without sharing has the identity too. Does it explode as fast? Let $A = sG/\sqrt d$
# with independent standard normal entries in $G$ and a strength $s$.
#
# :::{prf:proposition} Sharing makes the paths add up
# :label: prop-looped-paths
# Let $d \to \infty$ and $\lVert e \rVert = 1$. After $n$ blocks, with the same $A$ in each block and
# with a fresh one in each block, the expected squared norm is
#
# $$
# \begin{aligned}
# \text{shared:} \quad & \mathbb{E}\lVert (I + A)^n e \rVert^2
# \to \sum_{j=0}^{n} \binom{n}{j}^{2} s^{2j}, \\
# \text{fresh:} \quad & \mathbb{E}\lVert (I + A_n) \cdots (I + A_1)\, e \rVert^2
# = \sum_{j=0}^{n} \binom{n}{j}\, s^{2j} = (1 + s^2)^n .
# \end{aligned}
# $$ (eq-looped-paths)
# :::
#
# :::{prf:proof}
# *Fresh:* given $x$, the vector $A_l x$ has mean zero and $\mathbb{E}\lVert A_l x\rVert^2
# = s^2 \lVert x \rVert^2$, so each block multiplies by $1 + s^2$. *Shared:* expand
# $(I + A)^n e = \sum_j \binom{n}{j} A^j e$. For large $d$ the vectors $A^j e$ are orthogonal to
# each other, with $\mathbb{E}\lVert A^j e \rVert^2 \to s^{2j}$. Pythagoras gives the sum. $\square$
# :::
#
# Read the two sums as sums over *paths*. There are $\binom{n}{j}$ ways through $n$ blocks that use
# the branch $A$ in $j$ of them and the identity in the others. With fresh weights these paths end
# in different directions, and their squares add. With shared weights all of them compute the
# *same* vector $A^j e$, so they add first and are squared afterwards. For large $n$ the shared sum
# grows like $(1+s)^{2n}$: by the circular law the eigenvalues of $A$ fill a disc of radius $s$, so
# that $\rho(I + A) \to 1 + s$.
#
# **Predict before you run:** take a weak branch, $s = 0.1$, and 72 blocks (6 layers, 12 loops).
# What is $(1 + s^2)^{36}$, the norm with fresh weights? What is the norm with shared ones: about
# the same, ten times that, or a hundred times?


# %%
M = torch.eye(256) + 0.1 * torch.randn(256, 256) / 256**0.5
states = theory.linear_states(M, torch.eye(256)[0], 72)
assert_close(states[9], torch.linalg.matrix_power(M, 10)[:, 0])
print(f"spectral radius {torch.linalg.eigvals(M).abs().max():.3f}")
print(f"norm after 72 blocks: shared {states[-1].norm():.0f}, fresh {1.01**36:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-growth", "caption": "Norm of the state in the linear model, s = 0.1. Thin lines: three random draws each. Dashed: the sums over paths. Dotted: the rate that the spectral radius promises for many blocks."}, "image": {"alt": "Log plot: shared weights grow along a steep line, fresh weights stay nearly flat", "width": "75%"}}
_, ax = plt.subplots(figsize=(6.4, 3.4))
for label, name in (("shared", "original"), ("fresh", "flt")):
    shared, color = label == "shared", figures.colour_of(name)
    for _ in range(3):
        ax.semilogy(theory.linear_walk(0.1, 72, shared=shared), color=color, lw=0.7)
    sums = [theory.path_sum(0.1, n, shared=shared) for n in range(73)]
    ax.semilogy(sums, "--", color=color, lw=2.4, label=f"{label} weights")
ax.semilogy([1.1**n for n in range(73)], ":", color="grey", label="$(1 + s)^n$")
ax.set(xlabel="blocks $n$", ylabel="norm of the state")
ax.legend()
plt.show()

# %% [markdown]
# So depth is not the trouble; *repeated* depth is. The same gentle push in the same direction,
# seventy-two times.
#
# ### What the norms cure
#
# A real block does not multiply the stream by a matrix. Its branches see $\mathrm{norm}(x)$, so
# what it adds depends on the *direction* of $x$ and not on its length. That changes the law.
#
# :::{prf:proposition} Pre-norm growth is linear
# :label: prop-looped-bound
# With fixed weights there is a number $c_l$ for each block such that
# $\lVert \mathrm{block}_l(x)_n - x_n \rVert \le c_l$ for all streams $x$ and tokens $n$. So
#
# $$
# \begin{aligned}
# \lVert x^{(k)}_n \rVert &\le \sqrt d + k \textstyle\sum_{l} c_l
# && \text{without a norm between the loops}, \\
# \lVert x^{(k)}_n \rVert &\le \sqrt d + \textstyle\sum_{l} c_l
# && \text{with it}.
# \end{aligned}
# $$ (eq-looped-bound)
#
# :::
#
# :::{prf:proof}
# A head returns a mixture $\sum_m a_{nm} v_m$ with weights that add up to 1, so it is no longer
# than the longest $v_m$, and $\lVert W_V \mathrm{norm}(x_m) \rVert \le \lVert W_V \rVert \sqrt d$
# in the spectral norm. With $H$ heads the attention adds at most
# $\sqrt H\, \lVert W_O \rVert \lVert W_V \rVert \sqrt d$. In the MLP,
# $\lVert \mathrm{relu}(u)^2 \rVert \le \lVert u \rVert^2 \le \lVert W_\uparrow \rVert^2 d$, so it
# adds at most $\lVert W_\downarrow \rVert \lVert W_\uparrow \rVert^2 d$. Let $c_l$ be the sum of the
# two. Each loop starts at length $\sqrt d$ if the state is normed (FLA norms it even before each
# block), and where the last loop ended if not. $\square$
# :::


# %%
update = sum(theory.block_bound(block) for block in models["flt"].blocks)
for name, model in models.items():
    states = model(inputs, loop_states=True).loop_states
    longest = max(x.norm(dim=-1).max() for x in states)
    limit = WIDTH**0.5 + (NUM_LOOPS if name == "original_no_norm" else 1) * update
    assert longest <= limit
    print(f"{LABELS[name]:12s} longest state {longest:6.0f}, bound {limit:8.0f}")

# %% [markdown]
# The bound is generous, and yet it has a lesson: it holds for every variant with a norm, for LT as
# for FLT, and it is made of *weights*. Look again at {numref}`fig-looped-claim`: "LT, no norm"
# climbs by nearly the same amount in each loop, along a straight line, and all others level off. So
# when the residual norm of a normed LT explodes in training, the weights have grown. Who made them
# grow? The gradient; we come to it soon.
#
# ### What the norms do not cure
#
# A norm between the loops resets the *length*. The direction is untouched. For the linear model it
# turns $h^{(K)} = M^K e$ into
#
# $$
# h^{(K)} = \sqrt d\, \frac{M^K e}{\lVert M^K e \rVert},
# $$ (eq-looped-power)
#
# which is the **power iteration**, the textbook method to find the leading eigenvector of $M$. It
# finds it *from almost any start*: after enough loops the states of all inputs point the same way, and
# what the input was is lost at the rate $\lvert \lambda_2 / \lambda_1 \rvert^K$ of the two largest
# eigenvalues. The length no longer shows the amplification; the loss of information does.
#
# Restarting from $e$ changes the algebra. If $h$ enters through a linear map $B$ and is not the
# stream, then $x^{(k)} = e + B h^{(k-1)}$: the identity that gave $M = I + A$ its growth now
# belongs to $e$, and $e$ is there in every loop.
#
# To see it in real blocks, scale the state of every token to length 1 and call it $u_i$, with
# $i = 1, \dots, T$ for all tokens of the batch; let $\hat e_i$ be the scaled embedding. How alike
# are the tokens, and how much of its own embedding does a state keep?
#
# $$
# \frac{1}{T^2} \sum_{i,j} u_i^\top u_j
# = \Bigl\lVert \frac1T \sum_i u_i \Bigr\rVert^2,
# \qquad
# \frac1T \sum_i u_i^\top \hat e_i .
# $$ (eq-looped-alikeness)
#
# **Predict before you run:** for which variants do the states of *different tokens* become alike
# as $k$ grows? For which does a state forget its own embedding?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-direction", "caption": "Directions of the states, same random weights. Left: mean cosine between the states of all pairs of tokens. Right: mean cosine between a state and its own embedding. LT drives all tokens towards one direction and forgets the input; FLT and LT_ia, which lie on each other, do so least."}, "image": {"alt": "Two line plots by loop: similarity between tokens, and similarity with the embedding"}}
rows = []
for name, model in models.items():
    between, own = theory.alikeness(model, inputs)
    rows.append({"variant": name, "between": between, "own": own})
show(rows, ("between", "cosine between tokens"), ("own", "cosine with the embedding"))

# %% [markdown]
# A model whose tokens are all alike can predict only what is common to all of them: the
# frequencies of the letters. Keep that in mind when you see LT's loss settle on a plateau.
#
# ## Backpropagation through shared blocks
#
# Let $\mathcal{L}$ be the loss. Give each loop its own copy of the weights, $\theta_1, \dots,
# \theta_K$, all equal. The copies turn the recurrence into a plain deep network, and since
# $\theta_k = \theta$, the chain rule adds their gradients up. With $J_j = \partial h^{(j)} /
# \partial h^{(j-1)}$,
#
# $$
# \frac{d\mathcal{L}}{d\theta}
# = \sum_{k=1}^{K} \Bigl( \frac{\partial h^{(k)}}{\partial \theta_k} \Bigr)^{\!\top} g^{(k)},
# \qquad
# g^{(k)} = J_{k+1}^\top\, J_{k+2}^\top \cdots J_K^\top\; g^{(K)},
# \qquad
# g^{(K)} = \frac{\partial \mathcal{L}}{\partial h^{(K)}} .
# $$ (eq-looped-bptt)
#
# This is backpropagation through time. Loop $k$ contributes a term that has travelled through
# $K - k$ Jacobians. If their norms stay below a bound less than 1 the early terms vanish, if the
# product grows they explode: the old dilemma of recurrent networks
# ({cite:t}`bengio1994difficult`, {cite:t}`pascanu2013difficulty`).
#
# Equation {eq}`eq-looped-bptt` is an algorithm. Run forwards and keep the $K$ states; then walk
# back, redo one loop at a time, and pull the gradient through it.


# %%
# Cross-entropy of the prediction that the head reads off a state.
def read_off(model, x):
    return F.cross_entropy(model.logits_from(x).flatten(0, 1), targets.flatten())


# Return every loop's contribution to the gradient of the blocks, first loop first.
def walk_back(model):
    theta, terms = list(model.blocks.parameters()), []
    states = [model.embed(inputs), *model(inputs, loop_states=True).loop_states]
    states = [x.detach().requires_grad_() for x in states]  # e, x^(1), ..., x^(K)
    (g,) = torch.autograd.grad(read_off(model, states[-1]), states[-1])
    for k in range(NUM_LOOPS, 0, -1):
        x = model.loop(states[0], states[k - 1] if k > 1 else None)[-1]
        g, *term = torch.autograd.grad(x, [states[k - 1], *theta], g)
        terms.append(torch.cat([part.flatten() for part in term]))
    return torch.stack(terms[::-1])  # (K, number of weights)


# %%
close = {"rtol": 1e-3, "atol": 1e-6}
terms = {n: walk_back(models[n]) for n in ("original", "input", "fla", "flt")}
for name, mine in terms.items():
    model = models[name]
    assert_close(mine, theory.loop_gradients(model, inputs, targets), **close)
    model.zero_grad(), model.loss(inputs, targets).backward()
    whole = torch.cat([p.grad.flatten() for p in model.blocks.parameters()])
    assert_close(mine.sum(0), whole, **close)

# %% [markdown]
# The package does it the other way, with $K$ copies of the blocks
# ({py:func}`unrolled.looped.theory.loop_gradients`). Both agree, loop by loop, and the sum is the
# gradient that training uses.
#
# The walk back keeps the $K$ states and one loop's graph at a time, where autograd kept the graph
# of all of them: we have rebuilt *activation checkpointing* ({cite:t}`chen2016checkpointing`),
# which is what `checkpoint_loops=True` switches on.
#
# A sum of $K$ vectors is as long as the vectors agree. If they point the same way it is $K$ times
# one of them; if they are strangers, $\sqrt K$ times.
#
# **Predict before you run:** which loop contributes most in LT, and which in FLT? In which of the
# two do the contributions agree?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-bptt", "caption": "The terms of the gradient, loop by loop. Left: norm of each contribution, in units of the norm of the sum. Right: cosine between the contributions of neighbouring loops."}, "image": {"alt": "Two line plots by loop: norm of each contribution, and cosine between neighbours"}}
rows = []
for name, t in terms.items():
    cosine = [float("nan"), *torch.cosine_similarity(t[1:], t[:-1], dim=-1).tolist()]
    sizes = t.norm(dim=-1) / t.sum(0).norm()
    rows.append({"variant": name, "size": sizes.tolist(), "cosine": cosine})
show(rows, ("size", "contribution / sum"), ("cosine", "cosine with loop $k - 1$"))

# %% [markdown]
# In LT even the first loop has its say, and neighbouring loops mostly agree: the shared weights are
# pushed the same way again and again. In LT_i and FLA the early loops fade more, but they agree too.
# In FLT the last loop decides. What the earlier ones add is small, and neighbours hardly agree or
# even point against each other.
#
# ### The first step, exactly
#
# At the official start, with zero output projections, {eq}`eq-looped-bptt` can be evaluated by
# hand. All states equal $e$, so the factor $\partial h^{(k)} / \partial \theta_k$ is the same in
# each loop, and only the Jacobians differ. A block is the identity. The norm at a vector of length
# $\sqrt d$ projects out the radial direction and otherwise passes the gradient on; the gradient
# that arrives from the head has no radial part. That leaves, for the output projections of the last
# block (the matrices that move first):
#
# - **LT**: $J = I$. Each loop passes the gradient on in full, and it is counted $K$ times.
# - **LT_i**: $\mathrm{norm}(e + h)$ is evaluated at $2e$, where the norm divides by 2. So
#   $J = \tfrac12 I$, and the gradient is counted $1 + \tfrac12 + \dots + 2^{1-K} = 2 - 2^{1-K}$
#   times.
# - **LT_ia** and **FLT**: with a zero output projection the query has no effect, $J = 0$, and the
#   gradient is counted once.
# - **FLA**: that is an exercise.
#
# In all cases the loops form a geometric sum. With a ratio $r$ per loop the gradient is counted
#
# $$
# \sum_{k=0}^{K-1} r^k \ \text{ times}, \qquad
# r = 1 \ (\text{LT}), \quad \tfrac12 \ (\text{LT}_i), \quad 0 \ (\text{LT}_{ia}, \text{FLT}).
# $$ (eq-looped-count)
#
# **Predict before you run:** FLA adds $h$ before *every* block. Is it closer to LT_i or to LT?


# %%
# Gradient of the last block's output projections at the official start, six layers.
def first_gradient(injection, num_loops):
    model = make(injection, num_loops, replace(official, num_layers=6))
    last = model.blocks[-1]
    matrices = [last.attention.output.weight, last.mlp.output.weight]
    gradients = torch.autograd.grad(model.loss(inputs, targets), matrices)
    return torch.cat([g.flatten() for g in gradients])


once = first_gradient("original", 1)
for name in INJECTIONS[:5]:
    count = theory.gradient_count(name, NUM_LOOPS, num_layers=6)
    assert_close(first_gradient(name, NUM_LOOPS), count * once, rtol=1e-3, atol=1e-7)
    print(f"{LABELS[name]:5s} counts the gradient {count:6.3f} times")

# %% [markdown]
# With six layers FLA counts the gradient nearly as often as LT does. That is our reading of a
# finding of the paper: giving the state to every block is not enough, it has to come through the
# attention.
#
# ### Sharper with every loop
#
# A gradient that is $K$ times larger could be met by a learning rate that is $K$ times smaller, or
# by an optimizer that rescales it, as AdamW and Muon do. Curvature is another matter. The smallest
# loop in the world has one weight $w$ and one number: $h^{(k)} = w\, h^{(k-1)}$ from $h^{(0)} = 1$,
# with the target 1. Then
#
# $$
# \mathcal{L}(w) = \tfrac12 (w^K - 1)^2, \qquad
# \mathcal{L}'(w) = K w^{K-1} (w^K - 1), \qquad
# \mathcal{L}''(1) = K^2 .
# $$ (eq-looped-sharpness)
#
# Near the minimum gradient descent with the rate $\eta$ multiplies the error $w - 1$ by
# $1 - \eta K^2$ in each step. It converges only if $\eta < 2 / K^2$; above that the error changes
# sign in each step and grows. With $K$ *separate* weights the curvature matrix at the minimum is all
# ones, with the largest eigenvalue $K$: the limit is $2 / K$. Sharing costs a factor $K$.
#
# **Predict before you run:** with $\eta = 0.02$, which of $K = 6, 9, 12$ converge?

# %% mystnb={"figure": {"name": "fig-looped-sharpness", "caption": "Gradient descent on the scalar loop with one learning rate for all. For the longest loop it lies above the limit, and the gradient never settles."}, "image": {"alt": "Gradient by step for three numbers of loops; the largest one oscillates", "width": "75%"}}
scalar_loops = []
for loops in (6, 9, 12):
    print(f"K = {loops}: limit {2 / theory.scalar_sharpness(loops):.4f}")
    w, gradients = 0.8, []
    for _ in range(60):
        gradients.append(loops * w ** (loops - 1) * (w**loops - 1))
        w -= 0.02 * gradients[-1]
    scalar_loops.append({"num_loops": loops, "gradient": gradients})
show(scalar_loops, ("gradient", "gradient"), xlabel="step", by="num_loops")

# %% [markdown]
# There is the *gradient oscillation* of the paper in its purest form: not noise in the data, but a
# step that is too long for a curvature which grows with the square of the number of loops. It is a
# caricature (one weight, no norm, plain gradient descent), so take it as a picture of the cause and
# not as a prediction of numbers.
#
# ## The loss
#
# Any loop can be asked for a prediction, since the head can read any $x^{(k)}$. Let $\ell^{(k)}$ be
# the mean cross-entropy of the prediction after loop $k$. The three losses of the package average
# it over a set $S$ of loops:
#
# $$
# \mathcal{L} = \frac{1}{|S|} \sum_{k \in S} \ell^{(k)}, \qquad
# S = \begin{cases}
# \{K\} & \text{last} \\
# \{1, \dots, K\} & \text{mean} \\
# \{K - \lceil K/3 \rceil + 1, \dots, K\} & \text{last third}
# \end{cases}
# $$ (eq-looped-loss)
#
# The authors' implementation trains on the last loop. The other two are ours, for later chapters:
# they give the early loops a gradient that has not travelled, $\partial \ell^{(k)} / \partial h^{(k)}$
# beside $g^{(k)}$ of {eq}`eq-looped-bptt`.

# %%
states = models["flt"](inputs, loop_states=True).loop_states
by_loop = torch.stack([read_off(models["flt"], x) for x in states])
counts = {"last": 1, "mean": NUM_LOOPS, "last_third": -(-NUM_LOOPS // 3)}
for loss_loops, count in counts.items():
    theirs = make("flt", loss_loops=loss_loops).loss(inputs, targets)
    assert_close(by_loop[-count:].mean(), theirs)

# %% [markdown]
# ## What is free, and what is not
#
# **Parameters are free.** A block has four $d \times d$ matrices in the attention and two of
# $d \times 4d$ in the MLP: $12 d^2$ numbers. The embedding and the head have $Vd$ each. So
#
# $$
# P = 2 V d + 12\, L\, d^2,
# $$ (eq-looped-parameters)
#
# for any $K$ and any injection.
#
# **Arithmetic is not.** A matrix of $n$ numbers costs $2n$ floating-point operations (FLOPs) per
# token, a multiplication and an addition each. The attention itself costs $2Nd$ for the products of
# a query with $N$ keys and $2Nd$ for the mixture of the values (we count all $N$, as the common
# kernels do, though half of them are masked). So a forward pass costs per token
#
# $$
# C = K L \,\bigl( 24\, d^2 + 4 N d \bigr) + 2 V d .
# $$ (eq-looped-flops)
#
# Only the head and the embedding escape the factor $K$. FLT costs what LT costs: it moves a query,
# it adds no product. We check the formulas against PyTorch's own counter and against the two sizes
# of the paper, built on the `meta` device, where a tensor has a shape but no memory.

# %%
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

d, V = WIDTH, config.vocab_size
counter = FlopCounterMode(display=False)
with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
    models["flt"](inputs)
flops = NUM_LOOPS * LAYERS * (24 * d**2 + 4 * LENGTH * d) + 2 * V * d
assert flops == flops_per_token(config, NUM_LOOPS, LENGTH)
assert flops * inputs.numel() == counter.get_total_flops()
assert count_parameters(models["flt"]) == 2 * V * d + 12 * LAYERS * d**2

# %%
for name, size in (("Small", SMALL), ("Base", BASE)):
    with torch.device("meta"):
        model = LoopedTransformer(size, NUM_LOOPS, "flt")
    whole, looped = count_parameters(model), count_parameters(model.blocks)
    print(f"{name}: {whole / 1e6:.1f} M parameters, {looped / 1e6:.1f} M looped")
gigaflops = {K: flops_per_token(BASE, K) / 1e9 for K in (1, 3, 6, 9, 12)}
pd.DataFrame({"Base, GFLOPs per token": gigaflops}).rename_axis("K").round(2).T

# %% [markdown]
# The counts are those of the paper, 127.1 M and 317.9 M parameters. Most of them are embeddings,
# for the vocabulary is large: the blocks that are looped are a small part of what is stored.
#
# **Memory is not free either**, while you train. Backpropagation needs the activations of all $K$
# loops. Let $a$ be the activations of one loop, in numbers; then autograd keeps
#
# $$
# K a \ \text{ without}, \qquad K\, B N d + a \ \text{ with checkpointing at the loops}
# $$ (eq-looped-memory)
#
# for a batch of $B$ texts, beside what the head needs. Checkpointing keeps one state per loop, and
# builds one loop's graph anew at a time on the way back, for the price of one more forward pass.
# We count the bytes that are kept when the backward pass begins.


# %%
def megabytes(num_loops, on):
    model = make("flt", num_loops, checkpoint_loops=on)
    return theory.saved_bytes(model, inputs, targets) / 2**20


table = {f"K = {K}": [megabytes(K, False), megabytes(K, True)] for K in (1, 3, 6, 12)}
pd.DataFrame(table, index=["MB, whole graph", "MB, checkpointed"]).round(2)

# %% [markdown]
# ## The diagnostics
#
# The next chapter watches a loop break. It needs words for what it sees, with definitions that a
# program can apply. The residual norm and the gradient norms are those that the authors log. For the
# other two we know of no formula of theirs, so the definitions are ours.
#
# **Residual norm.** The mean length of a token's stream at the end of loop $k$, before any norm:
#
# $$
# r_k = \frac{1}{BN} \sum_{b,n} \bigl\lVert x^{(k)}_{bn} \bigr\rVert .
# $$ (eq-looped-residual-norm)
#
# **Gradient norm per loop and block.** $g_{kl} = \lVert \partial \mathcal{L} / \partial
# x^{(k)}_l \rVert$, the norm of the gradient at the stream after block $l$ of loop $k$. It is
# recorded by backward hooks ({py:class}`unrolled.looped.diagnostics.GradientProbe`); the right half
# of {numref}`fig-looped-claim` shows its last block.
#
# **Oscillation.** Let $g_t$ be the gradient of training step $t$ (before clipping). Over a window of
# $w$ steps we look at how much its norm swings, and at whether successive gradients undo each other:
#
# $$
# \omega = \frac{\mathrm{std}_t \lVert g_t \rVert}{\mathrm{mean}_t \lVert g_t \rVert},
# \qquad
# c_t = \frac{\langle g_t, g_{t-1} \rangle}{\lVert g_t \rVert\, \lVert g_{t-1} \rVert} .
# $$ (eq-looped-oscillation)
#
# A smooth run has a small $\omega$ and $c_t$ near 1 while it follows a slope; the scalar loop above
# its limit has $c_t = -1$ whenever it jumps across the minimum.
#
# **Collapse.** The paper calls a run collapsed when the loss stays on a high plateau while the
# residual norm still rises. We ask for both symptoms. Let $\bar{\mathcal{L}}$ be the mean loss at
# the end of the run, $\mathcal{L}_1$ the loss of the best prediction that ignores the context (the
# *unigram* loss), and $s$ the slope of $\log r_K$ per step over the second half of $T$ steps. A run
# has collapsed if
#
# $$
# \bar{\mathcal{L}} > (1 - \mu)\, \mathcal{L}_1
# \qquad \text{and} \qquad
# e^{s T / 2} - 1 > \mu_r,
# $$ (eq-looped-collapse)
#
# with margins $\mu$ (loss) and $\mu_r$ (growth of the norm) of 5 % each by default, or if one is not
# finite. (The slope is a median of slopes, which spikes do not move.)
#
# **Predict before you run:** for the three scalar loops of {numref}`fig-looped-sharpness`, which has
# the largest $\omega$ in its first twenty steps? Which have a negative mean $c_t$?

# %%
states = models["original"](inputs, loop_states=True).loop_states
mine = torch.stack([x.norm(dim=-1).mean() for x in states])
assert_close(mine.detach(), diagnostics.residual_norms(states))
table = {}
for row in scalar_loops:
    g = torch.tensor(row["gradient"][:20], dtype=torch.float64)
    omega = (g.abs().std(correction=0) / g.abs().mean()).item()
    assert_close(omega, diagnostics.gradient_oscillation(g.abs().tolist()))
    table[f"K = {row['num_loops']}"] = omega, (g[1:] * g[:-1]).sign().mean().item()
pd.DataFrame(table, index=["omega", "mean c"]).round(2)

# %% [markdown]
# A surprise, and a warning. The two loops that converge have a larger $\omega$ than the one that does
# not: their gradient dies out, and a few large values among many tiny ones have a large deviation
# for their mean. So $\omega$ is meaningful only while the gradient stays alive, as the noise of
# mini-batches keeps it in real training. And a negative mean $c_t$ need not be a disaster: at $K = 9$
# each step crosses the minimum, but by less each time. Read the two together, and with the curve.
#
# ## Deviations and unknowns
#
# What this chapter says comes from three places, and you should know which is which.
#
# | | stated in the paper | seen in the authors' public implementation | our choice |
# |---|---|---|---|
# | FLA, AI | every block gets the last loop's state; with AI it is the query, and loop 1 is plain | FLA alone adds it as $\mathrm{norm}(x + h)$; with AI it is added nowhere | |
# | what is $z$ in the attention | the current layer's state is key and value | the normed *input* of the attention | |
# | norm between the loops | | $h$ is normed before it is used | "LT, no norm" leaves it out, as a contrast |
# | LT_i, LT_ia | baselines, by name | $\mathrm{norm}(e + h)$; query of block 1 | |
# | block | | RMSNorm without gain, RoPE, QK-norm after the rotation, squared ReLU, soft cap 15, zero output projections | random output projections in the figures of this chapter |
# | loss | | last loop | mean, and last third |
# | oscillation, collapse | shown as curves | gradient and residual norms are logged | the formulas {eq}`eq-looped-oscillation`, {eq}`eq-looped-collapse` and their thresholds |
#
# - **The models of thought are ours.** The linear loop, the sums over paths, the scalar loop and the
#   exact first step are not in the paper. They show how oscillation and explosion *can* arise. That
#   they are what happens in training is for the next chapter to test.
# - **Nothing is trained here.** The figures compare wirings at random weights. Training changes the
#   weights, and may change the order of the curves.
# - **Bytes instead of a tokenizer, tiny widths.** The equations do not depend on it. The two models
#   of the paper appear with their true shapes only where we count.
#
# ## Exercises
#
# Each exercise ends in a call that checks your answer on hidden cases and, if it is wrong, tries to
# name the mistake.

# %% [markdown]
# :::{exercise} Predict: who else stands still?
# :label: ex-looped-position-zero
# FLT cannot change its output at position 0. For which of the six injections of
# `INJECTIONS` is the output at position 0 the same for every number
# of loops? Answer with a set of names, such as `{"flt"}`, before you run any model.
# :::

# %% tags=["exercise"]
answer = None  # your set of names
checks.looped_position_zero(answer)

# %% [markdown]
# :::{solution} ex-looped-position-zero
# :class: dropdown
# The proof uses only that $h$ enters by a query and by nothing else. That holds for FLT and for
# LT_ia. In all others $h$ is added to the stream, or is the stream, at position 0 like anywhere.
#
# ```python
# answer = {"attention", "flt"}
# ```
# :::

# %% [markdown]
# :::{exercise} Predict: what do twelve loops cost?
# :label: ex-looped-flops-factor
# The Small model has $L = 6$, $d = 384$ and $V = 151{,}680$. By what factor do the FLOPs of a
# forward pass grow from $K = 1$ to $K = 12$ at $N = 1024$? Guess first, then use
# {eq}`eq-looped-flops` on paper. (Base was in the table; Small is different.)
# :::

# %% tags=["exercise"]
answer = None  # your number
checks.looped_flops_factor(answer)

# %% [markdown]
# :::{solution} ex-looped-flops-factor
# :class: dropdown
# One loop costs $6\,(24 \cdot 384^2 + 4 \cdot 1024 \cdot 384)$, the head $2 \cdot 384 \cdot
# 151{,}680$ FLOPs per token. The head is the larger of the two, and it runs once.
#
# ```python
# one_loop = 6 * (24 * 384**2 + 4 * 1024 * 384)
# head = 2 * 384 * 151_680
# answer = (12 * one_loop + head) / (one_loop + head)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how often does FLA count?
# :label: ex-looped-first-gradient
# At the official start (zero output projections, all states equal to $e$) FLA counts the gradient of
# its last block's output projections $\sum_{k=0}^{K-1} r^k$ times. Find $r$ for $L$ layers and write
# the count as a function of $L$ and $K$. Hint: follow a small change of $h$ through one loop of
# {eq}`eq-looped-fla`; each $\mathrm{norm}(x + h)$ is evaluated at $2e$.
# :::


# %% tags=["exercise"]
def fla_count(num_layers, num_loops): ...  # your formula


checks.looped_first_gradient(fla_count)

# %% [markdown]
# :::{solution} ex-looped-first-gradient
# :class: dropdown
# Let $h$ change by $\delta$ (without a radial part) and let $x_l$ change by $r_l\, \delta$. At $2e$ the
# norm divides by 2 and the block is the identity, so $r_l = \tfrac12 (r_{l-1} + 1)$ from $r_0 = 0$.
# Then $1 - r_l$ halves in each block: $r = r_L = 1 - 2^{-L}$. The more blocks, the closer to LT.
#
# ```python
# def fla_count(num_layers, num_loops):
#     r = 1 - 0.5**num_layers
#     return (1 - r**num_loops) / (1 - r)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the largest stable learning rate
# :label: ex-looped-stable-rate
# Let the scalar loop have another target: $\mathcal{L}(w) = \tfrac12 (w^K - y)^2$ with $y > 0$.
# Below which learning rate is gradient descent stable near the minimum? Write it as a function of $K$
# and $y$. Is a larger target harder or easier to learn?
# :::


# %% tags=["exercise"]
def stable_rate(num_loops, target): ...  # your formula


checks.looped_stable_rate(stable_rate)

# %% [markdown]
# :::{solution} ex-looped-stable-rate
# :class: dropdown
# The minimum is at $w = y^{1/K}$. There the residual is zero, so the curvature is the square of the
# slope of $w^K$, which is $(K w^{K-1})^2$, and the limit is 2 over that. A larger target needs a
# smaller rate.
#
# ```python
# def stable_rate(num_loops, target):
#     w = target ** (1 / num_loops)
#     return 2 / (num_loops * w ** (num_loops - 1)) ** 2
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: backpropagation through the loops
# :label: ex-looped-bptt
# Take the loop $h^{(k)} = \tanh(W h^{(k-1)} + e)$ from $h^{(0)} = 0$ with the loss
# $\tfrac12 \lVert h^{(K)} - y \rVert^2$. Compute the contribution of each loop to the gradient in $W$
# by {eq}`eq-looped-bptt`, without automatic differentiation: a tensor of shape $(K, d, d)$ whose
# entry 0 belongs to the first loop. `W` is (d, d), `e` and `y` are (d,).
# :::


# %% tags=["exercise"]
def loop_terms(W, e, y, num_loops): ...  # your K terms, stacked


checks.looped_bptt(loop_terms)

# %% [markdown]
# :::{solution} ex-looped-bptt
# :class: dropdown
# Going back through $\tanh$ multiplies by $1 - h^2$, going back through $W$ by $W^\top$. The weight of
# loop $k$ multiplies the state *before* it, which gives an outer product.
#
# ```python
# def loop_terms(W, e, y, num_loops):
#     states = [torch.zeros_like(e)]
#     for _ in range(num_loops):
#         states.append(torch.tanh(W @ states[-1] + e))
#     g, terms = states[-1] - y, []
#     for k in range(num_loops, 0, -1):
#         delta = g * (1 - states[k] ** 2)
#         terms.append(torch.outer(delta, states[k - 1]))
#         g = W.T @ delta
#     return torch.stack(terms[::-1])
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: attention injection without the restart
# :label: ex-looped-attention-only
# FLT does two things: it restarts from $e$, and it makes $h$ the query of every block. Which of them
# does the work? Write the loop that does only the second: from loop 2 on it starts from $h$ and asks
# with $h$ in every block. In loop 1, where `h` is `None`, it is a plain pass from $e$.
# :::


# %% tags=["exercise"]
def attention_only(blocks, e, h): ...  # the stream after one loop


checks.looped_attention_only(attention_only)

# %% [markdown]
# :::{solution} ex-looped-attention-only
# :class: dropdown
# A block whose `query` is `None` asks with its own stream, so loop 1 needs no case of its own there.
# Try `unroll(models["original"], attention_only)`: the restart is what keeps the tokens apart.
#
# ```python
# def attention_only(blocks, e, h):
#     x = e if h is None else h
#     for block in blocks:
#         x = block(x, query=h)
#     return x
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: the gain of a loop
# :label: ex-looped-gain
# How strongly can a small change of the old state come out of a loop? The answer is the largest
# singular value of the Jacobian $J = \partial F / \partial h$. $J$ is too large to be written down, but
# products with it are cheap. Write `gain(F, h)` for a function $F$ from a tensor to one of the same
# shape: start from a random direction $v$, replace it by $J^\top J v$ scaled to length 1, and repeat.
# (`torch.autograd.functional.jvp(F, h, v)` and `vjp` return pairs; the second entry is the product.)
# :::


# %% tags=["exercise"]
def gain(F, h): ...  # the largest singular value of the Jacobian of F at h


checks.looped_gain(gain)

# %% [markdown]
# :::{solution} ex-looped-gain
# :class: dropdown
# It is the power iteration {eq}`eq-looped-power`, on $J^\top J$. At the end $\lVert J v \rVert$ is the
# singular value. Now measure the variants: let `F` be
# `lambda h: norm(models[name].loop(e, h)[-1])`, at the normed state after a loop, inside
# `with sdpa_kernel(SDPBackend.MATH):` (the fused attention has no second derivative on a CPU).
# With the random weights of this chapter you will find gains above 1 for *all* variants, FLT
# included, although its gradient fades in {numref}`fig-looped-claim`. The worst direction is not
# the typical one: a largest singular value is a bound, and here it does not tell the variants apart.
#
# ```python
# def gain(F, h):
#     v = torch.randn_like(h)
#     for _ in range(100):
#         v = v / v.norm()
#         _, Jv = torch.autograd.functional.jvp(F, h, v)
#         _, v = torch.autograd.functional.vjp(F, h, Jv)
#     return Jv.norm()
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** In a looped Transformer the number of loops is doubled. Which of parameters, arithmetic and memory in training change, and by about what factor?
#
# :::{dropdown} Answer
# The parameters do not. The arithmetic of the blocks doubles, that of embedding and head does not ({eq}`eq-looped-flops`). The activations that are kept double as well, or with checkpointing at the loops only the states between them.
# :::
#
# **2.** With one block, which of LT_i, LT_ia, FLA and FLT are the same model, and why does that matter for small experiments?
#
# :::{dropdown} Answer
# FLA is LT_i, and FLT is LT_ia: with one block "every block" and "the first block" are the same. An experiment with few layers can hardly separate them.
# :::
#
# **3.** Why can FLT not change its output at position 0, however many loops it runs?
#
# :::{dropdown} Answer
# The old state enters by a query alone, and at position 0 there is one key. A softmax over one number is 1, whatever the query ({prf:ref}`prop-looped-position-zero`).
# :::
#
# **4.** A norm between the loops keeps the state at the length $\sqrt d$. What can still go wrong in LT?
#
# :::{dropdown} Answer
# The direction: the loops become a power iteration ({eq}`eq-looped-power`). The states of all tokens turn to the same side, and what the input was is lost.
# :::
#
# **5.** At the start with zero output projections, how often is the gradient counted in LT, in LT_i and in FLT, with $K$ loops?
#
# :::{dropdown} Answer
# $K$ times, $2 - 2^{1-K}$ times, and once ({eq}`eq-looped-count`): a loop passes on all of the gradient, half of it, or nothing.
# :::

# %% [markdown]
# ## Provenance

# %%
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
