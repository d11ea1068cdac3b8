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
# (horst-operators)=
# # Operators
#
# An optimizer turns a gradient into a step. Two families of such steps have been known for decades: *steepest descent*, of which the sign of the gradient and
# nearly Adam are members, and *mirror descent*, which moves large weights faster. {cite:t}`jacobs2026horst` treat both as operators and compose them.
# The order matters: in one order the mirror vanishes without a trace. The other is their optimizer, HORST. This chapter derives all parts, composes
# them both ways, and ends at an optimizer that you can put in the place of AdamW.
#
# After this you can
#
# - derive the steepest direction of any norm $L_p$, and say what Adam has to do with $L_\infty$;
# - derive a mirror step from its potential, and read off its metric;
# - show in one line why a mirror in front of a sign does nothing, and say which norms keep how much of it;
# - draw the path of both orders, and predict where it ends;
# - write HORST in two lines, prove when it is AdamW, and say what its second decay does;
# - tell from $\alpha$ and the learning rate when the exponent explodes.
#
# | preset | what runs | time |
# |---|---|---|
# | smoke | two weights, coarse steps | seconds |
# | live | the same, fine steps | well under a minute on one core |
# | laptop, colab | the same as live | as live |
#
# Everything here is computed while you read, with two weights or a handful. There is no network, no data set and no committed row: what the optimizer does to
# networks is measured in later chapters.

# %% tags=["setup", "hide-input"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn
from torch.testing import assert_close

from unrolled import checks, figures, provenance
from unrolled.horst import Ham, Horst
from unrolled.horst import operators as op

figures.use_style()

# %% tags=["parameters"]
PRESET = "live"
SEED = 0

# %% [markdown]
# ## The claim, and one figure
#
# 1. Sign descent $S$ moves all weights at one speed. A mirror $M$ multiplies each weight's step by a number that grows with the weight.
# 2. $S \circ M$, the mirror first, is sign descent: not nearly, but exactly.
# 3. $M \circ S$, the mirror on top of the sign, keeps the bounded step and the geometry of the mirror. That is HORST, with Adam in the place of the sign.
#
# **The problem.** One equation for two weights, $2 \theta_1 + \theta_2 = 2$, with the loss
#
# $$
# f(\theta) = \tfrac12 (2 \theta_1 + \theta_2 - 2)^2 .
# $$ (eq-horst-line)
#
# Every point of a line is a solution. Three of them have a name: the smallest in the norm $L_1$ is $(1, 0)$, the sparse one; in $L_2$ it is $(0.8, 0.4)$; in $L_\infty$ it is
# $(\frac23, \frac23)$, where both weights are equal. Which one you get is decided by the optimizer alone.


# %%
def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


slope, RATE = vector(2, 1), {"smoke": 0.02}.get(PRESET, 0.0002)


def gradient_at(theta):
    return (slope @ theta - 2) * slope


# Follow an operator until the line of solutions is crossed: points (steps + 1, 2).
def path(operator, start):
    step, points = op.compose(op.scale(RATE), operator), [vector(*start)]
    while slope @ points[-1] < 2:
        points.append(op.descend(step, points[-1], gradient_at(points[-1]))[0])
    return torch.stack(points)


# %%
SMALLEST = {"$L_1$": (1, 0, "o"), "$L_2$": (0.8, 0.4, "s"), "$L_\\infty$": (2 / 3, 2 / 3, "D")}


# The line of solutions, and the three that have a name.
def plane(ax, title):
    ax.plot([-0.05, 1.05], [2.1, -0.1], color="0.6", linewidth=1, label="solutions")
    for name, (x, y, marker) in SMALLEST.items():
        ax.plot(x, y, marker, color="black", label=f"smallest in {name}", zorder=4)
    labels = {"xlabel": r"$\theta_1$", "ylabel": r"$\theta_2$", "title": title}
    ax.set(**labels, aspect="equal", xlim=(-0.25, 1.15), ylim=(-0.15, 2.1))


# %% [markdown]
# **Predict before you run:** five starts near zero; each path is sign descent and a mirror, in one order or in the other. On which side are the paths parallel?

# %% mystnb={"figure": {"name": "fig-horst-orders", "caption": "Live paths from five starts, with S the sign and M the metric $1 + 20 \\lvert \\theta \\rvert$. Left: the mirror first, then the sign. Right: the sign first, then the mirror. Circles without filling: starts."}, "image": {"alt": "Left: parallel straight lines along the diagonal. Right: lines that fan out, towards the axis of the weight that was larger at the start", "width": "95%"}}
M, S = op.metric(20.0), op.sign()
orders = {r"$S \circ M$": op.compose(S, M), r"$M \circ S$": op.compose(M, S)}
starts = (0.3, 0.0), (0.1, 0.0), (0.02, 0.02), (0.0, 0.1), (-0.2, 0.1)
figure, axes = plt.subplots(1, 2, figsize=(8.6, 4.2))
for ax, (title, operator) in zip(axes, orders.items(), strict=True):
    plane(ax, title)
    for start in starts:
        (line,) = ax.plot(*path(operator, start).T)
        ax.plot(*start, "o", color=line.get_color(), markerfacecolor="none")
axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
plt.show()

# %% [markdown]
# On the left the mirror has left no trace: all paths are parallel to the diagonal. On the right they fan out: a weight that is ahead runs away from the other, and
# the solution has one large weight. Two honest remarks. The path that starts at $(0.3, 0)$ ends close to the sparse solution; those that start with $\theta_2$ ahead
# run towards the *other* axis, where the norm $L_1$ is larger than at the $L_\infty$ solution. Concentrated is not yet smallest. And from two equal weights both orders
# take the same path. We come back to both.
#
# ## Steps as operators
#
# An *operator* $O$ maps a direction $u$, at the parameter $\theta$, to another direction. A step subtracts the result, and operators chain:
#
# $$
# \theta \leftarrow \theta - (O_2 \circ O_1)_\theta(u), \qquad (O_2 \circ O_1)_\theta(u) = O_{2,\theta}\bigl(O_{1,\theta}(u)\bigr), \qquad u = \nabla f(\theta) .
# $$ (eq-horst-composition)
#
# $O_1$ acts first, and both see the same $\theta$. The learning rate is an operator too, $\eta u$, and so is decoupled weight decay, $u + \lambda \theta$. What an operator remembers (Adam remembers two moments) is
# its *state*, which goes in and comes out. For paths we composed with the rate last; where an operator is not linear in $u$, it matters where the rate stands.


# %%
def after(outer, inner):
    def composed(theta, u, state=(None, None)):
        u, inner_state = inner(theta, u, state[1])
        u, outer_state = outer(theta, u, state[0])
        return u, (outer_state, inner_state)

    return composed


