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
# (looped-pretraining)=
# # Pretraining and ablation
#
# {numref}`looped-instability` asked whether a looped Transformer trains at all. Now you ask what it is
# worth: how good it gets, on the text it was trained on and on other texts, with how many loops, and which
# part of the rewiring earns the difference. Most of this chapter is about asking fairly. A comparison of
# models is a measurement, and a measurement has rules.
#
# After this you can
#
# - set up a comparison in which one thing differs, and say what you gave the other side;
# - derive the step of Muon, and say why it has the same length whatever the size of the gradient;
# - judge a difference between models by paired seeds and an interval, and say when it cannot be told;
# - compare losses across texts and tokenizers in bits per byte;
# - read an ablation, and see which claims of the paper our runs at this scale support.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | three models, 2 loops, 12 steps | seconds |
# | live | FLT with 1 and 6 loops, 100 steps of Muon | under a minute on one core |
# | laptop | six models, 1 to 12 loops, 300 steps, 5 seeds with Muon and 3 with AdamW | about two hours of one core |
# | colab | LT and FLT on bytes of FineWeb-Edu, 1,500 steps | sized for an hour on a 16 GB GPU, not measured |
# | paper | the paper's Small model, 20 tokens per parameter | several GPUs |

# %% tags=["setup", "hide-input"]
from math import log
from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
import torch
from scipy.stats import t as student
from torch.testing import assert_close

from unrolled import checks, figures, results
from unrolled.data.text import (
    WIKIPEDIA_ATTRIBUTION,
    BpeTokenizer,
    ByteTokenizer,
    bits_per_byte,
    state_of_the_union,
)
from unrolled.looped import pretraining, search
from unrolled.looped.model import LABELS, build
from unrolled.transformer import count_parameters, flops_per_token

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# {cite:t}`fu2026looped` claim for the Fully Looped Transformer (FLT) that
#
# 1. it trains with as many loops as you like, up to the twelve they tried, where the plain loop (LT) and
#    the half remedies collapse;
# 2. it, and it alone, still gets better as the number of loops grows;
# 3. both of its parts are needed: the old state in *every* block, and as the *query*.
#
# Here is what five variants of {numref}`looped-equations` and a plain Transformer reach in our laptop rows:
# 2 layers of width 64, bytes of the State of the Union addresses, 300 steps of Muon. The plain Transformer
# has no loops; it has as many blocks as the looped models *apply*, each with weights of its own.
#
# **Predict before you look:** with one loop all variants are one and the same model. Of the six lines, how
# many go down from there?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-quality", "caption": "Laptop rows, Muon: loss on held-out addresses against the number of loops; mean over paired seeds and 95 % confidence interval. With one loop all variants are one model. Left: all of it. Dashed: the best prediction that ignores the context. Right: the same, enlarged; LT leaves the picture."}, "image": {"alt": "Validation bits per byte against number of loops for five looped variants and a plain Transformer, whole and enlarged"}}
evidence = results.select(results.read("looped.pretraining"), preset="laptop")
FIVE = pretraining.EXPERIMENT.settings("laptop").variants


# Rows of an optimizer; with one loop the plain Transformer stands for every variant.
def with_one_loop(optimizer):
    rows = results.select(evidence, optimizer=optimizer)
    one = results.select(rows, num_loops=1)
    return rows + [{**row, "variant": variant} for row in one for variant in FIVE]


# Draw a metric over the number of loops, as a whole and without LT.
def show_quality(rows, metric="val_bits_per_byte"):
    _, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.7))
    others = [row[metric] for row in rows if row["variant"] != "original"]
    figures.mean_with_interval(left, rows, "num_loops", metric, legend=False)
    left.axhline(rows[0]["unigram_loss"] / log(2), color="0.4", ls="--", lw=1)
    figures.mean_with_interval(right, rows, "num_loops", metric)
    right.set_ylim(min(others) - 0.01, max(others) + 0.01)
    right.set_ylabel("enlarged")
    plt.show()


muon, adamw = with_one_loop("muon"), with_one_loop("adamw")
show_quality(muon)

# %% [markdown]
# Keep the right panel in mind: apart from LT, everything happens within a few hundredths of a bit. Whether
# such a distance means anything is the question of the next section.
#
# ## What a fair comparison is
#
# ### The same parameters, the same operations
#
# All looped variants have the same parameters, and with the same $K$ the same operations; that is
# {eq}`eq-looped-parameters` and {eq}`eq-looped-flops`. Against a *plain* Transformer a looped one can be
# compared in two ways, and neither is the fair one by itself:
#
# - **the same parameters:** the plain Transformer of $L$ blocks, which is every variant at $K = 1$. The
#   looped model then spends $K$ times the arithmetic of the core;
# - **the same operations:** the plain Transformer of $KL$ blocks, *depth-matched*. It then has $K$ times the
#   parameters of the core.
#
# With $P$ and $C$ the parameters and the FLOPs per token of the looped model, and $P_1, C_1$ its values at
# $K = 1$, the plain Transformers have
#
# $$
# \begin{aligned}
# \text{same parameters:} \quad
# & P_1 = P = 2Vd + 12\,L d^2, && C_1 = C - (K-1)\, L\, (24 d^2 + 4Nd), \\
# \text{same operations:} \quad
# & P_K = P + (K-1)\, 12\, L d^2, && C_K = C .
# \end{aligned}
# $$ (eq-looped-depth-matched)
#
# The second is a bound of a kind: weights of its own in each block is all that sharing gave up.

# %%
settings = pretraining.EXPERIMENT.settings(PRESET)
K, config, N = max(settings.num_loops), settings.config, settings.length
L, d, V = config.num_layers, config.hidden_size, config.vocab_size


# Parameters, and FLOPs per token of a forward pass.
def size(variant, num_loops):
    model = build(config, variant, num_loops)
    flops = flops_per_token(model.config, model.num_loops, N)
    return count_parameters(model), flops


table = {"FLT": size("flt", K), "same parameters": size("plain", 1)}
table["same operations"] = size("plain", K)
P, C = table["FLT"]
assert table["same parameters"] == (P, C - (K - 1) * L * (24 * d**2 + 4 * N * d))
assert table["same operations"] == (P + (K - 1) * 12 * L * d**2, C)
pd.DataFrame(table, index=["parameters", "FLOPs per token"]).T

