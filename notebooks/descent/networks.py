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
# Stop an iteration after $L$ steps, call each step a layer, and learn its matrices: that is an unrolled network. Here each
# layer is derived from the objective that it lowers, attention included. Then training moves the matrices, and you look at what is left of the descent.
#
# After this you can
#
# - write gradient descent, ISTA and LISTA as layers, and say which of them descends what;
# - derive attention as the slope of an energy, prove its majoriser, and compute a safe step;
# - derive the layers of DUST and UT, and say when their energies cannot rise;
# - say why a falling energy does not imply a falling error, nor the other way round.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | all cells; footage is a square that moves | seconds |
# | live | LISTA on synthetic codes; UT and DUST on surveillance footage, 100 steps each | not measured on an idle core |

# %% tags=["setup", "hide-input"]
import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

from unrolled import figures, provenance
from unrolled.checks import descent_networks as checks
from unrolled.descent import networks as nets
from unrolled.descent import video

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## Descent by construction
#
# Codes $h_t$ of size $N$ shall explain frames $y_t$ of $P$ pixels with a dictionary $D$, and be sparse:
#
# $$
# \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \theta \lVert h_t \rVert_1 .
# $$ (eq-descent-lasso)
#
# With $\theta = 0$, gradient descent is a linear layer, and descends for $\eta < 2 / \lVert D \rVert^2$:
#
# $$
# h_t^+ = h_t - \eta\, D^\top (D h_t - y_t) .
# $$ (eq-descent-gradient-layer)
#
# For $\eta \le 1 / \lVert D \rVert^2$ the misfit lies below the quadratic that touches it at $h_t$ with curvature $1/\eta$: a *majoriser*. Minimise that
# and the $\ell_1$ norm together. Entry by entry this is the *soft threshold*,
#
# $$
# S_\theta(x) = \operatorname{sign}(x) \max(|x| - \theta, 0) = \arg\min_h \tfrac12 \lVert h - x \rVert^2 + \theta \lVert h \rVert_1 ,
# $$ (eq-descent-soft-threshold)
#
# and the layer is **ISTA**,
#
# $$
# h_t^+ = S_{\eta\theta}\bigl(h_t - \eta\, D^\top (D h_t - y_t)\bigr) .
# $$ (eq-descent-ista)
#
# The objective after the step is at most the majoriser after it, which is at most the majoriser before it, which is the objective before it. So it never rises.

# %%
torch.manual_seed(SEED)
D = torch.nn.functional.normalize(torch.randn(16, 32), dim=0)
h = torch.randn(64, 1, 32) * (torch.rand(64, 1, 32) < 0.1)
y, theta = h @ D.mT, 0.05
eta = 1 / torch.linalg.matrix_norm(D, ord=2).item() ** 2
states = nets.unroll(lambda s: nets.ista_layer(s, y, D, eta, theta), torch.zeros_like(h), 8)
moved = states[1] - eta * (states[1] @ D.mT - y) @ D
assert_close(nets.gradient_layer(states[1], y, D, eta), moved)
mine = moved.sign() * (moved.abs() - eta * theta).clamp_min(0)
assert_close(mine, states[2])
objective = torch.stack([nets.lasso_objective(s, y, D, theta) for s in states])  # (L + 1, B)
assert (objective.diff(dim=0) <= 1e-5).all()

# %% [markdown]
# ## LISTA: learned, and no longer a descent
#
# {cite:t}`gregor2010lista` free the matrices:
#
# $$
# h^+ = S_\theta(W_e\, y + S\, h), \qquad W_e = \eta D^\top,\; S = I - \eta D^\top D \quad\text{at the start.}
# $$ (eq-descent-lista)
#
# *Tied* is one layer $L$ times; *untied* is $L$ layers. We train the codes after the last layer and look at all of them.
#
# **Predict before you run:** only the last layer has a loss. Does the error of the middle layers fall too?


# %%
def codes(count):
    h = torch.randn(count, 1, 32) * (torch.rand(count, 1, 32) < 0.1)
    return h, h @ D.mT


# Error of the codes after each layer, (L + 1,).
def errors(model):
    return [(s - h).square().sum(-1).mean().item() for s in model(y).states]