random = torch.Generator().manual_seed(SEED)
theta, g = torch.randn(2, 7, generator=random).double()
assert_close(after(M, S)(theta, g)[0], op.compose(M, S)(theta, g, None)[0])

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.compose`, {py:func}`unrolled.horst.operators.descend`.
#
# ## Steepest descent
#
# The linear model of a loss has no minimum, so one must say how far to go. *Steepest descent* fixes a norm and asks for the best direction $d$ of length one. Let
# $\lVert u \rVert_p = (\sum_i \lvert u_i \rvert^p)^{1/p}$, with $\lVert u \rVert_\infty = \max_i \lvert u_i \rvert$, and let $q$ be the *dual* exponent, $\frac1p + \frac1q = 1$.
#
# :::{prf:proposition} The steepest direction
# :label: prop-horst-steepest
# For $1 < p < \infty$ and $u \ne 0$,
#
# $$
# S_p(u) = \arg\max_{\lVert d \rVert_p \le 1} \langle u, d \rangle, \qquad S_p(u)_i = \mathrm{sign}(u_i) \Bigl( \frac{\lvert u_i \rvert}{\lVert u \rVert_q} \Bigr)^{q-1} ,
# $$ (eq-horst-steepest)
#
# and the maximum is $\lVert u \rVert_q$. For $p = \infty$, where $q = 1$, a maximiser is $\mathrm{sign}(u)$; for $p = 1$ it is the signed unit vector of a largest $\lvert u_i \rvert$.
# :::
#
# :::{prf:proof}
# Hölder's inequality says $\langle u, d \rangle \le \lVert u \rVert_q \lVert d \rVert_p \le \lVert u \rVert_q$. The direction above attains it. Its length is one, since $(q - 1)\, p = q$:
# $\sum_i \lvert d_i \rvert^p = \sum_i \lvert u_i \rvert^q / \lVert u \rVert_q^q = 1$. Its product with $u$ is $\sum_i \lvert u_i \rvert^q / \lVert u \rVert_q^{q-1} = \lVert u \rVert_q$. It is the only one, because the ball of $1 < p < \infty$ is
# strictly convex. For $p = \infty$, $\langle u, \mathrm{sign}(u) \rangle = \lVert u \rVert_1$; for $p = 1$ the product of $u$ and the unit vector is $\lVert u \rVert_\infty$. $\square$
# :::
#
# $p = 2$ is the normalised gradient, $p = \infty$ is *sign descent*, and $p = 1$ is *coordinate descent*: it moves one weight. Two properties hold for all: $S_p(cu) = S_p(u)$ for every $c > 0$, so the size of the
# gradient is not seen; and the step is *bounded*, $\lVert \eta S_p(u) \rVert_p \le \eta$. {cite:t}`bernstein2024norm` read Adam, Shampoo and Prodigy in this way: without their moving averages, each is steepest descent in some norm. For Shampoo it is the spectral norm; Adam and Prodigy both become sign descent.

# %%
p, size = 4.0, g.abs()
q = p / (p - 1)
mine = g.sign() * (size / (size**q).sum() ** (1 / q)) ** (q - 1)
assert_close(mine, op.steepest(p)(theta, g, None)[0])
assert_close(g @ mine, torch.linalg.vector_norm(g, q))

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.steepest`, {py:func}`unrolled.horst.operators.sign`.
#
# **Predict before you run:** the descent direction is $-\nabla f$, which points along $(2, 1)$. Where does each unit ball touch the furthest line across it?

# %% mystnb={"figure": {"name": "fig-horst-balls", "caption": "Unit balls of three norms. Arrow: the direction of descent, along (2, 1). Dashed: the furthest line across it that touches the ball, with the steepest direction where it touches."}, "image": {"alt": "A diamond touched at its right corner, a circle touched along the arrow, a square touched at its upper right corner", "width": "95%"}}
turn = torch.linspace(0, 2 * math.pi, 401).double()
circle, across = torch.stack((turn.cos(), turn.sin())), vector(-0.5, 1)
_, axes = plt.subplots(1, 3, figsize=(8.8, 3.2), sharey=True)
for ax, p, name in zip(axes, (1, 2, math.inf), SMALLEST, strict=True):
    best = op.steepest(p)(slope, slope, None)[0]
    ax.plot(*(circle / torch.linalg.vector_norm(circle, p, dim=0)))
    ax.plot(*torch.stack((best - across, best + across)).T, "--", color="0.4")
    ax.annotate("", slope / 3, (0, 0), arrowprops={"arrowstyle": "->", "color": "black"})
    ax.plot(*best, "o", color="black")
    ax.set(title=name, xlim=(-1.3, 1.8), ylim=(-1.3, 1.8), aspect="equal", xlabel="$d_1$")
axes[0].set_ylabel("$d_2$")
plt.show()

# %% [markdown]
# From zero, with this loss, each of the three runs straight along its direction and ends at the smallest solution of its own norm. That coordinate descent would give the sparse one
# is of little use: it moves one of a billion weights at a time.
#
# ### Adam
#
# Adam {cite:p}`kingma2015adam` divides a mean of gradients by the root of a mean of their squares. With the *moments* $m$ and $v$, zero at the start, after $t$ steps
#
# $$
# m \leftarrow \beta_1 m + (1 - \beta_1)\, u, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, u^2, \qquad A(u) = \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} .
# $$ (eq-horst-adam)
#
# Without memory and without $\epsilon$ this is $u / \sqrt{u^2}$, the sign. With memory it is a sign that hesitates: near $\pm 1$ while the gradient is steady, near 0 while it alternates. Is it bounded?
#
# :::{prf:proposition} Adam's step is bounded
# :label: prop-horst-adam-bound
# Let $r = \beta_1^2 / \beta_2 < 1$. For any gradients, in each coordinate
#
# $$
# \lvert A \rvert \le \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \cdot \frac{1 - \beta_1}{\sqrt{1 - \beta_2}} \cdot \sqrt{\frac{1 - r^t}{1 - r}} .
# $$ (eq-horst-adam-bound)
#
# At the first step this is 1. For $\epsilon = 0$ no smaller bound holds.
# :::
#
# :::{prf:proof}
# Written out, $m = (1 - \beta_1) \sum_s \beta_1^{t-s} u_s$ and $v = (1 - \beta_2) \sum_s \beta_2^{t-s} u_s^2$. By the Cauchy-Schwarz inequality
# $\bigl( \sum_s \beta_1^{t-s} u_s \bigr)^2 = \bigl( \sum_s (\beta_1^2 / \beta_2)^{(t-s)/2} \cdot \beta_2^{(t-s)/2} u_s \bigr)^2 \le \sum_s r^{t-s} \cdot \sum_s \beta_2^{t-s} u_s^2$. So
# $m^2 \le (1 - \beta_1)^2 \frac{1 - r^t}{1 - r} \cdot \frac{v}{1 - \beta_2}$; take the root and add the corrections. Equality holds for $u_s$ in proportion to $(\beta_1 / \beta_2)^{t-s}$: gradients that grow steadily. $\square$
# :::

# %%
b1, b2, T = 0.9, 0.999, 3000
r, state, memory = b1**2 / b2, None, (1 - b1) / math.sqrt(1 - b2)
for t in range(T):
    growing = (b2 / b1) ** (t - T)
    u = vector(1, (-1.0) ** t, growing, 1e6)
    direction, state = op.adam((b1, b2), eps=0.0)(u, u, state)