# %% [markdown]
# Code: {py:func}`unrolled.looped.model.build` with `"plain"`.
#
# The rest is easier to say: the same text, the same steps, the same batches in the same order, the same
# initial weights of the looped variants. And the same *attention*: whoever tunes the learning rate of the
# new method and takes that of the old one from a paper compares two amounts of work. Our rates were
# searched for all variants alike, before the comparison, and the search is part of the evidence.
#
# ### Two optimizers
#
# The paper trains with Muon ({cite:t}`jordan2024muon`); we use AdamW beside it. AdamW looks at the entries
# of a gradient one by one, and divides each by its running size. Muon takes a weight matrix as a whole.
#
# Let $G$ be an $m \times n$ matrix, the gradient with momentum. Which step $O$ lowers the loss most to
# first order, if its *spectral norm* (its largest singular value) may be at most 1? With the singular value
# decomposition $G = \sum_j \sigma_j u_j v_j^\top$,
#
# $$
# \langle G, O \rangle = \sum_j \sigma_j\, u_j^\top O v_j \le \sum_j \sigma_j,
# \qquad \text{with equality at} \quad
# O = \mathrm{polar}(G) = \sum_j u_j v_j^\top .
# $$ (eq-looped-polar)
#
# The bound holds because $u^\top O v \le \lVert O \rVert$ for unit vectors. So the best step keeps the
# directions of $G$ and sets all its singular values to 1: the *polar factor*, the orthogonal matrix closest
# to $G$. Muon is steepest descent in the spectral norm ({cite:t}`bernstein2024norm`), with a momentum
# $\beta$ of Nesterov's kind and a factor for tall matrices:
#
# $$
# \begin{aligned}
# \bar G_t &= \beta\, \bar G_{t-1} + (1-\beta)\, G_t, \\
# W_t &= W_{t-1} - \eta\, \sqrt{\max(1, m/n)}\;\,
# \mathrm{polar}\bigl((1-\beta)\, G_t + \beta\, \bar G_t\bigr) .
# \end{aligned}
# $$ (eq-looped-muon)
#
# :::{prf:proposition} A step of Muon has one length
# :label: prop-looped-muon
# Unless the argument of the polar factor is zero, the step $W_t - W_{t-1}$ has the spectral norm
# $\eta \sqrt{\max(1, m/n)}$. Multiplying all gradients by a number $c > 0$ changes no step.
# :::
#
# :::{prf:proof}
# The largest singular value of a polar factor is 1. And $cG$ has the singular vectors of $G$. $\square$
# :::
#
# A decomposition in every step would be slow, so Muon approximates it with multiplications alone. Let
# $p(\sigma) = a \sigma + b \sigma^3 + c \sigma^5$, with odd powers only. Then
#
# $$
# p(X) = aX + b\,(XX^\top) X + c\,(XX^\top)^2 X
# = \sum_j p(\sigma_j)\, u_j v_j^\top
# \qquad \text{for} \quad X = \sum_j \sigma_j u_j v_j^\top ,
# $$ (eq-looped-newton-schulz)
#
# since $XX^\top = \sum_j \sigma_j^2 u_j u_j^\top$. Start from $G / \lVert G \rVert_F$, whose singular values
# lie between 0 and 1, and apply $p$ again and again: a *Newton-Schulz iteration*
# ({cite:t}`bjorck1971iterative`).
#
# **Predict before you run:** Muon takes $a = 3.4445$, $b = -4.775$, $c = 2.0315$ and five steps. What
# happens to a singular value of 0.01, and is $p(1) = 1$?

# %%
A, B, C5 = 3.4445, -4.7750, 2.0315


# Muon's approximate polar factor.
def newton_schulz(G, steps=5):
    X = G / G.norm()
    for _ in range(steps):
        S = X @ X.T
        X = A * X + (B * S + C5 * S @ S) @ X
    return X


torch.manual_seed(SEED)
W = torch.nn.Parameter(torch.zeros(256, 64))
theirs = torch.optim.Muon([W], lr=1, momentum=0.95, weight_decay=0)
average, mine = torch.zeros(256, 64), torch.zeros(256, 64)

# %%
for _ in range(3):
    W.grad = G = torch.randn(256, 64)
    theirs.step()
    average = 0.95 * average + 0.05 * G
    mine -= (256 / 64) ** 0.5 * newton_schulz(0.05 * G + 0.95 * average)
assert_close(mine, W.detach(), rtol=0, atol=0.05)  # theirs is in bfloat16
for c in (1e-6, 1e6):  # the size of the gradient does not matter
    assert_close(newton_schulz(c * G), newton_schulz(G), rtol=1e-3, atol=1e-5)
values = torch.linalg.svdvals(newton_schulz(G))
print(f"singular values of a step: {values.min():.2f} to {values.max():.2f}")

# %% mystnb={"figure": {"name": "fig-looped-muon", "caption": "What Muon's iteration does to a singular value after 1, 3 and 5 steps. It lifts small ones fast, and never settles at 1; no input comes out above 1.21."}, "image": {"alt": "Three curves of output over input singular value on a logarithmic axis; after five steps nearly flat around one", "width": "75%"}}
s = torch.logspace(-4, 0, 400, dtype=torch.float64)
curves, p = [], s
for step in range(1, 6):
    p = A * p + B * p**3 + C5 * p**5
    curves.append({"steps": step, "p": p.tolist()})
_, ax = plt.subplots(figsize=(6.4, 3.3))
shown = [curves[step - 1] for step in (1, 3, 5)]
figures.curves(ax, shown, "p", x=s.tolist(), by="steps")
ax.axhline(1, color="0.4", lw=1, ls=":")
ax.set(xscale="log", xlabel="singular value", ylabel="after the iteration")
plt.show()
assert max(curves[4]["p"]) < 1.21

# %% [markdown]
# Code: {py:func}`unrolled.optimization.build_optimizers`. It gives the matrices of the blocks to
# {py:class}`torch.optim.Muon`, and embedding and head, which are tables rather than maps, to AdamW.
#
# The coefficients trade accuracy for speed: the slope $a$ at zero lifts small values fast, and the price is
# that $p(1) \ne 1$. All that training seems to need is that they come out between about 0.7 and 1.2, and one
# of the exercises lets you build the iteration that does arrive.
#
# **Why this matters for a loop.** {eq}`eq-looped-count` says that LT counts its first gradient $K$ times,
# and {eq}`eq-looped-shrink` that a long state makes the gradient tiny. By {prf:ref}`prop-looped-muon` Muon
# does not notice either. Nor does AdamW, which divides by the gradient's own size too. So whatever goes
# wrong under both is not the *length* of the gradient: it is its direction, or the curvature along it.
#
# And one bounded step is not a bounded weight. With the same direction in every step the spectral norm
# grows by $\eta$ each time; how far it can get in a whole training is an exercise, and
# {prf:ref}`prop-looped-bound` turns it into a bound on the state. It is not small: an MLP adds up to
# $\lVert W_\downarrow \rVert \lVert W_\uparrow \rVert^2 d$, the *cube* of the distance that Muon went.
#
# ### Paired seeds
#
# A run depends on its seed: which weights it starts from, which bytes it sees. Let $a_s$ and $b_s$ be the
# losses of two models that shared seed $s$. Part of the luck is common to both, a hard last batch for
# instance, and cancels in the difference $\delta_s = a_s - b_s$. So we look at the differences, and at
# their mean with Student's interval,
#
# $$
# \bar\delta \pm t_{n-1}\, \frac{\hat\sigma}{\sqrt n},
# \qquad
# \hat\sigma^2 = \frac{1}{n-1} \sum_s (\delta_s - \bar\delta)^2 ,
# $$ (eq-looped-paired)
#
# where $t_{n-1}$ is the 97.5 % quantile of Student's distribution with $n - 1$ degrees of freedom: the
# smaller $n$, the wider, since $\hat\sigma$ is itself only estimated. If the interval contains zero, the
# seeds *cannot tell* the two apart. That is not the same as "they are equal".
#
# **Predict before you run:** the last two columns are the half width of this interval, and the one you
# would get by treating the two sides as strangers, $\hat\sigma^2 = \hat\sigma_a^2 + \hat\sigma_b^2$. By what factor
# does pairing help?


