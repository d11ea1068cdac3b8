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
# (looped-depth)=
# # Where depth matters
#
# On plain text, at our size, more loops hardly help ({numref}`looped-pretraining`). Predicting the next
# letter asks for knowledge, and seldom for many steps of thought. In this chapter the tasks are made, not
# found: for each answer you know how many steps it takes, one after the other. So you can see where
# looping pays. And you can see something that the loss on text would never have shown: two wirings of the
# same block are good at different things, and you can say why before any training.
#
# After this you can
#
# - say what the depth of a question is, and why a known way to the answer only bounds it from above;
# - prove that in FLT with one block no position can use what another has computed;
# - count how far a chain of look-ups gets, for every wiring, with and without publishing;
# - set the weights of an FLT by hand so that it follows pointers, one per loop;
# - read the algorithm of a trained model off its attention, and predict what it does with more loops.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | an FLT of width 16, 12 steps | seconds |
# | live | one FLT with 2 loops, 400 steps | half a minute on one core |
# | laptop | the same model, 1,500 steps | two minutes on one core |
# | colab | the same model of width 128, 6,000 steps | sized for a 16 GB GPU, not measured |
#
# The notebook trains one model of the experiment at every preset. The whole comparison, 24 models and three
# seeds, is in the committed rows; the command that makes them stands at the end.

# %% tags=["setup", "hide-input"]
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.testing import assert_close

from unrolled import checks, figures, results
from unrolled.data import tasks
from unrolled.looped import depth
from unrolled.looped.model import LABELS, build
from unrolled.provenance import threads

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# 1. Where an answer is a chain of *look-ups* (read an address, go there, read the next address), FLT
#    can follow one link per loop, and with four loops our runs follow four. LT_i stops half-way, and how
#    far LT gets depends on the seed.
# 2. Where the *computed result* of one position is needed at another, as with the carries of an addition,
#    LT and LT_i profit from loops, and FLT with one block hardly does.
# 3. The reason can be read off the wiring. In FLT every loop starts from the embedding, so loops deepen the
#    chain of questions and not what there is to be read. A second block puts that right.
#
# None of this is a claim of {cite:t}`fu2026looped`, who measure language only. The tasks, the questions and
# the answers are ours. The figure shows *laptop* rows: one block of width 64, looped four times, trained
# with Muon; two plain Transformers for comparison, with four blocks of their own and with one.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-depth", "caption": "Laptop rows, one block, four loops; mean over paired seeds and 95 % confidence interval. The plain Transformer has four blocks, each with weights of its own; grey: one block, applied once. Left: pointer chasing, share of right answers by the number of hops. Right: addition, share of right digits by the number of places that the carry into it has travelled. The two tasks order the variants differently."}, "image": {"alt": "Accuracy by number of hops and by carry distance for LT, LT_i, FLT and a plain Transformer"}}
evidence = results.select(results.read("looped.depth"), preset="laptop")
CHASE, ADD, SHARES = "pointer_chasing", "addition", "accuracy_by_depth"


# Draw the accuracy by depth of some models, and that of a single block.
def show_depth(ax, task, legend=True, **conditions):
    rows = [
        row | {"depth": d + (task == CHASE), "share": share}  # hops count from 1
        for row in results.select(evidence, task=task, **conditions)
        for d, share in enumerate(row[SHARES])
    ]
    figures.mean_with_interval(ax, rows, "depth", "share", legend=legend)
    single = results.select(evidence, task=task, num_layers=1, num_loops=1)
    mean = np.mean([row[SHARES] for row in single], axis=0)
    ax.plot(mean, ":", color="0.5", marker=".")
    depths = "hops $p$" if task == CHASE else "places the carry has travelled"
    ax.set(xlabel=depths, ylabel="share of right answers", ylim=(0, 1.04))


_, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.6))
show_depth(left, CHASE, legend=False, num_layers=1, num_loops=4)
show_depth(right, ADD, num_layers=1, num_loops=4)
plt.show()

# %% [markdown]
# ## Two tasks of known depth
#
# **Pointer chasing.** $R = 8$ nodes lie on a random cycle; the map $f$ sends a node to the next one. A
# sequence lists the $R$ *arrows* $a \to f(a)$ in random order, one token each. Then come twelve
# *questions*, one token each: where do you get from node $s$ in $p$ steps, $p = 1, \dots, p_{\max} = 4$?
# The answer is read off at the question. It is
#
# $$
# f^p(s) = f\bigl( f^{p-1}(s) \bigr), \qquad f^0(s) = s,
# $$ (eq-looped-hops)
#
# and $p$ is its depth: the number of *hops*.
#
# **Addition.** Two numbers of eight digits, the least digit first, $a_0\, b_0\, a_1\, b_1 \dots$; the digit
# $i$ of their sum is read off at $b_i$. With $\sigma_i = a_i + b_i$ the *carry* into place $i$ is
#
# $$
# \kappa_0 = 0, \qquad
# \kappa_{i+1} = \begin{cases} 1 & \sigma_i + \kappa_i \ge 10 \\ 0 & \text{otherwise,} \end{cases}
# $$ (eq-looped-carry)
#
# and the digit is $(\sigma_i + \kappa_i) \bmod 10$. A carry is made where $\sigma_i \ge 10$ and handed on
# where $\sigma_i = 9$. The depth of a digit is the number of places that the carry into it has travelled,
# and 0 if there is none. Among random digits long carries are rare, so in half of the places we make
# $\sigma_i = 9$.