bound = math.sqrt(1 - b2**T) / (1 - b1**T) * memory * math.sqrt((1 - r**T) / (1 - r))
assert_close(direction[2].item(), bound, rtol=1e-6, atol=0)
names = "steady", "alternating", "growing by 11 % a step", "steady, a million times larger"
pd.Series(direction.numpy().round(3), names, name=f"A after {T} steps")

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.adam`. So "bounded" is a theorem, with a number: about 7 for the usual $\beta_1$ and $\beta_2$, and 1 where gradients are steady. It holds because $\beta_1^2 < \beta_2$.
#
# ## Mirror descent
#
# *Mirror descent* {cite:p}`nemirovski1983` does not fix a ball. It adds a distance to the linear model, and the distance may depend on where you stand. Take a smooth and strictly convex *potential* $\phi$,
# and measure how far $x$ is from $\theta$ by the *Bregman distance* $\mathcal{B}_\phi$, the gap between $\phi$ and its tangent:
#
# $$
# \theta' = \arg\min_x\, \langle u, x \rangle + \mathcal{B}_\phi(x, \theta), \qquad \mathcal{B}_\phi(x, \theta) = \phi(x) - \phi(\theta) - \langle \nabla \phi(\theta), x - \theta \rangle .
# $$ (eq-horst-bregman)
#
# The learning rate is in $u$ already. Set the gradient in $x$ to zero: $u + \nabla \phi(x) - \nabla \phi(\theta) = 0$. So
#
# $$
# \nabla \phi(\theta') = \nabla \phi(\theta) - u :
# $$ (eq-horst-mirrored)
#
# the *mirror map* $\nabla \phi$ carries the weights to another space, and plain gradient descent is done there. $\phi = \frac12 \lVert \theta \rVert^2$ gives gradient descent itself. For a potential that is a sum over weights the step is, to first
# order, $u$ divided by the curvature of $\phi$; the factor $1 / \phi''(\theta_i)$ is what we call the **metric** of the mirror.
#
# ### The hyperbolic entropy
#
# {cite:t}`ghai2020hypentropy` proposed a potential between two worlds. With $b > 0$,
#
# $$
# \phi(\theta) = \sum_i \theta_i \operatorname{arsinh}(\theta_i / b) - \sqrt{\theta_i^2 + b^2}, \qquad \nabla \phi(\theta) = \operatorname{arsinh}(\theta / b), \qquad \phi''(\theta_i) = \frac{1}{\sqrt{\theta_i^2 + b^2}} .
# $$ (eq-horst-hyperbolic-entropy)
#
# (The derivative of $\theta \operatorname{arsinh}(\theta / b)$ has a second term, $\theta / \sqrt{\theta^2 + b^2}$, and that of the root cancels it.) Put the map into {eq}`eq-horst-mirrored`:
#
# $$
# \theta' = b \sinh\bigl( \operatorname{arsinh}(\theta / b) - u \bigr) = \theta \cosh u - \sqrt{\theta^2 + b^2}\, \sinh u, \qquad M_\theta(u) = \theta - \theta' \approx \sqrt{\theta^2 + b^2}\; u .
# $$ (eq-horst-mirror-step)
#
# :::{prf:proposition} Between two norms
# :label: prop-horst-limits
# In each coordinate, $b\, (\phi(\theta) + b) \to \frac12 \theta^2$ as $b \to \infty$, and $\phi(\theta) / \ln \frac1b \to \lvert \theta \rvert$ as $b \to 0$.
# :::
#
# :::{prf:proof}
# Let $x = \theta / b$. Then $\phi = b\, (x \operatorname{arsinh} x - \sqrt{1 + x^2}) = b\, (-1 + \frac12 x^2 + O(x^4))$, which gives the first limit. For the second, $\operatorname{arsinh} x = \mathrm{sign}(x) \ln(\lvert x \rvert + \sqrt{x^2 + 1})$, so
# $\phi = \lvert \theta \rvert \ln \frac1b + \lvert \theta \rvert \ln(\lvert \theta \rvert + \sqrt{\theta^2 + b^2}) - \sqrt{\theta^2 + b^2}$. All but the first term stays finite. $\square$
# :::
#
# Up to constants the potential is the square of the $L_2$ norm for large $b$ and the $L_1$ norm for small $b$. That is where sparsity comes in: mirror descent prefers solutions of small potential; the next chapter proves in which sense.

# %%
b, u = 0.05, 0.3 * g
moved = b * torch.sinh(torch.asinh(theta / b) - u)
assert_close(theta - moved, op.hyperbolic(b)(theta, u, None)[0])
x = moved.clone().requires_grad_()
potential = (x * torch.asinh(x / b) - (x**2 + b**2).sqrt()).sum()
objective = u @ x + potential - op.mirror_map(theta, b) @ x
assert torch.autograd.grad(objective, x)[0].abs().max() < 1e-12  # a minimum: it is convex

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.mirror_map`, {py:func}`unrolled.horst.operators.hyperbolic`.
#
# ### Two properties that make a mirror
#
# To first order a mirror is linear in $u$, and without a bound: twice the gradient is twice the step, and a large weight with a large gradient takes a very large one. That is what steepest descent protects from. HORST's mirror has, for small steps, the metric
#
# $$
# M_\theta(u) = (1 + \alpha \lvert \theta \rvert)\, u .
# $$ (eq-horst-metric)
#
# It is the hyperbolic entropy but for a factor near 1. Take $b = 1 / \alpha$ and scale the step by $\alpha$: the metric becomes $\alpha \sqrt{\theta^2 + 1/\alpha^2} = \sqrt{1 + \alpha^2 \theta^2}$, and for every $x \ge 0$
#
# $$
# \sqrt{1 + x^2} \le 1 + x \le \sqrt2\, \sqrt{1 + x^2} .
# $$ (eq-horst-sandwich)
#
# (Square: $1 + x^2 \le 1 + 2x + x^2 \le 2 + 2 x^2$, the last since $(1 - x)^2 \ge 0$.) So $1 / \alpha$ is a size: weights below it feel gradient descent, weights far above it a step in proportion to themselves.

# %% mystnb={"figure": {"name": "fig-horst-metric", "caption": "Left: the potential of the hyperbolic entropy over one weight, moved to 0 at 0 and scaled to 1 at 1; dotted and dashed are the two limits. Right: metrics with $\\alpha = 20$, and that of gradient descent."}, "image": {"alt": "Left: potentials between a parabola and an absolute value. Right: a hyperbola and a kinked line that are close, far above a constant 1 away from zero", "width": "95%"}}
w, alpha = torch.linspace(-1, 1, 401).double(), 20.0
_, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.4))
for b in (10, 0.1, 1e-4):
    phi = w * torch.asinh(w / b) - (w**2 + b**2).sqrt()
    left.plot(w, (phi - phi[200]) / (phi[-1] - phi[200]), label=f"$b$ = {b:g}")