# %%
# Mean of first - second over shared seeds; half width paired, and as strangers.
def compare(first, second, metric):
    a, b = (pd.Series({r["seed"]: r[metric] for r in x}) for x in (first, second))
    delta, n = a - b, len(a)
    scale = student.ppf(0.975, n - 1) / n**0.5
    return delta.mean(), scale * delta.std(), scale * (a.var() + b.var()) ** 0.5


SIX, metric, table = (*FIVE, "plain"), "val_bits_per_byte", {}
twelve = {v: results.select(muon, variant=v, num_loops=12) for v in SIX}
flt = twelve.pop("flt")
for variant, rows in twelve.items():
    theirs = results.paired_difference(rows, flt, metric)
    table[LABELS[variant]] = mine = compare(rows, flt, metric)
    assert_close(mine[:2], (theirs.mean, theirs.half_width), equal_nan=True)
columns = ["minus FLT", "± paired", "± strangers"]
pd.DataFrame(table, index=columns).T.round(4)

# %% [markdown]
# Code: {py:func}`unrolled.results.intervals.paired_difference`. Between stable models pairing narrows the interval. Against
# LT it does not: LT's luck is of its own kind, and there is little to cancel. And a warning that no interval
# contains: this chapter makes dozens of comparisons. One in twenty intervals of 95 % misses the truth, so a single
# one that just misses zero is a reason to look again and not a discovery.
#
# ### Bits per byte
#
# A loss in nats per *token* depends on what a token is. A vocabulary of long pieces has few, hard
# predictions; bytes are many and easy. What does not depend on it is the text, so divide the total by the
# text's length:
#
# $$
# \text{bits per byte} = \frac{1}{\ln 2}\;
# \frac{\sum_i \ell_i}{\sum_i \mathrm{bytes}(i)} ,
# $$ (eq-looped-bits)
#
# with $\ell_i$ the loss of token $i$ in nats and $\mathrm{bytes}(i)$ its length in UTF-8. It is also the
# size to which an arithmetic coder with this model would compress each byte.
#
# **Predict before you run:** two models that ignore the context and know the frequencies, one of bytes, one
# of 1,024 byte-pair pieces. Which has the lower loss per token? Which compresses better?

# %%
corpus = state_of_the_union()
sample = corpus.text("validation")[:200_000]
pieces = BpeTokenizer.learn([corpus.text("train")[:500_000]], vocab_size=1024)
table = {}
for name, tokenizer in (("bytes", ByteTokenizer()), ("1,024 pieces", pieces)):
    tokens = tokenizer.encode(sample)
    share = torch.bincount(tokens) / len(tokens)
    losses = -share[tokens].double().log()  # (N,) nats
    size_of_text = len(sample.encode())
    bits = losses.sum().item() / size_of_text / log(2)
    theirs = bits_per_byte(losses.mean().item(), len(tokens), size_of_text)
    assert_close(bits, theirs)
    table[name] = {"nats per token": losses.mean().item(), "bits per byte": bits}
pd.DataFrame(table).T.round(2)

# %% [markdown]
# Code: {py:func}`unrolled.data.text.bits_per_byte`. The order turns round. Perplexity per token, which is
# $\exp$ of the first column, must never be compared across tokenizers; bits per byte may.
#
# ## The search
#
# At which rate, with which optimizer and at which width should the variants be compared? The choice can
# decide the outcome: at a small enough rate nothing collapses, and at a large enough one everything does.
# So we searched first, by rules set down before ({py:mod}`unrolled.looped.search`):
#
# - every variant gets the same grid, at twelve loops and for as many steps as the comparison has;
# - for each optimizer take the rate at which the *median* variant has the lowest validation loss. The
#   median lets no single variant decide, neither the one that collapses nor the one that is best;
# - the seed of the search is used for nothing else. What chose is not asked to judge.
#
# It is one seed, so the figure shows where things break and not who is better.
#
# **Predict before you look:** at which end of the rates does LT survive?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-search", "caption": "The search, laptop rows: width 64, twelve loops, 300 steps, one seed. Validation loss against the learning rate (of the block matrices, for Muon). Grey: the median of the variants, by which the rate is chosen. Dashed: the loss of the best prediction without context."}, "image": {"alt": "Validation bits per byte against learning rate for five variants, AdamW and Muon"}}
grid = results.select(results.read("looped.search"), preset="laptop")
_, axes = plt.subplots(1, 2, figsize=(9.8, 3.7), sharey=True)
names = {"adamw": "AdamW", "muon": "Muon"}
for ax, (name, title) in zip(axes, names.items(), strict=True):
    rows = results.select(grid, optimizer=name, hidden_size=64)
    medians = search.median_losses(grid, name, 64)
    options = {"legend": name == "muon", "xlabel": f"learning rate, {title}"}
    figures.mean_with_interval(ax, rows, "learning_rate", metric, **options)
    bits = [loss / log(2) for loss in medians.values()]
    ax.plot(range(len(bits)), bits, color="0.6", lw=6, alpha=0.5, zorder=0)
    ax.axhline(rows[0]["unigram_loss"] / log(2), color="0.4", ls="--", lw=1)
plt.show()

# %%
cells, AXES = {}, ("optimizer", "hidden_size", "learning_rate")
for r in grid:
    place = *(r[key] for key in AXES), LABELS[r["variant"]]
    mark = " collapsed" if r["collapsed"] else ""
    cells[place] = f"{r['val_bits_per_byte']:.2f}{mark}"
table = pd.Series(cells).unstack()[[LABELS[variant] for variant in FIVE]]
table.rename_axis(["optimizer", "width", "rate"])

# %%
for name in ("adamw", "muon"):
    rows = results.select(evidence, optimizer=name)
    used = {row["learning_rate"] for row in rows}
    print(f"{name}: chosen {search.best_rate(grid, name)}, used {used}")

