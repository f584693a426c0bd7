"""Which arguments of timm's constructors are allowed as options of a model, and their bounds.

`timm.create_model` also takes options that read files, unpickle them or open the network (`checkpoint_path`,
`pretrained_cfg`, `hf_hub_id`, ...). The options of a model come from the headers of files too, so only those listed
here are passed on: they describe an architecture, and their values are single numbers, words and switches.
"""

import inspect
import math
import re
from collections.abc import Mapping

from torch import nn

from vitadel.core.errors import UsageError, unknown
from vitadel.models.spec import Option

_WHOLE = {
    "depth": (1, 256),
    "embed_dim": (1, 2**16),
    "num_heads": (1, 2**10),
    "head_dim": (1, 2**16),
    "key_dim": (1, 2**16),
    "reg_tokens": (0, 2**10),
    "depth_token_only": (1, 64),
    "cls_attn_layers": (1, 64),
    "window_size": (1, 2**10),
    "cardinality": (1, 2**10),
    "base_width": (1, 2**12),
    "stem_width": (1, 2**12),
    "stem_chs": (1, 2**12),
    "width_factor": (1, 2**6),
    "block_reduce_first": (1, 2**6),
    "output_stride": (8, 32),
}
_REAL = {
    "mlp_ratio": (0.01, 64.0),
    "mlp_ratio_token_only": (0.01, 64.0),
    "attn_ratio": (0.01, 64.0),
    "bottle_ratio": (0.01, 64.0),
    "init_values": (0.0, 1e3),
    "eta": (0.0, 1e3),
    "ls_init_value": (0.0, 1e3),
    "drop_rate": (0.0, 1.0),
    "pos_drop_rate": (0.0, 1.0),
    "patch_drop_rate": (0.0, 1.0),
    "proj_drop_rate": (0.0, 1.0),
    "attn_drop_rate": (0.0, 1.0),
    "drop_path_rate": (0.0, 1.0),
    "drop_block_rate": (0.0, 1.0),
}
_SWITCHES = {
    "always_partition",
    "avg_down",
    "basic",
    "class_token",
    "dynamic_img_pad",
    "dynamic_img_size",
    "fc_norm",
    "final_norm",
    "fix_init",
    "no_embed_class",
    "pool_include_prefix",
    "pre_norm",
    "preact",
    "proj_bias",
    "qk_norm",
    "qkv_bias",
    "replace_stem_pool",
    "scale_attn_norm",
    "scale_mlp_norm",
    "tokens_norm",
    "use_conv",
    "use_pos_embed",
    "zero_init_last",
}
# looked up in timm's tables of names
_WORDS = {
    "act_layer",
    "attn_act_layer",
    "down_op",
    "global_pool",
    "norm_layer",
    "pos_embed",
    "stem_type",
    "weight_init",
}
_WORD = re.compile(r"[a-z0-9_]{0,32}")
# options for which `load` has an argument
_ELSEWHERE = {"img_size": "image_size", "patch_size": "patch_size", "num_classes": "num_classes"}


def check_options(name: str, options: Mapping[str, Option], architectures: tuple[type[nn.Module], ...]) -> None:
    """Refuse options that do not describe an architecture, or values that no architecture has.

    Args:
        name: The model, for the error.
        options: What the caller or a file asks for.
        architectures: The classes that may be built; the first one's constructor narrows what is allowed.
    """
    known = {*_WHOLE, *_REAL, *_SWITCHES, *_WORDS}
    if architectures:
        known &= set(inspect.signature(architectures[0]).parameters)
    for option, value in options.items():
        if option in _ELSEWHERE:
            raise UsageError(f"{option} of {name} is no option. Say {_ELSEWHERE[option]}={value!r:.40} instead.")
        if option == "in_chans":
            if value != 3:
                raise UsageError(
                    f"images have 3 channels here, got in_chans={value!r:.40}. Leave it out; gray images are repeated."
                )
        elif option not in known:
            raise unknown(f"option of {name}", f"{option:.80}", known)
        else:
            _check_value(option, value)


def _check_value(option: str, value: object) -> None:
    if option in _WHOLE:
        low, high = _WHOLE[option]
        wanted = f"a whole number from {low} to {high}"
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    elif option in _REAL:
        least, most = _REAL[option]
        wanted = f"a number from {least:g} to {most:g}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number and math.isfinite(value) and least <= value <= most  # type: ignore[arg-type,operator]
    elif option in _SWITCHES:
        wanted, fits = "true or false", isinstance(value, bool)
    else:
        wanted, fits = "a word", isinstance(value, str) and _WORD.fullmatch(value) is not None
    if not fits:
        raise UsageError(f"the option {option} wants {wanted}, got {value!r:.60}.")