left.plot(w, w**2, ":", color="black", label=r"$\theta^2$")
left.plot(w, w.abs(), "--", color="black", label=r"$\vert\theta\vert$")
left.set(xlabel=r"$\theta$", ylabel=r"potential $\phi$, scaled")
right.plot(w, 1 + alpha * w.abs(), label=r"$1 + \alpha\vert\theta\vert$")
right.plot(w, (1 + alpha**2 * w**2).sqrt(), "--", label=r"$\sqrt{1 + \alpha^2\theta^2}$")
right.plot(w, torch.ones_like(w), ":", label="gradient descent")
right.set(xlabel=r"$\theta$", ylabel="metric")
left.legend(fontsize=9), right.legend(fontsize=9)
plt.show()

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.metric`. Look at the left side: even for $b = 10^{-4}$ the potential is not yet the absolute value, because $\ln \frac1b$ grows so slowly. "$L_1$ bias" is a limit.
#
# ### The exponential form
#
# For $b \to 0$ the step {eq}`eq-horst-mirror-step` becomes a multiplication: $\theta \cosh u - \lvert \theta \rvert \sinh u = \theta\, e^{-\mathrm{sign}(\theta)\, u}$. Multiplication alone can never leave zero. HORST puts an addition in front of it:
#
# $$
# \theta_{1/2} = \theta - u, \qquad \theta' = \theta_{1/2} \exp\bigl(-\alpha\, \mathrm{sign}(\theta_{1/2})\, u - \beta\bigr), \qquad M_\theta(u) = \theta - \theta' \approx (1 + \alpha \lvert \theta \rvert)\, u + \beta \theta .
# $$ (eq-horst-exponential)
#
# :::{prf:proposition} The exponential is the metric, to first order
# :label: prop-horst-first-order
# Let $c = \alpha \lvert u \rvert + \beta$, below the clamp. Then in each coordinate
#
# $$
# \bigl\lvert M_\theta(u) - (1 + \alpha \lvert \theta \rvert)\, u - \beta \theta \bigr\rvert \le \lvert u \rvert\, c + \tfrac12 (\lvert \theta \rvert + \lvert u \rvert)\, c^2 e^{c} .
# $$ (eq-horst-first-order)
# :::
#
# :::{prf:proof}
# Let $h = \theta - u$ and $x = -\alpha\, \mathrm{sign}(h)\, u - \beta$, so that $\lvert x \rvert \le c$. Then $M_\theta(u) = \theta - h e^x = u - h x - h\, (e^x - 1 - x)$, and $-h x = \alpha \lvert h \rvert u + \beta h$. Replace $h$ by $\theta$ there: this costs at most
# $\alpha \lvert u \rvert \lvert u \rvert + \beta \lvert u \rvert = \lvert u \rvert\, c$, because $\lvert h \rvert$ and $\lvert \theta \rvert$ differ by at most $\lvert u \rvert$. And $\lvert e^x - 1 - x \rvert \le \frac12 x^2 e^{\lvert x \rvert}$, by Taylor's theorem. $\square$
# :::
#
# The weight may pass through zero in this step; the bound holds all the same. All terms on the right are of second order in $(u, \beta)$. So halving both should divide the distance by four.

# %%
alpha, ratios = 20.0, []
for shrink in (1.0, 0.5, 0.25):
    u, beta = 0.01 * shrink * g, 0.02 * shrink
    half = theta - u
    mine = theta - half * (-alpha * half.sign() * u - beta).exp()
    assert_close(mine, op.exponential(alpha, beta)(theta, u, None)[0])
    c, error = alpha * u.abs() + beta, mine - (1 + alpha * theta.abs()) * u - beta * theta
    assert (error.abs() <= u.abs() * c + (theta.abs() + u.abs()) * c**2 * c.exp() / 2).all()
    ratios.append(error.abs().max().item())
print("largest distance from the metric:", " ".join(f"{r:.4f}" for r in ratios))

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.exponential`, which also clamps the exponent (below).
#
# ## The two do not commute
#
# The difference of the two orders is their *commutator*,
#
# $$
# [S, M]_\theta(u) = (S \circ M)_\theta(u) - (M \circ S)_\theta(u) .
# $$ (eq-horst-commutator)
#
# For the sign and any mirror with a positive diagonal metric $D$ (a linear one, or $M_\theta(u)_i$ of the sign of $u_i$) it takes one line:
#
# $$
# \mathrm{sign}(D g) = \mathrm{sign}(g), \qquad\text{so}\qquad S \circ M = S, \qquad [S, M]_\theta(g) = \mathrm{sign}(g) - D\, \mathrm{sign}(g) = -\alpha \lvert \theta \rvert\, \mathrm{sign}(g) ,
# $$ (eq-horst-cancel)
#
# the last for $D = 1 + \alpha \lvert \theta \rvert$. A positive factor cannot change a sign. The hyperbolic step is included, whatever its size: $\sinh$ and $\operatorname{arsinh}$ increase, so $\theta - \theta'$ has the sign of $u$. So is the exponential one with $\beta = 0$: there
# $\theta - \theta' = u + h\, (1 - e^{-\alpha\, \mathrm{sign}(h)\, u})$ with $h = \theta_{1/2}$, and both terms have the sign of $u$.

# %%
for mirror in (op.metric(20.0), op.hyperbolic(0.05), op.exponential(20.0)):
    assert torch.equal(op.compose(S, mirror)(theta, g, None)[0], g.sign())