# %% [markdown]
# Read off:
#
# - **LT breaks at every rate but the lowest.** At AdamW's lowest rate it survives, but there nobody learns
#   much. At Muon's lowest rate it survives in earnest, with
#   {result}`looped_search | mean val_bits_per_byte | preset=laptop optimizer=muon learning_rate=0.01 hidden_size=64 variant=original | .2f`
#   bits per byte where FLT has
#   {result}`looped_search | mean val_bits_per_byte | preset=laptop optimizer=muon learning_rate=0.01 hidden_size=64 variant=flt | .2f`.
#   That answers the question which {numref}`looped-instability` left open: the collapse is a matter of the
#   rate, with one optimizer as with the other.
# - **No other variant collapses anywhere on the grid.** At the highest rates they get worse, and FLA more
#   than the others:
#   {result}`looped_search | mean val_bits_per_byte | preset=laptop optimizer=adamw learning_rate=0.03 hidden_size=64 variant=fla | .2f`
#   against FLT's
#   {result}`looped_search | mean val_bits_per_byte | preset=laptop optimizer=adamw learning_rate=0.03 hidden_size=64 variant=flt | .2f`
#   at AdamW's.
# - **Twice the width does not separate them either.** All but LT are better there, and under Muon
#   close together; under AdamW FLA leads, in its one run. LT under Muon ends at
#   {result}`looped_search | mean val_bits_per_byte | preset=laptop optimizer=muon learning_rate=0.02 hidden_size=128 variant=original | .2f`,
#   which the criterion {eq}`eq-looped-collapse` does not call a collapse. Remember this when you read a table
#   that says yes or no.
#
# The rule was followed: both rates of the comparison are the chosen ones. Two things to be honest about. The
# grid for AdamW first ended at 0.01, and the rule chose that end; we added 0.03, and the choice stood. And
# the width stayed at 64 because the larger one costs more and showed nothing new; the rule says nothing about
# it.
#
# ## Quality against the number of loops
#
# Back to {numref}`fig-looped-quality`, now with its numbers. Everything is a paired difference in bits per
# byte; negative means that the first is better.
#
# **Predict before you run:** for which of the models can five seeds tell twelve loops from one?


# %%
# Paired difference to the model without loops, as text.
def against(rows, reference):
    difference = results.paired_difference(rows, reference, "val_bits_per_byte")
    return f"{difference.mean:+.3f} ± {difference.half_width:.3f}"


def from_one_loop(rows):
    one, table = results.select(rows, num_loops=1, variant="plain"), {}
    for k in sorted({row["num_loops"] for row in rows} - {1}):
        sides = [results.select(rows, num_loops=k, variant=v) for v in SIX]
        table[f"K = {k}"] = [against(side, one) for side in sides]
    return pd.DataFrame(table, index=[LABELS[v] for v in SIX])


from_one_loop(muon)

# %% [markdown]
# - **LT gets worse with every loop.** From six loops to twelve its loss rises by
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=original num_loops=12~6 | .2f`,
#   and already at six it lies
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=original~flt num_loops=6 | .2f`
#   above FLT.
# - **FLT stands still.** Twelve loops against six:
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12~6 | .3f`;
#   against nine:
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12~9 | .3f`.
#   Both intervals contain zero: FLT trains with twelve loops, and has nothing to show for them.
# - **Depth itself does not pay either.** The plain Transformer with 24 blocks of its own, against the one with
#   12: {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=plain num_loops=12~6 | .3f`; and the table cannot tell it from the one with 2. This is the
#   control that makes the second point readable. In 300 steps of Muon the models learn letters, and words that
#   are short and frequent, and for that two layers are enough. These rows can show that a remedy does no harm.
#   They cannot show what loops are worth, because on this text, in this time, depth is worth little.
#   {numref}`looped-depth` takes tasks on which depth is needed by construction.
# - **The oldest remedy is the best here.** LT_i, which adds the embedding once per loop, differs from FLT by
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=input~flt num_loops=6 | .3f`
#   at six loops and by
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=input~flt num_loops=12 | .3f`
#   at twelve. That is small, and the intervals of all four numbers of loops leave zero out. It is also the only one
#   that the table finds better with loops than without, and it owes that to the first three: from six to
#   twelve it changes by
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=input num_loops=12~6 | .3f`.
#
# **Predict before you look:** in {numref}`looped-instability` LT's state exploded under AdamW. Muon's steps
# have one length. Does the state of LT still grow?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-norms", "caption": "Laptop rows, Muon. Left: norm of the state after the last loop, on a logarithmic axis. Right: what a model has learned beyond the frequencies of the letters, the unigram loss minus its own. Zero is a collapse in the strict sense."}, "image": {"alt": "Residual norm, and bits per byte gained over the unigram loss, against the number of loops"}}
unigram = muon[0]["unigram_loss"] / log(2)
gains = [{**row, "gain": unigram - row["val_bits_per_byte"]} for row in muon]
_, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.7))
figures.mean_with_interval(left, muon, "num_loops", "residual_norm", legend=False)
left.set_yscale("log")
figures.mean_with_interval(right, gains, "num_loops", "gain")
right.set_ylabel("gain (bits per byte)")
right.axhline(0, color="0.4", ls="--", lw=1)
plt.show()


# %%
# LT by optimizer and number of loops: what the criterion says, and how good it is.
def summary(rows):
    interval = results.mean_ci(row["val_bits_per_byte"] for row in rows)
    signs = ("plateau", "exploding", "collapsed")
    counts = {sign: sum(row[sign] for row in rows) for sign in signs}
    return {"bits per byte": f"{interval:.2f}", **counts}


lt = results.select(evidence, variant="original")
places = sorted({(row["optimizer"], row["num_loops"]) for row in lt})
groups = [results.select(lt, optimizer=o, num_loops=k) for o, k in places]
table = dict(zip(places, map(summary, groups), strict=True))
pd.DataFrame(table).T.rename_axis(["optimizer", "K"])

# %% [markdown]
# It does. After three and six loops LT's state is *shorter* than FLT's; then it explodes:
# {result}`looped_pretraining | mean residual_norm | preset=laptop optimizer=muon variant=original num_loops=6 | .0f`
# after six loops,
# {result}`looped_pretraining | mean residual_norm | preset=laptop optimizer=muon variant=original num_loops=9 | .0f`
# after nine,
# {result}`looped_pretraining | mean residual_norm | preset=laptop optimizer=muon variant=original num_loops=12 | .0f`
# after twelve, where FLT's is
# {result}`looped_pretraining | mean residual_norm | preset=laptop optimizer=muon variant=flt num_loops=12 | .0f`.
# One length for every step is no bound for their sum. The depth-matched plain Transformer reaches
# {result}`looped_pretraining | mean residual_norm | preset=laptop optimizer=muon variant=plain num_loops=12 | .0f`
# and trains well: once more, a long state is harmless as long as the stream itself is not normed on its way
# ({eq}`eq-looped-shrink`).
#
# The table has a lesson about criteria. With nine loops under Muon
# {result}`looped_pretraining | sum collapsed | preset=laptop optimizer=muon variant=original num_loops=9 | .0f`
# of {result}`looped_pretraining | count collapsed | preset=laptop optimizer=muon variant=original num_loops=9 | .0f` runs of LT are collapsed in the sense of
# {eq}`eq-looped-collapse`, and still LT lies
# {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=original~flt num_loops=9 | .2f`
# bits per byte above FLT. With twelve,
# {result}`looped_pretraining | sum collapsed | preset=laptop optimizer=muon variant=original num_loops=12 | .0f`
# of {result}`looped_pretraining | count collapsed | preset=laptop optimizer=muon variant=original num_loops=12 | .0f` are collapsed; but the best of all five has
# {result}`looped_pretraining | min val_bits_per_byte | preset=laptop optimizer=muon variant=original num_loops=12 | .2f`
# bits per byte, where the worst run of FLT has
# {result}`looped_pretraining | max val_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12 | .2f`.
# A threshold turns a slope into a yes or no, and the slope is the finding. Note also the column *exploding*:
# the state of nearly every run, of every variant, still grows by 5 % in the second half, so that half of the
# criterion says little here.
#
# ### The same under AdamW
#
# **Predict before you look:** with AdamW a model gets less far in 300 steps. Does LT break sooner or later than
# with Muon? And do more loops help now?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-adamw", "caption": "Laptop rows, AdamW, drawn as in the first figure of the chapter: mean over paired seeds and 95 % interval."}, "image": {"alt": "Validation bits per byte against number of loops under AdamW, whole and enlarged"}}
show_quality(adamw)

