"""Which arguments of timm's constructors are allowed as options of a model, and their bounds.

`timm.create_model` also takes options that read files, unpickle them or access the network (`checkpoint_path`,
`pretrained_cfg`, `hf_hub_id`, ...). Options may come from the header of an untrusted file, so only those listed here
are passed on: they describe an architecture, and their values are single numbers, words and switches.
"""

import inspect
import re
from collections.abc import Collection, Mapping

from torch import nn

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.models.spec import Option

# words are looked up in timm's tables of names
_OPTIONS = {
    "blocks": "depth depth_token_only cls_attn_layers",
    "size": "base_width block_reduce_first cardinality embed_dim head_dim key_dim output_stride stem_chs stem_width "
    "window_size",
    "times": "num_heads width_factor",
    "count": "reg_tokens",
    "rate": "attn_drop_rate drop_block_rate drop_path_rate drop_rate patch_drop_rate pos_drop_rate proj_drop_rate",
    "factor": "attn_ratio bottle_ratio eta init_values ls_init_value mlp_ratio mlp_ratio_token_only",
    "switch": "always_partition avg_down basic class_token dynamic_img_pad dynamic_img_size fc_norm final_norm "
    "fix_init no_embed_class pool_include_prefix pre_norm preact proj_bias qk_norm qkv_bias replace_stem_pool "
    "scale_attn_norm scale_mlp_norm tokens_norm use_conv use_pos_embed zero_init_last",
    "word": "act_layer attn_act_layer down_op global_pool norm_layer pos_embed stem_type weight_init",
}
_KIND = {option: kind for kind, options in _OPTIONS.items() for option in options.split()}
_INTEGERS = {"blocks": (1, 256), "size": (1, 65_536), "times": (1, 1024), "count": (0, 65_536)}
_NUMBERS = {"rate": (0, 1), "factor": (0, 1000)}
_WORD = re.compile(r"[a-z0-9_]{0,32}")
# options for which `load` has an argument
_ELSEWHERE = {"img_size": "image_size", "patch_size": "patch_size", "num_classes": "num_classes"}


def check_options(
    name: str,
    options: Mapping[str, Option],
    architectures: tuple[type[nn.Module], ...] = (),
    *,
    allowed: Collection[str] | None = None,
) -> None:
    """Refuse options that do not describe an architecture, or values that no architecture has.

    Args:
        name: The model, for the error.
        options: The options given by the caller or a file.
        architectures: The classes that may be built; only arguments of the first one's constructor are allowed.
        allowed: The options of one of Vitadel's own architectures, whose name fixes everything else.
    """
    if allowed is not None and not allowed and options:
        raise UsageError(f"{name} takes no options, got {', '.join(options):.80}. Leave them out.")
    known = set(_KIND) if allowed is None else set(allowed) & set(_KIND)
    if architectures:
        known &= set(inspect.signature(architectures[0]).parameters)
    for option, value in options.items():
        if option in _ELSEWHERE:
            raise UsageError(f"{option} of {name} is not an option. Write {_ELSEWHERE[option]}={value!r:.40} instead.")
        if option == "in_chans" and allowed is None:
            if value != 3:
                raise UsageError(
                    f"images have 3 channels here, got in_chans={value!r:.40}. Leave it out; gray images are repeated."
                )
        elif option not in known:
            raise unknown_name_error(f"option of {name}", f"{option:.80}", known)
        else:
            _check_value(option, value)


def _check_value(option: str, value: object) -> None:
    kind = _KIND[option]
    if kind == "switch":
        wanted, fits = "true or false", isinstance(value, bool)
    elif kind == "word":
        wanted, fits = "a word", isinstance(value, str) and _WORD.fullmatch(value) is not None
    else:
        least, most = (_NUMBERS | _INTEGERS)[kind]
        wanted = f"a {'whole ' if kind in _INTEGERS else ''}number from {least} to {most}"
        number = isinstance(value, int if kind in _INTEGERS else (int, float)) and not isinstance(value, bool)
        fits = number and least <= value <= most  # type: ignore[operator]
    if not fits:
        raise UsageError(f"the option {option} must be {wanted}, got {value!r:.60}. Change it or leave it out.")
