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
# (descent-networks)=
# # Unrolled networks
#
# Stop an iteration after $L$ steps, call each step a layer, and learn its matrices: that is an *unrolled network*. Here you derive each
# layer from the objective that it lowers, attention included. Then you train the matrices, and look at what is left of the descent.
#
# After this you can
#
# - write gradient descent, ISTA and LISTA as layers, and say which of them descends what;
# - derive attention as the slope of an energy, prove its majoriser, and compute a safe step;
# - derive the layers of DUST and UT, and say when their energies cannot rise;
# - prove that a falling energy says nothing about the error, and measure both in a trained network.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | all cells; the footage is a square that moves | seconds |
# | live | LISTA on synthetic codes; UT and DUST on surveillance footage, 100 steps each | under a minute on one core |
# | laptop, colab | the same, 500 and 3,000 steps each | minutes on one core, not measured |

# %% tags=["setup", "hide-input"]
import math
from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.testing import assert_close

from unrolled import checks, figures, provenance
from unrolled.descent import networks as nets
from unrolled.descent import video

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# 1. A layer that is derived as a step on an *energy* cannot raise it, whatever its input.
# 2. The energy knows the input alone. The *loss* also knows the answer. One can fall while the other rises.
# 3. Training on the loss of the last layer changes the energy itself, and keeps none of its guarantees.
#
# The figure has the second. Vectors of 16 entries are sums of a few of 32 columns of a matrix $D$, and have noise on top. Two iterations,
# written down in the next section, explain the noisy vectors by $D$, one with an energy that also asks for few columns.
#
# **Predict before you run:** both energies fall at each layer. What does the distance to the *clean* vectors do?

# %%
torch.manual_seed(SEED)
D = torch.nn.functional.normalize(torch.randn(16, 32), dim=0)
tau = 1 / torch.linalg.matrix_norm(D, ord=2).item() ** 2


def codes(count):  # sparse codes h, and the clean vectors D h
    h = torch.randn(count, 1, 32) * (torch.rand(count, 1, 32) < 0.1)
    return h, h @ D.mT


h, clean = codes(512)
noisy = clean + 0.3 * torch.randn_like(clean)

# %%
ways = []
for name, kappa in (("gradient descent", 0.0), ("ISTA", 0.3)):
    layer = lambda s, kappa=kappa: nets.ista_layer(s, noisy, D, tau, kappa)  # noqa: E731
    states = nets.unroll(layer, torch.zeros_like(h), 24)
    energy = [nets.lasso_objective(s, noisy, D, kappa).mean().item() for s in states]
    error = [(s @ D.mT - clean).square().sum(-1).mean().item() for s in states]
    ways.append({"iteration": name, "energy": energy, "error": error})


# %%
# One panel for each column, over layers 0, 1, ...
def panels(rows, by, columns):
    _, axes = plt.subplots(1, len(columns), figsize=(9.5, 3.4))
    for ax, (y, label) in zip(axes, columns.items(), strict=True):
        own = [{k: row[k] for k in (by, y)} for row in rows]
        x = range(len(rows[0][y]))
        figures.curves(
            ax, own, y, x=x, by=by, xlabel="layer $l$", ylabel=label, legend=ax is axes[-1]
        )
    return axes


# %% mystnb={"figure": {"name": "fig-descent-energy-is-not-loss", "caption": "Means over 512 synthetic vectors with noise of standard deviation 0.3. Left: the energy after each layer. Right: the squared error to the clean vectors, which the layers do not know. Gradient descent lowers its energy at every layer, and soon raises the error."}, "image": {"alt": "Energy by layer falls for both iterations; the error rises again for gradient descent"}}
panels(ways, "iteration", {"energy": "energy", "error": "squared error"})
plt.show()