# %%
from_one_loop(adamw)

# %% [markdown]
# - **LT breaks sooner.** With six loops
#   {result}`looped_pretraining | sum collapsed | preset=laptop optimizer=adamw variant=original num_loops=6 | .0f`
#   of {result}`looped_pretraining | count collapsed | preset=laptop optimizer=adamw variant=original num_loops=6 | .0f` runs have collapsed already.
# - **Now loops help, and not those of FLT alone.** With six loops every model but LT is better than with one,
#   the depth-matched plain Transformer included. So it is depth that helps, shared or not. From six to
#   twelve the seeds see no further gain of FLT
#   ({result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=flt num_loops=12~6 | .3f`).
# - **The order of the variants changes.** LT_i, which led under Muon, differs from FLT by
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=input~flt num_loops=6 | .3f`
#   at six loops. An ablation with one optimizer is about that optimizer.
# - **Depth helps those who are behind.** FLT at twelve loops has
#   {result}`looped_pretraining | mean_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=flt num_loops=12 | .2f`
#   bits per byte under AdamW and
#   {result}`looped_pretraining | mean_ci val_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12 | .2f`
#   under Muon. A gain under one optimizer can be what the other one gets without any loops. So "do more loops
#   help?" has no answer without "in which training?".
#
# ## Ablation: which part does the work?
#
# FLT is two ideas: the old state reaches every block (the fully looped architecture, FLA), and it comes as a
# query (attention injection, AI). Take one away at a time:
#
# | | added to the stream | as a query |
# |---|---|---|
# | at the first block only | LT_i | LT_ia (AI only) |
# | at every block | FLA (FLA only) | FLT (both) |
#
# Two ideas, four corners: a *factorial* design, which can show not only what each idea does but whether they
# need each other. LT and the depth-matched plain Transformer stand outside.
#
# **Predict before you look:** the claim is that both parts are needed. Where must the four intervals lie,
# relative to zero, for our rows to support it?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-ablation", "caption": "Laptop rows at twelve loops: paired difference to FLT in validation bits per byte, with its 95 % interval. Right of zero: worse than FLT. LT would lie far off to the right and is left out. Left: Muon. Right: AdamW."}, "image": {"alt": "Forest plot of differences to FLT for LT_i, LT_ia, FLA and the plain Transformer, two optimizers"}}
CORNERS = ("input", "attention", "fla", "plain")
_, axes = plt.subplots(1, 2, figsize=(9.8, 2.9))
for ax, rows, name in zip(axes, (muon, adamw), ("Muon", "AdamW"), strict=True):
    sides = {v: results.select(rows, variant=v, num_loops=12) for v in CORNERS}
    flt = results.select(rows, variant="flt", num_loops=12)
    difference, metric = results.paired_difference, "val_bits_per_byte"
    intervals = {v: difference(side, flt, metric) for v, side in sides.items()}
    figures.forest(ax, intervals, xlabel="minus FLT (bits per byte)")
    ax.set_title(name)
plt.show()

# %% [markdown]
# Neighbours in the table differ in one thing. Take the differences along its sides, Muon first, then AdamW:
#
# - *a query instead of a sum, at every block* (FLA minus FLT):
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=fla~flt num_loops=12 | .3f` and
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=fla~flt num_loops=12 | .3f`;
# - *a query instead of a sum, at the first block* (LT_i minus LT_ia):
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=input~attention num_loops=12 | .3f` and
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=input~attention num_loops=12 | .3f`;
# - *every block instead of the first, by a query* (LT_ia minus FLT):
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=attention~flt num_loops=12 | .3f` and
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=attention~flt num_loops=12 | .3f`;
# - *every block instead of the first, by a sum* (FLA minus LT_i):
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=muon variant=fla~input num_loops=12 | .3f` and
#   {result}`looped_pretraining | difference_ci val_bits_per_byte | preset=laptop optimizer=adamw variant=fla~input num_loops=12 | .3f`.
#
# Under Muon one corner stands out, and it is LT_i, ahead of both its neighbours; between the other three the
# seeds cannot tell. Under AdamW they cannot tell anything here, FLA least of all, since one of its runs went
# astray: its three runs end between
# {result}`looped_pretraining | min val_bits_per_byte | preset=laptop optimizer=adamw variant=fla num_loops=12 | .2f`
# and
# {result}`looped_pretraining | max val_bits_per_byte | preset=laptop optimizer=adamw variant=fla num_loops=12 | .2f`
# bits per byte. For the claim that both parts are needed, three intervals would have to lie to the right of zero.
# They do not, so these rows do not support it.
#
# Do the two ideas need each other? Then the query would be worth more at every block than at the first. Under
# Muon it is; but it costs something at the first block rather than earning something at every block. And
# remember that with two layers "every block" is two blocks, and "the first" is one of them.
#
# ## On other texts
#
# All this was on held-out addresses, from the source of the training text. Now two texts that nobody
# trained on: *Moby-Dick*, a novel of the same century as many of the addresses, and the opening paragraphs
# of encyclopedia articles, with names, numbers and letters that no president used. The unit is bits per
# byte, which needs no tokenizer that fits them.
#
# **Predict before you look:** which of the two is harder? And is the order of the models the same on each
# text?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-looped-domains", "caption": "Laptop rows, Muon: one point per run (all numbers of loops, all seeds), loss on the training text's own domain across, on the other text upwards. Runs of LT with 9 and 12 loops lie outside."}, "image": {"alt": "Scatter of out-of-domain against in-domain loss for Moby-Dick and for the leads of encyclopedia articles"}}
names = {"moby_dick": "Moby-Dick", "wikipedia_leads": "Wikipedia leads"}
_, axes = plt.subplots(1, 2, figsize=(9.8, 3.7))
runs = results.select(evidence, optimizer="muon")
near = [r for r in runs if r["variant"] != "original" or r["num_loops"] < 9]
for ax, (name, title) in zip(axes, names.items(), strict=True):
    for variant in SIX:
        look = figures.style_of(variant)
        rows = results.select(near, variant=variant)
        x = [row["val_bits_per_byte"] for row in rows]
        y = [row[f"{name}_bits_per_byte"] for row in rows]
        points = {"color": look.colour, "marker": look.marker, "alpha": 0.8}
        ax.scatter(x, y, 26, label=look.label, **points)
    ax.set(xlabel="addresses (bits per byte)", ylabel=f"{title} (bits per byte)")