assert_close(op.commutator(S, M, theta, g), -20 * theta.abs() * g.sign())
assert_close(op.commutator(op.scale(0.1), M, theta, g), torch.zeros_like(g))  # linear ones commute

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.commutator`. How much of the mirror do the other norms keep?
#
# :::{prf:proposition} What a norm keeps of a mirror
# :label: prop-horst-orders
# Let $1 < p < \infty$ and $D$ a positive diagonal metric. Up to a positive factor that is common to all coordinates,
#
# $$
# \lvert S_p(D g)_i \rvert \propto D_i^{1/(p-1)}\, \lvert g_i \rvert^{1/(p-1)}, \qquad \lvert D_i\, S_p(g)_i \rvert \propto D_i\, \lvert g_i \rvert^{1/(p-1)} .
# $$ (eq-horst-orders)
# :::
#
# :::{prf:proof}
# By {eq}`eq-horst-steepest` $\lvert S_p(u)_i \rvert \propto \lvert u_i \rvert^{q-1}$, and $q - 1 = 1 / (p - 1)$. Put $u = D g$, and $u = g$. $\square$
# :::
#
# At $p = 2$ both orders have one direction; they differ in length alone. At $p = 4$ the order $S \circ M$ keeps the third root of the metric, and in the limit $p \to \infty$ nothing. The order $M \circ S$ keeps all of it, at every $p$.
# What it loses, as $p$ grows, is the gradient: $\lvert g_i \rvert^{1/(p-1)}$ tends to 1. So at $p = \infty$ each order has lost one of the two.
#
# With Adam in the place of the sign nothing is exact, but for a constant $D$ and $\epsilon = 0$ the moments of $D g$ are $D m$ and $D^2 v$, and $D$ cancels again. A metric that moves with the weights is nearly constant over Adam's memory.
#
# **Predict before you run:** from a small start with equal weights, $(0.01, 0.01)$: which norm and order come near the sparse solution?

# %% mystnb={"figure": {"name": "fig-horst-norms", "caption": "Live paths from (0.01, 0.01) with the metric $1 + 100 \\lvert \\theta \\rvert$ and steepest descent in three norms. Left: the mirror first. Right: the mirror last."}, "image": {"alt": "On both sides the path of p = 2 runs along the horizontal axis. The path of p = 4 ends further from the diagonal on the right than on the left. The path of p = infinity is the diagonal on both sides", "width": "95%"}}
figure, axes = plt.subplots(1, 2, figsize=(8.6, 4.2))
for ax, title in zip(axes, orders, strict=True):
    plane(ax, title)
    for p, name in ((2, "2"), (4, "4"), (math.inf, r"\infty")):
        pair = (op.metric(100.0), op.steepest(p))
        operator = op.compose(*(pair if title.startswith("$M") else pair[::-1]))
        ax.plot(*path(operator, (0.01, 0.01)).T, label=f"$p = {name}$")
axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
plt.show()

# %% [markdown]
# At $p = 2$ the order does not change the path. At $p = 4$ it does: the mirror last takes the path further towards the axis, yet by far not to it. And at $p = \infty$ equal weights stay equal in both orders: with one equation and equal signs, nothing tells the weights apart.
#
# ## The view of continuous time
#
# Let the steps become small: $\dot\theta = -D_\theta\, S(\nabla f(\theta))$ with $D_\theta = 1 + \alpha \lvert \theta \rvert$. The map whose derivative is $1 / D_\theta$ is $z = \mathrm{sign}(\theta) \ln(1 + \alpha \lvert \theta \rvert) / \alpha$. By the chain rule $\dot z = \dot\theta / D_\theta$, so
#
# $$
# M \circ S: \quad \dot z = -S\bigl(\nabla f(\theta)\bigr), \quad z = \frac{\mathrm{sign}(\theta)}{\alpha} \ln(1 + \alpha \lvert \theta \rvert) ; \qquad\qquad S \circ M: \quad \dot \theta = -S\bigl(D_\theta \nabla f(\theta)\bigr) .
# $$ (eq-horst-flow)
#
# $M \circ S$ is steepest descent *in mirror coordinates*, driven by the gradient in $\theta$. With the sign, all $z_i$ move at the same speed. While the signs of the gradient stay as they are, and all are equal,
#
# $$
# M \circ S: \quad z_1 - z_2 = \text{const}, \qquad\qquad S \circ M: \quad \theta_1 - \theta_2 = \text{const} .
# $$ (eq-horst-conserved)
#
# For positive weights the first says that $(1 + \alpha \theta_1) / (1 + \alpha \theta_2)$ is constant. Far above $1 / \alpha$ that is the *ratio* of the weights: who is ahead by a factor stays ahead by that factor. Under the sign alone, who is ahead by a difference stays ahead by that difference, and after a long way
# all are nearly equal. Now you can read {numref}`fig-horst-orders`: the start decides who is ahead, and the loss has no say in it until a sign changes.


# %% mystnb={"figure": {"name": "fig-horst-mirror-plane", "caption": "The paths of the first figure in mirror coordinates z, for the same $\\alpha = 20$. Grey: the line of solutions, which is curved here."}, "image": {"alt": "In mirror coordinates the paths of S after M are curved and those of M after S are straight along the diagonal", "width": "95%"}}
def mirrored(theta, alpha=20.0):
    return theta.sign() * torch.log1p(alpha * theta.abs()) / alpha


solutions = torch.linspace(-0.05, 1, 300).double()
_, axes = plt.subplots(1, 2, figsize=(8.6, 3.8), sharey=True)
for ax, (title, operator) in zip(axes, orders.items(), strict=True):
    ax.plot(mirrored(solutions), mirrored(2 - 2 * solutions), color="0.6", linewidth=1)
    for start in starts:
        (line,) = ax.plot(*mirrored(path(operator, start)).T)
        ax.plot(*mirrored(vector(*start)), "o", c=line.get_color(), markerfacecolor="none")
    ax.set(title=title, xlabel="$z_1$", aspect="equal", xlim=(-0.09, 0.17), ylim=(-0.02, 0.2))
axes[0].set_ylabel("$z_2$")
plt.show()

# %%
M_after_S, S_after_M = (path(orders[name], (0.3, 0.0)) for name in (r"$M \circ S$", r"$S \circ M$"))
gaps = mirrored(M_after_S) @ vector(1, -1) / mirrored(vector(0.3))
print(f"z_1 - z_2, as a share of its start: from {gaps.min():.3f} to {gaps.max():.3f}")
assert_close(S_after_M[:, 0] - S_after_M[:, 1], vector(0.3).expand(len(S_after_M)))
table = {"mirror last": M_after_S[-1], "mirror first": S_after_M[-1]}
pd.DataFrame({k: v.numpy().round(3) for k, v in table.items()}, ["theta_1", "theta_2"])

# %% [markdown]
# The second use of these coordinates: how near to the sparse solution does the mirror come from a start at *zero*, where nobody is ahead? There $S_p$ moves $z$ along a ray. In our problem the gradients are as 2 to 1, so $z_1 = c\, z_2$ with $c = 2^{1/(p-1)}$, which is
# $1 + \alpha \theta_1 = (1 + \alpha \theta_2)^c$. Near the sparse solution $\theta_1 \approx 1$, so for large $\alpha$
#
# $$
# \theta_2 \approx \alpha^{-(1 - 1/c)}, \qquad c = 2^{1/(p-1)} .
# $$ (eq-horst-slow)
#
# For every finite $p$ it tends to 0: the $L_1$ bias. But how fast?

# %%
norms, ends = (2, 3, 4, 8), {}
for p in norms:
    c, alpha, z = 2 ** (1 / (p - 1)), 1.0, torch.linspace(0, 60, 600_001).double()
    while True:  # along z = (c s, s) / alpha: the first point beyond the line of solutions
        one, two = torch.expm1(c * z) / alpha, torch.expm1(z) / alpha
        if (end := two[(2 * one + two >= 2).int().argmax()].item()) < 0.05:
            break
        alpha *= 2
    ends[p] = {"alpha": f"{alpha:.0e}", "theta_2": round(end, 3)}
pd.DataFrame(ends).T.rename_axis("p")

# %% [markdown]
# The table shows the first power of two for $\alpha$ at which $\theta_2$ ends below .05. What counts is $\alpha$ times the size of the weights, here 1. At $p = 2$ some hundreds are enough, at $p = 4$ it takes thousands of times more, and at $p = \infty$, where $c = 1$, nothing is enough. The paper's theorem is about $p \ge 2$ and its statement is one of a limit; our source for it says
# that $p \to \infty$ is an open question. This toy shows why one cannot just set $p = \infty$ in it. In a network there are many samples: the signs of the gradients differ from weight to weight and from step to step, and that is what sign descent and Adam have to go by.
#
# ## HORST
#
# HORST is $M \circ S$ with the exponential mirror and Adam's direction, and weight decay as AdamW {cite:p}`loshchilov2019adamw` has it, with the strength $\lambda$. Its two lines are
#
# $$
# \theta_{1/2} = \theta - \eta A - \eta \lambda \theta, \qquad \theta' = \theta_{1/2} \exp\bigl(-\alpha\, \mathrm{sign}(\theta_{1/2})\, \eta A - \eta \beta\bigr) .
# $$ (eq-horst-update)
#
# In operators: first $\theta \leftarrow \theta - \eta \lambda \theta$, then $\theta \leftarrow \theta - (M \circ S)_\theta(\nabla f)$ with $S = \eta A$ and $M$ from {eq}`eq-horst-exponential`, whose $\beta$ is $\eta \beta$ here. No second gradient is needed, and nothing is stored beyond Adam's two moments.
#
# :::{prf:proposition} What one step does
# :label: prop-horst-displacement
# For a fixed direction $A$, and a learning rate that tends to zero,
#
# $$
# \theta' - \theta = -\eta \bigl[ (1 + \alpha \lvert \theta \rvert)\, A + (\lambda + \beta)\, \theta \bigr] + O(\eta^2) .
# $$ (eq-horst-displacement)
# :::
#
# :::{prf:proof}
# Apply {prf:ref}`prop-horst-first-order` at $\tilde\theta = (1 - \eta \lambda)\, \theta$, with $u = \eta A$ and $\eta \beta$ for $\beta$: then $c = \eta\, (\alpha \lvert A \rvert + \beta)$, and the error is $O(\eta^2)$. So $\theta' = \tilde\theta - \eta\, (1 + \alpha \lvert \tilde\theta \rvert) A - \eta \beta \tilde\theta + O(\eta^2)$.
# Replacing $\tilde\theta$ by $\theta$ in a term with $\eta$ costs $O(\eta^2)$ again, and $\tilde\theta = \theta - \eta \lambda \theta$. $\square$
# :::
#
# This sets the scale of $\alpha$: it matters where $\alpha \lvert \theta \rvert$ is about one or more. The weights of a small network are of the order .02 to .1, which asks for an $\alpha$ of 10 to 50.


# %%
# Two lines, and Adam in front of them.
def two_lines(theta, g, state, eta, alpha, beta, decay):
    A, state = op.adam()(theta, g, state)
    half = theta - eta * A - eta * decay * theta
    return half * (-alpha * half.sign() * eta * A - eta * beta).exp(), state


# %%
weight, ours, composed, states = nn.Parameter(theta.clone()), theta, theta, [None, None]
optimizer = Horst([weight], lr=0.01, alpha=20.0, beta=0.3, weight_decay=0.1)
options = {"lr": 0.01, "alpha": 20.0, "beta": 0.3, "weight_decay": 0.1}
for _ in range(10):
    weight.grad = torch.randn(7, generator=random).double()
    optimizer.step()
    ours, states[0] = two_lines(ours, weight.grad, states[0], 0.01, 20.0, 0.3, 0.1)
    composed, states[1] = op.horst(composed, weight.grad, states[1], **options)
assert_close(ours, composed)
assert_close(ours, weight.data)

# %% [markdown]
# Code: {py:func}`unrolled.horst.operators.horst`, the composition; {py:class}`unrolled.horst.optimizers.Horst`, the same as a `torch.optim.Optimizer` that is made for training.
#
# ### When it is AdamW
#
# Put $\alpha = \beta = 0$ into {eq}`eq-horst-update`: the exponential is 1, and what is left is AdamW. Put only $\alpha = 0$:
#
# $$
# \theta' = e^{-\eta \beta} \bigl[ (1 - \eta \lambda)\, \theta - \eta A \bigr] = \bigl( 1 - \eta\, (\lambda + \beta) \bigr)\, \theta - \eta A + O(\eta^2) .
# $$ (eq-horst-second-decay)
#
# That is AdamW too, but with a *second decay*: about $\lambda + \beta$ in place of $\lambda$ (and a step that is shorter by the factor $e^{-\eta \beta}$). A description of HORST in the words "$\alpha = 0$ recovers AdamW" is true with $\beta = 0$ only. If you compare $\alpha = 0$ with $\alpha > 0$ at a fixed $\beta$, you compare the mirror; if you
# compare HORST with AdamW, tune AdamW's decay too.
#
# **Predict before you run:** 100 steps on random gradients. Which of the three pairs agree, and how far?


# %%
# Largest distance between two optimizers after 100 steps on the same gradients.
def distance(one, two):
    weights = [nn.Parameter(theta.clone()) for _ in range(2)]
    optimizers, random = [one([weights[0]]), two([weights[1]])], torch.Generator().manual_seed(SEED)
    for _ in range(100):
        weights[0].grad = weights[1].grad = torch.randn(7, generator=random).double()
        [optimizer.step() for optimizer in optimizers]
    return (weights[0] - weights[1]).abs().max().item()


def adamw(decay):
    return lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=decay)


def horst(alpha, beta):
    return lambda params: Horst(params, lr=0.01, weight_decay=0.1, alpha=alpha, beta=beta)


# %%
exactly = distance(horst(0.0, 0.0), adamw(0.1))
assert exactly == 0  # to the last bit
distances = {
    "alpha = beta = 0, and AdamW": exactly,
    "beta = 0.5, and AdamW with the same decay": distance(horst(0.0, 0.5), adamw(0.1)),
    "beta = 0.5, and AdamW with decay + beta": distance(horst(0.0, 0.5), adamw(0.6)),
    "alpha = 20, and AdamW": distance(horst(20.0, 0.0), adamw(0.1)),
}
pd.Series(distances, name="largest distance").map("{:.3g}".format).to_frame()

# %% [markdown]
# ### Signs and zeros
#
# An exponential is positive. So the second line of {eq}`eq-horst-update` keeps every sign and every zero of $\theta_{1/2}$. The first line keeps neither: it changes the sign where $\eta A$ is larger than the weight, and it leaves zero wherever $A \ne 0$. HORST *concentrates* weights; it makes none of them exactly zero.
# And if some weights were pruned, their zeros survive the multiplication but not the step: the mask must be applied again after every step.

# %%
half, u = vector(0.5, 0.02, -0.02, 0), vector(0.05, 0.05, 0.05, 0.05)
rows = {"before": half, "after the addition": half - u}
rows["after both"] = half - op.exponential(20.0)(half, u, None)[0]
multiplied = half * (-20.0 * half.sign() * u).exp()
rows["the multiplication alone"] = multiplied
assert torch.equal(multiplied.sign(), half.sign())
pd.DataFrame({k: v.numpy().round(3) for k, v in rows.items()}).T

# %% [markdown]
# ## HAM, and exponents that explode
#
# An earlier optimizer of the group, HAM {cite:p}`jacobs2026ham`, drives the multiplication by the raw gradient $g$ and not by Adam's direction:
#
# $$
# \theta' = \theta_{1/2} \exp\bigl(-\eta\, (\alpha\, \mathrm{sign}(\theta_{1/2})\, g + \beta)\bigr) .
# $$ (eq-horst-ham)
#
# The same letter $\alpha$ means two things. In HORST the exponent is at most $\alpha \eta \lvert A \rvert$, and $\lvert A \rvert$ is bounded by {eq}`eq-horst-adam-bound`: near $\alpha \eta$ while gradients are steady. In HAM it is $\alpha \eta \lvert g \rvert$, and a gradient can have any size; the authors' $\alpha = 200$ for ImageNet does not carry over to HORST, or to another loss.
# Both optimizers here *clamp* the exponent to $\pm 5$, as the public code of HAM does: one step changes a weight by a factor of at most $e^5 \approx 148$. For HORST this is our choice; we do not know whether the paper's authors do so.
#
# One factor of $e^{\alpha \eta}$ is harmless if it is near 1. Adam's direction has a memory, so it goes on pushing for some steps after the solution was passed, and every further step multiplies. With $\alpha \eta$ above one this is no overshoot but an explosion.
#
# **Predict before you run:** the rate is .03. How large is the exponent for $\alpha = 20$, 100 and 300, and how large does the weight become?

# %%
LENGTH = {"smoke": 20}.get(PRESET, 60)


# The largest absolute weight after each step.
def sizes(optimizer, **options):
    weight = nn.Parameter(vector(0.3, 0))
    optimizer, found = optimizer([weight], lr=0.03, weight_decay=0.0, **options), []
    for _ in range(LENGTH):
        weight.grad = gradient_at(weight.data)
        optimizer.step()
        found.append(weight.abs().max().item())
    return found


# %% mystnb={"figure": {"name": "fig-horst-exponent", "caption": "Live runs from (0.3, 0) at the learning rate .03: the largest absolute weight after each step. The solution that the path of small steps leads to has a weight near 1."}, "image": {"alt": "For alpha 20 the weight stays near one, for 100 it overshoots several times, for 300 it rises to tens with the clamp and to thousands without", "width": "85%"}}
_, ax = plt.subplots(figsize=(7.2, 3.6))
steps = range(1, LENGTH + 1)
for alpha, dash in ((20.0, "-"), (100.0, "--"), (300.0, "-.")):
    ax.plot(steps, sizes(Horst, alpha=alpha), dash, label=rf"HORST, $\alpha$ = {alpha:g}")
ax.plot(
    steps, sizes(Horst, alpha=300.0, clamp=100.0), ":", label=r"HORST, $\alpha$ = 300, no clamp"
)
ax.plot(
    steps, sizes(Ham, alpha=20.0, beta=0.0), color="black", linewidth=1, label=r"HAM, $\alpha$ = 20"
)
ax.set(yscale="log", xlabel="step", ylabel=r"largest $\vert\theta_i\vert$")
ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
plt.show()

# %% [markdown]
# With $\alpha = 20$ the weight passes its solution and comes back. With 100 it overshoots several times over. With 300 the exponent of the first step is 9; the clamp makes it 5, and the weight is in the tens at once; without the clamp it is in the thousands. HAM with $\alpha = 20$ starts with an exponent well above 1, since the gradient is above 2 there. In our run it
# never settles: it jumps across the solution and back. This toy has one valley and forgives all of it. A network that was thrown that far need not come back.
#
# The clamp is a guard and no cure: it bounds a step, not a run. The cure is $\alpha \eta \ll 1$.
#
# ## What the paper says, and what we saw
#
# The claims of {cite:t}`jacobs2026horst` about networks (accuracy of pruned Vision Transformers, perplexity of pruned language models, weights that are sharp at zero) need networks. They belong to the later chapters of this part, with rows and seeds. Here are those about the operators themselves.
#
# | claim | paper | ours | scale | verdict |
# |---|---|---|---|---|
# | steepest operators are bounded and do not see scale | a definition and examples | proved: {prf:ref}`prop-horst-steepest`; Adam has a bound of about 7, {prf:ref}`prop-horst-adam-bound` | any | proved here |
# | mirror operators are linear and unbounded | as said | to first order: {eq}`eq-horst-mirror-step`, {prf:ref}`prop-horst-first-order` | any | proved here |
# | the order matters; in $S \circ M$ the steepest operator prevails | as said | exactly for the sign, {eq}`eq-horst-cancel`; for $L_p$ the power $1/(p-1)$ of the metric is left, all of it at $p = 2$ | any | proved here, with the exception of $p = 2$ |
# | $M \circ S$ has an $L_1$ bias | Theorem 4.7, for $p \ge 2$ | paths bend to the axes ({numref}`fig-horst-norms`); from equal weights not at $p = \infty$ | two weights, live | illustrated; the theorem is a matter of the next chapter |
# | $\alpha = 0$ recovers AdamW | as said | to the last bit with $\beta = 0$; with $\beta > 0$ a second decay | 100 steps, live | true with $\beta = 0$ |
# | no further evaluation of the gradient | as said | {eq}`eq-horst-update` has one | any | true by the formula |
#
# ## Deviations and choices
#
# | what | paper | here | why |
# |---|---|---|---|
# | proofs | not at hand | our own, elementary | a proof you can check |
# | values of $\alpha$, $\beta$, $\lambda$ | not known to us | $\alpha = 20$ and 100, in the toy | to make paths visible |
# | clamp of the exponent | not known to us | $\pm 5$ | HAM's public code has it |
# | which weights have a mirror | not known to us | all, here; matrices alone in networks | two weights need no rule |
# | order of decay and mirror | decay inside the first line | the same | |
#
# ## Exercises

# %% [markdown]
# :::{exercise} Predict: one step by hand
# :label: ex-horst-one-step
# A weight $\theta = 0.5$ has the gradient $g = -3$. What is it after the *first* step of HORST with $\eta = 0.01$, $\alpha = 20$ and $\beta = \lambda = 0$? (Three decimals.)
# :::

# %% tags=["exercise"]
answer = None  # your number
checks.horst_one_step(answer)

# %% [markdown]
# :::{solution} ex-horst-one-step
# :class: dropdown
# At the first step $A = \mathrm{sign}(g) = -1$. So $\theta_{1/2} = 0.51$, and the exponent is $-20 \cdot 1 \cdot (-0.01) = 0.2$.
#
# ```python
# answer = 0.51 * math.exp(0.2)
# ```
# :::

