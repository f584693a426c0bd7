r"""TORA-ViT: a frozen ViT, an accuracy and a robustness adapter after every block, and a gate that fuses them.

A reconstruction: Li & Xu (2023, "Trade-off between Robustness and Accuracy of Vision Transformers") publish no code.
The figures they give, 111.2 M parameters and 26.0 GMAC on ViT-B/16, leave one bottleneck of D / 16 and one Q, K and V
per block. What they do not specify is chosen here:

* Adapters are `z + up(gelu(down(norm(z))))`, with `up` starting at zero.
* :math:`[ACC]_l` and :math:`[ROB]_l` are initialized with the class token. After block l they are updated by their
  adapter and by the block's update of the class token. The formula of the slides names the adapter alone, but an
  adapter processes each token by itself, so that no information about the image would reach these tokens
  (`recursion` has this reading and a third one).
* The gate is :math:`G_i = \mathrm{softmax}_i(Q K_i^\top)` over the two adapters, entry by entry, so each of its rows
  sums over N tokens: the result is divided by N (`normalization` has other readings). It is added to the residual
  stream, with V initialized to zero.
* New heads are initialized as copies of the old one if they have as many classes; of a distilled network, as the mean
  of its two.

So with the default settings, before training every head computes the frozen network's function up to rounding: the
added tokens change the order of sums, and logits differ by about 1e-7 of the largest in float32 and 1e-16 in float64
(tests/unit/models/test_models_tora.py).

Shape letters: B images, N tokens, D channels, H heads, d channels per head, A adapters.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.numeric import Count, check_ranges

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

NAMES = ("acc", "rob")
HEADS = ("joint", *NAMES, "kept")
_CHOICES = {
    "tuning": ("tora", "single", "head"),
    "gate": ("token-to-token", "per-token"),
    "softmax": ("adapter", "token", "joint"),
    "normalization": ("mean", "sqrt", "rows", "learned"),
    "recursion": ("block", "fusion", "literal"),
    "added_to": ("block", "adapters"),
    "initialization": ("zero", "layer-scale"),
    "prediction": ("logits", "probabilities"),
}
# the initial LayerScale of a fusion, as in CaiT with 24 blocks or more
_LAYER_SCALE = 1e-5


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The weights added to a frozen network.

    Args:
        tuning: `tora`, or a baseline of the paper: `single`, one adapter after every block with one new head, or
            `head`, two new heads and nothing else. The third baseline, AdapterFusion, is `gate="per-token"`.
        reduction: The width of a token divided by that of an adapter.
        gate: `token-to-token` weights per pair of tokens, or `per-token` weights.
        softmax: What the gate's weights sum to one over: the adapters (`adapter`), each adapter's tokens (`token`), or
            both (`joint`).
        normalization: What a gate over adapters, whose rows sum to the number N of tokens, is divided by: N (`mean`),
            its root (`sqrt`), each adapter's row by its sum (`rows`), or N and a learned factor per head (`learned`).
        recursion: How the adapters' tokens follow from those of the block before: `block` adds the change of the class
            token in the block, `fusion` the output of the fusion at the class token, `literal` nothing, as the formula
            of the slides, with which no information about the image reaches the heads.
        residual: Whether the fusion is added to the residual stream, or replaces it; then V starts as the identity,
            and only a gate per token preserves the function of the frozen network.
        added_to: What a fusion with `residual` is added to: the output of the `block`, or the mean of the outputs of
            both `adapters`, which then process every token of the stream directly.
        initialization: How a fusion with `residual` starts near zero: with V = 0 (`zero`), or with a learned factor per
            channel of 1e-5 (`layer-scale`).
        prediction: The joint output: the mean of the heads' `logits`, or the logarithm of the mean of their
            `probabilities`.
        head: The model's output: `joint`, the mean of the new heads, or one head: `acc`, `rob`, or `kept`, that of
            the frozen network.
    """

    former_names: ClassVar[dict[str, str]] = {"answer": "head"}

    tuning: str = "tora"
    reduction: Count = 16
    gate: str = "token-to-token"
    softmax: str = "adapter"
    normalization: str = "mean"
    recursion: str = "block"
    residual: bool = True
    added_to: str = "block"
    initialization: str = "zero"
    prediction: str = "logits"
    head: str = "joint"

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise unknown_name_error(f"AdapterConfig.{name}", f"{value!s:.80}", known)
        if not isinstance(self.residual, bool):
            raise UsageError(f"AdapterConfig.residual is true or false, got {self.residual!r:.80}. Write one of them.")
        if self.gate == "per-token" and self.softmax != "adapter":
            raise UsageError(f"a gate per token weights adapters only, got softmax={self.softmax!r}. Leave it out.")
        if self.normalization != "mean" and (self.gate, self.softmax) != ("token-to-token", "adapter"):
            raise UsageError(
                f"normalization={self.normalization!r} is for a gate=token-to-token with softmax=adapter: the rows of "
                "the others sum to one. Leave it out."
            )
        if not self.residual and self.initialization != "zero":
            raise UsageError("without a residual a fusion cannot start at zero. Leave the initialization out.")
        if not self.residual and self.added_to != "block":
            raise UsageError(
                f"without a residual a fusion is not added to anything, got added_to={self.added_to!r}. Leave it out."
            )
        heads = ("joint", *self.names, "kept")
        if self.head not in heads:
            raise unknown_name_error("head", f"{self.head!s:.80}", heads)

    @property
    def names(self) -> tuple[str, ...]:
        """The new heads."""
        return NAMES[:1] if self.tuning == "single" else NAMES