def lista(steps, tied):
    model = nets.LISTA(D, num_layers=8, threshold=theta, tied=tied)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        code, frames = codes(128)
        (model(frames).states[-1] - code).square().sum(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# %% mystnb={"figure": {"name": "fig-descent-lista", "caption": "Squared error of the codes after each layer on fresh synthetic codes, live: ISTA, and LISTA trained on its last layer."}, "image": {"alt": "Error of the codes by layer for ISTA, tied and untied LISTA", "width": "75%"}}
steps = 10 if PRESET == "smoke" else 600
torch.manual_seed(SEED + 1)
ways = {"ISTA": lista(0, True), "LISTA, tied": lista(steps, True)}
ways["LISTA, untied"] = lista(steps, False)
with torch.no_grad():
    assert_close(ways["ISTA"](y).states[-1], states[-1], rtol=1e-4, atol=1e-5)
    lines = [{"way": name, "error": errors(model)} for name, model in ways.items()]
_, ax = plt.subplots(figsize=(6.4, 3.3))
labels = {"xlabel": "layer $l$", "ylabel": "squared error of the codes"}
figures.curves(ax, lines, "error", x=range(9), by="way", **labels)
plt.show()

# %% [markdown]
# Only the start of LISTA descends {eq}`eq-descent-lasso`. What training keeps of it, nothing guarantees.
#
# ## Attention from an energy
#
# Let $H$ hold the $T$ states of a sequence as rows, seen through a matrix $V$ at inverse temperature $\beta$. Couple them by
#
# $$
# E_V(H) = -\frac1\beta \sum_t \log \sum_s \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-coupling)
#
# Its slopes in the halved squared distances are weights that sum to 1 in a row:
#
# $$
# a_{ts} = \mathrm{softmax}_s\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-attention-weights)
#
# A log-sum-exp is convex, so $E_V$ is concave in the squared distances and lies below its tangent at any $\bar H$, which is quadratic in $H$:
#
# $$
# Q(H \mid \bar H) = E_V(\bar H) + \tfrac12 \sum_{ts} a_{ts}(\bar H)
# \bigl( \lVert V(h_t - h_s)\rVert^2 - \lVert V(\bar h_t - \bar h_s)\rVert^2 \bigr) \ge E_V(H) .
# $$ (eq-descent-majoriser)
#
# They touch at $\bar H$, so their gradients agree there. With $W = A + A^\top$,
#
# $$
# \nabla E_V(H) = \bigl[\operatorname{diag}(W \mathbf 1) - W\bigr] H\, V^\top V .
# $$ (eq-descent-coupling-gradient)
#
# The bracket is a graph Laplacian. Its largest eigenvalue is at most twice the largest degree without self-weights. A row of $A$ holds at most
# $1 - 1/T$ of them; no weight on another frame exceeds $1/2$, so a column holds at most $(T-1)/2$. Hence
#
# $$
# \lambda_{\max} \le \frac{(T-1)(T+2)}{T} .
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
# The form of {cite:t}`yang2022optimization` has no logarithm:
#
# $$
# K_V(H) = -\frac1\beta \sum_{ts} \exp\bigl(-\tfrac{\beta}{2} \lVert V(h_t - h_s)\rVert^2\bigr) .
# $$ (eq-descent-kernel)
#
# Let $\Gamma$ hold the exponentials and the diagonal $\Delta$ their row sums: $A = \Delta^{-1} \Gamma$. The step $H \leftarrow AH$ is a gradient step on the tangent,
# preconditioned by $\Delta$. It descends if $\Delta - \Gamma \preceq 2\Delta$, and $\Delta + \Gamma$ is diagonally dominant. So it never raises $K_V$.

# %%
assert (nets.kernel_energy(A @ H, V) <= nets.kernel_energy(H, V) + 1e-5).all()

# %% [markdown]
# ## DUST
#
# {cite:t}`deweerdt2024dust` unroll sparse recovery of a sequence. Ours has no sensing matrix; $\mu \ge 0$ weighs the coupling:
#
# $$
# F(H) = \sum_t \tfrac12 \lVert y_t - D h_t \rVert^2 + \theta \lVert h_t \rVert_1 + \mu\, E_V(H) .
# $$ (eq-descent-dust-objective)
#
# Add the curvatures of the misfit and of the majoriser of the coupling: with the step
#
# $$
# \eta = \Bigl(\lVert D \rVert^2 + \mu \lVert V \rVert^2\, \frac{(T-1)(T+2)}{T}\Bigr)^{-1}
# $$ (eq-descent-safe-step)
#
# the argument of ISTA holds word for word, and $F$ cannot rise, for the layer
#
# $$
# h^+ = S_{\eta\theta}\bigl(h - \eta\,[\,B(Dh - y) + \mu\, \nabla E_V(H)\,]\bigr), \qquad B = D^\top \text{ at the start,}
# $$ (eq-descent-dust-layer)
#
# and for the network
#
# $$
# H_0 = 0, \qquad H_l = \mathrm{DUSTLayer}_l(H_{l-1}, y), \qquad \Phi_l = D H_l .
# $$ (eq-descent-dust)

# %%
settings = video.EXPERIMENT.presets["smoke" if PRESET == "smoke" else "live"]
torch.manual_seed(SEED)
dust, ut = (video.build_network(settings, name) for name in ("dust", "ut_tied"))
clean, noisy = video.noisy_patches(settings, "test", settings.gamma_train)
clean, noisy = clean[:256], noisy[:256]
with torch.no_grad():
    layer, dictionary = dust.layers[0], dust.dictionary
    h0 = torch.zeros(*noisy.shape[:2], dictionary.shape[1])
    pull = (h0 @ dictionary.mT - noisy) @ dictionary
    pull = pull + layer.coupling * nets.coupling_gradient(h0, layer.projection)
    mine = nets.soft_threshold(h0 - layer.step * pull, layer.step * layer.threshold)
    assert_close(mine, layer(h0, noisy, dictionary))

# %% [markdown]
# ## UT
#
# {cite:t}`yang2022optimization` reach a Transformer layer with two steps on two energies. The first is $E_V$; the second lives on the orthant, with inputs $B$ and a symmetric $W$
# ($\iota$ is infinite where an entry is negative):
#
# $$
# E_2(Y) = \tfrac12 \lVert Y - B \rVert^2 + \tfrac12 \operatorname{tr}(Y W Y^\top) + \iota(Y \ge 0) .
# $$ (eq-descent-orthant)
#
# Majorise $E_V$ and minimise over each $y_t$, the others held: $z_t = \sum_s a_{ts} y_s$. Then a proximal-gradient step of size 1 on $E_2$: the gradient is $Z - B + ZW$,
# and the projection is the ReLU.
#
# $$
# Z = A(Y)\, Y, \qquad Y^+ = \mathrm{ReLU}(B - Z W) .
# $$ (eq-descent-ut-layer)
#
# With an embedding $W_{\text{in}}$, a vector $p$ per frame and a readout $R$,
#
# $$
# B = x W_{\text{in}} + p, \qquad Y_0 = \mathrm{ReLU}(B), \qquad Y_l = \mathrm{UTLayer}_l(Y_{l-1}, B), \qquad \Phi_l = Y_l R .
# $$ (eq-descent-ut)
#
# The first step may raise $E_2$, the second $E_V$. Together they are $Y^+ = \mathrm{ReLU}(Y - G)$, a step on $E = E_V + E_2$ with a gradient that is wrong by $e = \nabla - G$. The majoriser of $E$
# has curvature at most $\Lambda$, and a projection has $\langle G, Y^+ - Y \rangle \le -\lVert Y^+ - Y \rVert^2$. So $E$ cannot rise where
#
# $$
# m = \bigl(1 - \tfrac12 \Lambda\bigr) \lVert Y^+ - Y \rVert - \lVert e \rVert \ge 0 .
# $$ (eq-descent-ut-regime)

# %%
with torch.no_grad():
    layer, B = ut.layers[0], ut.context(noisy)
    Y = torch.relu(B)
    Z = nets.attention_weights(Y, layer.projection) @ Y
    after = torch.relu(B - Z @ layer.symmetric())
    assert_close(after, layer(Y, B))
    safe = nets.descent_margin(layer, Y, after) >= 0
    rise = layer.energy(after, B) - layer.energy(Y, B)
    assert (rise[safe] <= 1e-3).all()
print(f"share of sequences in the regime at layer 1: {safe.float().mean():.2f}")

# %% [markdown]
# ## Before and after training
#
# Now ERM: the squared error of the last layer alone, at one noise level. An untied network has an energy *per layer*, so we compare the energy before and after each layer.
#
# **Predict before you run:** DUST cannot raise its objective before training. After it?


# %%
# Share of sequences whose energy each layer raises, and the RMSE after each layer.
def look(name, model):
    with torch.no_grad():
        output = model(noisy, energies=True)
    before, after = output.energies.unbind(1)  # (L, B)
    rises = (after > before + 1e-5 * before.abs()).float().mean(-1).tolist()
    rmse = [(r - clean).square().mean().sqrt().item() for r in output.readouts]
    return {"network": name, "rises": rises, "rmse": rmse}


found = [look("DUST, untrained", dust), look("UT, untrained", ut)]
assert max(found[0]["rises"]) == 0
for name, case in (("DUST, ERM", "dust"), ("UT, ERM", "ut_tied")):
    model, _ = video.trained(settings, {"network": case, "method": "erm"}, SEED)
    found.append(look(name, model))

# %% mystnb={"figure": {"name": "fig-descent-energy-and-error", "caption": "Live networks. Left: share of test sequences whose energy a layer raises. Right: RMSE after each layer, in units of the standard deviation of the footage."}, "image": {"alt": "Share of rising energies and RMSE by layer, before and after training", "width": "95%"}}
_, axes = plt.subplots(1, 2, figsize=(9, 3.5))
L = len(found[0]["rises"])
for ax, y_name, x, label in (
    (axes[0], "rises", range(1, L + 1), "share of sequences"),
    (axes[1], "rmse", range(L + 1), "RMSE (standard deviations)"),
):
    rows = [{k: row[k] for k in ("network", y_name)} for row in found]
    figures.curves(ax, rows, y_name, x=x, by="network", xlabel="layer $l$", ylabel=label)
plt.show()

# %% [markdown]
# Energy is not loss. The energy knows the noisy frames alone; the loss knows the clean ones. A layer may lower $F$ by fitting noise, and may lower the error by leaving the valley of $F$. To
# make the *loss* fall, ask for it: one inequality per layer, {eq}`eq-descent-problem`.
#
# Deviations, all our choices: no sensing matrix in DUST; the logarithmic energy in UT; sizes, starting values and the fixed $\Phi_0$.
# The papers' code was not used.
#
# ## Exercises
#
# :::{exercise} Predict: four frames that agree
# :label: ex-descent-coupling-floor
# What is {eq}`eq-descent-coupling` for $T = 4$ equal frames and $\beta = 1$?
# :::


# %% tags=["exercise"]
floor = None


checks.descent_coupling_floor(floor)

# %% [markdown]
# :::{solution} ex-descent-coupling-floor
# :class: dropdown
# Every exponential is 1: $-4 \log 4$.
# :::

# %% [markdown]
# :::{exercise} Derive: a safe step
# :label: ex-descent-safe-step
# Write {eq}`eq-descent-safe-step` in the spectral norms of $D$ and $V$, $\mu$ and $T$.
# :::


# %% tags=["exercise"]
def step(d, v, mu, T): ...


checks.descent_safe_step(step)

# %% [markdown]
# :::{solution} ex-descent-safe-step
# :class: dropdown
# Curvatures add.
#
# ```python
# def step(d, v, mu, T):
#     return 1 / (d**2 + mu * v**2 * (T - 1) * (T + 2) / T)
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: codes that are not negative
# :label: ex-descent-positive-threshold
# Add $h \ge 0$ to {eq}`eq-descent-soft-threshold`. What is the minimiser now?
# :::


# %% tags=["exercise"]
def prox(x, theta): ...


checks.descent_positive_threshold(prox)

# %% [markdown]
# :::{solution} ex-descent-positive-threshold
# :class: dropdown
# On $h \ge 0$ the norm is a sum; its slope moves the minimum to $x - \theta$, cut at 0.
#
# ```python
# def prox(x, theta):
#     return torch.relu(x - theta)
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
# Energies before and after each layer are (L, 2, B). Return the share of sequences that rise, (L,). Then call it on a network with `energies=True` at another noise level.
# :::


# %% tags=["exercise"]
def rises(energies): ...


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
# ## Where this came from
#
# Everything on this page was computed by its own cells.

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