# %% [markdown]
# :::{exercise} Predict: who commutes?
# :label: ex-horst-commuting
# Which of these pairs commute, whatever $\theta$ and $g$ are? The rate is 0.1, the decay 0.1, and the metric $1 + \alpha \lvert \theta \rvert$ with $\alpha > 0$.
# Give the set of their names: `"gradient, sign"`, `"scale, metric"`, `"scale, sign"`, `"decay, metric"`, `"metric, sign"`, `"steepest 2, sign"`, `"metric 1, metric 2"` (two metrics with different $\alpha$).
# :::

# %% tags=["exercise"]
answer = None  # a set of names
checks.horst_commuting(answer)

# %% [markdown]
# :::{solution} ex-horst-commuting
# :class: dropdown
# The identity commutes with everything, and diagonal linear operators with each other. A sign behind a rate has length one, a rate behind a sign has not. Decay is affine in $g$: $D (g + \lambda \theta) \ne D g + \lambda \theta$. Two kinds of steepest descent: each forgets what the other did to the length.
#
# ```python
# answer = {"gradient, sign", "scale, metric", "metric 1, metric 2"}
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the potential of HORST's metric
# :label: ex-horst-potential
# The hyperbolic entropy has *nearly* the metric $1 + \alpha \lvert \theta \rvert$. Which potential has exactly this one? Return $\phi$ for each entry of a tensor, with $\phi(0) = \phi'(0) = 0$.
# :::