axes[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %%
print(fill(WIKIPEDIA_ATTRIBUTION, 84))
frame = pd.DataFrame(results.select(runs, num_loops=12))
texts = ["val_bits_per_byte", *(f"{name}_bits_per_byte" for name in names)]
table = frame.groupby("variant")[texts].mean().reindex(SIX)
table.columns = ["addresses", *names.values()]
table.rename(index=LABELS).round(3)

# %% [markdown]
# Read off the scale first: from the addresses to *Moby-Dick* FLT at twelve loops goes from
# {result}`looped_pretraining | mean_ci val_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12 | .2f`
# to
# {result}`looped_pretraining | mean_ci moby_dick_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12 | .2f`
# bits per byte, and to the encyclopedia to
# {result}`looped_pretraining | mean_ci wikipedia_leads_bits_per_byte | preset=laptop optimizer=muon variant=flt num_loops=12 | .2f`.
# The way to another text costs far more than anything that separates the stable models, and it brings its own
# luck: on the novel the interval over seeds is several times as wide as at home.
#
# LT's lag carries over: with six loops it is
# {result}`looped_pretraining | difference_ci moby_dick_bits_per_byte | preset=laptop optimizer=muon variant=original~flt num_loops=6 | .2f`
# behind FLT on *Moby-Dick* and
# {result}`looped_pretraining | difference_ci wikipedia_leads_bits_per_byte | preset=laptop optimizer=muon variant=original~flt num_loops=6 | .2f`
# on the encyclopedia. The small lead of LT_i does not: at twelve loops it differs from FLT by
# {result}`looped_pretraining | difference_ci moby_dick_bits_per_byte | preset=laptop optimizer=muon variant=input~flt num_loops=12 | .3f`
# and
# {result}`looped_pretraining | difference_ci wikipedia_leads_bits_per_byte | preset=laptop optimizer=muon variant=input~flt num_loops=12 | .3f`,
# and the seeds cannot tell. One line of the table may make you curious: the depth-matched plain Transformer,
# which the seeds cannot tell from FLT at home, differs from it by
# {result}`looped_pretraining | difference_ci moby_dick_bits_per_byte | preset=laptop optimizer=muon variant=plain~flt num_loops=12 | .3f`
# on *Moby-Dick*. Fewer weights that generalise better? On the encyclopedia it is
# {result}`looped_pretraining | difference_ci wikipedia_leads_bits_per_byte | preset=laptop optimizer=muon variant=plain~flt num_loops=12 | .3f`.
# It is one interval among dozens; to believe it you would have to ask that question, and no other, with fresh
# seeds.
#
# ### What they write
#
# Each model of seed 0 at twelve loops continues the same six words, at temperature 0.7 and with the same
# random numbers.
#
# **Predict before you look:** FLT's loss is
# {result}`looped_pretraining | mean val_loss | preset=laptop optimizer=muon variant=flt num_loops=12 | .1f`
# nats per byte: the (geometric) mean of the probability that it gives to the right byte is $e$ to the minus
# that, about a sixth. Do you expect words? Sentences? And how will LT's text differ?

# %%
for variant in ("original", "flt", "plain"):
    (row,) = results.select(muon, variant=variant, num_loops=12, seed=0)
    label, bits = LABELS[variant], row["val_bits_per_byte"]
    print(fill(f"{label} ({bits:.2f}): {row['sample']}", 80), end="\n\n")

# %% [markdown]
# The unit of this prose is the byte, and what the models have learned is spelling. FLT and the plain
# Transformer know which letters follow each other, where a word ends, and the most frequent short words. They
# know no grammar and no meaning. LT has learned which letters are frequent, and little of their order. Do not
# read a ranking of FLT and the plain Transformer into two samples: where they agree it is because they drew the
# same random numbers, and one more seed gives you other words.
#
# ## What it costs
#
# By {eq}`eq-looped-flops` a loop costs what a layer costs. The looped models and the depth-matched plain
# Transformer spend the same arithmetic, and twelve loops nearly twelve times that of one:

# %%
numbers = (1, 3, 6, 9, 12)
table = {f"K={k}": [size("flt", k)[1] / 1e6, size("plain", k)[0] / 1e3] for k in numbers}
pd.DataFrame(table, index=["MFLOPs per token", "10³ parameters, plain"]).round(2)

# %% [markdown]
# Operations are not time. How long a training step takes is measured by
#
# ```bash
# python -m unrolled bench looped
# ```
#
# on your machine. It runs the two sides of each comparison in turn, in changing order, and reports the ratio
# with its interval, since the time of a step drifts with everything else the machine does: FLT against LT,
# against the depth-matched plain Transformer, and with and without checkpointing of the loops
# ({eq}`eq-looped-memory`). It counts the peak memory too, in which the depth-matched model pays for its weights
# and the looped one does not. Code: {py:mod}`unrolled.looped.bench`.
#
# ## Live: one loop and six
#
# Now you train: FLT with one loop, where it is the plain Transformer, and with six, from the same weights
# and on the same bytes, with Muon. The live run has a third of the steps of the laptop rows; up to the step
# at which its rate starts to fall it *is* the beginning of theirs.
#
# **Predict before you run:** the first steps of training at $K = 1$ and $K = 6$: which of the two falls
# faster?

# %%
live = pretraining.EXPERIMENT.run(PRESET, SEED)
few = settings.num_loops[1]


# The plain Transformer, and FLT with a few loops, trained with Muon; by seed.
def two_models(rows, num_loops):
    rows = results.select(rows, optimizer="muon")
    rows.sort(key=lambda row: row["seed"])
    plain = results.select(rows, num_loops=1, variant="plain")
    return plain, results.select(rows, num_loops=num_loops, variant="flt")


# The loss with loops minus the loss without, by step, for two rows of one seed.
def gap(one, other):
    pairs = zip(one["loss_curve"], other["loss_curve"], strict=True)
    return {**other, "gap": [b - a for a, b in pairs]}


# %% mystnb={"figure": {"name": "fig-looped-live", "caption": "One loop (the plain Transformer) against six loops of FLT, trained with Muon on the same bytes. Left: training loss of your live run; the two lines nearly cover each other. Right: the loss with six loops minus that with one, in your live run and in the laptop rows (thin: seeds, thick: their mean)."}, "image": {"alt": "Training loss of both models over steps, and the difference of their losses, live and committed"}}
_, (left, right) = plt.subplots(1, 2, figsize=(9.8, 3.5))
one, other = two_models(live, few)
figures.curves(left, one + other, "loss_curve", x="step_curve", legend=False)
left.legend()
both = [*map(gap, one, other), *map(gap, *two_models(evidence, 6))]
figures.curves(right, both, "gap", x="step_curve", by="preset")
right.set_ylabel("difference (nats per byte)")
plt.show()


# %%
same_seed = results.select(evidence, seed=SEED) if PRESET == "live" else []
pairs = zip(two_models(live, few), two_models(same_seed, 6), strict=True)
for (here,), there in (pair for pair in pairs if pair[1]):
    a, b = (pd.Series(r["loss_curve"], r["step_curve"]) for r in (here, *there))
    apart = (a - b).dropna().loc[: 0.8 * settings.steps].abs()
    print(f"{here['variant']}: {len(apart)} steps, at most {apart.max():.4f} apart")
columns = ["variant", "num_loops", "val_bits_per_byte", "residual_norm"]
results.frame(live)[columns].round(3)

# %% [markdown]
# Neither. At the first step the two models even agree, since all loops of a fresh model do. The printed lines
# compare your losses with the laptop rows of the same seed, step by step as far as they share the rate: a row
# is a run that you can repeat. After a hundred steps the two are still close, and one seed cannot say more.
#
# ## What the paper says, and what we saw

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None)
claims = pretraining.EXPERIMENT.claims
table = results.comparison_table("looped.pretraining", claims, rows=evidence)
pd.DataFrame(table).set_index("claim")[["verdict", "evidence", "ours"]]

