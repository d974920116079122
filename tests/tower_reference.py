"""The towers a second time, in NumPy: sample by sample and head by head, in float64."""

import math

import numpy as np
from scipy.special import erf


def heads_of(q, k, v, heads, causal):
    """Attention of one sequence, head by head."""
    width = q.shape[1] // heads
    out = np.empty_like(q)
    for head in range(heads):
        at = slice(head * width, (head + 1) * width)
        logits = q[:, at] @ k[:, at].T / math.sqrt(width)
        if causal:
            logits[np.triu_indices(len(q), 1)] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[:, at] = weights / weights.sum(axis=1, keepdims=True) @ v[:, at]
    return out


class NumpyTowers:
    """Features from a state dict with published names, one sample at a time."""

    def __init__(self, state, image_heads, text_heads):
        self.state = {key: np.asarray(value, np.float64) for key, value in state.items()}
        self.image_heads, self.text_heads = image_heads, text_heads
        self.c = math.exp(self.state["curv"])

    def linear(self, x, name):
        return x @ self.state[f"{name}weight"].T + self.state[f"{name}bias"]

    def norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
        return x * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def layers(self, x, block, parts, heads, causal):
        number = 0
        while f"{block}.{number}.{parts.split()[0]}.weight" in self.state:
            norm1, qkv, out, norm2, up, down = (f"{block}.{number}.{p}" for p in parts.split())
            q, k, v = np.split(self.linear(self.norm(x, norm1), qkv), 3, axis=1)
            x = x + self.linear(heads_of(q, k, v, heads, causal), out)
            inside = self.linear(self.norm(x, norm2), up)
            x = x + self.linear(inside * (1 + erf(inside / math.sqrt(2))) / 2, down)
            number += 1
        return x

    def image_tangent(self, pixels):
        state = self.state
        kernel = state["visual.patch_embed.proj.weight"]
        mean, std = (state[f"pixel_{name}"].ravel() for name in ("mean", "std"))
        picture = (pixels / 255.0 - mean) / std
        patch = kernel.shape[-1]
        rows = [state["visual.cls_token"][0, 0]]
        for y in range(0, len(picture), patch):
            for x in range(0, len(picture), patch):
                cut = picture[y : y + patch, x : x + patch]
                seen = np.einsum("yxc,ocyx->o", cut, kernel)
                rows.append(seen + state["visual.patch_embed.proj.bias"])
        x = np.stack(rows) + state["visual.pos_embed"][0]
        parts = "norm1 attn.qkv. attn.proj. norm2 mlp.fc1. mlp.fc2."
        x = self.layers(x, "visual.blocks", parts, self.image_heads, False)
        return state["visual_proj.weight"] @ self.norm(x, "visual.norm")[0]

    def text_tangent(self, tokens):
        state = self.state
        x = np.stack([state["textual.token_embed.weight"][t] for t in tokens])
        x = x + state["textual.posit_embed"][: len(tokens)]
        parts = "ln_1 attn.in_proj_ attn.out_proj. ln_2 mlp.c_fc. mlp.c_proj."
        x = self.layers(x, "textual.resblocks", parts, self.text_heads, True)
        end = list(tokens).index(max(tokens))
        return state["textual_proj.weight"] @ self.norm(x, "textual.ln_final")[end]

    def exp_map0(self, v):
        n = math.sqrt(self.c) * np.linalg.norm(v)
        return math.sinh(min(max(n, 1e-8), math.asinh(2**15))) * v / max(n, 1e-8)

    def points(self, side, tangents):
        alpha = math.exp(self.state[f"{side}_alpha"])
        return np.stack([self.exp_map0(alpha * v) for v in tangents])

    def images(self, pixels):
        return self.points("visual", map(self.image_tangent, pixels))

    def texts(self, tokens):
        return self.points("textual", map(self.text_tangent, tokens))

    def prototypes(self, tokens, classes):
        tangents = np.stack([self.text_tangent(t) for t in tokens])
        means = [tangents[classes == c].mean(axis=0) for c in range(max(classes) + 1)]
        return self.points("textual", means)