# %% tags=["exercise"]
def potential(theta, alpha): ...  # a tensor of the same shape


checks.horst_potential(potential)

# %% [markdown]
# :::{solution} ex-horst-potential
# :class: dropdown
# $\phi'' = 1 / (1 + \alpha \lvert \theta \rvert)$. Integrate once: the mirror coordinate $z$ of {eq}`eq-horst-flow`. Integrate again. For small $\alpha$ this is $\frac12 \theta^2$, for large $\alpha$ nearly $\lvert \theta \rvert$ times a logarithm.
#
# ```python
# def potential(theta, alpha):
#     x = alpha * theta.abs()
#     return ((1 + x) * torch.log1p(x) - x) / alpha**2
# ```
# :::

# %% [markdown]
# :::{exercise} Implement: its exact mirror step
# :label: ex-horst-mirror-step
# Take the mirror step {eq}`eq-horst-mirrored` with that potential: return the new weights. They may pass through zero.
# :::


# %% tags=["exercise"]
def mirror_step(theta, u, alpha): ...  # a tensor of the same shape


checks.horst_mirror_step(mirror_step)

# %% [markdown]
# :::{solution} ex-horst-mirror-step
# :class: dropdown
# Go to mirror coordinates, subtract, come back. Compare with {eq}`eq-horst-exponential`: where no weight changes its sign, this step is $(\theta + \frac{\mathrm{sign}(\theta)}{\alpha})\, e^{-\alpha\, \mathrm{sign}(\theta)\, u} - \frac{\mathrm{sign}(\theta)}{\alpha}$.
#
# ```python
# def mirror_step(theta, u, alpha):
#     z = theta.sign() * torch.log1p(alpha * theta.abs()) / alpha - u
#     return z.sign() * torch.expm1(alpha * z.abs()) / alpha
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: the decay that it comes to
# :label: ex-horst-total-decay
# With $\alpha = 0$, and for a weight whose gradient is always zero, HORST with $\lambda$ and $\beta$ is *exactly* AdamW with another decay. Which?
# :::


