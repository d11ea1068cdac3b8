"""Exercise checkers: they run your answer on hidden cases and name the likely mistake.

One function per exercise of the book. It takes your answer (a value or a function), never raises
on a wrong one, and returns a :py:class:`~unrolled.checks.result.CheckResult` whose text starts
with "Correct." or "Not yet:".

Examples
--------
>>> from unrolled import checks
>>> checks.looped_position_zero({"flt"})
Not yet: did you forget "attention" (LT_ia)? There too the old state enters by a query alone...
"""

from unrolled.checks.descent_dual_ascent import (
    descent_adam,
    descent_anchored_weights,
    descent_augmented,
    descent_calm_step,
    descent_cumulative_slacks,
    descent_leaky_step,
    descent_price,
)
from unrolled.checks.descent_language import (
    descent_adapter_gradients,
    descent_first_reading,
    descent_nearest_token,
    descent_noise_cosine,
    descent_sign_test,
    descent_translator,
    descent_win_rate_deviation,
)
from unrolled.checks.descent_networks import (
    descent_attention,
    descent_coupling_floor,
    descent_positive_threshold,
    descent_pull,
    descent_rises,
    descent_safe_step,
)
from unrolled.checks.descent_text import (
    descent_masked_mean,
    descent_mean_only,
    descent_privacy_shift,
    descent_random_text,
    descent_roc_auc,
    descent_uniform_width,
)
from unrolled.checks.descent_theory import (
    descent_decaying_shares,
    descent_deepest,
    descent_depth_needed,
    descent_kept_layers,
    descent_largest_shift,
    descent_samples_needed,
    descent_step_share,
)
from unrolled.checks.descent_video import (
    descent_blind_cooling,
    descent_collapse_level,
    descent_estimate_bias,
    descent_rescaling,
    descent_self_weight,
    descent_thresholds,
    descent_wiener_error,
)
from unrolled.checks.horst_bias import (
    horst_certificate,
    horst_limits,
    horst_sparsest_fit,
    horst_steps_to_reach,
    horst_stopping_size,
    horst_way,
)
from unrolled.checks.horst_operators import (
    horst_commuting,
    horst_end_point,
    horst_largest_weight,
    horst_mirror_step,
    horst_one_step,
    horst_potential,
    horst_total_decay,
)
from unrolled.checks.looped_depth import (
    looped_backwards,
    looped_doubling,
    looped_own_task,
    looped_plateau,
    looped_pointer_doubling,
    looped_reach,
)
from unrolled.checks.looped_equations import (
    looped_attention_only,
    looped_bptt,
    looped_first_gradient,
    looped_flops_factor,
    looped_gain,
    looped_position_zero,
    looped_stable_rate,
)
from unrolled.checks.looped_inference import (
    looped_best_loop,
    looped_exit_loop,
    looped_limit_distance,
    looped_loop_sampler,
    looped_loop_weights,
    looped_loops_needed,
    looped_weighted_loss,
)
from unrolled.checks.looped_instability import (
    looped_breaking_rate,
    looped_collapse,
    looped_identity_path,
    looped_norm_gradient,
    looped_oscillation,
    looped_unigram,
)
from unrolled.checks.looped_pretraining import (
    looped_bits_per_byte,
    looped_depth_price,
    looped_muon_reach,
    looped_own_variant,
    looped_polar,
    looped_seeds_needed,
)
from unrolled.checks.result import CheckResult

__all__ = [
    "CheckResult",
    "descent_adam",
    "descent_adapter_gradients",
    "descent_anchored_weights",
    "descent_attention",
    "descent_augmented",
    "descent_blind_cooling",
    "descent_calm_step",
    "descent_collapse_level",
    "descent_coupling_floor",
    "descent_cumulative_slacks",
    "descent_decaying_shares",
    "descent_deepest",
    "descent_depth_needed",
    "descent_estimate_bias",
    "descent_first_reading",
    "descent_kept_layers",
    "descent_largest_shift",
    "descent_leaky_step",
    "descent_masked_mean",
    "descent_mean_only",
    "descent_nearest_token",
    "descent_noise_cosine",
    "descent_positive_threshold",
    "descent_price",
    "descent_privacy_shift",
    "descent_pull",
    "descent_random_text",
    "descent_rescaling",
    "descent_rises",
    "descent_roc_auc",
    "descent_safe_step",
    "descent_samples_needed",
    "descent_self_weight",
    "descent_sign_test",
    "descent_step_share",
    "descent_thresholds",
    "descent_translator",
    "descent_uniform_width",
    "descent_wiener_error",
    "descent_win_rate_deviation",
    "horst_certificate",
    "horst_commuting",
    "horst_end_point",
    "horst_largest_weight",
    "horst_limits",
    "horst_mirror_step",
    "horst_one_step",
    "horst_potential",
    "horst_sparsest_fit",
    "horst_steps_to_reach",
    "horst_stopping_size",
    "horst_total_decay",
    "horst_way",
    "looped_attention_only",
    "looped_backwards",
    "looped_best_loop",
    "looped_bits_per_byte",
    "looped_bptt",
    "looped_breaking_rate",
    "looped_collapse",
    "looped_depth_price",
    "looped_doubling",
    "looped_exit_loop",
    "looped_first_gradient",
    "looped_flops_factor",
    "looped_gain",
    "looped_identity_path",
    "looped_limit_distance",
    "looped_loop_sampler",
    "looped_loop_weights",
    "looped_loops_needed",
    "looped_muon_reach",
    "looped_norm_gradient",
    "looped_oscillation",
    "looped_own_task",
    "looped_own_variant",
    "looped_plateau",
    "looped_pointer_doubling",
    "looped_polar",
    "looped_position_zero",
    "looped_reach",
    "looped_seeds_needed",
    "looped_stable_rate",
    "looped_unigram",
    "looped_weighted_loss",
]