class Adapter(nn.Module):
    """A residual bottleneck MLP."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.down = nn.Linear(dim, width)
        self.act = nn.GELU()
        self.up = nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, z_BND: Tensor) -> Tensor:
        added: Tensor = self.up(self.act(self.down(self.norm(z_BND))))
        return z_BND + added


class GatedFusion(nn.Module):
    """The gated sum of both adapters' outputs; one Q, K and V for both."""

    def __init__(self, dim: int, heads: int, tuning: AdapterConfig) -> None:
        super().__init__()
        self.heads, self.tuning = heads, tuning
        self.scale = (dim // heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.gates = nn.Identity()  # gets the gate's weights, for hooks
        self.factor = nn.Parameter(torch.ones(heads, 1, 1)) if tuning.normalization == "learned" else None
        scaled = tuning.initialization == "layer-scale"
        self.layer_scale = nn.Parameter(torch.full((dim,), _LAYER_SCALE)) if scaled else None
        if not tuning.residual:
            nn.init.eye_(self.v.weight)
        elif not scaled:
            nn.init.zeros_(self.v.weight)
        nn.init.zeros_(self.v.bias)

    def forward(self, z_BND: Tensor, adapted_ABND: Tensor) -> Tensor:
        q_BHNd = self._split(self.q(z_BND)) * self.scale
        k_ABHNd, v_ABHNd = self._split(self.k(adapted_ABND)), self._split(self.v(adapted_ABND))
        mixed = self._per_token if self.tuning.gate == "per-token" else self._token_to_token
        fused_BND = mixed(q_BHNd, k_ABHNd, v_ABHNd).transpose(-3, -2).flatten(-2)
        return fused_BND if self.layer_scale is None else self.layer_scale * fused_BND

    def _per_token(self, q_BHNd: Tensor, k_ABHNd: Tensor, v_ABHNd: Tensor) -> Tensor:
        g_ABHN = self.gates((q_BHNd * k_ABHNd).sum(-1).softmax(0))
        return (g_ABHN.unsqueeze(-1) * v_ABHNd).sum(0)

    def _token_to_token(self, q_BHNd: Tensor, k_ABHNd: Tensor, v_ABHNd: Tensor) -> Tensor:
        if self.tuning.softmax == "adapter":
            return self._two_adapter_gate(q_BHNd, *k_ABHNd.unbind(0), *v_ABHNd.unbind(0))
        s_ABHNN = q_BHNd @ k_ABHNd.transpose(-2, -1)
        if self.tuning.softmax == "token":
            return (self.gates(s_ABHNN.softmax(-1)) @ v_ABHNd).mean(0)
        both = s_ABHNN.movedim(0, -2).flatten(-2).softmax(-1).unflatten(-1, (len(s_ABHNN), -1)).movedim(-2, 0)
        return (self.gates(both) @ v_ABHNd).sum(0)

    def _two_adapter_gate(self, q_BHNd: Tensor, k: Tensor, other_k: Tensor, v: Tensor, other_v: Tensor) -> Tensor:
        """A softmax over two is a sigmoid of the difference: half the scores, and half the products with values.

        With g the weight of the first, :math:`g v + (1 - g) v' = g (v - v') + v'`.
        """
        g_BHNN = (q_BHNd @ (k - other_k).transpose(-2, -1)).sigmoid()
        if self.gates._forward_hooks:
            self.gates(torch.stack([g_BHNN, 1 - g_BHNN]))
        tokens = g_BHNN.shape[-1]
        if self.tuning.normalization == "rows":
            return (_mean_by(g_BHNN, v) + _mean_by(1 - g_BHNN, other_v)) / 2
        sum_BHNd = g_BHNN @ (v - other_v) + other_v.sum(-2, keepdim=True)
        if self.factor is not None:
            sum_BHNd = self.factor * sum_BHNd
        return sum_BHNd / (tokens**0.5 if self.tuning.normalization == "sqrt" else tokens)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


def _mean_by(weights_BHNN: Tensor, v_BHNd: Tensor) -> Tensor:
    """The weighted mean of the values; the weights need not sum to one, and may all round to zero."""
    return weights_BHNN @ v_BHNd / weights_BHNN.sum(-1, keepdim=True).clamp_min(1e-6)


class FusionStep(nn.Module):
    """The layers after a block: each adapter with its own token, and the fusion of their outputs."""

    def __init__(self, adapters: Mapping[str, nn.Module], fusion: nn.Module, tuning: AdapterConfig) -> None:
        super().__init__()
        self.adapters, self.fusion, self.tuning = nn.ModuleDict(adapters), fusion, tuning

    def forward(self, before_BND: Tensor, z_BND: Tensor, tokens: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The residual stream and the adapters' tokens for the next block, from the stream around this one."""
        if self.tuning.recursion == "block":
            added_B1D = z_BND[:, :1] - before_BND[:, :1]
            tokens = {name: token + added_B1D for name, token in tokens.items()}
        adapted = {name: self.adapters[name](torch.cat([token, z_BND[:, 1:]], 1)) for name, token in tokens.items()}
        adapted_ABND = torch.stack(list(adapted.values()))
        fused_BND = self.fusion(z_BND, adapted_ABND)
        next_tokens = {name: one[:, :1].contiguous() for name, one in adapted.items()}
        if self.tuning.recursion == "fusion":
            next_tokens = {name: token + fused_BND[:, :1] for name, token in next_tokens.items()}
        if not self.tuning.residual:
            return fused_BND, next_tokens
        return fused_BND + (z_BND if self.tuning.added_to == "block" else adapted_ABND.mean(0)), next_tokens


class AdaptedViT(nn.Module):
    """A frozen ViT with adapters, gates and new heads."""

    def __init__(self, backbone: "VisionTransformer", tuning: AdapterConfig, num_classes: int) -> None:
        super().__init__()
        _check(backbone)
        dim, depth, self.tuning = backbone.embed_dim, len(backbone.blocks), tuning
        self.backbone = backbone.requires_grad_(False)
        width = dim // tuning.reduction
        if width < 1:
            raise UsageError(f"a reduction by {tuning.reduction} leaves no channels of {dim}. Choose a smaller one.")
        self.heads = nn.ModuleDict({name: _head(backbone, num_classes) for name in tuning.names})
        adapted = tuning.names if tuning.tuning != "head" else ()
        self.tokens = nn.ParameterDict({name: nn.Parameter(_class_token(backbone)) for name in adapted})
        self.adapters = nn.ModuleDict(
            {name: nn.ModuleList(Adapter(dim, width) for _ in range(depth)) for name in adapted}
        )
        fused = depth if tuning.tuning == "tora" else 0
        heads = backbone.blocks[0].attn.num_heads
        self.fusions = nn.ModuleList(GatedFusion(dim, heads, tuning) for _ in range(fused))
        # the same modules grouped by block, for compilation; a plain list, so that weights are registered once
        self.fused = [
            FusionStep({name: self.adapters[name][number] for name in adapted}, fusion, tuning)  # type: ignore[index]
            for number, fusion in enumerate(self.fusions)
        ]
        self.num_classes = num_classes
        self.pretrained_cfg = {"classifier": (*(f"heads.{name}" for name in tuning.names), "backbone.head")}

    def parts(self, *names: str) -> Iterator[nn.Parameter]:
        """The weights of some parts: `acc`, `rob` (adapters, token and head), `fusion`."""
        for name in names:
            if name == "fusion":
                yield from self.fusions.parameters()
            else:
                for group in (self.tokens, self.adapters, self.heads):
                    if name in group:
                        part = group[name]
                        yield from [part] if isinstance(part, nn.Parameter) else part.parameters()

    def train(self, mode: bool = True) -> "AdaptedViT":
        """Set the mode of all but the frozen network, which stays in evaluation mode, without dropout."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.select(self.logits_by_head(x))

    def select(self, logits: dict[str, Tensor]) -> Tensor:
        """The model's output from the logits of every head, as `tuning.head` says."""
        if self.tuning.head != "joint":
            return logits[self.tuning.head]
        heads_ABK = torch.stack([logits[name] for name in self.tuning.names])
        if self.tuning.prediction == "logits":
            return heads_ABK.mean(0)
        return heads_ABK.log_softmax(-1).logsumexp(0) - math.log(len(heads_ABK))

    def logits_by_head(self, x: Tensor) -> dict[str, Tensor]:
        """The logits of every head; `kept` is that of the frozen network."""
        net = self.backbone
        z_BND = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))
        tokens = {name: token.expand(len(x), -1, -1) for name, token in self.tokens.items()}
        if self.tuning.tuning == "single":  # the new token replaces the class token
            z_BND = torch.cat([tokens["acc"], z_BND[:, 1:]], 1)
        if self.fused and _needs_gradient(x, self):
            z_BND, tokens = _with_gradient(z_BND), {name: _with_gradient(token) for name, token in tokens.items()}
        for number, block in enumerate(net.blocks):
            z_BND, tokens = self._after(number, z_BND, block(z_BND), tokens)
        z_BND = net.norm(z_BND)
        final = {name: net.norm(token)[:, 0] for name, token in tokens.items()} if self.fusions else {}
        logits = {
            name: head(self._before_head(final.get(name, z_BND[:, 0]), z_BND)) for name, head in self.heads.items()
        }
        return {**logits, "kept": net.forward_head(z_BND)}

    def _before_head(self, token_BD: Tensor, z_BND: Tensor) -> Tensor:
        """The input of a head: a token, concatenated with the distillation token of a network that has one."""
        if hasattr(self.backbone, "head_dist"):
            return torch.cat([token_BD, z_BND[:, 1]], 1)
        normed_BD: Tensor = self.backbone.fc_norm(token_BD)
        return normed_BD

    def _after(
        self, number: int, before_BND: Tensor, z_BND: Tensor, tokens: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The residual stream for the next block and the adapters' tokens, after block `number`."""
        if not self.adapters:
            return z_BND, tokens
        if not self.fusions:
            return self.adapters["acc"][number](z_BND), tokens  # type: ignore[index]
        result: tuple[Tensor, dict[str, Tensor]] = self.fused[number](before_BND, z_BND, tokens)
        return result


def make_adapted_vit(backbone: nn.Module, tuning: AdapterConfig, num_classes: int) -> AdaptedViT:
    """The network, copied and frozen, with adapters."""
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(backbone, VisionTransformer):
        raise UsageError(f"adapters are for timm's ViT and DeiT, got {type(backbone).__name__}. Choose one of these.")
    return AdaptedViT(copy.deepcopy(backbone), tuning, num_classes)


def _check(backbone: "VisionTransformer") -> None:
    if backbone.cls_token is None or backbone.global_pool != "token":
        raise UsageError(
            "adapters take the place of the class token, and this network has none or does not read it "
            f"(global_pool={backbone.global_pool!r}). Choose a ViT with a class token."
        )
    if not all(hasattr(block, "attn") for block in backbone.blocks):
        raise UsageError("adapters follow blocks with one attention and one MLP. Choose a plain ViT or DeiT.")


def _class_token(backbone: "VisionTransformer") -> Tensor:
    """[1, 1, D]: the class token with its position, as it enters the first block."""
    with torch.no_grad():
        side = backbone.patch_embed.img_size[0] if backbone.patch_embed.img_size is not None else 224
        grid = backbone.patch_embed(
            torch.zeros(1, backbone.patch_embed.proj.in_channels, side, side).to(backbone.cls_token)
        )
        return backbone.norm_pre(backbone._pos_embed(grid))[:, :1].clone()


def _needs_gradient(x: Tensor, net: AdaptedViT) -> bool:
    """Whether a gradient is computed; False if the network is compiled as a whole."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(weight.requires_grad for weight in net.parts(*NAMES, "fusion"))


def _with_gradient(x: Tensor) -> Tensor:
    """Contiguous and with a gradient, as the inputs of later blocks are, so that blocks are not recompiled."""
    return x.contiguous() if x.requires_grad else x.detach().contiguous().requires_grad_()


def _head(backbone: "VisionTransformer", num_classes: int) -> nn.Linear:
    """A copy of the old head; for a distilled network, the mean of both heads on two concatenated tokens."""
    old = [backbone.head, *([backbone.head_dist] if hasattr(backbone, "head_dist") else [])]
    head = nn.Linear(len(old) * backbone.embed_dim, num_classes)
    if all(isinstance(one, nn.Linear) and one.out_features == num_classes for one in old):
        with torch.no_grad():
            head.weight.copy_(torch.cat([one.weight for one in old], 1) / len(old))
            head.bias.copy_(torch.stack([one.bias for one in old]).mean(0))
    return head