# %%
# Follow the arrows from each question: where each hop's arrow stands, and where it leads.
def follow(inputs, length):
    arrows, node = inputs[:, :R], (inputs[:, R:] - R * R) // MOST
    places, nodes = [], []
    for _ in range(length):
        places.append((arrows[:, None] // R == node[..., None]).long().argmax(-1))
        node = arrows.gather(1, places[-1]) % R
        nodes.append(node)
    return torch.stack(places), torch.stack(nodes)  # (length, B, questions) each


chase = depth.TASKS[CHASE]
R, MOST = chase.num_nodes, chase.max_hops
inputs, targets, hops = chase.sample(5, np.random.default_rng(SEED))
_, nodes = follow(inputs, MOST)
assert torch.equal(nodes.gather(0, hops[None, :, R:] - 1)[0], targets[:, R:])
print("arrows:", *(f"{token // R}→{token % R}" for token in inputs[0, :R]))

# %% [markdown]
# Code: {py:class}`unrolled.data.tasks.PointerChasing` and {py:class}`unrolled.data.tasks.Addition`.
#
# ### A known way is not the shortest
#
# A depth in this sense is that of *one* way to the answer, the one you learned at school. It says that so
# many steps are enough. It does not say that fewer are not.
#
# **Hops can be doubled.** If you know $f^2$ for all nodes, then two look-ups in it make four hops. From
# $f^{2m} = f^m \circ f^m$ you get $f^p$ with about $\log_2 p$ compositions. Computer scientists call this
# *pointer doubling*. The price: every node must find its own second successor and *publish* it, so that
# others can look it up.
#
# **Carries can be foreseen.** You need not wait for the carry to come. Look for the nearest lower place
# whose sum is not 9: everything between hands on whatever that place makes. So
#
# $$
# \kappa_i = 1 \iff \sigma_j \ge 10, \qquad j = \max\{\, j < i : \sigma_j \ne 9 \,\}
# $$ (eq-looped-lookahead)
#
# (and $\kappa_i = 0$ if there is no such place). That is two steps for a carry of any length: first every
# place adds its own two digits and publishes the sum, then every place looks for one sum. Adders in
# hardware use the same idea ({cite:t}`ladner1980prefix`).
#
# **Carries can even be weighed.** Add up all lower places, each by its worth. Their sum overflows exactly
# if there is a carry:
#
# $$
# \kappa_i = 1 \iff \sum_{j < i} 10^{\,j - i}\, \sigma_j \ge 1 .
# $$ (eq-looped-adder)
#
# To see it, write the sum of the lower places as $10^i \kappa_i$ plus a number below $10^i$. Now compare
# with {eq}`eq-looped-softmax`: weights that fall by a factor of 10 per place *are* a softmax, of scores
# that fall by $\ln 10$. So a single head can compute every carry at once from the raw digits. The catch
# is precision. To see a carry that has come $q$ places, it must tell 1 from $1 - 10^{-q}$.

# %%
random = np.random.default_rng(SEED)
sums = random.choice([3, 8, 9, 9, 11, 16], size=(200, 8))  # of 200 additions
school, ahead, weighed = np.zeros((3, *sums.shape), dtype=int)
nearest, tens = np.zeros(200), 10 ** np.arange(8)
for i in range(1, 8):
    below = sums[:, i - 1]
    school[:, i] = below + school[:, i - 1] >= 10
    nearest = np.where(below == 9, nearest, below)  # the last that is no 9
    ahead[:, i] = nearest >= 10
    weighed[:, i] = sums[:, :i] @ tens[:i] >= tens[i]
for mine in (school, ahead, weighed):
    assert (mine == tasks.carries(sums)[0]).all()
pd.DataFrame([sums[0], school[0]], ["sum of the digits", "carry into place"])

# %% [markdown]
# Code: {py:func}`unrolled.data.tasks.carries`. So a label of depth is a ruler, not a wall: it tells you how
# hard a question is for the plain method. What a *model* cannot do has to be shown from its wiring.
#
# ## What a loop of FLT can do
#
# Take FLT with one block ($L = 1$; it is then the same as LT_ia). In every loop the block starts from $e$,
# and the old state is its query, {eq}`eq-looped-flt`. Write $h_n$ for the old state of position $n$, and
# $k_m, v_m$ for the keys and values that the block computes.
#
# :::{prf:proposition} With one block, FLT keeps its thoughts to itself
# :label: prop-looped-private
# In FLT with one block the keys and values are the same in all loops. The state of a position after loop
# $k$ is
#
# $$
# x_n^{(k)} = y + \mathrm{MLP}\bigl(\mathrm{norm}(y)\bigr), \qquad
# y = e_n + W_O \sum_{m \le n} a_{nm}\bigl(h_n^{(k-1)}\bigr)\, v_m ,
# $$ (eq-looped-private)
#
# where the weights $a_{nm}$ depend on the old state of *this* position (in loop 1 on $h_n^{(0)} = e_n$)
# and on the fixed keys. Therefore
#
# 1. $\partial x_n^{(K)} / \partial h_m^{(k)} = 0$ for all $m \ne n$ and all $k < K$;
# 2. $y$ lies in $e_n + W_O\, \mathrm{conv}\{v_m : m \le n\}$ (for one head; with several, in a sum of
#    such sets), and this set is the same for every number of loops;
# 3. with rotary positions the values of equal tokens are equal. So all that a position ever learns about
#    the others is, for each head, how much of its attention falls on each *kind* of token.
# :::
#
# :::{prf:proof}
# Keys and values are made of $\mathrm{norm}(x_m)$ with $x_m$ the stream before the block, and that is
# $e_m$ in every loop. What else enters position $n$ is its query, made of $h_n$. So the loops of
# different positions never touch (1). The weights are positive and add up to 1 (2). RoPE turns queries
# and keys, never values; so $v_m = W_V\, e_m$ is a function of the token alone, and $\sum_m a_{nm} v_m$
# adds up the weights of equal tokens (3). $\square$
# :::
#
# You know this kind of machine: a fixed memory, a question, an answer that refines the question, and
# again. It is the memory network of {cite:t}`sukhbaatar2015memory`, who call a loop a *hop*.
#
# In LT and LT_i the keys and values of loop $k$ are made of the *old states*. Whatever position $m$ has
# worked out, others can find by its key and read as its value; it has been *published*. In FLT with two
# blocks the second block reads what the first has just written, so there too every loop publishes
# something.
#
# The proposition says that keys and values can be computed once, before the loops. Let us do that. The
# function below also returns where every position looks; we shall need it for a trained model.


# %%
# FLT with one block: keys and values once, then K questions. Also returns the weights.
def private_loops(model, tokens, num_loops):
    x = e = model.embed(tokens)
    block, norm, looks = model.blocks[0], model.norm, []
    attention, H = block.attention, model.config.num_heads
    k = norm(attention.rotary(attention.key(e).unflatten(-1, (H, -1))))
    v = attention.value(e).unflatten(-1, (H, -1))
    future = torch.ones(e.shape[1], e.shape[1]).triu(1).bool().to(e.device)
    for _ in range(num_loops):
        q = norm(attention.rotary(attention.query(norm(x)).unflatten(-1, (H, -1))))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5
        looks.append(scores.masked_fill(future, -torch.inf).softmax(-1))
        read = torch.einsum("bhnm,bmhd->bnhd", looks[-1], v).flatten(2)
        y = e + attention.output(read)
        x = y + block.mlp(norm(y))
    return x, looks  # x is the state after the last loop


# %%
# A looped model with random weights, its output projections included.
def make(variant, num_layers=1):
    torch.manual_seed(SEED)
    config = depth.config_of(settings, chase, num_layers)
    return build(replace(config, zero_output=False), variant, 4)


settings = depth.EXPERIMENT.settings(PRESET)
tokens = chase.sample(3, np.random.default_rng(SEED)).inputs
flt = make("flt")
ours, _ = private_loops(flt, tokens, 4)
assert_close(flt.logits_from(ours), flt(tokens).logits, rtol=1e-4, atol=1e-4)

# %% [markdown]
# Now the first consequence. Run one loop, replace the state of position 3 by something else, run another
# loop, and ask whose state has changed.
#
# **Predict before you run:** which positions notice, for LT, LT_i, and for FLT with one and with two
# blocks?


# %%
# The positions whose next state depends on the old state of position 3.
def noticed_by(model):
    e = model.embed(tokens)
    x = model.loop(e)[-1]
    other = x.clone()
    other[:, 3] = torch.randn(x.shape[-1])
    change = model.loop(e, x)[-1] - model.loop(e, other)[-1]
    return change.abs().amax((0, 2)).gt(1e-4).nonzero().flatten().tolist()


for name, layers in (("original", 1), ("input", 1), ("flt", 1), ("flt", 2)):
    noticed = noticed_by(make(name, layers))
    print(f"{LABELS[name]:4s}, {layers} block(s): {noticed}")

# %% [markdown]
# In FLT with one block nobody but position 3 itself. The other three hand the news on to everybody behind.
#
# ## How far look-ups reach
#
# How much does that cost, in hops? Call it a *look-up* when a head puts all its weight on one position
# that its query names ("the arrow that leaves node 5"), and count one look-up per block. A look-up needs
# its address. So the number of hops that a question can have followed is the length of the longest chain
# in which each look-up finds the address of the next.
#
# :::{prf:proposition} The reach of look-ups
# :label: prop-looped-reach
# If the arrows are read as they stand, with nothing published, a question can follow
#
# $$
# \begin{aligned}
# K L \ \text{ hops} &\quad \text{in LT, LT}_i,\ \text{LT}_{ia},\ \text{FLA and the plain Transformer of }
# KL \text{ blocks}, \\
# K + L - 1 \ \text{ hops} &\quad \text{in FLT.}
# \end{aligned}
# $$ (eq-looped-reach)
#
# If every position publishes as much as it can, and may look at all others, a question reaches
#
# $$
# \begin{aligned}
# 2^{KL} - 1 \ \text{ hops} &\quad \text{in LT, LT}_i \text{ and the plain Transformer}, \\
# K \ \text{ hops} &\quad \text{in FLT with } L = 1 .
# \end{aligned}
# $$ (eq-looped-published)
# :::
#
# :::{prf:proof}
# *Nothing published.* A question starts with the address $s$. A block that asks with the stream knows
# what the block before it has found, so every block adds a hop. That is so in all blocks of all loops,
# except in FLT from loop 2 on: there *all* blocks ask with the same $h$. Each of them can read the arrow
# at the address that $h$ names, none the one behind it. So loop 1, a plain pass, gives $L$ hops, and each
# of the $K - 1$ others one.
#
# *Everything published.* Let an arrow know $A$ hops from its node, and a question $Q$ from its start; at
# first $A = 1$ and $Q = 0$. In a block an arrow looks up the arrow at its own end and appends what that
# has published: $A \leftarrow 2A$. A question appends what the arrow at its address has published:
# $Q \leftarrow Q + A$. After $j$ blocks $A = 2^j$ and $Q = 1 + 2 + \dots + 2^{j-1} = 2^j - 1$. In FLT
# with one block, by {prf:ref}`prop-looped-private`, what can be read of an arrow is the arrow, $A = 1$ in
# every loop, and $Q \leftarrow Q + 1$. $\square$
# :::
#
# The hops of a question need not be the most: with binary digits it can stop at any number on the way. A
# few lines do the bookkeeping for any number of blocks and loops.
#
# **Predict before you run:** with four applications of a block in all, which is better for FLT, one
# block four times or two blocks twice? And for LT?


# %%
# Hops that a question can follow; `arrow` is what an arrow lets others read.
def reach(wiring, num_layers, num_loops, publish):
    question, arrow = 0, 1
    for k in range(num_loops):
        asks, end = question, arrow  # what the old state knows
        if wiring == "flt" and k > 0:
            arrow = 1  # back to the embedding
        for _ in range(num_layers):
            if wiring != "flt" or k == 0:
                asks, end = question, arrow  # ask with the stream
            question, arrow = asks + arrow, (end + arrow if publish else 1)
    return question


# %%
table = {}
for L, K in ((1, 1), (1, 2), (1, 4), (2, 2), (1, 12), (2, 6)):
    counts = [reach(w, L, K, p) for w in ("flt", "lt") for p in (False, True)]
    table[f"L = {L}, K = {K}"] = counts
names = ["FLT, nothing published", "FLT, all", "LT, nothing published", "LT, all"]
pd.DataFrame(table, index=names)

# %% [markdown]
# Two lessons. For FLT the blocks of one loop look up side by side, not one after the other: **one block
# looped four times reaches further than two blocks looped twice**, as long as nothing is published. And
# with one block no cleverness helps; with two, publishing brings back a growth by a factor in every loop
# (one of the exercises).
#
# Three warnings before you believe the table.
#
# - *It bounds look-ups, not models.* Soft attention can read many positions at once. With eight arrows
#   and 64 channels a head may swallow a good part of the table in one bite and leave the rest to the MLP,
#   as {eq}`eq-looped-adder` does with digits. For long chains and narrow states there are theorems:
#   {cite:t}`sanford2024transformers` show that about $\log_2 p$ layers are enough for $p$ hops, and why
#   fewer should not be (given a conjecture on parallel computation). For our eight nodes there are none.
# - *Publishing is harder than it looks.* Our model is causal, so an arrow sees only the arrows listed
#   before it. In a random order the next arrow is there in half of the cases.
# - *What can be done need not be learned.* {cite:t}`saunshi2025latent` train looped Transformers on
#   addition and on chains of look-ups, and find them close to plain ones of the same depth. Theirs are of
#   LT's kind. What training finds in ours, the rows must tell.
#
# ## An FLT set by hand
#
# The number $K$ in {eq}`eq-looped-published` is reached, and by a model that you can write down. Give the
# stream four slots of $R$ channels, each for the name of one node: *source* and *target* of an arrow, the
# *start* of a question, and *here*, where it has got to. The four matrices of attention are then made of
# unit matrices:
#
# - the **key** of a position is its source, and the **value** its target: "look me up under $a$, read
#   $f(a)$";
# - the output writes the value into *here*;
# - the **query** is *start* + 2 · *here*. In loop 1 *here* is empty, and the question asks for its start.
#   Later *here* is louder.
#
# The softmax is taken to its limit, all weight on the largest score. There is no MLP and no norm.

# %%
one, nil = torch.eye(R), torch.zeros(R, R)
W_Q = torch.cat([nil, nil, one, 2 * one], 1)  # (R, 4R): start + 2 here
W_K = torch.cat([one, nil, nil, nil], 1)  # (R, 4R): source
W_V = torch.cat([nil, one, nil, nil], 1)  # (R, 4R): target
W_O = torch.cat([nil, nil, nil, one])  # (4R, R): into here


# Arrows get a source and a target, questions a start.
def by_hand(inputs):
    arrow, start = inputs[:, :R], (inputs[:, R:] - R * R) // MOST
    e = torch.zeros(*inputs.shape, 4 * R)
    e[:, :R, : 2 * R] = torch.cat([one[arrow // R], one[arrow % R]], -1)
    e[:, R:, 2 * R : 3 * R] = one[start]
    return e


# %%
# One loop, with hard attention and without an MLP.
def hop(e, h):
    scores = (h @ W_Q.T) @ (e @ W_K.T).mT
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    looks_at = scores.argmax(-1, keepdim=True).expand(-1, -1, R)
    return e + (e @ W_V.T).gather(1, looks_at) @ W_O.T


questions = depth.held_out(CHASE, 64)
h = e = by_hand(questions.inputs)
columns = {}
for k in range(1, 13):
    h = hop(e, h)
    here = h[..., 3 * R :].argmax(-1)
    columns[k] = [tasks.accuracy(here, questions, p) for p in chase.depths]
frame = pd.DataFrame(columns, chase.depths)
frame.rename_axis("hops").rename_axis(columns="loops").round(2)

# %% [markdown]
# One loop, one hop: a question for $p$ hops is answered exactly after $p$ loops, for all sequences. After
# that the walk goes on and the answer is wrong, until it has been all the way round the cycle:
# $f^{p + 8} = f^p$, so loop $p + 8$ is right again. Remember this signature.
#
# The hand-made model leaves a riddle for a trained one. Training fixes $K$ and asks for all $p \le K$
# after the *same* number of loops. But the state forgets: after loop $k$ it holds $e_n$ and what it looks
# at *now*. Where does the model keep the number of hops that are still to do?
#
# **Predict before you run:** a model trained with $K = 2$ is asked for one hop. When does it take it: in
# loop 1, and then it stops? Or does it wait, and take it in loop 2? Which of the two is easier for a
# machine that cannot count?
#
# ## Live: an FLT learns two hops
#
# FLT, one block of width 64, two loops, trained with Muon ({cite:t}`jordan2024muon`). The experiment
# gives a row. The same seed makes the same model once more, and we keep it to look inside.

# %%
case = {"task": CHASE, "num_layers": 1, "num_loops": 2, "variant": "flt"}
(row,) = depth.EXPERIMENT.run(PRESET, SEED, cases=case)
with threads(1):  # as the experiment does
    model, _ = depth.trained(settings, case, SEED)
questions = depth.held_out(CHASE, settings.questions)
committed = [r[SHARES] for r in results.select(evidence, **case)]
table = [row[SHARES], np.mean(committed, axis=0)]
frame = pd.DataFrame(table, ["live", "laptop rows, mean"], chase.depths)
frame.rename_axis(columns="hops").round(3)

# %% [markdown]
# One and two hops are learned. (A guess is right in one case of five to seven: the nodes that the walk
# has passed can be ruled out.) How does it do it? Follow the questions. For each of them we know where in
# the sequence its first arrow stands, its second, and so on. How much of its attention lies there, in
# each loop? We let the model run for two loops more than it was trained for.

# %%
inputs, _, hops = questions
places, nodes = follow(inputs, 11)
with torch.no_grad():
    _, looks = private_loops(model.cpu(), inputs, 4)
weights = torch.stack(looks)[..., R:, :].mean(2)  # (loops, B, questions, N)
way = places[:4].permute(1, 2, 0).expand(4, -1, -1, -1)
on_way = weights.gather(-1, way)  # (loops, B, questions, arrows on the way)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-chain", "caption": "Where the questions look in the live model, by loop: share of the attention (mean over heads and questions) on the first, second, third and fourth arrow of their way, and on everything that is no arrow. Left: questions for one hop. Right: for two. Trained with two loops, run for four."}, "image": {"alt": "Two tables of attention shares by loop and arrow; large entries lie on a diagonal that starts one loop later for one hop"}}
# Shares as numbers on colours.
def grid(ax, shares, columns, rows, xlabel, title):
    ax.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for (i, j), share in np.ndenumerate(shares):
        colour = "w" if share < 0.6 else "k"
        ax.text(j, i, f"{share:.2f}", ha="center", va="center", color=colour)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=xlabel, title=title)
    ax.grid(False)


_, axes = plt.subplots(1, 2, figsize=(9.5, 3.3), sharey=True)
for ax, p in zip(axes, (1, 2), strict=True):
    shares = torch.cat([on_way, weights[..., R:].sum(-1, keepdim=True)], -1)
    shares = shares[:, hops[:, R:] == p].mean(1).numpy()
    grid(ax, shares, (*"1234", "none"), "1234", "arrow", f"asked for {p} hop(s)")
axes[0].set_ylabel("loop")
plt.show()

# %% [markdown]
# Follow the diagonal. Asked for two hops, the model looks at the first arrow in loop 1 and at the second
# in loop 2, as the hand-made one does. Asked for *one* hop it looks away in loop 1, mostly at what is no
# arrow, and takes its hop in loop 2. It waits first. That is the easy solution of the riddle: whoever
# waits $K - p$ loops needs no count of what is done, only to start in time; and how long is left to wait
# can be kept in where it looks while it waits.
#
# And nothing tells it to stop. In loops 3 and 4 both kinds of question simply go on to the next arrow.
#
# **Predict before you run:** after $k$ loops, which question does the model answer instead of the one for
# $p$ hops? And what will it say after ten loops?

# %%
found = depth.predict(model, questions, 10)
table = {}
for k in (2, 3, 4, 6, 8, 9, 10):
    right = found[k][:, R:] == nodes[k - 2 : k]  # f^(p + k - 2)(s) for p = 1, 2
    shares = [right[p - 1][hops[:, R:] == p].double().mean() for p in (1, 2)]
    table[f"{k} loops"] = [share.item() for share in shares]
pd.DataFrame(table, ["asked for 1 hop", "asked for 2 hops"]).round(2)

# %% [markdown]
# The table counts $f^{p + k - K}(s)$ as right, with $K = 2$. One loop more is one hop more. The reading
# gets worse with every step, since no training has ever polished it; but after ten loops, once round the
# cycle, many answers are right again as they were asked for.
#
# Our committed models show the same on the cycle of eight. Trained with four loops and run for *twelve*,
# eight more, the FLT has been round the cycle once and is mostly right again: for three hops
# {result}`looped_depth | mean_ci accuracy_of_depth_3_by_inference_loops[7] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# of the answers, where after eight loops it was
# {result}`looped_depth | mean_ci accuracy_of_depth_3_by_inference_loops[6] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`.
#
# ## Hops and loops
#
# Now the evidence. All models have the same width, optimizer, rate and number of steps (Muon at the
# paper's rate of 0.02, not tuned for anybody), the same batches and, where their shapes allow, the same
# initial weights. The plain Transformer has as many blocks as the others *apply*; it costs the same
# operations, and has
# {result}`looped_depth | mean parameters | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=plain | ,.0f`
# parameters at $K = 4$ where the looped ones have
# {result}`looped_depth | mean parameters | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | ,.0f`.
#
# **Predict before you look:** by {eq}`eq-looped-reach`, where in each table does the accuracy fall?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-hops", "caption": "Laptop rows, pointer chasing with one block: share of right answers by hops and loops, mean over seeds. With one loop all are the same plain Transformer of one block. For the plain Transformer K counts blocks. A guess among the nodes that are not ruled out is right in 0.14 (one hop) to 0.25 (four hops) of the cases."}, "image": {"alt": "Four tables of accuracy by hops and loops: LT, LT_i, FLT and the plain Transformer"}}
one_block = results.select(evidence, task=CHASE, num_layers=1)
single = results.select(one_block, num_loops=1)
_, axes = plt.subplots(1, 4, figsize=(12, 2.9), sharey=True)
for ax, name in zip(axes, ("original", "input", "flt", "plain"), strict=True):
    several = [results.select(one_block, variant=name, num_loops=K) for K in (2, 4)]
    lists = [[row[SHARES] for row in rows] for rows in (single, *several)]
    grid(ax, np.mean(lists, 1), "1234", "124", "hops $p$", figures.label_of(name))
axes[0].set_ylabel("loops $K$")
plt.show()

# %% [markdown]
# Read the tables from the top.
#
# *One block, applied once,* finds the next node every time, and the one after it more often than a guess
# would:
# {result}`looped_depth | mean_ci accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=1 variant=plain | .2f`.
# That is the first of the three warnings: one block is not one look-up.
#
# *Two loops* bring all three wirings to two hops:
# {result}`looped_depth | mean accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=2 variant=original | .2f`
# (LT),
# {result}`looped_depth | mean accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=2 variant=input | .2f`
# (LT_i) and
# {result}`looped_depth | mean accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=2 variant=flt | .2f`
# (FLT). Two blocks with weights of their own reach
# {result}`looped_depth | mean_ci accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=2 variant=plain | .2f`
# in the same time. A likely reason: a look-up that has been learned once serves both loops, and the plain
# Transformer has to learn it twice.
#
# *Four loops* bring FLT to
# {result}`looped_depth | mean_ci accuracy_by_depth[2] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# at three hops and to
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# at four. LT is at
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=original | .2f`
# at four hops, LT_i at
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=input | .2f`.
# Paired by seed FLT is ahead of LT by
# {result}`looped_depth | difference_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt~original | .2f`,
# of LT_i by
# {result}`looped_depth | difference_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt~input | .2f`,
# and of the plain Transformer of four blocks by
# {result}`looped_depth | difference_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt~plain | .2f`.
# (The interval of a difference has to leave out zero before it says anything.)
#
# By {prf:ref}`prop-looped-reach` LT and LT_i can follow four hops as well, and with publishing more. So
# what we see is not a wall. It is what 1,500 steps of training find. A guess at the reason, which we have
# not tested: in FLT the table of arrows is the same in every loop, so a look-up that works once works
# always. In LT each loop rewrites the arrows too, and what was learned for the table of loop 1 need not
# fit that of loop 2.
#
# ### One hop after the other
#
# **Predict before you look:** what does the training loss look like while the hops are being learned?
# Suppose that the hops $1, \dots, j$ are known and the others are guessed. What is the loss?
#
# A question for $p \le j$ then costs nothing. For $p > j$ the walk is known for $j$ steps. On a cycle of
# $R > p$ nodes the answer is none of the $j + 1$ nodes passed so far, and all others are equally likely.
# With $p$ uniform on $1, \dots, p_{\max}$,
#
# $$
# \mathcal{L} = \frac{p_{\max} - j}{p_{\max}}\, \ln (R - 1 - j) .
# $$ (eq-looped-plateau)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-stairs", "caption": "Laptop rows, pointer chasing, one block, four loops: training loss by step, seeds (thin) and their mean (thick). Dotted: the plateaus of the staircase, from no hop known (top) to three hops known."}, "image": {"alt": "Training loss over steps for LT, LT_i, FLT and a plain Transformer, with four horizontal lines"}}
_, ax = plt.subplots(figsize=(8.2, 3.7))
four = results.select(one_block, num_loops=4)
figures.curves(ax, four, "loss_curve", x="step_curve")
for j in range(MOST):
    ax.axhline((MOST - j) / MOST * np.log(R - 1 - j), color="0.4", ls=":", lw=1)
ax.set(ylim=(0, 2.3), ylabel="training loss (nats per answer)")
plt.show()

# %% [markdown]
# The levels are 1.95, 1.34, 0.80 and 0.35 nats, and the runs pause near them. The mean over seeds blurs
# the steps, because every seed takes them at its own time; follow the thin lines. LT stands longest on
# the second level, where one hop is known, and LT_i on the third. At the end of the training FLT is at
# {result}`looped_depth | mean_ci train_loss | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# nats, LT_i at
# {result}`looped_depth | mean_ci train_loss | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=input | .2f`,
# and LT at
# {result}`looped_depth | mean_ci train_loss | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=original | .2f`,
# where the seeds differ a lot: from
# {result}`looped_depth | min train_loss | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=original | .2f`
# to
# {result}`looped_depth | max train_loss | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=original | .2f`.
# How many of its steps a run takes is thus also a matter of patience, and of luck. A longer training may
# well go further.
#
# The steps need not come in the order of the hops. There are seeds in which FLT ends with
# {result}`looped_depth | min accuracy_by_depth[1] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# of the answers at *two* hops, although no seed has less than
# {result}`looped_depth | min accuracy_by_depth[2] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# at three. With the live model in mind that is no surprise: with $K = 4$ it is not the long walk that is
# hard, it is to keep still for two loops first.
#
# ## Carries
#
# Now the other task. By {prf:ref}`prop-looped-private` no position of a one-block FLT can find the sum
# $a_j + b_j$ of another place, for nobody publishes it. It can weigh raw digits, as in
# {eq}`eq-looped-adder`, and weigh them again in the next loop. LT and LT_i can go the way of
# {eq}`eq-looped-lookahead`: in loop 1 every place adds its two digits, in loop 2 it looks for the nearest
# sum that is not 9.
#
# **Predict before you look:** what does FLT gain from four loops? And from a second block?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-carries", "caption": "Laptop rows, addition: share of right digits by the number of places that the carry has travelled; mean over seeds and 95 % confidence interval. Left: one block, two loops. Middle: one block, four loops. Right: two blocks, two loops. Grey: one block, applied once. Carries from more than six places count as six."}, "image": {"alt": "Three line plots of accuracy by carry distance; FLT is below LT with one block and level with it with two"}}
_, axes = plt.subplots(1, 3, figsize=(12.5, 3.4), sharey=True)
for ax, (L, K) in zip(axes, ((1, 2), (1, 4), (2, 2)), strict=True):
    show_depth(ax, ADD, legend=L == 2, num_layers=L, num_loops=K)
    ax.set(title=f"L = {L}, K = {K}", ylabel="")
axes[0].set_ylabel("share of right answers")
plt.show()

# %% [markdown]
# *One block, applied once,* already adds surprisingly well, and gets worse with the distance: from
# {result}`looped_depth | mean_ci accuracy_by_depth[1] | preset=laptop task=addition num_layers=1 num_loops=1 variant=plain | .2f`
# for a carry from the next place to
# {result}`looped_depth | mean_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=1 variant=plain | .2f`
# for one that has come four places. That is what a weighted sum of limited precision looks like (we have
# not looked inside).
#
# *Four loops* bring LT and LT_i to
# {result}`looped_depth | mean_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=4 variant=original | .2f`
# and
# {result}`looped_depth | mean_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=4 variant=input | .2f`
# at four places. FLT is at
# {result}`looped_depth | mean_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=4 variant=flt | .2f`;
# LT is ahead of it by
# {result}`looped_depth | difference_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=4 variant=original~flt | .2f`,
# LT_i by
# {result}`looped_depth | difference_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=1 num_loops=4 variant=input~flt | .2f`.
#
# *Two blocks, looped twice,* apply a block four times as well. FLT can now publish, in every loop, and is
# at
# {result}`looped_depth | mean_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=2 num_loops=2 variant=flt | .2f`;
# the difference between LT and FLT is
# {result}`looped_depth | difference_ci accuracy_by_depth[4] | preset=laptop task=addition num_layers=2 num_loops=2 variant=original~flt | .2f`.
#
# Why can a one-block FLT not walk from place to place, as it walks from node to node? Look at point 3 of
# the proposition. What an arrow gives to read is the *next address*. What a digit gives to read is a
# digit: a 9 three places down looks like a 9 next door, and says nothing of where to look next. Pointer
# chasing is made for a machine that refines questions. Addition is made for one that passes on results.
#
# ## One block four times, or two blocks twice?
#
# A second block puts FLT right where results must be published. Where there is nothing but look-ups the
# count of {eq}`eq-looped-reach` says that it costs: four applications of a block reach $K + L - 1 = 4$
# hops as $1 \times 4$, and 3 as $2 \times 2$, since the two blocks of a loop ask the same question. For
# LT both make 4.
#
# In the rows FLT knows
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# of the answers at four hops with one block, and
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=2 num_loops=2 variant=flt | .2f`
# with two blocks and twice the parameters in the loop. LT goes from
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=original | .2f`
# to
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=2 num_loops=2 variant=original | .2f`,
# LT_i from
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=input | .2f`
# to
# {result}`looped_depth | mean_ci accuracy_by_depth[3] | preset=laptop task=pointer_chasing num_layers=2 num_loops=2 variant=input | .2f`.
# (The paired differences are in the table below.) Three hops are no wall for FLT with two blocks: an arrow
# that is listed after its successor can publish two hops at once.
#
# ## Questions and answers
#
# The paper claims nothing about these tasks, so there is no table of its claims. These are predictions of
# our own. They follow from {prf:ref}`prop-looped-private` and {prf:ref}`prop-looped-reach`, except for
# the first two, which come from a trial run; the rows judge them by the same rule as the paper's claims
# in the other chapters.

# %% tags=["hide-input"]
once, twice = {"num_layers": 1, "num_loops": 4}, {"num_layers": 2, "num_loops": 2}
lt, lt_i, flt = ({"variant": name} for name in ("original", "input", "flt"))
PREDICTIONS = {
    "4 hops, one block: FLT knows more than LT": (3, once | flt, once | lt),
    "4 hops, one block: FLT knows more than LT_i": (3, once | flt, once | lt_i),
    "4 hops: FLT is better with one block": (3, once | flt, twice | flt),
    "4 hops, two blocks: LT knows more than FLT": (3, twice | lt, twice | flt),
    "carry of 4, one block: LT knows more than FLT": (4, once | lt, once | flt),
    "carry of 4, one block: LT_i knows more than FLT": (4, once | lt_i, once | flt),
    "carry of 4: FLT is better with two blocks": (4, twice | flt, once | flt),
}
table = {}
for text, (place, *sides) in PREDICTIONS.items():
    rows = results.select(evidence, task=CHASE if "hops" in text else ADD)
    judge = results.judge_difference(f"{SHARES}[{place}]", *sides, expect="higher")
    verdict = judge(rows)
    table[text] = verdict.kind.replace("reproduced", "holds"), verdict.evidence
pd.set_option("display.max_colwidth", None)
pd.DataFrame(table, index=["verdict", "evidence"]).T

# %% [markdown]
# "Holds" means that the whole interval lies on the predicted side, "trend" that the mean does by more
# than its standard error, and "not seen" that it does not. None of the seven is a theorem about a trained
# model. The propositions say what a wiring can publish and how far its look-ups reach; the rows say what
# training made of it.
#
# ## A look ahead: more loops than trained
#
# The rows also have the answers at other numbers of loops than the model was trained with.
#
# **Predict before you look:** all three were trained with four loops. What happens at five?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-depth-inference", "caption": "Laptop rows, pointer chasing, one block, trained with four loops: share of right answers by the number of loops at the answer, for one to four hops; seeds (thin) and their mean (thick)."}, "image": {"alt": "Accuracy over inference loops for LT, LT_i and FLT; all peak at four loops"}}
_, axes = plt.subplots(1, 3, figsize=(12.5, 3.3), sharey=True)
for ax, name in zip(axes, ("original", "input", "flt"), strict=True):
    rows = [
        row | {"hops": p, "right": row[f"accuracy_of_depth_{p}_by_inference_loops"]}
        for row in results.select(four, variant=name)
        for p in chase.depths
    ]
    at = rows[0]["inference_loops"]
    figures.curves(ax, rows, "right", x=at, by="hops", legend=ax is axes[2])
    ax.set(xlabel="loops at the answer", ylabel="", title=figures.label_of(name))
    ax.set_xticks(at)
axes[0].set_ylabel("share of right answers")
plt.show()

# %% [markdown]
# Hardly anything is better than at four loops, and most is worse. LT fades on both sides. FLT falls, at
# five loops and for three and four hops, to
# {result}`looped_depth | mean accuracy_of_depth_3_by_inference_loops[4] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`
# and
# {result}`looped_depth | mean accuracy_of_depth_4_by_inference_loops[4] | preset=laptop task=pointer_chasing num_layers=1 num_loops=4 variant=flt | .2f`,
# *below* what a guess would get, and you know why: it has not lost the thread, it has followed it further
# than it was asked to. So a loop that is trained with one fixed $K$ does not learn to think longer; it
# learns to be done at $K$. Whether a loop can be trained so that more is better is the question of
# {numref}`looped-inference`.
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | tasks | language only | pointer chasing and addition (our choice) | the depth of every answer is known |
# | blocks in the loop | 6 and 12 | 1 and 2 | with many blocks one loop is enough for these tasks |
# | injections | LT, LT_i, LT_ia, FLA, FLT | LT, LT_i, FLT; with one block FLT is LT_ia and FLA is LT_i | the others are the same model there |
# | loss | every token | the answers only, after the last loop | an arrow or a question has nothing to predict |
# | optimizer | Muon 0.02, AdamW on embedding and head | the same, not tuned for anybody | one regime for all |
# | steps | thousands, of 524,288 tokens | 1,500 for hops and 800 for sums, of 32 sequences | about a minute a run |
# | look-ups, publishing, reach | not in the paper | our definitions | to count before training |
#
# - **Depth is that of the plain method.** {eq}`eq-looped-lookahead` and {eq}`eq-looped-adder` show
#   shorter ways. A digit without a carry has depth 0 even if a row of nines stands before it; so the
#   accuracy at 0 mixes easy and hard digits. And few carries come from far: a place makes 9 with
#   probability 0.55 and at least 10 with 0.225, so the share of the digits whose carry has travelled
#   exactly five of the eight places is $0.225 \cdot 0.55^4 \cdot 3/8$, less than one in a hundred.
# - **Shares are bounded.** Where all seeds are near 1 the $t$ interval is only a rough guide.
# - **One size.** One width, two heads, one rate. A wider block may swallow more of the table at once.
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: three blocks, two loops
# :label: ex-looped-reach
# With nothing published, how many hops can a question follow with $L = 3$ blocks and $K = 2$ loops?
# Answer for five injections with a dictionary from `"original"`, `"input"`, `"attention"`, `"fla"` and
# `"flt"` to a number. In which of them does a block of loop 2 know what the block before it has just
# found?
# :::

# %% tags=["exercise"]
answer = None  # your dictionary
checks.looped_reach(answer)

# %% [markdown]
# :::{solution} ex-looped-reach
# :class: dropdown
# In LT_ia only the first block asks with the old state; block 2 asks with the stream, which holds what
# block 1 has found, and so on. So it loses nothing, and neither does FLA, where every block asks with a
# mixture of stream and old state. Only in FLT do all blocks of a loop ask the same question.
#
# ```python
# answer = {"original": 6, "input": 6, "attention": 6, "fla": 6, "flt": 4}
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: two blocks that publish
# :label: ex-looped-doubling
# How far does a question get in FLT with $L = 2$ blocks and $K$ loops, if every position publishes and
# may look at all others? Find a formula. Hint: let $A$ be how far an arrow has come at the end of a loop.
# In the next loop its first block reads a bare arrow at that end, the second what another arrow has
# written in the first.
# :::


# %% tags=["exercise"]
def two_blocks(num_loops): ...  # your formula


checks.looped_doubling(two_blocks)

# %% [markdown]
# :::{solution} ex-looped-doubling
# :class: dropdown
# Loop 1 is plain: $A = 4$ and $Q = 3$. After that, block 1 makes every arrow one of $A + 1$ hops, since
# it starts from the bare arrow and reads a bare arrow at its end. Block 2 asks with the same old state,
# so it appends such an arrow to the $A$ hops: $A \leftarrow 2A + 1$, and for a question
# $Q \leftarrow Q + A + 1$. So $A = 5 \cdot 2^{K-1} - 1$ and $Q = 5 \cdot 2^{K-1} - 2$. With two blocks
# FLT doubles once a loop, where LT doubles in every block.
#
# ```python
# def two_blocks(num_loops):
#     return 5 * 2 ** (num_loops - 1) - 2
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the staircase
# :label: ex-looped-plateau
# Write the plateau {eq}`eq-looped-plateau` as a function of the number of nodes $R$, the largest number
# of hops $p_{\max}$ and the number of hops that are known. Derive it before you look back; the hidden
# cases have other numbers.
# :::


# %% tags=["exercise"]
def plateau(num_nodes, max_hops, learned): ...  # nats per answer


checks.looped_plateau(plateau)

# %% [markdown]
# :::{solution} ex-looped-plateau
# :class: dropdown
# The share of questions that still cost something, times the logarithm of the nodes that are left.
#
# ```python
# def plateau(num_nodes, max_hops, learned):
#     return (max_hops - learned) / max_hops * np.log(num_nodes - 1 - learned)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: pointer doubling
# :label: ex-looped-pointer-doubling
# Return $f^p$ for a batch of maps `f`, a tensor of shape $(B, R)$ whose entry $a$ is $f(a)$.
# `compose(g, f)` gives $g \circ f$; you may call it at most $2 \lfloor \log_2 p \rfloor$ times. Every
# call is one round in which all nodes publish what they know.
# :::


# %% tags=["exercise"]
def power(f, hops, compose): ...  # your code here


checks.looped_pointer_doubling(power)

# %% [markdown]
# :::{solution} ex-looped-pointer-doubling
# :class: dropdown
# Read the binary digits of $p$ from the left. Every further digit doubles what you have; a 1 adds a hop.
#
# ```python
# def power(f, hops, compose):
#     result = f
#     for digit in bin(hops)[3:]:
#         result = compose(result, result)
#         if digit == "1":
#             result = compose(f, result)
#     return result
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: walk backwards
# :label: ex-looped-backwards
# Change the FLT set by hand so that it walks *against* the arrows: after $p$ loops *here* holds
# $f^{-p}(s)$. Write a function of the number of nodes that returns the four matrices `W_Q`, `W_K`, `W_V`
# of shape $(R, 4R)$ and `W_O` of shape $(4R, R)$. The checker has its own table of arrows and its own
# loop.
# :::


# %% tags=["exercise"]
def backwards(num_nodes): ...  # W_Q, W_K, W_V, W_O


checks.looped_backwards(backwards)

# %% [markdown]
# :::{solution} ex-looped-backwards
# :class: dropdown
# The question stays as it is. Look the arrow up under its target, and read its source.
#
# ```python
# def backwards(num_nodes):
#     one, nil = torch.eye(num_nodes), torch.zeros(num_nodes, num_nodes)
#     W_Q = torch.cat([nil, nil, one, 2 * one], 1)
#     W_K = torch.cat([nil, one, nil, nil], 1)
#     W_V = torch.cat([one, nil, nil, nil], 1)
#     return W_Q, W_K, W_V, torch.cat([nil, nil, nil, one])
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: a task of your own
# :label: ex-looped-own-task
# Invent a task of known depth. `task(random)`, with a NumPy generator, returns `tokens` (a list of whole
# numbers), `start`, `depth` and `target`. `step(state, read)` is one step of its solution: it calls
# `read(i)` for *one* token and returns the next state. From `start` the target must be reached after
# exactly `depth` steps. The checker measures the depth with your `step`; and it rejects a task whose
# places to read are known beforehand, for those could be read all at once.
# :::


# %% tags=["exercise"]
def my_task(random): ...  # tokens, start, depth, target


def my_step(state, read): ...  # the next state


checks.looped_own_task((my_task, my_step))

# %% [markdown]
# :::{solution} ex-looped-own-task
# :class: dropdown
# A ring on which every token says how far to jump. To train on it, give it the methods of
# `PointerChasing`: a vocabulary, a length and `sample`.
#
# ```python
# def my_task(random):
#     tokens, depth, state = random.integers(1, 9, size=9), int(random.integers(1, 6)), 0
#     for _ in range(depth):
#         state = (state + tokens[state]) % 9
#     return tokens, 0, depth, state
#
#
# def my_step(state, read):
#     return (state + read(state)) % 9
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** A question has depth 5 by the method you learned at school. What does that say about a model that answers it with 3 blocks?
#
# :::{dropdown} Answer
# Nothing against it: five steps are enough, and fewer may do. Pointer doubling, or a look ahead at the carries, is shorter. What a model cannot do has to be shown from its wiring.
# :::
#
# **2.** In FLT with one block, whose old state can change the new state of position 7?
#
# :::{dropdown} Answer
# That of position 7 alone ({prf:ref}`prop-looped-private`): keys and values are made of the embedding in every loop, so nothing that a position works out is published.
# :::
#
# **3.** Two blocks, three loops, nothing published. How many hops do LT and FLT reach, and where does the difference come from?
#
# :::{dropdown} Answer
# $KL = 6$ and $K + L - 1 = 4$ ({eq}`eq-looped-reach`). From loop 2 on all blocks of FLT ask with the same old state, so a loop adds one hop.
# :::
#
# **4.** A trained FLT with four loops answers three-hop questions. You let it run for five loops. What will it answer?
#
# :::{dropdown} Answer
# The question for four hops: it goes on to the next arrow, since nothing has told it to stop. Once round the cycle it is right again.
# :::
#
# **5.** Why does a second block help FLT with carries and not with pointers?
#
# :::{dropdown} Answer
# A carry needs a *result* of another place, and the second block reads what the first has just written. A pointer is a raw token that can be read as it stands; there one block more only asks the same question twice in a loop.
# :::

# %% [markdown]
# ## Where this came from
#
# The laptop rows were made by `python -m unrolled run looped.depth --preset laptop --seeds 0-2`, and each
# row names the command that makes it alone.

# %% tags=["hide-input"]
columns = ["preset", "torch", "version", "commit", "device", "steps", "config_hash"]
results.frame([row, evidence[0]])[columns]