# %% [markdown]
# - *What holds:* the stability. FLT trains at every number of loops, with a bounded state, and LT does not. Where
#   the table says that LT's collapse is not seen under Muon, it takes the criterion at its word; the line "FLT is
#   better than LT" has the size of the matter.
# - *What does not show at this scale:* the collapse of the half remedies, a clear lead of FLT over them (over FLA
#   there is a trend), and its gain from more loops. Of the oscillation there is a trend too: LT's gradient norm
#   swings more on the mean, and its runs differ so much that the interval contains zero. In two layers "every
#   block" and "the first block" are close to each other, and the training is a thirtieth of the paper's in tokens
#   per parameter. Not seen is not refuted: the presets `colab` and
#   `paper` hold the sizes at which to ask again.
# - *What our rows say against a simple reading:* under Muon the oldest remedy is ahead of FLT, by little, at home.
#   A paper's ablation is made where the authors' model is at its best. So is ours: made where a laptop is.
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | size | 6 layers of width 384, 12 of width 768 | 2 layers of width 64 | a run in about a minute on one core |
# | text | FineWeb-Edu, a vocabulary of about 151,680 | State of the Union, bytes | it is shipped with the package |
# | length of training | 20 tokens per parameter | 0.6 tokens per parameter | time; this is the largest difference |
# | batch | 524,288 tokens | 256 tokens | time |
# | Muon | rate 0.02, momentum 0.85 to 0.95 in 300 steps, AdamW for embedding and head | the same; the rate was searched too | |
# | AdamW for all weights | not in the results that we know of | betas 0.9 and 0.95, no decay, rate by the search (our choice) | to see what depends on the optimizer |
# | plain Transformer of the same operations | not in the results that we know of | trained at every $K$ (our choice) | to know what sharing costs |
# | measure of quality | average accuracy on benchmarks, perplexity on WikiText-2 | bits per byte on held-out and on other texts | models of this size answer no question |
# | LT_i | adds the state to the embedding, in the public implementation before its norm | after its norm, {eq}`eq-looped-input` | the paper's text does not say |
# | evidence | one run per model, as far as we know | paired seeds and intervals | to know what cannot be told |
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: what depth costs without sharing
# :label: ex-looped-depth-price
# The paper's Base model has $L = 12$, $d = 768$ and $V = 151{,}680$. Compare a plain Transformer with the
# operations of Base at $K = 9$ with Base itself: what is the ratio of the parameters, and what that of the
# FLOPs? Answer with a pair, plain over looped. Guess first, then use {eq}`eq-looped-depth-matched`.
# :::

# %% tags=["exercise"]
answer = None  # (parameters, FLOPs)
checks.looped_depth_price(answer)

# %% [markdown]
# :::{solution} ex-looped-depth-price
# :class: dropdown
# The FLOPs are equal, by construction. The core has $12 L d^2 = 84.9$ million numbers, embedding and head
# $2Vd = 233$ million, and only the core is multiplied by 9. With a large vocabulary sharing saves less than
# one might think.
#
# ```python
# core, ends = 12 * 12 * 768**2, 2 * 151_680 * 768
# answer = (9 * core + ends) / (core + ends), 1
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how far Muon can carry a matrix
# :label: ex-looped-muon-reach
# An $m \times n$ matrix starts at zero and is trained for $T$ steps by Muon with exact polar factors. The
# rate is $\eta$ and falls linearly over the last $D$ steps: step $t = 0, \dots, T - 1$ has the factor
# $\min(1, (T - t) / D)$. What is the largest spectral norm that the matrix can reach? Write it as a
# function.
# :::


# %% tags=["exercise"]
def muon_reach(rows, columns, rate, steps, decay): ...  # your formula


checks.looped_muon_reach(muon_reach)

# %% [markdown]
# :::{solution} ex-looped-muon-reach
# :class: dropdown
# By the triangle inequality the norm is at most the sum of the lengths of the steps, and it is reached when
# all steps point the same way. The factors are $T - D$ times 1 and then $1, (D-1)/D, \dots, 1/D$, which add
# up to $(D + 1) / 2$. With our 300 steps of 0.02 and $D = 60$ that is 5.4, and twice as much for
# $W_\uparrow$; a fresh matrix has a norm of about 2.
#
# ```python
# def muon_reach(rows, columns, rate, steps, decay):
#     length = rate * max(1, rows / columns) ** 0.5
#     return length * (steps - decay + (decay + 1) / 2)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: an iteration that arrives
# :label: ex-looped-polar
# Muon's iteration never settles. Choose the coefficients of $p(\sigma) = a \sigma + b \sigma^3$ such that $p(1) = 1$ and
# $p'(1) = 0$, and write a function that returns the polar factor of any matrix of full rank within $10^{-3}$,
# whatever its shape and size, without a decomposition.
# :::