# %% tags=["exercise"]
def total_decay(lr, weight_decay, beta): ...  # a number


checks.horst_total_decay(total_decay)

# %% [markdown]
# :::{solution} ex-horst-total-decay
# :class: dropdown
# With $A = 0$ one step multiplies by $(1 - \eta \lambda)\, e^{-\eta \beta}$, and AdamW's by $1 - \eta \lambda'$. To first order $\lambda' = \lambda + \beta$.
#
# ```python
# def total_decay(lr, weight_decay, beta):
#     return (1 - (1 - lr * weight_decay) * math.exp(-lr * beta)) / lr
# ```
# :::

# %% [markdown]
# :::{exercise} Derive: how large can a weight get?
# :label: ex-horst-largest-weight
# A weight is pushed away from zero by a steady gradient: $\lvert A \rvert = 1$ for ever. With AdamW it stops at $1 / \lambda$, where the decay balances the step. Where does it stop with HORST, by {eq}`eq-horst-displacement`? If it does not stop, return `math.inf`.
# :::


# %% tags=["exercise"]
def largest_weight(alpha, beta, weight_decay): ...  # a number


checks.horst_largest_weight(largest_weight)

# %% [markdown]
# :::{solution} ex-horst-largest-weight
# :class: dropdown
# The weight grows by $1 + \alpha \lvert \theta \rvert$ and shrinks by $(\lambda + \beta) \lvert \theta \rvert$. There is a balance only if $\lambda + \beta > \alpha$: the mirror is a decay with the wrong sign. With $\alpha = 20$ and a decay of 0.1 nothing but the loss itself stops a weight.
#
# ```python
# def largest_weight(alpha, beta, weight_decay):
#     left = weight_decay + beta - alpha
#     return 1 / left if left > 0 else math.inf
# ```
# :::

# %% [markdown]
# :::{exercise} Extend: where the path ends
# :label: ex-horst-end-point
# In {numref}`fig-horst-orders` a path of $M \circ S$ starts at $(a, 0)$ with $0 \le a < 1$, and steps are small. At which point of the line $2 \theta_1 + \theta_2 = 2$ does it end, for a metric $1 + \alpha \lvert \theta \rvert$? When the checker is content, let $\alpha \to \infty$: how large must $a$ be, if $\theta_2$ shall end below .05? And what
# if $a = 0$?
# :::


# %% tags=["exercise"]
def end_point(a, alpha): ...  # two numbers, theta_1 and theta_2


checks.horst_end_point(end_point)

# %% [markdown]
# :::{solution} ex-horst-end-point
# :class: dropdown
# By {eq}`eq-horst-conserved` $(1 + \alpha \theta_1) / (1 + \alpha \theta_2) = 1 + \alpha a$, so $\theta_1 = a + (1 + \alpha a)\, \theta_2$. Put it into the line. For $\alpha \to \infty$ and fixed $a > 0$, $\theta_2 \approx (1 - a) / (\alpha a)$: any lead will do. For $a = 0$ the end is $(\frac23, \frac23)$, whatever $\alpha$ is.
#
# ```python
# def end_point(a, alpha):
#     second = 2 * (1 - a) / (3 + 2 * alpha * a)
#     return a + (1 + alpha * a) * second, second
# ```
# :::

# %% [markdown]
# ## Check yourself
#
# Answer each question in a sentence or two before you unfold its answer.
#
# **1.** Why does a mirror in front of a sign leave no trace?
#
# :::{dropdown} Answer
# Its metric is a positive factor for each weight, and a positive factor cannot change a sign: $\mathrm{sign}(D g) = \mathrm{sign}(g)$ ({eq}`eq-horst-cancel`).
# :::
#
# **2.** Which norm has sign descent as its steepest descent, and in which sense is Adam nearly that?
#
# :::{dropdown} Answer
# $L_\infty$. Without memory and $\epsilon$ Adam's direction is $u / \sqrt{u^2}$, the sign; with memory it is a sign that hesitates, and it stays bounded ({prf:ref}`prop-horst-adam-bound`).
# :::
#
# **3.** Your weights are of the order 0.05. At $\alpha = 1$, how much does the mirror change a step, and which $\alpha$ makes it matter?
#
# :::{dropdown} Answer
# By the factor $1 + 0.05$, so hardly. It matters where $\alpha \lvert \theta \rvert$ is about one or more, that is from $\alpha = 20$ on.
# :::
#
# **4.** You set $\alpha = 0$ in HORST and keep $\beta > 0$. Is that AdamW?
#
# :::{dropdown} Answer
# AdamW with a second decay: about $\lambda + \beta$ in place of $\lambda$, and a step that is shorter by the factor $e^{-\eta \beta}$ ({eq}`eq-horst-second-decay`). It is AdamW with its own decay only for $\beta = 0$.
# :::
#
# **5.** A pruned weight is zero. Does a step of HORST leave it there?
#
# :::{dropdown} Answer
# The multiplication does, the addition before it does not: wherever $A \ne 0$ the weight leaves zero. So the mask must be applied again after every step.
# :::

# %% [markdown]
# ## Where this came from

# %% tags=["hide-input"]
provenance.provenance() | {"device": provenance.device(), "preset": PRESET, "seed": SEED}