# %% [markdown]
# In our run gradient descent reaches its lowest error within a few layers. What it explains after that is noise. The rest of the chapter derives such
# layers, ends at Transformers, and then trains them.
#
# ## Descent by construction
#
# Let a sequence have $T$ frames $y_t$ of $P$ pixels. *Codes* $h_t$ of size $N$ shall explain them with a *dictionary* $D$, and be sparse:
#
# $$
# \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \kappa \lVert h_t \rVert_1 .
# $$ (eq-descent-lasso)
#
# The first term is the *misfit*; $\kappa \ge 0$ weighs the second. With $\kappa = 0$, a step of gradient descent is a linear layer:
#
# $$
# h_t^+ = h_t - \tau\, D^\top (D h_t - y_t) .
# $$ (eq-descent-gradient-layer)
#
# As in {ref}`descent-dual_ascent`, $\tau$ is a primal step size; here the state moves, and the weights rest. The layer descends for
# $\tau < 2 / \lVert D \rVert^2$, with the largest singular value as norm. For $\tau \le 1 / \lVert D \rVert^2$ the misfit lies
# below the quadratic that touches it at $h_t$ with curvature $1/\tau$: a *majoriser*. Minimise that and the $\ell_1$ norm together.
# Entry by entry this is the *soft threshold*,
#
# $$
# S_\kappa(x) = \operatorname{sign}(x) \max(|x| - \kappa, 0) = \arg\min_h \tfrac12 \lVert h - x \rVert^2 + \kappa \lVert h \rVert_1 ,
# $$ (eq-descent-soft-threshold)
#
# since for $h > 0$ the slope $h - x + \kappa$ vanishes at $x - \kappa$, for $h < 0$ at $x + \kappa$, and if neither has its sign, $h = 0$. The layer is **ISTA**,
#
# $$
# h_t^+ = S_{\tau\kappa}\bigl(h_t - \tau\, D^\top (D h_t - y_t)\bigr) .
# $$ (eq-descent-ista)
#
# The objective after the step is at most the majoriser after it, which is at most the majoriser before it, which is the objective before it.
# So it never rises. The same three steps prove everything that is proved in this chapter.

# %%
kappa, start = 0.05, torch.zeros_like(h)
states = nets.unroll(lambda s: nets.ista_layer(s, clean, D, tau, kappa), start, 8)
moved = states[1] - tau * (states[1] @ D.mT - clean) @ D
assert_close(nets.gradient_layer(states[1], clean, D, tau), moved)
mine = moved.sign() * (moved.abs() - tau * kappa).clamp_min(0)
assert_close(mine, nets.soft_threshold(moved, tau * kappa))
assert_close(mine, states[2])
objective = torch.stack([nets.lasso_objective(s, clean, D, kappa) for s in states])  # (L + 1, B)
assert (objective.diff(dim=0) <= 1e-5).all()

# %% [markdown]
# Code: {py:func}`unrolled.descent.networks.gradient_layer`, {py:func}`unrolled.descent.networks.soft_threshold`,
# {py:func}`unrolled.descent.networks.ista_layer`, {py:func}`unrolled.descent.networks.unroll`.
#
# ## LISTA: learned, and no longer a descent
#
# {cite:t}`gregor2010lista` free the matrices:
#
# $$
# h^+ = S_{\tau\kappa}(W_e\, y + W_r\, h), \qquad W_e = \tau D^\top,\; W_r = I - \tau D^\top D \quad\text{at the start.}
# $$ (eq-descent-lista)
#
# *Tied* is one layer $L$ times; *untied* is $L$ layers. The loss is the squared error of the codes after the last layer, against the codes that made the data.
#
# **Predict before you run:** only the last layer has a loss. Does the error of the middle layers fall too? And {eq}`eq-descent-lasso`?