# %% tags=["exercise"]
def polar(G): ...  # the orthogonal factor


checks.looped_polar(polar)

# %% [markdown]
# :::{solution} ex-looped-polar
# :class: dropdown
# $a + b = 1$ and $a + 3b = 0$ give $a = 3/2$, $b = -1/2$. Near 1 the error is squared in each step. Near 0 a
# singular value grows by 3/2 per step, where Muon's grow by 3.4: one of $10^{-4}$ needs 23 steps to come
# near 1, and a few more to settle.
#
# ```python
# def polar(G):
#     X = G / G.norm()
#     for _ in range(60):
#         X = 1.5 * X - 0.5 * X @ X.T @ X
#     return X
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: how many seeds?
# :label: ex-looped-seeds-needed
# You have trained two models from a few seeds each. `first` and `second` are dicts from seed to loss, with the
# same seeds, in any order. Assume that the spread of the differences stays as it is. How many paired seeds are
# needed until the half width of {eq}`eq-looped-paired` is at most `target`? Return the smallest $n \ge 2$.
# :::


# %% tags=["exercise"]
def seeds_needed(first, second, target): ...  # your code here


checks.looped_seeds_needed(seeds_needed)

# %% [markdown]
# :::{solution} ex-looped-seeds-needed
# :class: dropdown
# The quantile depends on $n$ too, so there is no formula: try one $n$ after the other. Now ask it about two
# of our variants, with a target below their difference.
#
# ```python
# def seeds_needed(first, second, target):
#     spread = pd.Series([first[seed] - second[seed] for seed in first]).std()
#     n = 2
#     while student.ppf(0.975, n - 1) * spread / n**0.5 > target:
#         n += 1
#     return n
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: bits per byte
# :label: ex-looped-bits-per-byte
# A model reads pieces of several bytes. Given its losses in nats and the tokens that it had to predict, both
# of shape $(B, N)$, and the number of bytes of every token of the vocabulary, of shape $(V,)$, return the
# loss in bits per byte.
# :::


# %% tags=["exercise"]
def my_bits_per_byte(losses, tokens, lengths): ...  # your code here


checks.looped_bits_per_byte(my_bits_per_byte)

# %% [markdown]
# :::{solution} ex-looped-bits-per-byte
# :class: dropdown
# The sum of all losses over the sum of all lengths, by {eq}`eq-looped-bits`. A mean of ratios would count a
# byte in a short token more than one in a long token.
#
# ```python
# def my_bits_per_byte(losses, tokens, lengths):
#     return losses.sum() / lengths[tokens].sum() / log(2)
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: a variant of your own
# :label: ex-looped-own-variant
# The table of the ablation has empty places: the state could enter the *last* block only, or as key, or be
# added and asked with. Write a function that returns a looped model of your own, with the parameters of all
# others and no more arithmetic. The easiest way is a subclass of
# {py:class}`unrolled.looped.model.LoopedTransformer` with its own method `loop`, which gets the embedding `e`
# and the last loop's `state`, not yet normed (or `None`), and returns the stream after each block. When the
# checker is content, train it under the budget of the others:
#
# ```python
# from dataclasses import replace
# from unrolled.data.text import TokenBatches
# from unrolled.looped import instability
#
# mine = replace(settings, optimizer="muon")
# text = instability.text_of(mine)
# torch.manual_seed(SEED)
# model = my_variant(mine.config, 6)
# batches = TokenBatches(text.train, mine.batch_size, mine.length, SEED)
# instability.train(model, batches, mine, mine.muon_learning_rate)
# instability.validation_loss(model, *text.validation, mine.batch_size) / log(2)
# ```
# :::


# %% tags=["exercise"]
def my_variant(config, num_loops): ...  # a model


checks.looped_own_variant(my_variant)

# %% [markdown]
# :::{solution} ex-looped-own-variant
# :class: dropdown
# One of many: LT_i and FLT at once. The state is added to the embedding at the start of a loop, and asks in
# every block.
#
# ```python
# def my_variant(config, num_loops):
#     from unrolled.looped.model import LoopedTransformer
#
#     class Mine(LoopedTransformer):
#         def loop(self, e, state=None, mask=None, slots=None):
#             h = None if state is None else self.norm(state)
#             x, states = e if h is None else self.norm(e + h), []
#             for block in self.blocks:
#                 x = block(x, query=h, mask=mask)
#                 states.append(x)
#             return states
#
#     return Mine(config, num_loops, "original")
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** "The same size" can mean two things when a looped model is compared with a plain one. Which two, and what does each give away?
#
# :::{dropdown} Answer
# The same parameters: then the looped model spends $K$ times the arithmetic of the core. The same operations: then the plain one has $K$ times the parameters of the core. Neither is the fair one by itself.
# :::
#
# **2.** All gradients are multiplied by 100. What changes in a step of Muon, and why does that matter for LT?
#
# :::{dropdown} Answer
# Nothing ({prf:ref}`prop-looped-muon`). So a gradient that is counted $K$ times, or that is tiny behind a long state, is not what breaks LT under Muon by its *length*; the direction or the curvature does.
# :::
#
# **3.** A paired difference over five seeds has an interval that contains zero. May you write that the two models are equal?
#
# :::{dropdown} Answer
# No. The seeds cannot tell them apart. The interval says how large a difference may still be there.
# :::
#
# **4.** When does pairing by seed narrow an interval, and when not?
#
# :::{dropdown} Answer
# When the two models share their luck, such as a hard last batch, which then cancels. Against a model whose luck is of its own kind, as that of LT near its collapse, there is little to cancel.
# :::
#
# **5.** One model has a lower loss per token than another, with another tokenizer. Is it better?
#
# :::{dropdown} Answer
# That cannot be said. Longer pieces are harder to predict and there are fewer of them. Divide all bits by all bytes ({eq}`eq-looped-bits`), on the same text.
# :::

# %% [markdown]
# ## Where this came from
#
# The laptop rows were made by these commands, and each row names the one that makes it alone.
#
# ```bash
# python -m unrolled run looped.search --preset laptop
# python -m unrolled run looped.search --preset laptop --set adamw_learning_rates=0.03
# python -m unrolled run looped.pretraining --preset laptop --seeds 0-4 --cases optimizer=muon
# python -m unrolled run looped.pretraining --preset laptop --seeds 0-2 --cases optimizer=adamw
# ```

# %% tags=["hide-input"]
columns = ["experiment", "preset", "torch", "version", "commit", "device"]
results.frame([live[0], evidence[0], grid[0]])[columns]