# %%
def lista(steps, tied):
    model = nets.LISTA(D, num_layers=8, threshold=kappa, tied=tied)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        code, frames = codes(128)
        (model(frames).states[-1] - code).square().sum(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# %%
# Error of the codes and objective after each layer; share of vectors whose objective rises.
@torch.no_grad()
def judged(name, model):
    found = model(clean).states
    error = [(s - h).square().sum(-1).mean().item() for s in found]
    values = torch.stack([nets.lasso_objective(s, clean, D, kappa) for s in found])  # (L + 1, B)
    energy, rises = values.mean(1).tolist(), (values.diff(dim=0) > 1e-5).float().mean(1)
    return {"network": name, "error": error, "energy": energy, "rises": rises}


# %% mystnb={"figure": {"name": "fig-descent-lista", "caption": "Live networks of 8 layers on synthetic codes without noise, means over 512. ISTA, and LISTA trained on the error of its last layer. Left: squared error of the codes after each layer. Right: the objective of ISTA."}, "image": {"alt": "Error of the codes and objective by layer for ISTA, tied and untied LISTA"}}
steps = 10 if PRESET == "smoke" else 600
torch.manual_seed(SEED + 1)
ista = lista(0, tied=True)
assert_close(ista(clean).states[-1].detach(), states[-1], rtol=1e-4, atol=1e-5)
learned = [judged("ISTA", ista)]
learned += [judged(f"LISTA, {n}", lista(steps, n == "tied")) for n in ("tied", "untied")]
panels(learned, "network", {"error": "squared error of the codes", "energy": "objective"})
plt.show()
for row in learned:
    print(f"{row['network']}: the last layer raises {row['rises'][-1]:.0%} of the objectives")

# %% [markdown]
# In our run the error falls at every layer, although only the last is asked. LISTA ends far below ISTA, and it does not get there by lowering the objective faster:
# untied, its middle layers have a higher one than ISTA's. The last layers lower the error, and raise the objective of the share of vectors that the cell prints.
# Only the *start* of LISTA is a descent on {eq}`eq-descent-lasso`. What training keeps of it, nothing guarantees.
#
# Code: {py:class}`unrolled.descent.networks.LISTA`.
#
# ## Attention from an energy
#
# Let $H$ hold the $T$ states of a sequence as rows, seen through a matrix $V$ at the *inverse temperature* $\beta > 0$. Couple them by
#
# $$
# E_V(H) = -\frac1\beta \sum_t \log \sum_s \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-coupling)
#
# It is low where frames agree. Its slopes in the halved squared distances are weights that sum to 1 in a row:
#
# $$
# a_{ts} = \mathrm{softmax}_s\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-attention-weights)
#
# That is attention, with keys and queries of one matrix, and a bias $-\frac{\beta}{2} \lVert V h_s \rVert^2$ on each key.
#
# A log-sum-exp is convex, so $E_V$ is concave in the squared distances and lies below its tangent at any $\bar H$, which is quadratic in $H$:
#
# $$
# \begin{aligned}
# Q(H \mid \bar H) = E_V(\bar H) &+ \tfrac12 \sum_{ts} a_{ts}(\bar H)
# \bigl( \lVert V(h_t - h_s)\rVert^2 - \lVert V(\bar h_t - \bar h_s)\rVert^2 \bigr) \\
# &\ge E_V(H) .
# \end{aligned}
# $$ (eq-descent-majoriser)
#
# They touch at $\bar H$, so their gradients agree there. Differentiate $Q$: $h_t$ stands in row $t$ and in column $t$, so
#
# $$
# \nabla E_V(H) = \mathcal{G}\, H\, V^\top V, \qquad
# \mathcal{G} = \operatorname{diag}\bigl((A + A^\top) \mathbf 1\bigr) - A - A^\top .
# $$ (eq-descent-coupling-gradient)
#
# $\mathcal{G}$ is a graph Laplacian. Its largest eigenvalue is at most twice the largest degree without self-weights. No distance is below that of a frame to itself, so
# $a_{tt}$ is the largest weight of its row: the others of a row hold at most $1 - 1/T$ together, and each at most $1/2$, so a column holds at most $(T-1)/2$ of them. Hence
#
# $$
# \lambda_{\max}(\mathcal{G}) \le \frac{(T-1)(T+2)}{T} .
# $$ (eq-descent-coupling-bound)

# %%
H, V = torch.randn(3, 4, 6, requires_grad=True), torch.randn(2, 6) / 2
squares = (H[:, :, None] - H[:, None]).matmul(V.mT).square().sum(-1)  # (B, T, T)
energy = -torch.logsumexp(-squares / 2, dim=-1).sum(-1)
assert_close(energy, nets.coupling_energy(H, V))
A = torch.softmax(-squares / 2, dim=-1)
assert_close(A, nets.attention_weights(H, V))
assert_close(torch.autograd.grad(energy.sum(), H)[0], nets.coupling_gradient(H, V))
other = torch.randn_like(H)
assert (nets.coupling_majoriser(other, H, V) >= nets.coupling_energy(other, V) - 1e-5).all()
laplacian = torch.diag_embed((A + A.mT).sum(-1)) - A - A.mT
assert torch.linalg.eigvalsh(laplacian).max() <= nets.coupling_bound(4)

# %% [markdown]
# Code: {py:func}`unrolled.descent.networks.coupling_energy`, {py:func}`unrolled.descent.networks.attention_weights`,
# {py:func}`unrolled.descent.networks.coupling_majoriser`, {py:func}`unrolled.descent.networks.coupling_gradient`,
# {py:func}`unrolled.descent.networks.coupling_bound`.
#
# The form of {cite:t}`yang2022optimization` has no logarithm:
#
# $$
# K_V(H) = -\frac1\beta \sum_{ts} \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-kernel)
#
# Let $\Gamma$ hold the exponentials and the diagonal $\bar\Gamma$ their row sums: $A = \bar\Gamma^{-1} \Gamma$. The tangent has the matrix $\bar\Gamma - \Gamma$, so the step
# $H \leftarrow AH = H - \bar\Gamma^{-1} (\bar\Gamma - \Gamma) H$ is a gradient step on it, preconditioned by $\bar\Gamma$. Such a step descends
# if $\bar\Gamma - \Gamma \preceq 2\bar\Gamma$, and it is so: $\bar\Gamma + \Gamma$ is diagonally dominant. *Replacing every frame by its attention average never raises
# $K_V$.*

# %%
assert (nets.kernel_energy(A @ H, V) <= nets.kernel_energy(H, V) + 1e-5).all()

# %% [markdown]
# Code: {py:func}`unrolled.descent.networks.kernel_energy`.
#
# ## DUST
#
# {cite:t}`deweerdt2024dust` unroll sparse recovery of a sequence. Ours has no sensing matrix; $\mu \ge 0$ weighs the coupling:
#
# $$
# F(H) = \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \kappa \lVert h_t \rVert_1 + \mu\, E_V(H) .
# $$ (eq-descent-dust-objective)
#
# Add the curvatures of the misfit and of the majoriser of the coupling: with the step
#
# $$
# \tau = \Bigl(\lVert D \rVert^2 + \mu \lVert V \rVert^2\, \frac{(T-1)(T+2)}{T}\Bigr)^{-1}
# $$ (eq-descent-safe-step)
#
# the argument of ISTA holds word for word, and $F$ cannot rise, for the layer
#
# $$
# h^+ = S_{\tau\kappa}\bigl(h - \tau\,[\,W_e(Dh - y) + \mu\, \nabla E_V(H)\,]\bigr), \qquad W_e = D^\top \text{ at the start,}
# $$ (eq-descent-dust-layer)
#
# and for the network, whose *readouts* $\Phi_l$ are frames:
#
# $$
# H_0 = 0, \qquad H_l = \mathrm{DUSTLayer}_l(H_{l-1}, y), \qquad \Phi_l = D H_l .
# $$ (eq-descent-dust)
#
# Now on footage: patches of 8 frames of 64 pixels, with noise of level $\gamma$, in units of the standard deviation of the footage.

# %%
settings = video.EXPERIMENT.presets[PRESET]
torch.manual_seed(SEED)
dust, ut = (video.build_network(settings, name) for name in ("dust", "ut_tied"))
clean, noisy = video.noisy_patches(settings, "test", settings.gamma_train)
layer, dictionary = dust.layers[0], dust.dictionary.detach()
with torch.no_grad():
    h0 = 0.1 * torch.randn(*noisy.shape[:2], dictionary.shape[1])
    tau = nets.safe_step(dictionary, layer.projection, layer.coupling, noisy.shape[1])
    pull = layer.coupling * nets.coupling_gradient(h0, layer.projection)
    pull = pull + (h0 @ dictionary.mT - noisy) @ dictionary
    mine = nets.soft_threshold(h0 - tau * pull, tau * layer.threshold)
    assert_close(mine, layer(h0, noisy, dictionary), rtol=1e-4, atol=1e-5)
    F = dust(noisy, energies=True).energies  # (L, 2, B)
assert (F[:, 1] <= F[:, 0] * (1 + 1e-5)).all()

# %% [markdown]
# Code: {py:class}`unrolled.descent.networks.DUST`, {py:class}`unrolled.descent.networks.DUSTLayer`,
# {py:func}`unrolled.descent.networks.safe_step`, {py:func}`unrolled.descent.networks.sequence_objective`.
#
# ## UT
#
# {cite:t}`yang2022optimization` reach a Transformer layer with two steps on two energies. The first is $E_V$, now of states $Y$; the second lives on the orthant, with inputs $B$
# and a symmetric $W$ ($\iota$ is infinite where an entry is negative):
#
# $$
# E_2(Y) = \tfrac12 \lVert Y - B \rVert^2 + \tfrac12 \operatorname{tr}(Y W Y^\top) + \iota(Y \ge 0) .
# $$ (eq-descent-orthant)
#
# Majorise $E_V$, and let each $y_t$ minimise its own row of the sum with all $y_s$ held, its own old value among them: $z_t = \sum_s a_{ts} y_s$. (The columns, $A^\top$, are dropped. That is the price of common attention.) Then a proximal-gradient step of size 1 on $E_2$: the gradient is $Z - B + ZW$,
# and the projection on the orthant is the ReLU.
#
# $$
# Z = A(Y)\, Y, \qquad Y^+ = \mathrm{ReLU}(B - Z W) .
# $$ (eq-descent-ut-layer)
#
# With an embedding $W_{\text{in}}$ of the frames $y$, a vector $p$ per frame and a readout $W_{\text{out}}$,
#
# $$
# \begin{aligned}
# B &= y\, W_{\text{in}} + p, & Y_0 &= \mathrm{ReLU}(B), \\
# Y_l &= \mathrm{UTLayer}_l(Y_{l-1}, B), & \Phi_l &= Y_l W_{\text{out}} .
# \end{aligned}
# $$ (eq-descent-ut)
#
# $\Phi_0$ is the noisy frames themselves, so that no training can move $f_0$.
#
# Each step alone lowers its own energy: the first never raises $K_V$, the second never raises $E_2$ if the eigenvalues of $W$ are at most 1. But the first may raise $E_2$, and the
# second $E_V$. What of their sum, $E = E_V + E_2$?
#
# :::{prf:proposition} Where a layer of UT descends
# :label: prop-descent-ut-regime
# Let $Y \ge 0$, let $\nabla$ be the gradient of $E$ at $Y$ without $\iota$, and
#
# $$
# \begin{aligned}
# e &= (Y - Z)\, W + \mathcal{G}\, Y\, V^\top V, \\
# \Lambda &= 1 + \lambda_{\max}(W) + \lVert V \rVert^2 \lambda_{\max}(\mathcal{G}), \\
# m_E &= \bigl(1 - \tfrac12 \Lambda\bigr) \lVert Y^+ - Y \rVert - \lVert e \rVert .
# \end{aligned}
# $$ (eq-descent-ut-regime)
#
# Then $E(Y^+) \le E(Y) - m_E\, \lVert Y^+ - Y \rVert$. So $E$ cannot rise where $m_E \ge 0$.
# :::
#
# :::{prf:proof}
# Write $Y^+ = \mathrm{ReLU}(Y - \hat\nabla)$ with $\hat\nabla = Y - B + ZW$. Since $\nabla = \mathcal{G} Y V^\top V + Y - B + YW$, the layer is a projected gradient step with a
# gradient that is wrong by $e = \nabla - \hat\nabla$. Let $X = Y^+ - Y$. Replace $E_V$ by its majoriser at $Y$; the sum is a quadratic whose
# curvature is at most $\Lambda$, so $E(Y^+) \le E(Y) + \langle \nabla, X \rangle + \frac{\Lambda}{2} \lVert X \rVert^2$. A projection from $Y - \hat\nabla$ on a convex set that contains $Y$ has
# $\langle \hat\nabla, X \rangle \le -\lVert X \rVert^2$. Hence the rise is at most $\langle e, X \rangle - (1 - \frac{\Lambda}{2}) \lVert X \rVert^2$, and
# $\langle e, X \rangle \le \lVert e \rVert \lVert X \rVert$. $\square$
# :::
#
# The regime asks for a large move and a small error: far from the fixed point, if at all. There are weights which are always inside.
#
# :::{prf:proposition} Weights with which UT cannot rise
# :label: prop-descent-ut-two-frames
# Let $T = 2$, let all eigenvalues of $W$ lie in $[-1, 0]$, and let $V^\top V = -\frac12 W$. Then $m_E \ge 0$ at every $Y \ge 0$ and $B$.
# :::
#
# :::{prf:proof}
# The distance of two frames is symmetric, so $A$ is, and its rows sum to 1: $\mathcal{G} = 2 (I - A)$. Then $Y - Z = \frac12 \mathcal{G} Y$, and
# $e = \mathcal{G} Y (\frac12 W + V^\top V) = 0$. By {eq}`eq-descent-coupling-bound`, $\lambda_{\max}(\mathcal{G}) \le 2$. So $\Lambda \le 1 + 0 + \frac12 \lVert W \rVert \cdot 2 \le 2$. $\square$
# :::
#
# Attention and feed-forward part must share one matrix. **Predict before you run:** multiply $V$ by 3, and nothing else. Do all sequences leave the regime? Do all that leave it rise?


# %%
# Share of sequences in the regime, and that rise, over 8 layers; nobody does both.
def regime(scale, count=4096):
    V = torch.randn(8, 8, dtype=torch.float64)
    V = V * math.sqrt(0.5) / torch.linalg.matrix_norm(V, ord=2)
    layer = nets.UTLayer(scale * V, -2 * V.T @ V)
    B = torch.randn(count, 2, 8, dtype=torch.float64)
    states = nets.unroll(lambda Y: layer(Y, B), torch.relu(B), 8)
    pairs = list(pairwise(states))
    safe = torch.stack([nets.descent_margin(layer, *pair) >= -1e-9 for pair in pairs])
    rise = torch.stack([layer.energy(b, B) - layer.energy(a, B) > 1e-9 for a, b in pairs])
    assert safe.any()
    assert not (safe & rise).any()
    return {"V times": scale, "in the regime": safe.double().mean(), "rise": rise.double().mean()}


# %%
torch.manual_seed(SEED)
with torch.no_grad():
    shares = [regime(scale) for scale in (1, 3, 6)]
assert shares[0]["in the regime"] == 1
assert shares[0]["rise"] == 0
pd.DataFrame(shares).set_index("V times").astype(float).round(3)

# %% [markdown]
# At 1 all are inside and none rises, as proved. With the larger $V$ some leave the regime, and of these some rise, and others fall: outside, nothing is promised.
# In our run the largest $V$ has more of them inside than the middle one. Distances are then so large that each frame attends to itself alone; with $A = I$, both $\mathcal{G}$
# and $Y - Z$ vanish, and the energy cannot rise because nothing is coupled any more. That is no success.
#
# Is the network for the footage, as it is built, inside?

# %%
with torch.no_grad():
    layer, B = ut.layers[0], ut.context(noisy)
    Y = torch.relu(B)
    Z = nets.attention_weights(Y, layer.projection) @ Y
    after = torch.relu(B - Z @ layer.symmetric())
    assert_close(after, layer(Y, B))
    inside = nets.descent_margin(layer, Y, after) >= 0
    rise = layer.energy(after, B) > layer.energy(Y, B)
print(f"layer 1: in the regime {inside.float().mean():.2f}, rise {rise.float().mean():.2f}")

# %% [markdown]
# In our run no sequence is inside, and yet none rises: the condition is sufficient and not necessary. For this network the proposition explains nothing.
#
# Code: {py:class}`unrolled.descent.networks.UT`, {py:class}`unrolled.descent.networks.UTLayer`,
# {py:func}`unrolled.descent.networks.orthant_energy`, {py:func}`unrolled.descent.networks.descent_margin`.
#
# ## Energy is not loss
#
# The first figure was an experiment. The fact behind it needs none.
#
# :::{prf:proposition} Energy is not loss
# :label: prop-descent-energy-is-not-loss
# Let a layer move the readout from $\Phi$ to $\Phi^+ \ne \Phi$, for some input $y$, and let its energy fall, or rise, or neither. There are two answers $x$, both
# possible under Gaussian noise, such that the loss $\lVert \Phi - x \rVert^2$ rises for the one and falls for the other.
# :::
#
# :::{prf:proof}
# The energy, $\Phi$ and $\Phi^+$ depend on $y$ and on the weights alone. At $x = \Phi$ the loss rises from zero; at $x = \Phi^+$ it falls to zero. Gaussian noise $y - x$ has a positive
# density everywhere, so neither $x$ is excluded by $y$. $\square$
# :::
#
# The smallest case has one frame of one pixel: $D = 1$, $\kappa = \mu = 0$, $y = 1$, and a gradient layer with $\tau = \frac12$ from $h = 0$. The energy
# falls from $\frac12$ to $\frac18$. If the pixel is $x = 0$, and all of $y$ is noise, the loss rises from $0$ to $\frac14$. The other way round, a layer
# $h^+ = 0$ from $h = 1$ raises the energy from $0$ to $\frac12$, and lowers the loss from $1$ to $0$.

# %%
one = torch.ones(1, 1, 1)  # y, and D below
x, before = 0 * one, 0 * one
after = nets.gradient_layer(before, one, one[0], step=0.5)
values = [nets.lasso_objective(s, one, one[0], 0.0).item() for s in (before, after)]
losses = [(s - x).square().item() for s in (before, after)]
assert (values, losses) == ([1 / 2, 1 / 8], [0, 1 / 4])
values = [nets.lasso_objective(s, one, one[0], 0.0).item() for s in (one, x)]
losses = [(s - x).square().item() for s in (one, x)]
assert (values, losses) == ([0, 1 / 2], [1, 0])

# %% [markdown]
# Not for one answer, then; but on average over answers? That depends on whether the energy fits the data: how sparse codes really are, how much frames
# really agree. In the first figure the energy that asks for sparse codes did better. Which energy fits, training has to find out.
#
# ## Before and after training
#
# Now ERM: the squared error of the last layer alone, at one noise level. An untied network has an energy *per layer*, so we compare the energy before and after each layer.
# (Between two layers it jumps, since the next layer has another.)
#
# **Predict before you run:** DUST cannot raise its objective before training. After it? Which of the two networks still lowers its energy?


# %%
# Share of sequences whose energy each layer raises, and the RMSE after each layer.
@torch.no_grad()
def look(name, model):
    output = model(noisy, energies=True)
    before, after = output.energies.unbind(1)  # (L, B)
    rises = (after > before + 1e-5 * before.abs()).float().mean(-1).tolist()
    rmse = [(r - clean).square().mean().sqrt().item() for r in output.readouts]
    return {"network": name, "rises": rises, "rmse": rmse}


found = [look("DUST, untrained", dust), look("UT, untrained", ut)]
assert max(found[0]["rises"]) == 0
for name, case in (("DUST, ERM", "dust"), ("UT, ERM", "ut_tied")):
    model, _ = video.trained(settings, {"network": case, "method": "erm"}, SEED)
    found.append(look(name, model.cpu()))

# %% mystnb={"figure": {"name": "fig-descent-energy-and-error", "caption": "Live networks of 8 layers on test patches at the noise level of the training. Left: share of sequences whose energy the layer raises. Right: RMSE of the readout after each layer, in standard deviations of the footage."}, "image": {"alt": "Share of rising energies and RMSE by layer, before and after training"}}
for row in found:
    row["rises"] = [math.nan, *row["rises"]]  # nothing comes before layer 0
columns = {"rises": "share of sequences that rise", "rmse": "RMSE (standard deviations)"}
panels(found, "network", columns)
plt.show()

# %% [markdown]
# In our run:
#
# - *DUST, untrained*, raises no energy of any sequence, as proved. After training some layers raise the energy of some sequences, and the error is far lower than before.
#   The guarantee is gone, and nothing has been lost with it.
# - *UT, untrained*, lowers most energies, and after its first layers the error *rises*. That is {prf:ref}`prop-descent-energy-is-not-loss` on footage: the network goes on
#   smoothing when there is no more to gain.
# - *UT, ERM*, raises the energy of some sequences in its last layers, where its error is nearly flat. It comes to rest: the move vanishes, the
#   error $e$ does not, and the margin of {prf:ref}`prop-descent-ut-regime` is negative.
#
# Both trained networks happen to lower the mean error at every layer here, though ERM does not ask for it. One seed, one short training, one noise level: whether that lasts is a
# question for the chapter on video.
#
# To make the *loss* fall at every layer, ask for it: one inequality per layer, {eq}`eq-descent-problem`. That is what the next chapters do.

# %% [markdown]
# ## What the papers say, and what we saw
#
# | claim | paper | ours | scale | verdict |
# |---|---|---|---|---|
# | fewer layers than ISTA for the same error | {cite:t}`gregor2010lista` | {numref}`fig-descent-lista` | toy, one seed | trend |
# | a layer is a proximal step with attention | {cite:t}`deweerdt2024dust` | {eq}`eq-descent-dust-layer`, with a proof that $F$ cannot rise | every input, before training | derived; after training it does rise for some sequences |
# | two alternating steps descend outside a region around the minimum | {cite:t}`yang2022optimization`, for their energies | {prf:ref}`prop-descent-ut-regime`, for ours | every input | derived; the network for the footage is never inside at layer 1 |
# | layerwise constraints make the error fall at every layer, and lower it at unseen noise | {cite:t}`porras2026descent` | | | not attempted here; the chapter on video has the rows |
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | energy of UT's attention | {eq}`eq-descent-kernel` | the logarithmic {eq}`eq-descent-coupling`, as in DUST | one energy for both networks, with a majoriser whose weights sum to 1 |
# | what LISTA is trained to give | minimisers of {eq}`eq-descent-lasso` | the codes that made the data | they are known here |
# | DUST | with a sensing matrix | without | denoising has none |
# | $\Phi_0$ | not known to us | fixed: $0$ in DUST, the noisy frames in UT | no training can raise $f_0$ |
# | sizes and starting values | not known to us for video | cosine waves | our choice |
# | code | the page of the descent paper names a repository, which we have not read | our own | derived on this page |
#
# ## Exercises
#
# :::{exercise} Predict: four frames that agree
# :label: ex-descent-coupling-floor
# What is {eq}`eq-descent-coupling` for $T = 4$ equal frames and $\beta = 1$?
# :::


# %% tags=["exercise"]
floor = None  # a number
checks.descent_coupling_floor(floor)

# %% [markdown]
# :::{solution} ex-descent-coupling-floor
# :class: dropdown
# Every exponential is 1, every sum 4: $-4 \log 4$.
#
# ```python
# floor = -4 * math.log(4)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: a safe step
# :label: ex-descent-safe-step
# Cover {eq}`eq-descent-safe-step`. From {eq}`eq-descent-coupling-bound`, derive a step with which no layer of DUST raises $F$, in the spectral norms $d$ of $D$ and $v$ of $V$, $\mu$
# and $T$. Why one over the curvature, and not two?
# :::


# %% tags=["exercise"]
def step(d, v, mu, T): ...  # a number


checks.descent_safe_step(step)

# %% [markdown]
# :::{solution} ex-descent-safe-step
# :class: dropdown
# Curvatures add. Gradient descent alone could take nearly twice the step; the proof of ISTA needs the majoriser above the objective, which holds up to one over the curvature. (The inequality of a projection in the proof of {prf:ref}`prop-descent-ut-regime` has a counterpart for every proximal step; with it ISTA, too, may take nearly twice the step.)
#
# ```python
# def step(d, v, mu, T):
#     return 1 / (d**2 + mu * v**2 * (T - 1) * (T + 2) / T)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: codes that are not negative
# :label: ex-descent-positive-threshold
# Add $h \ge 0$ to {eq}`eq-descent-soft-threshold`. What is the minimiser now? Write it for a tensor `x`.
# :::


# %% tags=["exercise"]
def prox(x, kappa): ...  # as x


checks.descent_positive_threshold(prox)

# %% [markdown]
# :::{solution} ex-descent-positive-threshold
# :class: dropdown
# On $h \ge 0$ the norm is a sum; its slope moves the minimum to $x - \kappa$, cut at 0.
#
# ```python
# def prox(x, kappa):
#     return torch.relu(x - kappa)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: attention from distances
# :label: ex-descent-attention
# Write {eq}`eq-descent-attention-weights` at $\beta = 1$.
# :::


# %% tags=["exercise"]
def attention(H, V): ...  # (B, T, T)


checks.descent_attention(attention)

# %% [markdown]
# :::{solution} ex-descent-attention
# :class: dropdown
# The softmax runs over $s$.
#
# ```python
# def attention(H, V):
#     u = H @ V.mT
#     return torch.softmax(-torch.cdist(u, u).square() / 2, -1)
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: the whole pull
# :label: ex-descent-pull
# Write {eq}`eq-descent-coupling-gradient` at $V = I$, given $A$.
# :::


# %% tags=["exercise"]
def pull(A, H): ...  # (T, N)


checks.descent_pull(pull)

# %% [markdown]
# :::{solution} ex-descent-pull
# :class: dropdown
# Common attention keeps only $A$.
#
# ```python
# def pull(A, H):
#     W = A + A.mT
#     return W.sum(-1, keepdim=True) * H - W @ H
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: who rises?
# :label: ex-descent-rises
# Energies before and after each layer are (L, 2, B). Return the share of sequences that rise, (L,). Then call it on `model` with `energies=True`, at a noise level that it was not trained at.
# :::


# %% tags=["exercise"]
def rises(energies): ...  # (L,)


checks.descent_rises(rises)

# %% [markdown]
# :::{solution} ex-descent-rises
# :class: dropdown
# Compare first, average last.
#
# ```python
# def rises(energies):
#     return (energies[:, 1] > energies[:, 0]).float().mean(-1)
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** A gradient layer on the misfit $\frac12 \lVert y - D h \rVert^2$ descends for which steps, and for which steps does the misfit lie below the touching quadratic?
#
# :::{dropdown} Answer
# It descends for $\tau < 2 / \lVert D \rVert^2$. The quadratic with curvature $1 / \tau$ is a majoriser for $\tau \le 1 / \lVert D \rVert^2$. The proof of ISTA uses the second.
# :::
#
# **2.** In one sentence each: what is attention the slope of, and why does its majoriser lie above the energy?
#
# :::{dropdown} Answer
# The weights are the slopes of the coupling energy {eq}`eq-descent-coupling` in the halved squared distances. The energy is concave in these distances, and a concave function lies below its tangent.
# :::
#
# **3.** Every layer of a network lowers its energy, on every input. Somebody concludes that its denoising error falls from layer to layer. What is wrong?
#
# :::{dropdown} Answer
# The energy knows the noisy input, not the clean answer. For every move of the readout there are answers, possible under the noise, for which the loss rises ({prf:ref}`prop-descent-energy-is-not-loss`). Whether it falls on average depends on how well the energy fits the data.
# :::
#
# **4.** You train DUST on the squared error of its last layer. What remains of the guarantee that its objective cannot rise?
#
# :::{dropdown} Answer
# Nothing. The guarantee needs a step that is safe for the matrices at hand, {eq}`eq-descent-safe-step`, and $W_e = D^\top$; training moves the matrices. In our run some layers raise the objective of some sequences, and the error is lower than before.
# :::
#
# **5.** A sequence of UT lies outside the regime $m_E \ge 0$. Does its energy rise at the next layer?
#
# :::{dropdown} Answer
# It may. The condition of {prf:ref}`prop-descent-ut-regime` is sufficient and not necessary: outside, nothing is promised, and in our run many such sequences fall all the same.
# :::

# %% [markdown]
# ## Where this came from
#
# Everything on this page was computed by its own cells.

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
